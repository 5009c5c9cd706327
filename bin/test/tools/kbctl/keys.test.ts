// Key combinations, the key table, held keys, the evdev backend, and what terminals send.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { UsageError } from '../../../shared/line/options.ts';
import { findKeyboards, listenEvdev } from '../../../kbctl/evdev.ts';
import { HeldKeys, parseBindings, parseCombination } from '../../../kbctl/keys.ts';
import { BackendError } from '../../../kbctl/listener.ts';
import { sequencesOf } from '../../../kbctl/terminal.ts';
import { makeFolder, makePipe, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from './helpers.ts';
import type { Layout, Modifier } from '../../../kbctl/keys.ts';
import type { ListenerEvents } from '../../../kbctl/listener.ts';
import type { TestContext } from 'node:test';

const PLATFORMS = ['linux', 'darwin', 'win32'] as const;

// ───── Combinations ──────────────────────────────────────────────────────────────────────────────────────────────

describe('key combinations', LIMIT, () => {
  /** The name on Linux, the spellings, and an irregular name on a Mac; null if a Mac has no such key. */
  const good: [name: string, spellings: string[], mac?: string | null][] = [
    ['Alt+Shift+P', ['alt+shift+p', 'SHIFT+Alt+P', ' shift + p +\talt ', 'option+shift+p', 'Opt+Shift+p']],
    ['Alt+Shift+P', ['<alt>+<shift>+p', '<shift_r>+<alt_l>+<P>', 'alt+shift+∏', 'alt+shift+π']],
    ['Alt+Shift+R', ['alt+shift+r', 'alt+shift+‰', '®+shift+alt']],
    ['Alt+Q', ['alt+q', 'alt+œ', 'Alt+Œ']],
    ['Ctrl+Alt+F5', ['<ctrl>+<alt>+<f5>', 'control+option+F5', 'F5+Ctrl_R+alt_r']],
    ['Super+A', ['<cmd_r>+a', 'cmd+a', 'Command+A', 'win+a', 'Windows+a', 'META+a', 'super_l+A']],
    ['Ctrl+P', ['CommandOrControl+P', 'cmdorctrl+p'], 'Command+P'],
    ['Ctrl+Shift+Z', ['CmdOrCtrl+Shift+Z'], 'Shift+Command+Z'],
    ['Super+Space', ['Super+Space', '<cmd>+<space>']], ['Ctrl+Esc', ['Control+Escape', '<ctrl>+<esc>']],
    ['Ctrl+Alt+Shift+Super+1', ['super+shift+alt+ctrl+1', '1+shift+ctrl+cmd+alt']],
    ['Alt+PageUp', ['Alt+PageUp', '<alt>+<page_up>', 'alt+pgup']],
    ['Alt+PageDown', ['Alt+PageDown', '<alt>+<page_down>', 'alt+pgdn']],
    ['Alt+Enter', ['Alt+Return', '<alt>+<enter>']], ['Alt+Delete', ['alt+del', '<alt>+<delete>']],
    ['Ctrl+Insert', ['ctrl+ins', '<ctrl>+<insert>'], null], ['Ctrl+Alt+Pause', ['ctrl+alt+pause'], null],
    ['Alt+PrintScreen', ['alt+PrintScreen', '<alt>+<print_screen>'], null],
    ['Alt+ScrollLock', ['alt+scrolllock', '<alt>+<scroll_lock>'], null],
    ...Object.entries({
      Minus: '-', Equal: '=', Comma: ',', Period: '.', Slash: '/', Semicolon: ';', Quote: "'", Grave: '`',
      BracketLeft: '[', BracketRight: ']', Backslash: '\\',
    }).map(([name, text]): [string, string[]] => [`Ctrl+${name}`, [`ctrl+${text}`, `CTRL+${name}`]]),
    ['F1', ['f1', '<f1>', ' F1 ']], ['F12', ['f12']], ['F13', ['F13']], ['F20', ['f20']], ['F24', ['F24'], null],
    ['Shift+F5', ['shift+f5']],
  ];
  it('may be spelled as in pynput, in Electron, or as a Mac types them', () => {
    for (const [name, spellings, mac] of good) {
      const usual = name.replace('Alt', 'Option').replace('Super', 'Command');
      const names = { linux: name, darwin: mac === undefined ? usual : mac, win32: name.replace('Super', 'Win') };
      for (const text of spellings) {
        for (const platform of PLATFORMS) {
          const parse = (): string => parseCombination('--x', text, platform).name;
          if (names[platform] !== null) assert.equal(parse(), names[platform], text);
          else assert.throws(parse, wrongKeys('--x', text, `a Mac has no ${name.split('+').at(-1)} key`));
        }
      }
    }
  });

  const twice = (word: string): string => `duplicate modifier ${word}`;
  const more = (keys: string): string => `more than one key: ${keys}`;
  const noKey = (word: string): string => `unknown key ${word}`;
  const bare = 'only function keys work without ctrl, alt or super';
  const [empty, nothing, missing] = ['it is empty', 'a key is missing next to +', 'the key is missing'];
  const altGr = 'AltGr is not supported';
  const bad: [text: string, why: string][] = [
    ['', empty], ['  ', empty], ['\t', empty], ['\n', empty],
    ['alt+', nothing], ['+p', nothing], ['alt++p', nothing], ['alt+ +p', nothing], ['+', nothing], ['++', nothing],
    ['alt+p+q', more('P and Q')], ['alt+p+p', more('P and P')], ['F1+space', more('F1 and Space')],
    ['alt', missing], ['alt+shift', missing], ['<ctrl>', missing], ['CommandOrControl', missing],
    ['alt+nokey', noKey('nokey')], ['alt+F25', noKey('f25')], ['alt+F0', noKey('f0')], ['alt+<>', noKey('<>')],
    ['alt-shift-p', noKey('alt-shift-p')], ['hyper+p', noKey('hyper')], ['alt+ä', noKey('ä')], ['f', bare],
    ['alt+constructor', noKey('constructor')], ['__proto__+p', noKey('__proto__')], ['alt+toString', noKey('tostring')],
    ['p', bare], ['Enter', bare], ['shift+p', bare], ['shift+space', bare],
    ['altgr+p', altGr], ['AltGr', altGr], ['<alt_gr>+p', altGr],
    ['alt+alt+p', twice('alt')], ['alt_l+alt_r+p', twice('alt_r')], ['cmd+win+p', twice('win')],
    [`alt+${'x'.repeat(10_000)}`, noKey('x'.repeat(10_000))],
  ];
  it('are rejected with the reason if they are invalid', () => {
    for (const [text, why] of bad) {
      for (const platform of PLATFORMS) {
        assert.throws(() => parseCombination('--pause-key', text, platform), wrongKeys('--pause-key', text, why));
      }
    }
  });

  it('have defaults for each platform, with a quit key only on Windows', () => {
    const defaults = PLATFORMS.map((platform) => {
      return parseBindings({}, platform).map(({ action, combination }) => `${action} ${combination.name}`).join(', ');
    });
    assert.deepEqual(defaults, [
      'pause Alt+Shift+P, resume Alt+Shift+R',
      'pause Option+Shift+P, resume Option+Shift+R',
      'pause Alt+Shift+P, resume Alt+Shift+R, quit Alt+Shift+Q',
    ]);
    const bindings = parseBindings({ 'quit-key': 'ctrl+alt+q', 'pause-key': 'f7' }, 'linux');
    assert.deepEqual(bindings.map(({ combination }) => combination.name), ['F7', 'Alt+Shift+R', 'Ctrl+Alt+Q']);
  });

  it('must differ between actions, in any spelling', () => {
    const equal: [values: Parameters<typeof parseBindings>[0], NodeJS.Platform, both: string, name: string][] = [
      [{ 'pause-key': 'ctrl+p', 'resume-key': 'ctrl+p' }, 'linux', '--pause-key and --resume-key', 'Ctrl+P'],
      [{ 'pause-key': 'CmdOrCtrl+P', 'resume-key': 'p+<ctrl>' }, 'linux', '--pause-key and --resume-key', 'Ctrl+P'],
      [{ 'pause-key': 'CmdOrCtrl+P', 'resume-key': 'cmd+p' }, 'darwin', '--pause-key and --resume-key', 'Command+P'],
      [{ 'resume-key': '<shift>+<option>+π' }, 'darwin', '--pause-key and --resume-key', 'Option+Shift+P'],
      [{ 'pause-key': 'R+shift+alt' }, 'linux', '--pause-key and --resume-key', 'Alt+Shift+R'],
      [{ 'quit-key': 'alt+shift+r' }, 'linux', '--resume-key and --quit-key', 'Alt+Shift+R'],
      [{ 'pause-key': 'alt+shift+q' }, 'win32', '--pause-key and --quit-key', 'Alt+Shift+Q'],
      [{ 'pause-key': 'f5', 'quit-key': '<F5>' }, 'linux', '--pause-key and --quit-key', 'F5'],
    ];
    for (const [values, platform, both, name] of equal) {
      const error = new UsageError(`${both} must differ, got ${name} for both`);
      assert.throws(() => parseBindings(values, platform), error);
    }
    assert.equal(parseBindings({ 'pause-key': 'CmdOrCtrl+P', 'resume-key': 'ctrl+p' }, 'darwin').length, 2);
  });
});

describe('the key table', LIMIT, () => {
  /** Linux: rows of a keyboard, from input-event-codes.h. */
  const EVDEV_ROWS: [first: number, keys: string][] = [
    [1, 'Esc 1 2 3 4 5 6 7 8 9 0 Minus Equal Backspace Tab Q W E R T Y U I O P BracketLeft BracketRight Enter'],
    [30, 'A S D F G H J K L Semicolon Quote Grave'], [43, 'Backslash Z X C V B N M Comma Period Slash'], [57, 'Space'],
    [59, 'F1 F2 F3 F4 F5 F6 F7 F8 F9 F10'], [70, 'ScrollLock'], [87, 'F11 F12'], [99, 'PrintScreen'],
    [102, 'Home Up PageUp Left Right End Down PageDown Insert Delete'], [119, 'Pause'],
    [183, 'F13 F14 F15 F16 F17 F18 F19 F20 F21 F22 F23 F24'],
  ];
  /** macOS: kVK_… of Events.h, in order; a dot is a code that no key here has. */
  const MAC_ROW =
    'A S D F H G Z X C V . B Q W E R Y T 1 2 3 4 6 5 Equal 9 7 Minus 8 0 BracketRight O U BracketLeft I P Enter L ' +
    'J Quote K Semicolon Backslash Comma Slash N M Period Tab Space Grave Backspace . Esc . . . . . . . . . . F17 . ' +
    '. . . . . . . . . . . . . F18 F19 . . . . . . . . . F20 . . . . . F5 F6 F7 F3 F8 F9 . F11 . F13 F16 F14 . F10 ' +
    '. F12 . F15 . Home PageUp Delete F4 End F2 PageDown F1 Left Right Down Up';
  /** X11 and Windows, from keysymdef.h and winuser.h, where they differ from the character. */
  const NAMED: Record<string, [keysym: number, windows: number]> = {
    Space: [0x20, 0x20], Enter: [0xff0d, 0x0d], Tab: [0xff09, 0x09], Esc: [0xff1b, 0x1b], Backspace: [0xff08, 0x08],
    Delete: [0xffff, 0x2e], Insert: [0xff63, 0x2d], Home: [0xff50, 0x24], End: [0xff57, 0x23], PageUp: [0xff55, 0x21],
    PageDown: [0xff56, 0x22], Pause: [0xff13, 0x13], Up: [0xff52, 0x26], Down: [0xff54, 0x28], Left: [0xff51, 0x25],
    Right: [0xff53, 0x27], ScrollLock: [0xff14, 0x91], PrintScreen: [0xff61, 0x2c], Minus: [0x2d, 0xbd],
    Equal: [0x3d, 0xbb], Comma: [0x2c, 0xbc], Period: [0x2e, 0xbe], Slash: [0x2f, 0xbf], Semicolon: [0x3b, 0xba],
    Quote: [0x27, 0xde], Grave: [0x60, 0xc0], Backslash: [0x5c, 0xdc], BracketLeft: [0x5b, 0xdb],
    BracketRight: [0x5d, 0xdd],
  };
  const codesOf = (name: string): [keysym: number, windows: number] => {
    if (/^F\d/.test(name)) return [0xffbd + Number(name.slice(1)), 0x6f + Number(name.slice(1))];
    return NAMED[name] ?? [name.toLowerCase().charCodeAt(0), name.charCodeAt(0)];
  };

  it('has the codes of each platform', () => {
    const macCodes = MAC_ROW.split(' ');
    let count = 0;
    for (const [first, keys] of EVDEV_ROWS) {
      for (const [index, name] of keys.split(' ').entries()) {
        const { key } = parseCombination('--x', `ctrl+${name}`, 'linux');
        const [keysym, windows] = codesOf(name);
        const mac = macCodes.includes(name) ? macCodes.indexOf(name) : NaN;
        assert.deepEqual(key, { name, keysym, evdev: first + index, mac, windows });
        count += 1;
      }
    }
    assert.equal(count, 26 + 10 + 24 + Object.keys(NAMED).length);
  });
});

function wrongKeys(option: string, text: string, why: string): UsageError {
  return new UsageError(`${option} must be a key combination such as alt+shift+p, got '${text}': ${why}`);
}

// ───── Keys held, and evdev ──────────────────────────────────────────────────────────────────────────────────────

/** Linux codes; R is the right-hand side. */
const MODIFIER_CODES = { shift: 42, shiftR: 54, ctrl: 29, ctrlR: 97, alt: 56, altR: 100, super: 125, superR: 126 };
const CODES: Readonly<Record<string, number>> = { ...MODIFIER_CODES, p: 25, r: 19, x: 45, f9: 67 };
const MODIFIERS = new Map(Object.entries(MODIFIER_CODES).map(([name, code]) => {
  return [code, name.replace('R', '') as Modifier];
}));
const HELD_BINDINGS = parseBindings({ 'quit-key': 'F9' }, 'linux');

/** Keys that go down (+), up (-) or repeat (=), on keyboard 0 or the one after the @, and the resulting actions. */
const HELD: [what: string, keys: string, actions: string][] = [
  ['modifiers in order', '+alt +shift +p -p -shift -alt', 'pause'],
  ['modifiers in another order', '+shift +alt +r -r -alt -shift', 'resume'],
  ['modifiers of the right-hand side', '+altR +shiftR +p', 'pause'],
  ['one of each side', '+alt +shiftR +r', 'resume'],
  ['both sides, one released', '+alt +altR +shift -alt +p', 'pause'],
  ['both sides, both released', '+alt +altR +shift -alt -altR +p', ''],
  ['an extra modifier', '+ctrl +alt +shift +p', ''],
  ['another extra modifier', '+alt +shift +superR +p', ''],
  ['an extra modifier that is released', '+ctrl +alt +shift -ctrl +p', 'pause'],
  ['a missing modifier', '+alt +p -p -alt +shift +p', ''],
  ['the key first', '+p +alt +shift =p', ''],
  ['auto-repeat of the key', '+alt +shift +p =p =p =p -p', 'pause'],
  ['auto-repeat of a modifier', '+alt =alt =alt +shift =shift +p', 'pause'],
  ['two presses while the modifiers are held', '+alt +shift +p -p +p -p +r', 'pause pause resume'],
  ['another key is held', '+x +alt +shift +p', 'pause'],
  ['modifiers on one keyboard, key on another', '+alt +shift +p@1', 'pause'],
  ['modifiers on both keyboards', '+alt +shift@1 +r', 'resume'],
  ['the same modifier on both keyboards, one released', '+alt +alt@1 +shift -alt +p', 'pause'],
  ['a modifier released on the wrong keyboard', '+alt +shift -alt@1 +p', 'pause'],
];

function readKeys(keys: string): { sign: string; code: number; keyboard: number }[] {
  return keys.split(' ').map((word) => {
    const [name, keyboard = '0'] = word.slice(1).split('@') as [string, string?];
    return { sign: word.charAt(0), code: CODES[name] as number, keyboard: Number(keyboard) };
  });
}

function makeHeldKeys(): HeldKeys {
  const bindings: Layout['bindings'] = HELD_BINDINGS.map((binding) => [binding.combination.key.evdev, binding]);
  return new HeldKeys({ modifiers: MODIFIERS, bindings });
}

describe('HeldKeys', LIMIT, () => {
  it('ignores other keys, and reports which keys were held', () => {
    const held = makeHeldKeys();
    assert.equal(held.press(45), null);
    assert.deepEqual([held.release(45), held.release(25)], [false, false]);
    held.press(25);
    assert.deepEqual([held.release(25, 'other'), held.release(25), held.release(25)], [false, true, false]);
    held.reset([45]);
    assert.equal(held.release(45), false);
  });

  it('reset() replaces the held keys of one keyboard', () => {
    const held = makeHeldKeys();
    held.press(29);
    held.press(42, 'other');
    held.reset([56, 45]); // Ctrl went up and Alt went down, unnoticed
    assert.equal(held.press(25), 'pause');
    held.reset([56, 25]);
    assert.equal(held.press(25), null);
    held.reset([]);
    assert.equal(held.press(25), null);
    held.reset([56], 'other');
    held.press(42);
    assert.equal(held.press(19), 'resume');
  });

  it('selects the combination by its modifiers when several have the same key', () => {
    const bindings = parseBindings({ 'pause-key': 'alt+p', 'resume-key': 'ctrl+p', 'quit-key': 'p+super' }, 'linux');
    const held = new HeldKeys({ modifiers: MODIFIERS, bindings: bindings.map((one) => [25, one]) });
    held.press(29);
    assert.equal(held.press(25), 'resume');
    held.reset([125]);
    assert.equal(held.press(25), 'quit');
  });
});

const LONG_BYTES = ['arm', 'ia32'].includes(process.arch) ? 4 : 8;
const [EV_SYN, EV_KEY, EV_MSC] = [0, 1, 4];
const [SYN_REPORT, SYN_DROPPED] = [0, 3];

let clock = Date.now(); // each event is later than the previous one, on any keyboard

/** A struct input_event. */
function inputEvent(type: number, code: number, value: number, at: number = (clock += 1)): Buffer {
  const event = Buffer.alloc(2 * LONG_BYTES + 8);
  event.writeUInt32LE(Math.floor(at / 1000), 0);
  event.writeUInt32LE((Math.floor(at) % 1000) * 1000, LONG_BYTES);
  event.writeUInt16LE(type, 2 * LONG_BYTES);
  event.writeUInt16LE(code, 2 * LONG_BYTES + 2);
  event.writeInt32LE(value, 2 * LONG_BYTES + 4);
  return event;
}

/** What a keyboard reports for a key: scan code, key, end of the report. */
function keyEvents(sign: string, code: number): Buffer {
  const key = inputEvent(EV_KEY, code, ['-', '+', '='].indexOf(sign));
  return Buffer.concat([inputEvent(EV_MSC, 4, code, clock), key, inputEvent(EV_SYN, SYN_REPORT, 0, clock)]);
}

interface Keyboards {
  paths: string[];
  actions: string[];
  notices: string[];
  source: string;
  send(keyboard: number, ...events: Buffer[]): void;
  /** Releases all keys and presses F9; resolves with the actions before that. */
  pressed(): Promise<string>;
}

/** Starts the backend with two FIFOs in place of keyboards, and optionally other paths. */
async function listenToKeyboards(t: TestContext, others: string[] = []): Promise<Keyboards> {
  const pipes = [makePipe(t), makePipe(t)];
  const [actions, notices]: [string[], string[]] = [[], []];
  const paths = pipes.map(({ path }) => path);
  const events: ListenerEvents = {
    onPress: (action) => actions.push(action),
    onNotice: (text) => notices.push(text),
    onEnd: () => assert.fail('evdev must not fail'),
  };
  const listener = await listenEvdev(HELD_BINDINGS, events, () => [...paths, ...others]);
  t.after(() => listener.close());
  const send = (keyboard: number, ...data: Buffer[]): void => {
    writeSync(pipes[keyboard]?.file as number, Buffer.concat(data));
  };
  const pressed = async (): Promise<string> => {
    send(1, ...Object.values(CODES).map((code) => keyEvents('-', code)));
    send(0, ...Object.values(CODES).map((code) => keyEvents('-', code)), keyEvents('+', 67), keyEvents('-', 67));
    await until(() => actions.at(-1) === 'quit');
    return actions.splice(0).slice(0, -1).join(' ');
  };
  return { paths, actions, notices, source: listener.source, send, pressed };
}

const SILENT: ListenerEvents = { onPress: () => {}, onNotice: () => {}, onEnd: () => {} };

/** Calls a function without root permissions. */
function asNobody<T>(act: () => T): T {
  if (process.geteuid?.() !== 0) return act();
  process.seteuid?.(65534);
  try {
    return act();
  } finally {
    process.seteuid?.(0);
  }
}

describe('the evdev backend', { ...LIMIT, skip: lacks('Linux', 'mkfifo') }, () => {
  it('reports presses, on one keyboard or two', async (t) => {
    const { paths, notices, source, send, pressed } = await listenToKeyboards(t);
    assert.equal(source, `the keyboards ${paths.join(', ')}`);
    for (const [what, keys, actions] of HELD) {
      for (const { sign, code, keyboard } of readKeys(keys)) send(keyboard, keyEvents(sign, code));
      assert.equal(await pressed(), actions, what);
    }
    send(0, keyEvents('+', 56), keyEvents('+', 42), keyEvents('=', 25));
    assert.equal(await pressed(), '', 'a key held since before the start');
    assert.deepEqual(notices, []);
  });

  it('sorts simultaneous events of two keyboards by time', async (t) => {
    const { send, pressed } = await listenToKeyboards(t);
    const [alt, shift, late] = [keyEvents('+', 56), keyEvents('+', 42), keyEvents('+', 25)];
    send(0, late);
    send(1, alt, shift);
    assert.equal(await pressed(), 'pause');
    const [early, altAgain, shiftAgain] = [keyEvents('+', 25), keyEvents('+', 56), keyEvents('+', 42)];
    send(1, altAgain, shiftAgain);
    send(0, early);
    assert.equal(await pressed(), '');
  });

  it('resets held keys when events are lost, and ignores events until the next report', async (t) => {
    const { send, pressed } = await listenToKeyboards(t);
    const [ALT, SHIFT, P, R] = [56, 42, 25, 19];
    const dropped = (): Buffer => inputEvent(EV_SYN, SYN_DROPPED, 0);
    const report = (): Buffer => inputEvent(EV_SYN, SYN_REPORT, 0);
    const down = (...codes: number[]): Buffer => Buffer.concat(codes.map((code) => inputEvent(EV_KEY, code, 1)));
    send(0, down(ALT, SHIFT), report(), dropped(), report(), down(P), report());
    assert.equal(await pressed(), '');
    send(0, dropped(), down(ALT, SHIFT), report(), down(P), report());
    assert.equal(await pressed(), '');
    send(0, dropped(), report(), down(ALT, SHIFT, P), report());
    assert.equal(await pressed(), 'pause');
    send(0, down(ALT, SHIFT), report());
    send(1, dropped(), down(R), report(), down(P), report()); // the other keyboard lost no events
    assert.equal(await pressed(), 'pause');
  });

  it('joins an event that arrives in two pieces', async (t) => {
    const { actions, send, pressed } = await listenToKeyboards(t);
    const events = Buffer.concat([keyEvents('+', 56), keyEvents('+', 42), keyEvents('+', 25)]);
    const [f9, r] = [67, 19];
    const size = events.length / 9; // three for each key
    const pieces = [[1, f9], [2 * size - 3, f9], [6 * size + 6, r], [8 * size - 3, r]] as const;
    for (const [cut, other] of pieces) { // the last two while Alt+Shift is held
      send(0, events.subarray(0, cut));
      send(1, keyEvents('+', other), keyEvents('-', other));
      await until(() => actions.pop() !== undefined); // the first piece has been read as well
      send(0, events.subarray(cut));
      assert.equal(await pressed(), 'pause', `cut at ${cut}`);
    }
  });

  it('continues with the others when a keyboard is disconnected', async (t) => {
    const folder = makeFolder(t); // opens like a device, but fails to read
    const { notices, pressed, send } = await listenToKeyboards(t, [folder]);
    await until(() => notices.length > 0);
    send(0, keyEvents('+', 56), keyEvents('+', 42), keyEvents('+', 25));
    assert.equal(await pressed(), 'pause');
    assert.deepEqual(notices, [`keyboard ${folder} was disconnected (EISDIR)`]);
  });

  it('reports when the last keyboard is disconnected', async (t) => {
    const folder = makeFolder(t);
    const notices: string[] = [];
    const events = { ...SILENT, onNotice: (text: string) => notices.push(text) };
    const listener = await listenEvdev(HELD_BINDINGS, events, () => [folder]);
    t.after(() => listener.close());
    await until(() => notices.length > 0);
    assert.deepEqual(notices, [`keyboard ${folder} was disconnected (EISDIR); waiting for another keyboard`]);
  });

  it('reports unreadable keyboards, and how to get the permission', async (t) => {
    const path = join(makeFolder(t), 'event0');
    writeFileSync(path, '', { mode: 0 });
    const remedy = "run 'sudo usermod -aG input $USER' and log in again";
    const cannot = new BackendError(`cannot read ${path} (EACCES): ${remedy}`);
    await assert.rejects(asNobody(() => listenEvdev(HELD_BINDINGS, SILENT, () => [path])), cannot);
    const { path: readable } = makePipe(t);
    const notices: string[] = [];
    const events = { ...SILENT, onNotice: (text: string) => notices.push(text) };
    const paths = [join(path, 'below'), readable, join(readable, '..', 'absent')];
    const listener = await listenEvdev(HELD_BINDINGS, events, () => paths);
    listener.close();
    assert.equal(listener.source, `the keyboards ${readable}`);
    assert.deepEqual(notices, [`cannot read ${paths[0]} (ENOTDIR), ${paths[2]} (ENOENT)`]);
  });

  it('reports that there is no keyboard, or no list of keyboards', async () => {
    await assert.rejects(listenEvdev(HELD_BINDINGS, SILENT, () => []), new BackendError('no keyboard found'));
    const findPaths = (): string[] => [readFileSync('/nowhere/devices', 'utf8')];
    const message = "cannot list the keyboards: ENOENT: no such file or directory, open '/nowhere/devices'";
    await assert.rejects(listenEvdev(HELD_BINDINGS, SILENT, findPaths), new BackendError(message));
  });

  it('distinguishes keyboards from power buttons, mice and media keys', () => {
    const devices = [
      ['Power Button', 'kbd event0 ', 'PROP=0', 'EV=3', 'KEY=8000 10000000000000 0'],
      ['AT Translated Set 2 keyboard', 'sysrq kbd event3 leds ', 'EV=120013',
        'KEY=402000000 3803078f800d001 feffffdfffefffff fffffffffffffffe', 'MSC=10', 'LED=7'],
      ['USB Optical Mouse', 'mouse0 event5 ', 'EV=17', 'KEY=70000 0 0 0 0', 'REL=903'],
      ['USB Keyboard', 'sysrq kbd leds event17 ', 'EV=120013',
        'KEY=1000000000007 ff9f207ac14057ff febeffdfffefffff fffffffffffffffe'],
      ['USB Keyboard Consumer Control', 'kbd event8 ', 'EV=1f',
        'KEY=3007f 0 0 483ffff17aff32d bfd4444600000000 1 130c730b17c000 267bfad9415fed 9e168000004400 10000002'],
      ['A keyboard of 32 bits', 'kbd event9', 'KEY=fff 7fffffff ffffffff feffffff ffffffff fffffffe'],
      ['A touchpad with letters', 'mouse1 event10', 'KEY=fffffffffffffffe'],
      ['A sound card', 'event11 ', 'EV=21', 'SW=14'],
    ].map(([name, handlers, ...bits]) => {
      const head = ['I: Bus=0003 Vendor=04d9 Product=0169 Version=0111', `N: Name="${name}"`, 'P: Phys=', 'U: Uniq='];
      return `${[...head, `H: Handlers=${handlers}`, ...bits.map((one) => `B: ${one}`)].join('\n')}\n`;
    });
    const paths = ['/dev/input/event3', '/dev/input/event17', '/dev/input/event9'];
    assert.deepEqual(findKeyboards(`${devices.join('\n')}\n`), paths);
    assert.deepEqual(findKeyboards(''), []);
  });
});

// ───── Terminals ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('sequencesOf', LIMIT, () => {
  const sent: [keys: string, sequences: string[], platform?: NodeJS.Platform][] = [
    ['alt+p', ['\x1bp', 'ð']], ['alt+shift+p', ['\x1bP', 'Ð']], ['ctrl+p', ['\x10']], ['ctrl+alt+p', ['\x1b\x10']],
    ['alt+shift+p', ['\x1bP', 'Ð', '∏'], 'darwin'], ['alt+shift+r', ['\x1bR', 'Ò', '‰'], 'darwin'],
    ['alt+q', ['\x1bq', 'ñ', 'œ'], 'darwin'], ['alt+x', ['\x1bx', 'ø'], 'darwin'],
    ['alt+5', ['\x1b5', 'µ']], ['alt+-', ['\x1b-', '\xad']], ['alt+space', ['\x1b ', '\xa0']],
    ['alt+o', ['\x1bo', 'ï']],
    ['ctrl+a', ['\x01']], ['ctrl+alt+z', []], ['f1', ['\x1bOP', '\x1b[[A', '\x1b[11~']],
    ['f4', ['\x1bOS', '\x1b[[D', '\x1b[14~']], ['f5', ['\x1b[15~', '\x1b[[E']],
    ['alt+home', ['\x1b[1;3H']], ['ctrl+left', ['\x1b[1;5D']], ['ctrl+shift+pageup', ['\x1b[5;6~']],
    ['alt+f1', ['\x1b[1;3P']], ['shift+f2', ['\x1b[1;2Q']], ['f6', ['\x1b[17~']],
    ['f10', ['\x1b[21~']], ['f12', ['\x1b[24~']], ['alt+f5', ['\x1b[15;3~']], ['ctrl+shift+f11', ['\x1b[23;6~']],
    ['ctrl+alt+shift+f12', ['\x1b[24;8~']],
    ...['ctrl+shift+p', 'ctrl+c', 'ctrl+d', 'ctrl+z', 'ctrl+h', 'ctrl+i', 'ctrl+j', 'ctrl+m', 'super+p', 'super+f5',
      'alt+shift+o', 'alt+shift+5', 'alt+[', 'ctrl+5', 'ctrl+space', 'alt+pause', 'alt+enter', 'alt+tab', 'f13',
    ].map((keys): [string, string[]] => [keys, []]),
  ];
  it('returns what terminals send, or nothing if it is ambiguous', () => {
    for (const [keys, sequences, platform = 'linux'] of sent) {
      assert.deepEqual(sequencesOf(parseCombination('--x', keys, platform)), sequences, keys);
    }
  });
});
