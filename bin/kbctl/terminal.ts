// The terminal of control-kbctl, and the terminal backend: key combinations typed into it, while it has the focus.

import { emitKeypressEvents, type Key } from 'node:readline';
import { CTRL_C, CTRL_D, CTRL_Z, jobState, type RawMode, startRawMode } from '../shared/terminal.ts';
import {
  type Action, BackendError, type Binding, type Combination, type Listener, type ListenerEvents,
} from './keys.ts';

// ───── The terminal ──────────────────────────────────────────────────────────────────────────────────────────────

/** Reads what is typed, so that the terminal does not show it. Ctrl-C and Ctrl-D quit, Ctrl-Z suspends. */
export class Terminal {
  readonly #quit: () => void;
  #rawMode: RawMode | null = null;
  #receive: (sequence: string) => void = () => {};
  #endListening: () => void = () => {};

  /** @param quit Called on Ctrl-C and Ctrl-D. */
  constructor(quit: () => void) {
    this.#quit = quit;
  }

  /** Whether the terminal shows nothing that is typed, not even ^C. */
  get isSilent(): boolean {
    return this.#rawMode?.isOn === true;
  }

  /** Silences the terminal while this job is in the foreground, if that can be detected. */
  silence(): void {
    if (process.stdin.isTTY && jobState() !== 'none') this.#start();
  }

  /**
   * Passes on what the terminal sends for each key, until the returned function is called.
   *
   * @param onHangUp Called when the terminal is closed.
   */
  listen(onKey: (sequence: string) => void, onHangUp: () => void): () => void {
    this.#start();
    [this.#receive, this.#endListening] = [onKey, onHangUp];
    return () => ([this.#receive, this.#endListening] = [() => {}, () => {}]);
  }

  /** Restores the terminal. */
  close(): void {
    if (this.#rawMode === null) return;
    this.#rawMode.end();
    process.stdin.off('keypress', this.#onKey).off('end', this.#onHangUp).off('error', this.#onHangUp).pause();
  }

  #start(): void {
    if (this.#rawMode !== null) return;
    this.#rawMode = startRawMode();
    emitKeypressEvents(process.stdin);
    process.stdin.on('keypress', this.#onKey).on('end', this.#onHangUp).on('error', this.#onHangUp);
  }

  readonly #onKey = (_: string | undefined, { sequence = '' }: Key): void => {
    if (sequence === CTRL_C || sequence === CTRL_D) this.#quit();
    else if (sequence === CTRL_Z) this.#rawMode?.suspend();
    else if (sequence === '\n') this.#rawMode?.renew(); // in raw mode, Enter is a carriage return
    else this.#receive(sequence);
  };

  readonly #onHangUp = (): void => this.#endListening();
}

// ───── The backend ───────────────────────────────────────────────────────────────────────────────────────────────

/** Keys that work in addition to the combinations. */
const PLAIN_KEYS: readonly (readonly [sequence: string, Action])[] = [['p', 'pause'], ['r', 'resume'], ['q', 'quit']];

export async function listenTerminal(
  terminal: Terminal,
  bindings: readonly Binding[],
  events: ListenerEvents,
): Promise<Listener> {
  if (!process.stdin.isTTY) throw new BackendError('standard input is not a terminal');
  const actions = new Map(PLAIN_KEYS);
  const working = bindings.filter(({ action, combination, option }) => {
    const sequences = sequencesOf(combination);
    for (const sequence of sequences) actions.set(sequence, action);
    if (sequences.length > 0) return true;
    const problem = `terminals cannot distinguish ${combination.name} from other keys`;
    events.onNotice(`${problem}; set ${option} to another combination`);
    return false;
  });
  const onKey = (sequence: string): void => {
    const action = actions.get(sequence);
    if (action !== undefined) events.onPress(action);
  };
  const close = terminal.listen(onKey, () => events.onEnd('the terminal was closed'));
  return { source: 'this terminal while it has the focus; p, r and q also work', bindings: working, close };
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

/** With Ctrl, these are other keys, or quit or stop control-kbctl. */
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
