// control-run on a terminal: a shell in a pseudo-terminal, and keys that somebody types.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { clientAt, getInfo, makeFolder, perform, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  BANNER, DEFAULT_WAY, killAll, listByVariable, listTree, readTask, showsRun, stateOf, tryRead,
} from './helpers.ts';
import type { Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

const [CTRL_C, CTRL_Z, CTRL_BACKSLASH] = ['\x03', '\x1a', '\x1c'];
const O_NONBLOCK = 0o4000;
const CHANGE = /control-run: (?:paused|resumed).*\r?\n/g;

/** Takes its time to restore the terminal before it stops. The loops are of the shell alone: a child would stop. */
const RESTORER = `
trap 'for i in {1..20000}; do :; done; echo restored; trap - TSTP; kill -TSTP $$; echo again' TSTP
echo ready
while :; do read -r -t 0.2; done
`;

const options = { ...LIMIT, concurrency: 4, skip: lacks('Linux', 'script', 'bash') };

describe('control-run: on a terminal', options, () => {
  it('leaves it to the program', async (t) => {
    const shell = await startShell(t);
    const script = 'for fd in 0 1 2; do test -t $fd && echo "fd $fd"; done; stty size; echo written >/dev/tty; ' +
      'cat /proc/self/fdinfo/[012] | grep flags; read -r line; echo "read $line"';
    await shell.control(`$RUN -- sh -c '${script}'`);
    await shell.shows(/^fd 0\nfd 1\nfd 2\n24 80\nwritten\n(flags.*\n){3}/m);
    for (const [, flags] of shell.text().matchAll(/^flags:\s+(\d+)$/mg)) {
      assert.equal(parseInt(flags as string, 8) & O_NONBLOCK, 0, 'programs expect a terminal that blocks');
    }
    await shell.type('some words\n', /^read some words\n<0> /m);
  });

  it('an editor takes keys that were typed during a pause, and no line disturbs its screen', {
    skip: lacks('vi'),
  }, async (t) => {
    const path = join(makeFolder(t), 'file');
    writeFileSync(path, Array.from({ length: 100 }, (_, index) => `line ${index}\n`).join(''));
    const shell = await startShell(t);
    const { port, pid } = await shell.control(`$RUN vi -u NONE ${path}`);
    await shell.shows(/line 21/);
    await perform(port, 'pause');
    assert.equal(stateOf(pid), 'T');
    await shell.type('ityped \x1b', /^/);
    await showsRun({ port }, { pid });
    assert.doesNotMatch(shell.text(), /typed/);
    await perform(port, 'resume');
    await shell.shows(/typed/);
    await shell.type(CTRL_Z, /Stopped[^]*<14[78]> $/);
    assert.ok(modeOf(shell).includes('icanon'));
    await shell.type('fg\n', /line 21/);
    assert.deepEqual(shell.said(), []);
    await shell.type(':wq\n', /<0> $/);
    assert.match(readFileSync(path, 'utf8'), /^typed line 0\nline 1\n/);
  });

  it('a pause, and the end after SIGKILL of control-run, leave the rest of its process group alone', async (t) => {
    const shell = await startShell(t);
    await shell.type('export RUN\n', /<0> $/);
    const line = `sh -c '$RUN -- sh -c "echo started; sleep 98765; :" | cat'`;
    const { port, pid, parent } = await shell.control(line);
    await shell.shows(/^started$/m);
    await until(() => listTree(pid).length === 2);
    const program = listTree(pid);
    const others = shell.others().filter((one) => !program.includes(one));
    assert.ok(others.length >= 3, 'sh, control-run, cat');
    await perform(port, 'pause');
    assert.deepEqual(program.map(stateOf), ['T', 'T']);
    assert.deepEqual(others.filter((one) => stateOf(one) === 'T'), []);
    assert.ok(others.includes(parent));
    await perform(port, 'resume');
    assert.deepEqual(program.map(stateOf), ['S', 'S']);
    process.kill(parent, 'SIGKILL');
    await shell.shows(/<0> $/); // of cat, at the end of its input
    await until(() => shell.others().length === 0);
  });

  for (const [what, line, keys, shown] of [
    ['Ctrl-\\ ends the program', '$RUN sleep 98765', CTRL_BACKSLASH, /^\^\\[^]*<131> $/],
    ['Ctrl-C ends a shell loop', `bash -c 'for i in 1 2 3; do $RUN sleep 98765; echo next; done'`, CTRL_C,
      /^\^C\n?<130> $/],
  ] as const) {
    it(`${what}, as without control-run`, async (t) => {
      const shell = await startShell(t);
      await shell.type('export RUN\n', /<0> $/);
      await shell.control(line);
      await shell.type(keys, /<\d+> $/);
      assert.match(shell.text(), shown);
    });
  }

  it('Ctrl-Z suspends both, fg and bg resume both; a pause waits until then, and stays', async (t) => {
    const shell = await startShell(t);
    const { port, pid, parent } = await shell.control("$RUN sh -c 'sleep 98765; :'");
    await until(() => listTree(pid).length === 2);
    const all = [parent, ...listTree(pid)];
    for (const [command, shown] of [['fg', /\n.*sleep 98765.*\n/], ['bg', /&\n<0> $/]] as const) {
      await shell.type(CTRL_Z, /Stopped.*\n<14[78]> $/);
      assert.deepEqual(all.map(stateOf), ['T', 'T', 'T']);
      await shell.type(`${command}\n`, shown);
      await until(() => all.every((one) => stateOf(one) === 'S'));
      assert.equal((await getInfo(port)).status, 'active');
    }
    await shell.type('fg\n', /\n.*sleep 98765.*\n/);
    await shell.type(CTRL_Z, /Stopped.*\n<14[78]> $/);
    const paused = perform(port, 'pause');
    await shell.type('fg\n', /\n.*sleep 98765.*\n/);
    assert.deepEqual(await paused, [200, undefined]);
    assert.deepEqual(listTree(pid).map(stateOf), ['T', 'T']);
    for (const command of ['fg', 'kill -CONT %1']) {
      await shell.type(CTRL_Z, /Stopped.*\n<14[78]> $/);
      assert.equal(stateOf(parent), 'T');
      await shell.type(`${command}\n`, /\n/);
      await until(() => stateOf(parent) === 'S');
      assert.equal((await getInfo(port)).status, 'paused', 'it stays paused');
      await until(() => listTree(pid).every((one) => stateOf(one) === 'T'));
    }
    await perform(port, 'resume');
    await until(() => listTree(pid).every((one) => stateOf(one) === 'S'));
    await shell.type('kill %1; wait; echo $((6 * 7))\n', /^42$/m);
    await until(() => shell.others().length === 0);
  });

  it('Ctrl-Z returns the terminal to the shell only after the program has restored it', async (t) => {
    const path = join(makeFolder(t), 'restore');
    writeFileSync(path, RESTORER);
    const shell = await startShell(t);
    await shell.control(`$RUN sh -c 'bash ${path}; :'`);
    await shell.shows(/^ready\n/m);
    await shell.type(CTRL_Z, /^\^Zrestored\n[^]*Stopped.*\n<14[78]> $/);
    await shell.type('fg\n', /^again\n/m);
    await shell.type(CTRL_C, /<130> $/);
  });

  it('Ctrl-Z has no effect if the program ignores it', async (t) => {
    const shell = await startShell(t);
    const script = 'trap "" TSTP; echo ready; read -r line; echo "read $line"';
    const { pid, parent } = await shell.control(`$RUN sh -c '${script}'`);
    await shell.shows(/^ready\n/m);
    await shell.type(`${CTRL_Z}words\n`, /^\^Zwords\nread words\n<0> $/);
    assert.deepEqual([pid, parent].map(stateOf), ['', '']);
  });

  it('Ctrl-C reaches the program once: if it is paused, after a resume, or after Ctrl-Z and fg', async (t) => {
    const shell = await startShell(t);
    const script = `n=0; trap "n=\\$((n + 1)); echo interrupted \\$n" INT; echo ready; while :; do sleep 0.1; done`;
    const { port, pid, parent } = await shell.control(`$RUN sh -c '${script}'`);
    await shell.shows(/^ready\n/m);
    await shell.type(CTRL_C, /interrupted 1\n/);
    process.kill(parent, 'SIGINT'); // only the terminal interrupts
    await shell.type(CTRL_C, /interrupted 2\n/);
    assert.equal((await getInfo(port)).status, 'active');
    await perform(port, 'pause');
    await shell.type(CTRL_C, /control-run: sh.* is paused and will receive SIGINT when it is resumed\n/);
    await shell.type(CTRL_Z, /Stopped.*\n<14[78]> $/);
    await shell.type('fg\n', /^interrupted 3\n/m);
    await until(async () => (await getInfo(port)).status === 'active');
    assert.equal(stateOf(pid), 'S');
    await perform(port, 'pause');
    await shell.type(CTRL_C, /will receive SIGINT when it is resumed\n/);
    await perform(port, 'resume');
    await shell.shows(/^interrupted 4\n/m);
    await perform(port, 'pause');
    await shell.type(CTRL_Z, /Stopped.*\n<14[78]> $/);
    await shell.type('fg\n', /\n/);
    await until(() => stateOf(parent) === 'S');
    for (let count = 0; count < 2; count += 1) await perform(port, 'pause'); // it has taken SIGCONT then
    assert.equal((await getInfo(port)).status, 'paused', 'the signal has arrived before this pause');
    await until(() => listTree(pid).every((one) => stateOf(one) === 'T'));
    await perform(port, 'shutdown');
    await shell.shows(/<143> $/);
  });

  it('Ctrl-\\ reaches a program that handles it once', async (t) => {
    const shell = await startShell(t);
    const script = `n=0; trap "n=\\$((n + 1)); echo quits \\$n" QUIT; echo ready; while :; do sleep 0.1; done`;
    await shell.control(`$RUN sh -c '${script}'`);
    await shell.shows(/^ready\n/m);
    for (const count of [1, 2]) await shell.type(CTRL_BACKSLASH, new RegExp(`quits ${count}\n`));
    await shell.type(CTRL_C, /<130> $/);
  });

  for (const state of ['active', 'suspended while paused'] as const) {
    it(`nothing is left when the terminal is closed while ${state}`, async (t) => {
      const shell = await startShell(t);
      const { port, pid } = await shell.control("$RUN sh -c 'trap \"\" HUP; sleep 98765 & sleep 98765 & wait'");
      await until(() => listTree(pid).length === 3);
      if (state.endsWith('paused')) await perform(port, 'pause');
      if (state.startsWith('suspended')) await shell.type(CTRL_Z, /Stopped.*\n<14[78]> $/);
      shell.child.kill('SIGKILL');
      await until(() => shell.others().length === 0, () => shell.others().join());
    });
  }

  it('shows who pauses and resumes a program, and why', async (t) => {
    const shell = await startShell(t);
    const { port } = await shell.control('$RUN sleep 98765');
    const client = clientAt(t, { host: '127.0.0.1', port });
    const expected: string[] = [];
    for (const [command, options, line] of [
      ['pause', { by: 'ana@laptop', reason: 'GPU needed until noon' }, 'paused by ana@laptop: GPU needed until noon'],
      ['pause', { by: 'bob', reason: 'until one' }, null], // already paused
      ['resume', { by: 'ana@laptop' }, 'resumed by ana@laptop'],
      ['resume', { by: 'bob' }, null],
      ['pause', { reason: '\x1b[2Jlunch' }, 'paused by somebody: [2Jlunch'],
      ['resume', {}, 'resumed'],
    ] as const) {
      await client.request(command, { ...options, wait: 60 });
      if (line !== null) expected.push(`control-run: ${line}\r\n`);
      await until(() => shell.said().length >= expected.length, () => `no ${line} in ${shell.said()}`);
      assert.deepEqual(shell.said(), expected);
    }
    await shell.type(CTRL_C, /<130> $/);
  });

  it('shows nothing of a pause with --quiet, or if stderr is a file', async (t) => {
    const shell = await startShell(t);
    const folder = makeFolder(t);
    const [socketPath, log] = [join(folder, 'sock'), join(folder, 'log')];
    await shell.type(`SOCKET_RUN="\${RUN/--port 0/--socket ${socketPath}}"\n`, /<0> $/);
    for (const line of ['$SOCKET_RUN --quiet sleep 98765', `$SOCKET_RUN sleep 98765 2>${log}`]) {
      await shell.type(`${line}\n`, /\n/);
      await until(() => existsSync(socketPath));
      const client = clientAt(t, { host: '', port: 0, socketPath });
      await client.waitFor(SystemStatus.ACTIVE);
      for (const command of ['pause', 'resume', 'pause', 'shutdown'] as const) {
        assert.equal((await client.request(command, { by: 'ana', reason: 'lunch', wait: 60 })).ok, true);
      }
      await shell.shows(/<143> $/);
      assert.deepEqual(shell.said(), []);
      assert.doesNotMatch(shell.text().slice(line.length), /control-run/);
    }
    assert.doesNotMatch(readFileSync(log, 'utf8'), /paused/);
  });

  it('does not change the mode at exit, when others may use it', async (t) => {
    const shell = await startShell(t);
    const raw = `'stty -icanon -echo; echo changed'`;
    const { pid } = await shell.control('$RUN sleep 98765 &');
    await shell.type(`sh -c ${raw}\n`, /^changed\n/m);
    process.kill(pid);
    await until(() => shell.others().length === 0);
    assert.deepEqual(modeOf(shell), ['-icanon', '-echo']);
  });
});

// ───── The shell ─────────────────────────────────────────────────────────────────────────────────────────────────────

interface Controlled {
  port: number;
  /** The process id of the program, and that of control-run. */
  pid: number;
  parent: number;
}

/** An interactive bash in a pseudo-terminal of 24 rows and 80 columns. Its prompt is `<EXIT CODE> `. */
interface Shell extends Pick<Running, 'child'> {
  pid: number;
  /** The path of the terminal. */
  path: string;
  /** Lists the processes of this terminal that run, other than the shell. */
  others(): number[];
  /** Types keys. */
  write(keys: string): void;
  /** What the terminal has shown since the last keys of `type()`, without what `said()` returns, and the first line. */
  text(): string;
  /** The lines of control-run about pauses since the last `control()`. */
  said(): string[];
  /** Resolves when it matches. */
  shows(pattern: RegExp): Promise<void>;
  /** Types keys, and resolves when the output since then matches. */
  type(keys: string, pattern: RegExp): Promise<void>;
  /** Starts a command with $RUN, which is control-run on a free port, and resolves once the program runs. */
  control(line: string): Promise<Controlled>;
}

/** Starts the shell. When the test ends, its terminal is closed, and that must end all that it has started. */
async function startShell(t: TestContext): Promise<Shell> {
  const mark = `TEST=${randomUUID()}`;
  const shell = `stty rows 24 cols 80; exec bash --norc --noprofile --noediting -i`;
  const running = start(t, 'script', ['--quiet', '--return', '--command', shell, '/dev/null'], {
    PS1: '<$?> ', HISTFILE: '/dev/null', LC_ALL: 'C.UTF-8', SHELL: '/bin/sh', TEST: mark.slice(5),
    RUN: [...DEFAULT_WAY.line(t), '--port', '0', '--grace', '1'].join(' '),
  });
  const { child, output } = running;
  t.after(async () => {
    child.kill('SIGKILL');
    await areGone(mark);
  });
  let seen = 0;
  let controlled = 0;
  const raw = (): string => output().slice(seen).replaceAll('\r\n', '\n');
  const said = (): string[] => output().slice(controlled).match(CHANGE) ?? [];
  const lines = new RegExp(`${BANNER.source}|${CHANGE.source}`, 'g'); // they may be anywhere, also after a prompt
  const text = (): string => raw().replaceAll(lines, '');
  const shows = (pattern: RegExp): Promise<void> => {
    return running.until(() => pattern.test(text()), () => `no ${pattern} in ${JSON.stringify(text())}`);
  };
  const write = (keys: string): void => void child.stdin?.write(keys);
  const type = (keys: string, pattern: RegExp): Promise<void> => {
    seen = output().length;
    write(keys);
    return shows(pattern);
  };
  const control = async (line: string): Promise<Controlled> => {
    controlled = seen = output().length;
    write(`${line}\n`);
    await running.until(() => BANNER.test(raw()), () => `no banner in ${JSON.stringify(raw())}`);
    const [, pid, port] = BANNER.exec(raw()) as unknown as [string, string, string];
    return { port: Number(port), pid: Number(pid), parent: readTask(Number(pid))[0]?.parent ?? 0 };
  };
  await shows(/^<0> /m);
  await type('echo $$ $(tty) =\n', /^\d+ \S+ =\n<0> /m);
  const [, pid, path] = /^(\d+) (\S+) =$/m.exec(text()) as unknown as [string, string, string];
  const others = (): number[] => listMarked(mark).filter((one) => one !== child.pid && one !== Number(pid));
  return { child, pid: Number(pid), path, others, write, text, said, shows, type, control };
}

/** Waits until no process has the variable in its environment; ends those that are left after that, and fails. */
async function areGone(mark: string): Promise<void> {
  const left = (): number[] => listMarked(mark);
  const describe = (pid: number): string => `${pid} ${stateOf(pid)} ${tryRead(`/proc/${pid}/cmdline`)}`;
  await until(() => left().length === 0, () => `left: ${left().map(describe)}`).finally(() => killAll(left()));
}

function listMarked(mark: string): number[] {
  return listByVariable((variable) => variable === mark);
}

/** Whether it gives lines to programs, and shows what is typed. */
function modeOf({ path }: Shell): string[] {
  const { stdout } = spawnSync('stty', ['-F', path, '-a'], { encoding: 'utf8' });
  return stdout.match(/(?<= )-?(?:icanon|echo)(?= )/g) ?? assert.fail(stdout);
}
