// The backends of control-kbctl with helper processes, macOS and Windows: with stand-ins for the interpreters, and what
// runs in these.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { createContext, runInContext } from 'node:vm';
import { makeFolder, runProgram, start, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { transcript } from '../../transcript.ts';
import { LIMIT, until } from '../../wait.ts';
import { isRunning, PAUSE, READY, RESUME, startHelped, startQuick } from './helpers.ts';

const SUITE = { ...LIMIT, concurrency: 4, skip: lacks('Unix') };
const NOWHERE = ['--socket', '/nowhere/control.sock'];

transcript('bin/test/tools/kbctl/refusals.txt', 'control-kbctl', (args, env, input, t) => {
  return runProgram(t, 'kbctl', args, input, { CONTROL_TOKEN: TOKEN, ...env });
});

describe('a backend with a helper', SUITE, () => {
  it('reports presses, notes and secure input on macOS, and ends the helper', async (t) => {
    const { port, posted } = await startQuick(t);
    const script = 'echo "note $$"; exec cat "$KEYS"';
    const { child, say, shows, output, ended } = startHelped(t, ['--port', `${port}`], { script });
    say('note Error: no monitor', 'ready 1 0 1');
    await shows(/^listening to macOS key events /m);
    say('hit 1', 'hit 99', 'constructor', 'hit 0', 'hit 1');
    await until(() => posted().length === 3);
    assert.deepEqual(posted(), ['resume', 'pause', 'resume']);
    await shows(/^control-kbctl: \d+$/m);
    const helper = Number(/^control-kbctl: (\d+)$/m.exec(output())?.[1]);
    assert.ok(isRunning(helper));
    child.kill();
    assert.equal((await ended).stderr, [
      `${helper}`, 'Error: no monitor', 'secure input is on: macOS hides all keys until it is off',
    ].map((line) => `control-kbctl: ${line}\n`).join(''));
    await until(() => !isRunning(helper));
  });

  it('listens with one of the permissions that macOS may need, or if they are unknown', async (t) => {
    await Promise.all(['0 1 0', '1 0 0', '-1 -1 -1'].map(async (permissions) => {
      const { say, shows, output } = startHelped(t, NOWHERE);
      say(`ready ${permissions}`);
      await shows(/^listening to macOS key events /m);
      assert.doesNotMatch(output(), /control-kbctl: /);
    }));
  });

  const taken = (name: string, option: string): string => {
    return `${name} does not work, another application uses it; set ${option} to another combination`;
  };
  it('reports combinations that Windows rejects, and listens to the others', async (t) => {
    const { port, posted } = await startQuick(t);
    const args = ['--port', `${port}`, '--backend', 'windows', '--quit-key', 'f9'];
    const { child, say, shows, ended } = startHelped(t, args);
    say('failed 0 1409\r', 'ok 1\r', 'failed 2 87\r', 'ready\r', 'hit 1\r');
    await shows(/^press Ctrl-C to quit$/m);
    await until(() => posted().length === 1);
    child.kill();
    const { stdout, stderr } = await ended;
    const keys = `  ${RESUME}  resume\nhttp`; // and no other
    assert.ok(stdout.replace(/^listening to Windows hotkeys .*\n/, '').startsWith(keys), stdout);
    assert.equal(stderr, [
      taken(PAUSE, '--pause-key'),
      'F9 does not work, Windows rejected it (error 87); set --quit-key to another combination',
    ].map((line) => `control-kbctl: ${line}\n`).join(''));
    assert.deepEqual(posted(), ['resume']);
  });

  const path = 'C:\\Windows\\System32\\WindowsPowerShell\\v1.0\\powershell.exe'; // if SystemRoot is set
  const permission = /^the terminal application lacks a permission: .* > Accessibility .*$/;
  const fails: [what: string, backend: string, script: string | null, why: string | RegExp, SystemRoot?: string][] = [
    ...['0 0 0', '0 -1 0'].map((permissions): [string, string, string, RegExp] => {
      return ['lacks a permission', 'macos', `echo ready ${permissions}; exec cat "$KEYS"`, permission];
    }),
    ['gets no combination', 'windows', 'echo failed 0 1409; echo failed 1 1409; echo ready; exec cat "$KEYS"',
      `${taken(PAUSE, '--pause-key')}; ${taken(RESUME, '--resume-key')}`],
    ['is killed', 'windows', 'kill -KILL $$', 'powershell.exe was killed by SIGKILL'],
    ['fails', 'windows', 'echo " reason" >&2; seq 9999 >&2; exit 3', 'powershell.exe exited with code 3: reason'],
    ['must not compile', 'windows',
      'echo "Add-Type : Definition of new types is not supported in this language mode." >&2; exit 1',
      'a policy of this machine (Constrained Language Mode) forbids Add-Type in PowerShell'],
    ['is absent', 'windows', null, 'cannot start powershell.exe: spawn powershell.exe ENOENT'],
    ['is absent', 'windows', '', `cannot start ${path}: spawn ${path} ENOENT`, 'C:\\Windows'],
  ];
  it('cannot listen if the helper fails before it is ready, and reports the reason', async (t) => {
    await Promise.all(fails.map(async ([what, backend, script, why, SystemRoot]) => {
      const env = { SystemRoot, ...script === null ? { PATH: makeFolder(t) } : {} };
      const { ended } = startHelped(t, ['--backend', backend, ...NOWHERE], { script: script ?? '', env });
      const { code, stdout, stderr } = await ended;
      assert.deepEqual([code, stdout], [1, ''], what);
      const reason = stderr.replace(`control-kbctl: ${backend}: `, '').trimEnd();
      if (typeof why === 'string') assert.equal(reason, why, what);
      else assert.match(reason, why, what);
    }));
  });

  it('is the only one that is tried with --backend', async (t) => {
    const ended = await runProgram(t, 'kbctl', ['--backend', 'terminal']);
    const stderr = 'control-kbctl: terminal: standard input is not a terminal\n';
    assert.deepEqual(ended, { code: 1, stdout: '', stderr });
  });
});

// ───── What runs in the interpreters ─────────────────────────────────────────────────────────────────────────────

/** Starts control-kbctl. Returns its process, and the arguments of the interpreter that it starts. */
async function interpreterOf(t: TestContext, ...args: string[]): Promise<{ pid: number | undefined; words: string[] }> {
  const path = join(makeFolder(t), 'arguments');
  const script = `for word; do printf '%s\\0' "$word"; done > '${path}'; echo ${READY}; exec cat "$KEYS"`;
  const { child, shows } = startHelped(t, [...args, ...NOWHERE], { script });
  await shows(/^listening to /m);
  return { pid: child.pid, words: readFileSync(path, 'utf8').split('\0').slice(0, -1) };
}

describe('the macOS helper', SUITE, () => {
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
  it('reports each press of exactly a combination once, from two sources', async (t) => {
    const { words } = await interpreterOf(t, '--resume-key', 'ctrl+cmd+r');
    const [script = '', argument = ''] = words.slice(-2);
    assert.deepEqual(words, ['-l', 'JavaScript', '-e', script, argument]);
    for (const [what, steps, hits] of presses) {
      const [ready, ...lines] = runScript(script, argument, steps);
      assert.equal(ready, 'ready 0 1 -1');
      assert.equal(lines.map((line) => line.replace('hit ', '')).join(' '), hits, what);
    }
    const lines = runScript(script, argument, { 5: { flags: ALT_SHIFT, down: [P] } }, false);
    assert.deepEqual(lines, ['note Error: no monitor', 'ready 0 1 -1', 'hit 0']);
  });
});

interface Step {
  flags?: number;
  down?: number[];
  event?: { keyCode: number; modifierFlags: number; isARepeat: boolean };
}

/** Runs the script with a stand-in for AppKit. A turn takes 20 ms; the parent exits after 50 turns. */
function runScript(script: string, keys: string, steps: Record<number, Step>, hasMonitor: boolean = true): string[] {
  let [now, turn] = [1e6, 0];
  let onKeyDown: (event: unknown) => void = () => {};
  const lines: string[] = [];
  const held: Required<Pick<Step, 'flags' | 'down'>> = { flags: 0, down: [], ...steps[0] };
  const runUntilDate = (): void => {
    [turn, now] = [turn + 1, now + 20];
    assert.ok(turn < 100, 'the script ends when its parent exits');
    const { event, ...state } = steps[turn] ?? {};
    Object.assign(held, state);
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
    CGEventSourceFlagsState: () => held.flags,
    CGEventSourceKeyState: (_: number, code: number) => held.down.includes(code),
    AXIsProcessTrusted: () => false,
    CGPreflightListenEventAccess: () => true,
    getppid: () => (turn < 50 ? 99 : 1),
  });
  const bindFunction = (name: string): void => assert.notEqual(name, 'IsSecureEventInputEnabled');
  const context = createContext({ $, ObjC: { import: () => {}, bindFunction }, Date: { now: () => now } });
  runInContext(script, context);
  context['run']([keys]);
  return lines;
}

describe('the Windows helper', SUITE, () => {
  const KEYS = ['--backend', 'windows', '--resume-key', 'ctrl+shift+super+f5', '--quit-key', 'alt+shift+q'];

  it('is started without double quotes, which PowerShell restores', async (t) => {
    const { pid, words } = await interpreterOf(t, ...KEYS);
    assert.ok(!words.join('').includes('"'));
    const options = '-NoLogo -NoProfile -NonInteractive -InputFormat None -ExecutionPolicy Bypass -Command';
    assert.deepEqual(words.slice(0, -1), options.split(' '));
    const command = words.at(-1) ?? '';
    assert.match(command, /^[\x20-\x7e]+$/);
    assert.ok(command.endsWith(`; [Hotkeys]::Listen(${pid},'5,80;14,116;5,81')`), command.slice(-60));
  });

  const needs = { skip: lacks('mcs', 'mono', 'cc') };
  it('is C# 5 that registers combinations, reports presses, and exits with its parent', needs, async (t) => {
    const folder = makeFolder(t);
    const call = 'public static void Main(string[] words) { Hotkeys.Listen(int.Parse(words[0]), words[1]); }';
    const source = sourceIn((await interpreterOf(t, ...KEYS)).words.at(-1) ?? '');
    writeFileSync(join(folder, 'Main.cs'), `${source} public class Program { ${call} }`);
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
});

/** The source as PowerShell evaluates it from its command line. */
function sourceIn(command: string): string {
  const expression = /-TypeDefinition \('((?:[^']|'')*)'\.Replace\(\[string\]\[char\]96,\[string\]\[char\]34\)\); /;
  const [, quoted = ''] = expression.exec(command) ?? [];
  assert.ok(quoted);
  return quoted.replaceAll("''", "'").replaceAll('`', '"');
}

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
