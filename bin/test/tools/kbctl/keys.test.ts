// The functions of control-kbctl that need no process: key combinations, the key table, the choice of the backend, what
// terminals send, and the evdev backend on FIFOs.

import assert from 'node:assert/strict';
import { writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { findKeyboards, listenEvdev } from '../../../kbctl/evdev.ts';
import { BackendError, chooseBackends, type Key, parseBindings, parseCombination } from '../../../kbctl/keys.ts';
import { sequencesOf } from '../../../kbctl/terminal.ts';
import { UsageError } from '../../../shared/cli.ts';
import { makeFolder, makePipe } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { collectReports } from './helpers.ts';

const PLATFORMS = ['linux', 'darwin', 'win32'] as const;

// ───── Combinations ──────────────────────────────────────────────────────────────────────────────────────────────

describe('key combinations', LIMIT, () => {
  /** The name on Linux, the spellings, and an irregular name on a Mac; null if a Mac has no such key. */
  const good: [name: string, spellings: string[], mac?: string | null][] = [
    ['Alt+Shift+P', ['alt+shift+p', ' SHIFT + p +\tAlt ', 'Opt+Shift+p', '<shift_r>+<alt_l>+<P>', 'alt+shift+∏']],
    ['Alt+Shift+R', ['alt+shift+r', 'alt+shift+‰', '®+shift+option']], ['Alt+Q', ['alt+œ']],
    ['Ctrl+Alt+F5', ['<ctrl>+<alt>+<f5>', 'control+option+F5', 'F5+Ctrl_R+alt_r']],
    ['Super+A', ['<cmd_r>+a', 'Command+A', 'win+a', 'Windows+a', 'META+a', 'super_l+A']],
    ['Ctrl+P', ['CommandOrControl+P', 'cmdorctrl+p'], 'Command+P'],
    ['Ctrl+Shift+Z', ['CmdOrCtrl+Shift+Z'], 'Shift+Command+Z'],
    ['Ctrl+Alt+Shift+Super+1', ['super+shift+alt+ctrl+1', '1+shift+ctrl+cmd+alt']],
    ['Alt+PageUp', ['Alt+PageUp', '<alt>+<page_up>', 'alt+pgup']], ['Alt+PageDown', ['<alt>+<page_down>', 'alt+pgdn']],
    ['Alt+Enter', ['Alt+Return', '<alt>+<enter>']], ['Alt+Delete', ['alt+del']], ['Ctrl+Esc', ['Control+Escape']],
    ['Ctrl+Insert', ['ctrl+ins', '<ctrl>+<insert>'], null], ['Ctrl+Alt+Pause', ['ctrl+alt+pause'], null],
    ['Alt+PrintScreen', ['<alt>+<print_screen>'], null], ['Alt+ScrollLock', ['<alt>+<scroll_lock>'], null],
    ['Ctrl+Minus', ['ctrl+-', 'CTRL+Minus']], ['F1', ['<f1>']], ['F24', ['F24'], null], ['Shift+F5', ['shift+f5']],
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

  const noKey = (word: string): string => `unknown key ${word}`;
  const bare = 'only function keys work without ctrl, alt or super';
  const nothing = 'a key is missing next to +';
  const bad: [text: string, why: string][] = [
    [' \t\n', 'it is empty'], ['alt+ +p', nothing], ['+', nothing],
    ['alt+p+p', 'more than one key: P and P'], ['F1+space', 'more than one key: F1 and Space'],
    ['alt+shift', 'the key is missing'], ['alt+F25', noKey('f25')], ['alt+<>', noKey('<>')], ['alt+ä', noKey('ä')],
    ['alt+constructor', noKey('constructor')], ['__proto__+p', noKey('__proto__')],
    ['f', bare], ['Enter', bare], ['shift+p', bare], ['<alt_gr>+p', 'AltGr is not supported'],
    ['alt_l+alt_r+p', 'duplicate modifier alt_r'], ['cmd+win+p', 'duplicate modifier win'],
  ];
  it('are rejected with the reason if they are invalid', () => {
    for (const [text, why] of bad) {
      for (const platform of PLATFORMS) {
        assert.throws(() => parseCombination('--pause-key', text, platform), wrongKeys('--pause-key', text, why));
      }
    }
  });

  it('have defaults for each platform, with a quit key only on Windows, and must differ', () => {
    const namesOf = (values: Parameters<typeof parseBindings>[0], platform: NodeJS.Platform): string => {
      const bindings = parseBindings(values, platform);
      return bindings.map(({ action, combination }) => `${action} ${combination.name}`).join(', ');
    };
    assert.deepEqual(PLATFORMS.map((platform) => namesOf({}, platform)), [
      'pause Alt+Shift+P, resume Alt+Shift+R',
      'pause Option+Shift+P, resume Option+Shift+R',
      'pause Alt+Shift+P, resume Alt+Shift+R, quit Alt+Shift+Q',
    ]);
    const values = { 'quit-key': 'ctrl+alt+q', 'pause-key': 'f7' };
    assert.equal(namesOf(values, 'linux'), 'pause F7, resume Alt+Shift+R, quit Ctrl+Alt+Q');
    const same = { 'pause-key': 'CmdOrCtrl+P', 'resume-key': 'p+<ctrl>' };
    const both = new UsageError('--pause-key and --resume-key must differ, got Ctrl+P for both');
    assert.throws(() => namesOf(same, 'linux'), both);
    assert.equal(namesOf(same, 'darwin'), 'pause Command+P, resume Ctrl+P');
    const quit = new UsageError('--pause-key and --quit-key must differ, got Alt+Shift+Q for both');
    assert.throws(() => namesOf({ 'pause-key': 'alt+shift+q' }, 'win32'), quit);
  });
});

describe('the key table', LIMIT, () => {
  const keyOf = (name: string): Key => parseCombination('--x', `ctrl+${name}`, 'linux').key;

  /** From keysymdef.h, input-event-codes.h, Carbon's Events.h and winuser.h. */
  const some: [name: string, keysym: number, evdev: number, mac: number, windows: number][] = [
    ['P', 0x70, 25, 35, 0x50], ['R', 0x72, 19, 15, 0x52], ['0', 0x30, 11, 29, 0x30], ['F12', 0xffc9, 88, 111, 0x7b],
    ['F24', 0xffd5, 194, NaN, 0x87], ['Enter', 0xff0d, 28, 36, 0x0d], ['Backslash', 0x5c, 43, 42, 0xdc],
  ];
  it('has the codes of each platform, and none twice', () => {
    for (const [name, keysym, evdev, mac, windows] of some) {
      assert.deepEqual(keyOf(name), { name, keysym, evdev, mac, windows });
    }
    const functionKeys = Array.from({ length: 24 }, (_, index) => `f${index + 1}`);
    const others =
      'space enter tab esc backspace delete insert home end pageup pagedown up down left right pause printscreen ' +
      "scrolllock - = , . / ; ' ` [ ] \\"; // as its help lists them
    const keys = [...'abcdefghijklmnopqrstuvwxyz0123456789', ...functionKeys, ...others.split(' ')].map(keyOf);
    for (const platform of ['name', 'keysym', 'evdev', 'mac', 'windows'] as const) {
      const codes = keys.map((key) => key[platform]).filter((code) => !Number.isNaN(code));
      assert.deepEqual(codes.filter((code, index) => codes.indexOf(code) !== index), [], platform);
    }
  });
});

describe('the choice of the backend', LIMIT, () => {
  const choices: [NodeJS.Platform, NodeJS.ProcessEnv, backends: string, reason: string][] = [
    ['linux', { DISPLAY: ':0' }, 'x11 evdev terminal', 'DISPLAY is set'],
    ['linux', { DISPLAY: ':0', WAYLAND_DISPLAY: 'wayland-0' }, 'evdev x11 terminal', 'WAYLAND_DISPLAY is set'],
    ['linux', { DISPLAY: '', WAYLAND_DISPLAY: '' }, 'evdev terminal', 'DISPLAY is not set'],
    ['freebsd', { DISPLAY: ':0' }, 'x11 evdev terminal', 'DISPLAY is set'],
    ['darwin', { DISPLAY: ':0' }, 'macos terminal', 'this is macOS'],
    ['win32', {}, 'windows terminal', 'this is Windows'],
  ];
  it('depends on the platform and the session, unless it is given', () => {
    for (const [platform, env, backends, reason] of choices) {
      assert.deepEqual(chooseBackends(undefined, platform, env), { backends: backends.split(' '), reason });
      assert.deepEqual(chooseBackends('evdev', platform, env), { backends: ['evdev'], reason: 'set by --backend' });
    }
    for (const name of ['wayland', '', 'X11', 'constructor']) {
      const line = `--backend must be one of x11, evdev, terminal, macos, windows, got '${name}'`;
      assert.throws(() => chooseBackends(name), new UsageError(line));
    }
  });
});

function wrongKeys(option: string, text: string, why: string): UsageError {
  return new UsageError(`${option} must be a key combination such as alt+shift+p, got '${text}': ${why}`);
}

// ───── evdev ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** Linux codes; R is the right-hand side. */
const CODES: Readonly<Record<string, number>> = {
  shift: 42, shiftR: 54, ctrl: 29, ctrlR: 97, alt: 56, altR: 100, super: 125, superR: 126, p: 25, r: 19, F9: 67,
};
const HELD_BINDINGS = parseBindings({ 'quit-key': 'F9' }, 'linux');

/** What keyboard 0, or the one after the @, reports (see keyEvents()), and the resulting actions. */
const HELD: [what: string, keys: string, actions: string][] = [
  ['modifiers in order', '+alt +shift +p -p -shift -alt', 'pause'],
  ['modifiers in another order', '+shift +alt +r -r -alt -shift', 'resume'],
  ['both sides, one released', '+alt +altR +shift -alt +p', 'pause'],
  ['an extra modifier', '+superR +alt +shift +p', ''],
  ['an extra modifier that is released', '+ctrl +alt +shift -ctrl +p', 'pause'],
  ['the key first', '+p +alt +shift =p', ''],
  ['auto-repeat of the key', '+alt +shift +p =p =p =p -p', 'pause'],
  ['two presses while the modifiers are held', '+alt +shift +p -p +p -p +r', 'pause pause resume'],
  ['modifiers on one keyboard, key on another', '+alt +shift +p@1', 'pause'],
  ['the same modifier on both keyboards, one released', '+alt +alt@1 +shift -alt +p', 'pause'],
  ['a key held since before the start', '+alt +shift =p', ''],
  ['modifiers that are held while events are lost', '+alt +shift DROPPED REPORT +p', ''],
  ['events until the next report after lost ones', 'DROPPED !alt !shift REPORT +p', ''],
  ['keys after that report', 'DROPPED REPORT +alt +shift +p', 'pause'],
  ['events that are lost on the other keyboard', '+alt +shift DROPPED@1 !r@1 REPORT@1 +p@1', 'pause'],
];

const LONG_BYTES = ['arm', 'ia32'].includes(process.arch) ? 4 : 8;
const [EV_SYN, EV_KEY, EV_MSC, SYN_REPORT, SYN_DROPPED] = [0, 1, 4, 0, 3];

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

/**
 * What a keyboard reports for keys that go down (+), repeat (=) or go up (-). For each key: its scan code, the key, and
 * the end of the report. DROPPED means that events are lost, `!p` a key in a report whose end is the next REPORT.
 */
function keyEvents(keys: string): Buffer {
  return Buffer.concat(keys.split(' ').flatMap((word) => {
    if (word === 'DROPPED') return inputEvent(EV_SYN, SYN_DROPPED, 0);
    if (word === 'REPORT') return inputEvent(EV_SYN, SYN_REPORT, 0);
    const [sign, code] = [word.charAt(0), CODES[word.slice(1)] ?? assert.fail(word)];
    if (sign === '!') return inputEvent(EV_KEY, code, 1);
    const key = inputEvent(EV_KEY, code, ['-', '+', '='].indexOf(sign));
    return [inputEvent(EV_MSC, 4, code, clock), key, inputEvent(EV_SYN, SYN_REPORT, 0, clock)];
  }));
}

const RELEASE_ALL = Object.keys(CODES).map((name) => `-${name}`).join(' ');

interface Keyboards {
  paths: string[];
  actions: string[];
  notices: string[];
  source: string;
  send(keyboard: number, events: Buffer | string): void;
  /** Releases all keys and presses F9; resolves with the actions before that. */
  pressed(): Promise<string>;
}

/** Starts the backend with two FIFOs in place of keyboards, or other paths. */
async function listenToKeyboards(
  t: TestContext,
  find: (paths: string[]) => string[] = (paths) => paths,
): Promise<Keyboards> {
  const pipes = [makePipe(t), makePipe(t)];
  const { events, actions, notices, failures } = collectReports();
  const paths = find(pipes.map(({ path }) => path));
  const listener = await listenEvdev(HELD_BINDINGS, events, () => paths);
  t.after(() => {
    listener.close();
    assert.deepEqual(failures, []);
  });
  const send = (keyboard: number, events: Buffer | string): void => {
    writeSync(pipes[keyboard]?.file as number, typeof events === 'string' ? keyEvents(events) : events);
  };
  const pressed = async (): Promise<string> => {
    send(1, RELEASE_ALL);
    send(0, `${RELEASE_ALL} +F9 -F9`);
    await until(() => actions.at(-1) === 'quit');
    return actions.splice(0).slice(0, -1).join(' ');
  };
  return { paths, actions, notices, source: listener.source, send, pressed };
}

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
  it('reports presses, on one keyboard or two, even if another one is disconnected', async (t) => {
    const folder = makeFolder(t); // opens like a device, but fails to read
    const { paths, notices, source, send, pressed } = await listenToKeyboards(t, (pipes) => [...pipes, folder]);
    assert.equal(source, `the keyboards ${paths.join(', ')}`);
    await until(() => notices.length > 0);
    for (const [what, keys, actions] of HELD) {
      for (const word of keys.split(' ')) {
        const [key = '', keyboard = 0] = word.split('@');
        send(Number(keyboard), key);
      }
      assert.equal(await pressed(), actions, what);
    }
    assert.deepEqual(notices, [`keyboard ${folder} was disconnected (EISDIR)`]);
  });

  it('sorts simultaneous events of two keyboards by time', async (t) => {
    const { send, pressed } = await listenToKeyboards(t);
    for (const [first, second, actions] of [['+alt +shift', '+p', 'pause'], ['+p', '+alt +shift', '']] as const) {
      const [early, late] = [keyEvents(first), keyEvents(second)];
      send(0, late);
      send(1, early);
      assert.equal(await pressed(), actions);
    }
  });

  it('reports unreadable keyboards, and how to get the permission', async (t) => {
    const path = join(makeFolder(t), 'event0');
    writeFileSync(path, '', { mode: 0 });
    const { events } = collectReports();
    for (const [paths, why] of [
      [[path], `cannot read ${path} (EACCES): run 'sudo usermod -aG input $USER' and log in again`],
      [[], 'no keyboard found'],
    ] as const) {
      await assert.rejects(asNobody(() => listenEvdev(HELD_BINDINGS, events, () => [...paths])), new BackendError(why));
    }
    const someAre = ([readable = '']: string[]): string[] => [`${path}/below`, readable, `${path}1`];
    const { paths, notices, source } = await listenToKeyboards(t, someAre);
    assert.equal(source, `the keyboards ${paths[1]}`);
    assert.deepEqual(notices, [`cannot read ${paths[0]} (ENOTDIR), ${paths[2]} (ENOENT)`]);
  });

  it('distinguishes keyboards from power buttons, mice and media keys', () => {
    const devices: [handlers: string, keys: string][] = [
      ['kbd event0 ', '8000 10000000000000 0'], // a power button
      ['sysrq kbd event3 leds ', '402000000 3803078f800d001 feffffdfffefffff fffffffffffffffe'],
      ['kbd event8 ', // media keys
        '3007f 0 0 483ffff17aff32d bfd4444600000000 1 130c730b17c000 267bfad9415fed 9e168000004400 10000002'],
      ['kbd event9', 'fff 7fffffff ffffffff feffffff ffffffff fffffffe'], // words of 32 bits
      ['mouse1 event10', 'fffffffffffffffe'], // a touchpad with letters
    ];
    const text = devices.map(([handlers, keys]) => `H: Handlers=${handlers}\nB: EV=1f\nB: KEY=${keys}\nB: MSC=10\n`);
    const sound = 'N: Name="A sound card"\nH: Handlers=event11 \nB: EV=21\nB: SW=14\n';
    assert.deepEqual(findKeyboards(`${[...text, sound].join('\n')}\n`), ['/dev/input/event3', '/dev/input/event9']);
  });
});

// ───── Terminals ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('sequencesOf', LIMIT, () => {
  const sent: [keys: string, sequences: string[], platform?: NodeJS.Platform][] = [
    ['alt+p', ['\x1bp', 'ð']], ['alt+shift+p', ['\x1bP', 'Ð']], ['ctrl+p', ['\x10']], ['ctrl+alt+p', ['\x1b\x10']],
    ['alt+shift+p', ['\x1bP', 'Ð', '∏'], 'darwin'], ['alt+shift+r', ['\x1bR', 'Ò', '‰'], 'darwin'],
    ['alt+-', ['\x1b-', '\xad']], ['alt+o', ['\x1bo', 'ï']], ['f1', ['\x1bOP', '\x1b[[A', '\x1b[11~']],
    ['f5', ['\x1b[15~', '\x1b[[E']], ['f12', ['\x1b[24~']], ['alt+home', ['\x1b[1;3H']],
    ['ctrl+shift+pageup', ['\x1b[5;6~']], ['alt+f1', ['\x1b[1;3P']], ['ctrl+alt+shift+f12', ['\x1b[24;8~']],
    ...['ctrl+alt+z', 'ctrl+shift+p', 'ctrl+c', 'ctrl+h', 'ctrl+i', 'super+p', 'super+f5', 'alt+shift+o',
      'alt+shift+5', 'alt+[', 'ctrl+5', 'ctrl+space', 'alt+enter', 'f13',
    ].map((keys): [string, string[]] => [keys, []]),
  ];
  it('returns what terminals send, or nothing if it is ambiguous', () => {
    for (const [keys, sequences, platform = 'linux'] of sent) {
      assert.deepEqual(sequencesOf(parseCombination('--x', keys, platform)), sequences, keys);
    }
  });
});
