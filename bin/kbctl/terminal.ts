// The terminal backend: key combinations typed into the terminal of control-kbctl, while it has the focus.

import { emitKeypressEvents } from 'node:readline';
import { BackendError } from './listener.ts';
import type { Action, Binding, Combination } from './keys.ts';
import type { Listener, ListenerEvents } from './listener.ts';
import type { Key } from 'node:readline';

const [CTRL_C, CTRL_D, CTRL_Z] = ['\x03', '\x04', '\x1a'];
const RESUME_MS = 100; // after a SIGTSTP without effect

/** Keys that work in addition to the combinations. */
const PLAIN_KEYS: readonly (readonly [sequence: string, Action])[] = [
  ['p', 'pause'], ['r', 'resume'], ['q', 'quit'], [CTRL_C, 'quit'], [CTRL_D, 'quit'],
];

// ───── The listener ──────────────────────────────────────────────────────────────────────────────────────────────

export async function listenTerminal(bindings: readonly Binding[], events: ListenerEvents): Promise<Listener> {
  const { stdin } = process;
  if (!stdin.isTTY) throw new BackendError('standard input is not a terminal');
  const actions = new Map(PLAIN_KEYS);
  const working = bindings.filter(({ action, combination, option }) => {
    const sequences = sequencesOf(combination);
    for (const sequence of sequences) actions.set(sequence, action);
    if (sequences.length > 0) return true;
    const problem = `terminals cannot distinguish ${combination.name} from other keys`;
    events.onNotice(`${problem}; set ${option} to another combination`);
    return false;
  });

  let resumeTimer: NodeJS.Timeout | undefined;
  let isClosed = false;
  const onHangUp = (): void => {
    isClosed = true;
    events.onEnd('the terminal was closed');
  };
  const onKey = (_: string | undefined, { sequence = '' }: Key): void => {
    const action = actions.get(sequence);
    if (action !== undefined) events.onPress(action);
    if (sequence === CTRL_Z && process.platform !== 'win32') stop();
  };
  /** Returns the terminal to the shell until `fg`: stops the whole job, as Ctrl-Z outside raw mode does. */
  const stop = (): void => {
    stdin.setRawMode(false);
    resumeTimer = setTimeout(resume, RESUME_MS);
    process.kill(0, 'SIGTSTP');
  };
  /** Sets raw mode again. Node skips a mode that it believes is set, although the shell has changed it. */
  const resume = (): void => {
    stdin.setRawMode(false);
    stdin.setRawMode(true);
  };

  emitKeypressEvents(stdin);
  stdin.setRawMode(true);
  stdin.on('keypress', onKey).on('end', onHangUp).on('error', onHangUp);
  process.on('SIGCONT', resume);
  return {
    source: 'this terminal while it has the focus; p, r and q also work',
    bindings: working,
    close(): void {
      clearTimeout(resumeTimer);
      process.off('SIGCONT', resume);
      stdin.off('keypress', onKey).off('end', onHangUp).off('error', onHangUp);
      if (!isClosed) stdin.setRawMode(false);
      stdin.pause();
    },
  };
}

// ───── What terminals send ───────────────────────────────────────────────────────────────────────────────────────
//
//   Alt+p  ESC p      Alt+Shift+P  ESC P, or P + 128 as a character      Ctrl+P  0x10      Ctrl+Alt+P  ESC 0x10
//   F5  ESC [ 15 ~   F1  ESC O P   Alt+F5  ESC [ 15 ; 3 ~   Alt+F1  ESC [ 1 ; 3 P   3 = 1 + shift 1 + alt 2 + ctrl 4

/** What follows ESC [ for keys that type no character. */
const KEY_CODES: Readonly<Record<string, string>> = {
  F1: 'P', F2: 'Q', F3: 'R', F4: 'S', F5: '15~', F6: '17~', F7: '18~', F8: '19~', F9: '20~', F10: '21~', F11: '23~',
  F12: '24~', Up: 'A', Down: 'B', Right: 'C', Left: 'D', Home: 'H', End: 'F', Insert: '2~', Delete: '3~', PageUp: '5~',
  PageDown: '6~',
};

/** Additional sequences of the Linux console and older terminals. */
const OLDER_KEYS: Readonly<Record<string, string[]>> = {
  F1: ['\x1b[[A', '\x1b[11~'], F2: ['\x1b[[B', '\x1b[12~'], F3: ['\x1b[[C', '\x1b[13~'], F4: ['\x1b[[D', '\x1b[14~'],
  F5: ['\x1b[[E'],
};

/** What a Mac types, unless the terminal uses Option as Meta. */
const OPTION_CHARACTERS: Readonly<Record<string, string>> = {
  'Option+P': 'π', 'Option+Shift+P': '∏', 'Option+R': '®', 'Option+Shift+R': '‰', 'Option+Q': 'œ',
  'Option+Shift+Q': 'Œ',
};

/** With Ctrl, these are other keys, or quit or stop the program. */
const RESERVED_CTRL_LETTERS = 'CDHIJMZ';

/** Returns what terminals send for a combination; nothing if they cannot distinguish it from other keys. */
export function sequencesOf({ name, modifiers, key }: Combination): string[] {
  const [hasShift, hasAlt, hasCtrl] = [modifiers.has('shift'), modifiers.has('alt'), modifiers.has('ctrl')];
  if (modifiers.has('super')) return [];

  const code = KEY_CODES[key.name];
  if (code !== undefined) {
    const state = 1 + Number(hasShift) + 2 * Number(hasAlt) + 4 * Number(hasCtrl);
    if (state === 1) return [code.endsWith('~') ? `\x1b[${code}` : `\x1bO${code}`, ...(OLDER_KEYS[key.name] ?? [])];
    return [code.endsWith('~') ? `\x1b[${code.replace('~', `;${state}~`)}` : `\x1b[1;${state}${code}`];
  }

  if (key.keysym >= 0x7f) return []; // no character, or Tab, Enter, Esc, whose modifiers terminals ignore
  const isLetter = /^[A-Z]$/.test(key.name);
  if (hasCtrl) {
    if (!isLetter || hasShift || RESERVED_CTRL_LETTERS.includes(key.name)) return [];
    return [(hasAlt ? '\x1b' : '') + String.fromCharCode(key.keysym & 0x1f)];
  }
  const plain = String.fromCharCode(key.keysym);
  const character = hasShift ? plain.toUpperCase() : plain;
  if ((hasShift && !isLetter) || character === 'O' || character === '[') return []; // ESC O and ESC [ are prefixes
  const eightBits = String.fromCharCode(character.charCodeAt(0) + 128); // xterm, unless metaSendsEscape is on
  return [`\x1b${character}`, eightBits, OPTION_CHARACTERS[name] ?? []].flat();
}
