// Key combinations typed into the controller's own terminal: where nothing else can listen, while that has the focus.

import { emitKeypressEvents } from 'node:readline';
import { CannotListen } from './listener.ts';
import type { Action, Binding, Combination } from './keys.ts';
import type { Listener, ListenerEvents } from './listener.ts';
import type { Key } from 'node:readline';

const [CTRL_C, CTRL_D, CTRL_Z] = ['\x03', '\x04', '\x1a'];
const RESUME_MS = 100; // after a signal to stop that had no effect

/** These serve besides the combinations. */
const PLAIN_KEYS: readonly (readonly [sequence: string, Action])[] = [
  ['p', 'pause'], ['r', 'resume'], ['q', 'quit'], [CTRL_C, 'quit'], [CTRL_D, 'quit'],
];

// ───── What terminals send ───────────────────────────────────────────────────────────────────────────────────────
//
//   Alt+p  ESC p      Alt+Shift+P  ESC P, or P + 128 as a character      Ctrl+P  0x10      Ctrl+Alt+P  ESC 0x10
//   F5  ESC [ 15 ~   F1  ESC O P   Alt+F5  ESC [ 15 ; 3 ~   Alt+F1  ESC [ 1 ; 3 P   3 = 1 + shift 1 + alt 2 + ctrl 4

/** What follows ESC [ for keys that write nothing. */
const KEY_CODES: Readonly<Record<string, string>> = {
  F1: 'P', F2: 'Q', F3: 'R', F4: 'S', F5: '15~', F6: '17~', F7: '18~', F8: '19~', F9: '20~', F10: '21~', F11: '23~',
  F12: '24~', Up: 'A', Down: 'B', Right: 'C', Left: 'D', Home: 'H', End: 'F', Insert: '2~', Delete: '3~', PageUp: '5~',
  PageDown: '6~',
};

/** What else the Linux console and older terminals send. */
const OLDER_KEYS: Readonly<Record<string, string[]>> = {
  F1: ['\x1b[[A', '\x1b[11~'], F2: ['\x1b[[B', '\x1b[12~'], F3: ['\x1b[[C', '\x1b[13~'], F4: ['\x1b[[D', '\x1b[14~'],
  F5: ['\x1b[[E'],
};

/** On a Mac, unless the terminal is told to use Option as Meta. */
const OPTION_CHARACTERS: Readonly<Record<string, string>> = {
  'Option+P': 'π', 'Option+Shift+P': '∏', 'Option+R': '®', 'Option+Shift+R': '‰', 'Option+Q': 'œ',
  'Option+Shift+Q': 'Œ',
};

/** Ctrl makes other keys of these, or they end the controller or stop it. */
const TAKEN_CTRL_LETTERS = 'CDHIJMZ';

/** What a terminal may send for a combination: nothing if it cannot be told from others. */
export function sequencesOf({ name, modifiers, key }: Combination): string[] {
  const [hasShift, hasAlt, hasCtrl] = [modifiers.has('shift'), modifiers.has('alt'), modifiers.has('ctrl')];
  if (modifiers.has('super')) return [];

  const code = KEY_CODES[key.name];
  if (code !== undefined) {
    const state = 1 + Number(hasShift) + 2 * Number(hasAlt) + 4 * Number(hasCtrl);
    if (state === 1) return [code.endsWith('~') ? `\x1b[${code}` : `\x1bO${code}`, ...(OLDER_KEYS[key.name] ?? [])];
    return [code.endsWith('~') ? `\x1b[${code.replace('~', `;${state}~`)}` : `\x1b[1;${state}${code}`];
  }

  if (key.keysym >= 0x7f) return []; // it writes nothing, and Tab, Enter, Esc have no modifiers in a terminal
  const isLetter = /^[A-Z]$/.test(key.name);
  if (hasCtrl) {
    if (!isLetter || hasShift || TAKEN_CTRL_LETTERS.includes(key.name)) return [];
    return [(hasAlt ? '\x1b' : '') + String.fromCharCode(key.keysym & 0x1f)];
  }
  const plain = String.fromCharCode(key.keysym);
  const character = hasShift ? plain.toUpperCase() : plain;
  if ((hasShift && !isLetter) || character === 'O' || character === '[') return []; // ESC O and ESC [ begin others
  const eightBits = String.fromCharCode(character.charCodeAt(0) + 128); // xterm, unless metaSendsEscape is on
  return [`\x1b${character}`, eightBits, OPTION_CHARACTERS[name] ?? []].flat();
}

// ───── The listener ──────────────────────────────────────────────────────────────────────────────────────────────

export async function listenTerminal(bindings: readonly Binding[], events: ListenerEvents): Promise<Listener> {
  const { stdin } = process;
  if (!stdin.isTTY) throw new CannotListen('standard input is not a terminal: start it in one');
  const actions = new Map(PLAIN_KEYS);
  const working = bindings.filter(({ action, combination, option }) => {
    const sequences = sequencesOf(combination);
    for (const sequence of sequences) actions.set(sequence, action);
    if (sequences.length > 0) return true;
    events.onNotice(`a terminal cannot tell ${combination.name} from other keys: ${option} takes another combination`);
    return false;
  });

  let resumeTimer: NodeJS.Timeout | undefined;
  let isGone = false;
  const onHangUp = (): void => {
    isGone = true;
    events.onEnd('the terminal is gone');
  };
  const onKey = (_: string | undefined, { sequence = '' }: Key): void => {
    const action = actions.get(sequence);
    if (action !== undefined) events.onPress(action);
    if (sequence === CTRL_Z && process.platform !== 'win32') stop();
  };
  /** Lets the shell have the terminal until `fg`: stops the whole job, as the terminal itself would. */
  const stop = (): void => {
    stdin.setRawMode(false);
    resumeTimer = setTimeout(resume, RESUME_MS);
    process.kill(0, 'SIGTSTP');
  };
  /** Takes the terminal back from a shell that has changed its mode meanwhile. */
  const resume = (): void => {
    stdin.setRawMode(false);
    stdin.setRawMode(true);
  };

  emitKeypressEvents(stdin);
  stdin.setRawMode(true);
  stdin.on('keypress', onKey).on('end', onHangUp).on('error', onHangUp);
  process.on('SIGCONT', resume);
  return {
    source: 'this terminal while it has the focus (p, r and q serve, too)',
    bindings: working,
    close(): void {
      clearTimeout(resumeTimer);
      process.off('SIGCONT', resume);
      stdin.off('keypress', onKey).off('end', onHangUp).off('error', onHangUp);
      if (!isGone) stdin.setRawMode(false);
      stdin.pause();
    },
  };
}
