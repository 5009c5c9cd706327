// Key combinations: bindings, syntax and key codes of each platform; what a backend is, and the order in which each
// platform tries them.

import { UsageError } from '../shared/cli.ts';

// ───── Bindings ──────────────────────────────────────────────────────────────────────────────────────────────────

export type Action = 'pause' | 'resume' | 'quit';

export interface Binding {
  action: Action;
  combination: Combination;
  /** The option that sets the combination: `--pause-key`. */
  option: string;
}

/**
 * Parses `--pause-key`, `--resume-key` and `--quit-key`; the defaults depend on the platform.
 *
 * @throws {UsageError} If one of them is invalid, or two are equal.
 */
export function parseBindings(
  values: { [A in Action as `${A}-key`]?: string | undefined },
  platform: NodeJS.Platform = process.platform,
): Binding[] {
  const defaults = { pause: 'alt+shift+p', resume: 'alt+shift+r', quit: platform === 'win32' ? 'alt+shift+q' : null };
  const bindings: Binding[] = [];
  for (const action of ['pause', 'resume', 'quit'] as const) {
    const text = values[`${action}-key`] ?? defaults[action];
    if (text === null) continue;
    const option = `--${action}-key`;
    const combination = parseCombination(option, text, platform);
    const twin = bindings.find((binding) => binding.combination.name === combination.name);
    if (twin !== undefined) {
      throw new UsageError(`${twin.option} and ${option} must differ, got ${combination.name} for both`);
    }
    bindings.push({ action, combination, option });
  }
  return bindings;
}

// ───── Combinations ──────────────────────────────────────────────────────────────────────────────────────────────

/** One key, and exactly those modifiers that must be held when it is pressed. */
export interface Combination {
  /** For the user: `Alt+Shift+P`. Unique for each combination. */
  name: string;
  modifiers: ReadonlySet<Modifier>;
  key: Key;
}

/**
 * Parses `alt+shift+p`, in any case and order, also in the syntax of pynput (`<alt>+<shift>+p`) or Electron
 * (`CommandOrControl+P`).
 *
 * @throws {UsageError} If it is not one key with a modifier other than shift; function keys need no modifier.
 */
export function parseCombination(option: string, text: string, platform: NodeJS.Platform): Combination {
  const refuse = (reason: string): never => {
    throw new UsageError(`${option} must be a key combination such as alt+shift+p, got '${text}': ${reason}`);
  };
  const modifiers = new Set<Modifier>();
  let key: Key | undefined;
  for (const part of text.split('+')) {
    const word = part.trim().replace(/^<(.+)>$/, '$1').toLowerCase();
    if (word === '') return refuse(text.trim() === '' ? 'it is empty' : 'a key is missing next to +');
    if (/^alt_?gr$/.test(word)) return refuse('AltGr is not supported');
    const modifier = readModifier(word, platform);
    if (modifier !== undefined) {
      if (modifiers.has(modifier)) return refuse(`duplicate modifier ${word}`);
      modifiers.add(modifier);
      continue;
    }
    const found = KEYS.get(KEY_ALIASES.get(word) ?? word);
    if (found === undefined) return refuse(`unknown key ${word}`);
    if (key !== undefined) return refuse(`more than one key: ${key.name} and ${found.name}`);
    key = found;
  }
  if (key === undefined) return refuse('the key is missing');
  if (platform === 'darwin' && Number.isNaN(key.mac)) return refuse(`a Mac has no ${key.name} key`);
  const isFunctionKey = /^F\d/.test(key.name);
  if (!isFunctionKey && !MODIFIERS.some((modifier) => modifier !== 'shift' && modifiers.has(modifier))) {
    return refuse('only function keys work without ctrl, alt or super');
  }
  const held = MODIFIERS.filter((modifier) => modifiers.has(modifier));
  const name = [...held.map((modifier) => nameModifier(modifier, platform)), key.name].join('+');
  return { name, modifiers, key };
}

// ───── Modifiers ─────────────────────────────────────────────────────────────────────────────────────────────────

export type Modifier = 'ctrl' | 'alt' | 'shift' | 'super';

const MODIFIERS: readonly Modifier[] = ['ctrl', 'alt', 'shift', 'super']; // in the order of printed names

const MODIFIER_ALIASES: ReadonlyMap<string, Modifier> = new Map<string, Modifier>([
  ['ctrl', 'ctrl'], ['control', 'ctrl'], ['alt', 'alt'], ['option', 'alt'], ['opt', 'alt'], ['shift', 'shift'],
  ['super', 'super'], ['meta', 'super'], ['cmd', 'super'], ['command', 'super'], ['win', 'super'], ['windows', 'super'],
]);

function readModifier(word: string, platform: NodeJS.Platform): Modifier | undefined {
  if (word === 'commandorcontrol' || word === 'cmdorctrl') return platform === 'darwin' ? 'super' : 'ctrl';
  return MODIFIER_ALIASES.get(word.replace(/_[lr]$/, '')); // pynput's alt_l, shift_r: either side counts
}

function nameModifier(modifier: Modifier, platform: NodeJS.Platform): string {
  if (platform === 'darwin' && modifier === 'alt') return 'Option';
  if (modifier === 'super') return platform === 'darwin' ? 'Command' : platform === 'win32' ? 'Win' : 'Super';
  return modifier.charAt(0).toUpperCase() + modifier.slice(1);
}

// ───── Keys: add a row to add a key ──────────────────────────────────────────────────────────────────────────────

export interface Key {
  name: string;
  /** X11: keysymdef.h. */
  keysym: number;
  /** Linux: KEY_… of input-event-codes.h, named after a US keyboard. */
  evdev: number;
  /** macOS: kVK_… of Carbon's Events.h; NaN if a Mac has no such key. */
  mac: number;
  /** Windows: VK_… of winuser.h. */
  windows: number;
}

// name, keysym (hexadecimal), evdev, mac, windows (hexadecimal)
const KEY_TABLE = `
  A 61 30 0 41           B 62 48 11 42          C 63 46 8 43           D 64 32 2 44           E 65 18 14 45
  F 66 33 3 46           G 67 34 5 47           H 68 35 4 48           I 69 23 34 49          J 6a 36 38 4a
  K 6b 37 40 4b          L 6c 38 37 4c          M 6d 50 46 4d          N 6e 49 45 4e          O 6f 24 31 4f
  P 70 25 35 50          Q 71 16 12 51          R 72 19 15 52          S 73 31 1 53           T 74 20 17 54
  U 75 22 32 55          V 76 47 9 56           W 77 17 13 57          X 78 45 7 58           Y 79 21 16 59
  Z 7a 44 6 5a
  0 30 11 29 30          1 31 2 18 31           2 32 3 19 32           3 33 4 20 33           4 34 5 21 34
  5 35 6 23 35           6 36 7 22 36           7 37 8 26 37           8 38 9 28 38           9 39 10 25 39
  F1 ffbe 59 122 70      F2 ffbf 60 120 71      F3 ffc0 61 99 72       F4 ffc1 62 118 73      F5 ffc2 63 96 74
  F6 ffc3 64 97 75       F7 ffc4 65 98 76       F8 ffc5 66 100 77      F9 ffc6 67 101 78      F10 ffc7 68 109 79
  F11 ffc8 87 103 7a     F12 ffc9 88 111 7b     F13 ffca 183 105 7c    F14 ffcb 184 107 7d    F15 ffcc 185 113 7e
  F16 ffcd 186 106 7f    F17 ffce 187 64 80     F18 ffcf 188 79 81     F19 ffd0 189 80 82     F20 ffd1 190 90 83
  F21 ffd2 191 - 84      F22 ffd3 192 - 85      F23 ffd4 193 - 86      F24 ffd5 194 - 87
  Space 20 57 49 20      Enter ff0d 28 36 0d    Tab ff09 15 48 09      Esc ff1b 1 53 1b       Backspace ff08 14 51 08
  Delete ffff 111 117 2e                        Insert ff63 110 - 2d   Home ff50 102 115 24   End ff57 107 119 23
  PageUp ff55 104 116 21                        PageDown ff56 109 121 22                      Pause ff13 119 - 13
  Up ff52 103 126 26     Down ff54 108 125 28   Left ff51 105 123 25   Right ff53 106 124 27
  ScrollLock ff14 70 - 91                       PrintScreen ff61 99 - 2c
  Minus 2d 12 27 bd      Equal 3d 13 24 bb      Comma 2c 51 43 bc      Period 2e 52 47 be     Slash 2f 53 44 bf
  Semicolon 3b 39 41 ba  Quote 27 40 39 de      Grave 60 41 50 c0      Backslash 5c 43 42 dc
  BracketLeft 5b 26 33 db                       BracketRight 5d 27 30 dd
`;

const KEYS: ReadonlyMap<string, Key> = new Map(
  [...KEY_TABLE.matchAll(/(\S+) (\S+) (\S+) (\S+) (\S+)/g)].map((row) => {
    const [, name = '', keysym, evdev, mac, windows] = row;
    const [hexKeysym, hexWindows] = [Number(`0x${keysym}`), Number(`0x${windows}`)];
    const key = { name, keysym: hexKeysym, evdev: Number(evdev), mac: Number(mac), windows: hexWindows };
    return [name.toLowerCase(), key];
  }),
);

/** The spellings of Electron and pynput, the characters, and what Option with P, R and Q types on a Mac. */
const KEY_ALIASES: ReadonlyMap<string, string> = new Map(Object.entries({
  return: 'enter', escape: 'esc', del: 'delete', ins: 'insert', page_up: 'pageup', pgup: 'pageup', pgdn: 'pagedown',
  page_down: 'pagedown', print_screen: 'printscreen', scroll_lock: 'scrolllock', '-': 'minus', '=': 'equal',
  ',': 'comma', '.': 'period', '/': 'slash', ';': 'semicolon', "'": 'quote', '`': 'grave', '[': 'bracketleft',
  ']': 'bracketright', '\\': 'backslash', π: 'p', '∏': 'p', '®': 'r', '‰': 'r', œ: 'q',
}));

// ───── Backends ──────────────────────────────────────────────────────────────────────────────────────────────────

export interface ListenerEvents {
  onPress(action: Action): void;
  /** Reports a problem to the user; the backend continues. */
  onNotice(text: string): void;
  /** The backend has failed. Not called after close(). */
  onEnd(reason: string): void;
}

export interface Listener {
  /** What it listens to, for the user: `X11 display :0`. */
  readonly source: string;
  /** The bindings that work; onNotice() has reported the others. */
  readonly bindings: readonly Binding[];
  /** Releases everything. */
  close(): void;
}

/** Why a backend cannot listen, and how to fix it. It has released everything. */
export class BackendError extends Error {}

// ───── The choice ────────────────────────────────────────────────────────────────────────────────────────────────

const BACKENDS = ['x11', 'evdev', 'terminal', 'macos', 'windows'] as const;
export type Backend = (typeof BACKENDS)[number];

/** The backends to try, the best first, and the reason. */
export interface Choice {
  backends: readonly Backend[];
  reason: string;
}

/** @throws {UsageError} If there is no backend of that name. */
export function chooseBackends(
  forced: string | undefined,
  platform: NodeJS.Platform = process.platform,
  env: NodeJS.ProcessEnv = process.env,
): Choice {
  if (forced !== undefined) return { backends: [parseBackend(forced)], reason: 'set by --backend' };
  if (platform === 'darwin') return { backends: ['macos', 'terminal'], reason: 'this is macOS' };
  if (platform === 'win32') return { backends: ['windows', 'terminal'], reason: 'this is Windows' };
  if (isWayland(platform, env)) return { backends: ['evdev', 'x11', 'terminal'], reason: 'WAYLAND_DISPLAY is set' };
  if (env['DISPLAY']) return { backends: ['x11', 'evdev', 'terminal'], reason: 'DISPLAY is set' };
  return { backends: ['evdev', 'terminal'], reason: 'DISPLAY is not set' };
}

/** Under Wayland, X11 receives keys only while an X11 window has the focus. */
export function isWayland(
  platform: NodeJS.Platform = process.platform,
  env: NodeJS.ProcessEnv = process.env,
): boolean {
  return platform === 'linux' && Boolean(env['WAYLAND_DISPLAY']);
}

function parseBackend(text: string): Backend {
  const backend = BACKENDS.find((one) => one === text);
  if (backend !== undefined) return backend;
  throw new UsageError(`--backend must be one of ${BACKENDS.join(', ')}, got '${text}'`);
}
