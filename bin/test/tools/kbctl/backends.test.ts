// The choice of the backend, and the backends with helper processes: macOS and Windows.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { createContext, runInContext } from 'node:vm';
import { BackendError, chooseBackends, type Listener, parseBindings } from '../../../kbctl/keys.ts';
import { listenMacos, macosCommand, SCRIPT } from '../../../kbctl/macos.ts';
import { listenWindows, SOURCE, windowsCommand } from '../../../kbctl/windows.ts';
import { UsageError } from '../../../shared/cli.ts';
import { makeFolder, runProgram, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  collectReports, isRunning, makeStandIn, PAUSE, READY, type Reports, RESUME, withEnvironment,
} from './helpers.ts';

describe('the choice of the backend', LIMIT, () => {
  it('depends on the platform and the session', () => {
    const choices: [NodeJS.Platform, NodeJS.ProcessEnv, backends: string, reason: string][] = [
      ['linux', { DISPLAY: ':0' }, 'x11 evdev terminal', 'DISPLAY is set'],
      ['linux', { DISPLAY: ':0', WAYLAND_DISPLAY: 'wayland-0' }, 'evdev x11 terminal', 'WAYLAND_DISPLAY is set'],
      ['linux', { DISPLAY: '', WAYLAND_DISPLAY: '' }, 'evdev terminal', 'DISPLAY is not set'],
      ['freebsd', { DISPLAY: ':0' }, 'x11 evdev terminal', 'DISPLAY is set'],
      ['darwin', { DISPLAY: ':0' }, 'macos terminal', 'this is macOS'],
      ['win32', {}, 'windows terminal', 'this is Windows'],
    ];
    for (const [platform, env, backends, reason] of choices) {
      assert.deepEqual(chooseBackends(undefined, platform, env), { backends: backends.split(' '), reason });
      assert.deepEqual(chooseBackends('evdev', platform, env), { backends: ['evdev'], reason: 'set by --backend' });
    }
  });

  it('is a usage error if there is no backend of that name', () => {
    for (const name of ['wayland', '', 'X11', 'constructor']) {
      const line = `--backend must be one of x11, evdev, terminal, macos, windows, got '${name}'`;
      assert.throws(() => chooseBackends(name), new UsageError(line));
    }
  });

  it('uses only the one of --backend, even if it cannot listen', async (t) => {
    const ended = await runProgram(t, 'kbctl', ['--backend', 'terminal']);
    const stderr = 'control-kbctl: terminal: standard input is not a terminal\n';
    assert.deepEqual(ended, { code: 1, stdout: '', stderr });
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

interface Started extends Reports {
  starting: Promise<Listener>;
  /** Makes the helper write these lines. */
  say(...lines: string[]): void;
}

/** Starts a backend with a stand-in for its interpreter, or without any if the script is null. */
function startBackend(t: TestContext, listen: typeof listenMacos, script?: string | null, quitKey?: string): Started {
  const standIn = makeStandIn(t, script ?? undefined);
  const { events, ...reports } = collectReports();
  const env = script === null ? { ...standIn.env, PATH: makeFolder(t) } : standIn.env;
  const bindings = parseBindings({ 'quit-key': quitKey });
  const starting = withEnvironment(env, () => listen(bindings, events, new AbortController().signal));
  starting.catch(() => {});
  t.after(() => starting.then((listener) => listener.close(), () => {}));
  return { starting, ...reports, say: standIn.say };
}

describe('a backend with a helper', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('reports presses, notes and secure input on macOS, and a permission that macOS denies', async (t) => {
    const { starting, actions, notices, say } = startBackend(t, listenMacos);
    say('note Error: no monitor', 'ready 1 0 1');
    const { source, bindings } = await starting;
    assert.deepEqual([source, bindings.length], ['macOS key events', 2]);
    assert.deepEqual(notices, ['Error: no monitor', 'secure input is on: macOS hides all keys until it is off']);
    say('hit 1', 'hit 99', 'constructor', 'hit 0', 'hit 1');
    await until(() => actions.length === 3);
    assert.deepEqual(actions, ['resume', 'pause', 'resume']);
    const message = /^the terminal application lacks a permission: .* > Accessibility .*$/;
    for (const permissions of ['0 1 0', '1 0 0', '-1 -1 -1', '0 0 0', '0 -1 0']) {
      const { starting, notices, say } = startBackend(t, listenMacos);
      say(`ready ${permissions}`);
      if (/^0 (0|-1)/.test(permissions)) await assert.rejects(starting, { constructor: BackendError, message });
      else assert.deepEqual([(await starting).source, notices], ['macOS key events', []]);
    }
  });

  it('reports combinations that Windows rejects, and listens to the others, if there are any', async (t) => {
    const { starting, actions, notices, say } = startBackend(t, listenWindows, undefined, 'f9');
    say('failed 0 1409\r', 'ok 1\r', 'failed 2 87\r', 'ready\r');
    const taken = (name: string, option: string): string => {
      return `${name} does not work, another application uses it; set ${option} to another combination`;
    };
    const { source, bindings } = await starting;
    assert.deepEqual([source, bindings.map(({ action }) => action)], ['Windows hotkeys', ['resume']]);
    assert.deepEqual(notices, [
      taken(PAUSE, '--pause-key'),
      'F9 does not work, Windows rejected it (error 87); set --quit-key to another combination',
    ]);
    say('hit 1\r');
    await until(() => actions.length === 1);
    assert.deepEqual(actions, ['resume']);
    const all = startBackend(t, listenWindows);
    all.say('failed 0 1409', 'failed 1 1409', 'ready');
    const why = `${taken(PAUSE, '--pause-key')}; ${taken(RESUME, '--resume-key')}`;
    await assert.rejects(all.starting, new BackendError(why));
  });

  const early: [what: string, script: string | null, why: string][] = [
    ['is killed', 'kill -KILL $$', 'powershell.exe was killed by SIGKILL'],
    ['fails', 'echo " reason" >&2; seq 9999 >&2; exit 3', 'powershell.exe exited with code 3: reason'],
    ['must not compile',
      'echo "Add-Type : Definition of new types is not supported in this language mode." >&2; exit 1',
      'a policy of this machine (Constrained Language Mode) forbids Add-Type in PowerShell'],
    ['is absent', null, 'cannot start powershell.exe: spawn powershell.exe ENOENT'],
  ];
  it('cannot listen if the helper ends before it is ready, and reports the reason', async (t) => {
    for (const [what, script, why] of early) {
      await assert.rejects(startBackend(t, listenWindows, script).starting, new BackendError(why), what);
    }
  });

  it('ends the helper when it closes', async (t) => {
    const { starting, notices, failures, say } = startBackend(t, listenMacos, 'echo "note $$"; exec cat "$KEYS"');
    say(READY);
    const { close } = await starting;
    assert.ok(isRunning(Number(notices[0])));
    close();
    await until(() => !isRunning(Number(notices[0])));
    assert.deepEqual(failures, []);
  });
});

// ───── What runs in the interpreters ─────────────────────────────────────────────────────────────────────────────

describe('the macOS helper', LIMIT, () => {
  const [P, R, ALT_SHIFT, CTRL, COMMAND, CAPS_LOCK] = [35, 15, 0xa0000, 0x40000, 0x100000, 0x10000];
  const event = (keyCode: number, modifierFlags: number, isARepeat: boolean = false): Step => {
    return { event: { keyCode, modifierFlags, isARepeat } };
  };
  const presses: [what: string, steps: Record<number, Step>, hits: string][] = [
    ['the key state', { 5: { flags: ALT_SHIFT }, 6: { down: [P] }, 12: { down: [] } }, '0'],
    ['the monitor', { 5: event(R, CTRL | COMMAND) }, '1'],
    ['both sources within 250 ms, once', { 5: { flags: ALT_SHIFT, down: [P] }, 15: event(P, ALT_SHIFT) }, '0'],
    ['both sources 300 ms apart, twice', { 5: { flags: ALT_SHIFT, down: [P] }, 20: event(P, ALT_SHIFT) }, '0 0'],
    ['two presses', { 5: { flags: ALT_SHIFT, down: [P] }, 10: { down: [] }, 20: { down: [P] } }, '0 0'],
    ['a held key, once', { 5: { flags: ALT_SHIFT, down: [P] }, 30: event(P, ALT_SHIFT, true) }, '0'],
    ['no extra modifier', { 5: { flags: ALT_SHIFT | CTRL, down: [P] }, 30: event(P, ALT_SHIFT | CTRL) }, ''],
    ['no missing modifier', { 5: { flags: 0x80000, down: [P] }, 30: event(P, 0x20000) }, ''],
    ['a press with CapsLock on', { 5: { flags: ALT_SHIFT | CAPS_LOCK, down: [P] } }, '0'],
    ['no key before the modifiers', { 5: { down: [P] }, 6: { flags: ALT_SHIFT } }, ''],
    ['no key held since before the start', { 0: { flags: ALT_SHIFT, down: [P] } }, ''],
  ];
  it('reports each press of exactly a combination once, from two sources', () => {
    for (const [what, steps, hits] of presses) {
      const [ready, ...lines] = runScript(steps);
      assert.equal(ready, 'ready 0 1 -1');
      assert.equal(lines.map((line) => line.replace('hit ', '')).join(' '), hits, what);
    }
    const lines = runScript({ 5: { flags: ALT_SHIFT, down: [P] } }, false);
    assert.deepEqual(lines, ['note Error: no monitor', 'ready 0 1 -1', 'hit 0']);
  });
});

interface Step {
  flags?: number;
  down?: number[];
  event?: { keyCode: number; modifierFlags: number; isARepeat: boolean };
}

/** Runs the script with a stand-in for AppKit. A turn takes 20 ms; the parent exits after 50 turns. */
function runScript(steps: Record<number, Step>, hasMonitor: boolean = true): string[] {
  let [now, turn] = [1e6, 0];
  let onKeyDown: (event: unknown) => void = () => {};
  const lines: string[] = [];
  const keys: Required<Pick<Step, 'flags' | 'down'>> = { flags: 0, down: [], ...steps[0] };
  const runUntilDate = (): void => {
    [turn, now] = [turn + 1, now + 20];
    assert.ok(turn < 100, 'the script ends when its parent exits');
    const { event, ...state } = steps[turn] ?? {};
    Object.assign(keys, state);
    if (event !== undefined) onKeyDown(event);
  };
  const addMonitor = (mask: number, handler: typeof onKeyDown): void => {
    if (!hasMonitor) throw new Error('no monitor');
    assert.equal(mask, 1024);
    onKeyDown = handler;
  };
  const $ = Object.assign((text: string) => ({ dataUsingEncoding: () => text }), {
    NSUTF8StringEncoding: 4,
    NSFileHandle: { fileHandleWithStandardOutput: { writeData: (text: string) => lines.push(text.trim()) } },
    NSApplication: { sharedApplication: { setActivationPolicy: () => {} } },
    NSEvent: { addGlobalMonitorForEventsMatchingMaskHandler: addMonitor },
    NSRunLoop: { currentRunLoop: { runUntilDate } },
    NSDate: { dateWithTimeIntervalSinceNow: () => {} },
    NSThread: { sleepForTimeInterval: () => {} },
    CGEventSourceFlagsState: () => keys.flags,
    CGEventSourceKeyState: (_: number, code: number) => keys.down.includes(code),
    AXIsProcessTrusted: () => false,
    CGPreflightListenEventAccess: () => true,
    getppid: () => (turn < 50 ? 99 : 1),
  });
  const bindFunction = (name: string): void => assert.notEqual(name, 'IsSecureEventInputEnabled');
  const context = createContext({ $, ObjC: { import: () => {}, bindFunction }, Date: { now: () => now } });
  runInContext(SCRIPT, context);
  const [file, ...args] = macosCommand(parseBindings({ 'resume-key': 'ctrl+cmd+r' }, 'darwin'));
  assert.deepEqual([file, ...args.slice(0, -1)], ['osascript', '-l', 'JavaScript', '-e', SCRIPT]);
  context['run'](args.slice(-1));
  return lines;
}

describe('the Windows helper', LIMIT, () => {
  const bindings = parseBindings({ 'resume-key': 'ctrl+shift+super+f5' }, 'win32');

  it('is started by its full path, without double quotes, which PowerShell restores', async () => {
    const commandFor = (SystemRoot?: string): Promise<string[]> => {
      return withEnvironment({ SystemRoot }, () => windowsCommand(bindings, 4711));
    };
    const [file, ...args] = await commandFor();
    assert.equal(file, 'powershell.exe');
    assert.ok(!args.join('').includes('"'));
    const options = '-NoLogo -NoProfile -NonInteractive -InputFormat None -ExecutionPolicy Bypass -Command';
    assert.deepEqual(args.slice(0, -1), options.split(' '));
    assert.match(args.at(-1) as string, /^[\x20-\x7e]+; \[Hotkeys\]::Listen\(4711,'5,80;14,116;5,81'\)$/);
    const [path] = await commandFor('C:\\Windows');
    assert.equal(path, 'C:\\Windows\\System32\\WindowsPowerShell\\v1.0\\powershell.exe');
    assert.equal(readSource().replace(/\s+/g, ' '), SOURCE.trim().replace(/\s+/g, ' '));
  });

  const needs = { skip: lacks('mcs', 'mono', 'cc') };
  it('is C# 5 that registers combinations, reports presses, and exits with its parent', needs, async (t) => {
    const folder = makeFolder(t);
    const call = 'public static void Main(string[] words) { Hotkeys.Listen(int.Parse(words[0]), words[1]); }';
    writeFileSync(join(folder, 'Main.cs'), `${readSource()} public class Program { ${call} }`);
    writeFileSync(join(folder, 'user32.c'), USER32);
    const compiled = await Promise.all([
      start(t, 'mcs', ['-langversion:5', `-out:${folder}/Main.exe`, `${folder}/Main.cs`]).ended,
      start(t, 'cc', ['-shared', '-fPIC', '-o', `${folder}/libuser32.so`, `${folder}/user32.c`]).ended,
    ]);
    assert.deepEqual(compiled, Array(2).fill({ code: 0, stdout: '', stderr: '' }));
    const parent = start(t, 'cat', []);
    const helper = start(t, 'mono', [`${folder}/Main.exe`, `${parent.child.pid}`, '5,80;2,80;4,80;8,113']);
    await helper.shows(/hit 3/);
    parent.child.kill();
    const { code, stdout, stderr } = await helper.ended;
    assert.deepEqual([code, stderr], [0, '']);
    assert.equal(stdout, 'ok 0\nfailed 1 1409\nfailed 2 87\nok 3\nready\nhit 0\nhit 3\n');
  });

  /** The source as PowerShell evaluates it from the command line. */
  function readSource(): string {
    const expression = /-TypeDefinition \('((?:[^']|'')*)'\.Replace\(\[string\]\[char\]96,\[string\]\[char\]34\)\); /;
    const [, quoted] = expression.exec(windowsCommand(bindings, 1).at(-1) as string) ?? [];
    assert.ok(quoted);
    return quoted.replaceAll("''", "'").replaceAll('`', '"');
  }
});

/** Stands in for Windows: rejects Ctrl+P and Shift+P, and reports presses of the first and fourth combination. */
const USER32 = `
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

typedef struct { void *window; uint32_t type; uintptr_t wParam; intptr_t lParam; uint32_t time; int32_t x, y; } Message;

int RegisterHotKey(void *window, int id, uint32_t modifiers, uint32_t key) {
  if (modifiers == 0x4002 && key == 0x50) { errno = 1409; return 0; }
  if (window != 0 || modifiers == 0x4004 || !(modifiers & 0x4000) || id < 1) { errno = 87; return 0; }
  return 1;
}

int GetMessage(Message *message, void *window, uint32_t first, uint32_t last) {
  static int count;
  static const Message messages[] = { { 0, 0x0312, 1 }, { 0, 0x0113, 2 }, { 0, 0x0312, 4, 5, 6, 7, 8 } };
  usleep(10000);
  *message = messages[count < 3 ? count++ : 1];
  return 1;
}
`;
