// What a program gets from the caller of control-run: file descriptors, and NODE_OPTIONS.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { freePort, makeFolder, perform, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { DEFAULT_WAY, exitCodeOf, run, shell, showsRun, startRun } from './helpers.ts';
import type { Way } from './helpers.ts';

const HELLO = `echo '{"status":"active"}' >&$CONTROL_FD`;

/** Lists the descriptors of the shell; a test may itself have been started with higher ones. */
const LIST = 'for fd in 3 4 5 6 7 8 9 10 11 12 13 14 15; do [ ! -e /proc/$$/fd/$fd ] || printf "$fd "; done';

describe('control-run: what a program inherits', { ...LIMIT, concurrency: 3, skip: lacks('Linux') }, () => {
  /** Starts control-run with descriptors. */
  const withDescriptors = (redirections: string, path: string): Way => ({
    ...DEFAULT_WAY, line: (t) => ['sh', '-c', `exec "$@" ${redirections}`, path, ...DEFAULT_WAY.line(t)],
  });

  for (const isPaused of [false, true]) {
    const when = isPaused ? ', also in a paused start' : '';

    it(`are the descriptors of the caller; CONTROL_FD is a free one${when}`, async (t) => {
      const folder = makeFolder(t);
      const [path, state] = [join(folder, 'list'), join(folder, 'state')];
      writeFileSync(path, 'first\nsecond\n');
      writeFileSync(state, JSON.stringify({ status: isPaused ? 'paused' : 'active' }));
      const script = `read -r one <&3; read -r two <&5; ${LIST}; echo "$one $two $CONTROL_FD"; ${HELLO}; sleep 98765`;
      const way = withDescriptors('3< "$0" 5< "$0" 7>&1', path);
      const started = await startRun(t, ['--state', state], shell(script), {}, way);
      if (isPaused) await perform(started.port, 'resume');
      await started.running.shows(/^3 4 5 7 first first 4\n/m);
      await showsRun(started, { canSave: true });
    });
  }

  it('leave one below 10 to the shell of a paused start, which knows one digit', async (t) => {
    const folder = makeFolder(t);
    const [path, state] = [join(folder, 'list'), join(folder, 'state')];
    writeFileSync(path, 'first\n');
    writeFileSync(state, JSON.stringify({ status: 'paused' }));
    const way = withDescriptors([3, 4, 5, 6, 7, 8].map((fd) => `${fd}< "$0"`).join(' '), path);
    const script = 'read -r one <&8; echo "$one $CONTROL_FD"; exec sleep 98765';
    const started = await startRun(t, ['--state', state], shell(script), {}, way);
    await perform(started.port, 'resume');
    await started.running.shows(/^first 10\n/m);
  });

  it('is no descriptor that Node or control-run has opened', async (t) => {
    assert.equal((await run(t, [], shell(`${LIST}; echo "$CONTROL_FD"`))).stdout, '3 3\n');
  });

  it('are both ends of a pipe, such as the jobserver of make', { skip: lacks('python3') }, async (t) => {
    const line = 'import os, subprocess, sys; read, write = os.pipe(); os.write(write, b"+\\n"); ' +
      'os.dup2(write, 5); os.dup2(read, 3); os.dup2(5, 4); sys.exit(subprocess.call(sys.argv[1:], pass_fds=(3, 4)))';
    const program = shell('read -r token <&3; echo "$token" >&4; echo "took $token, CONTROL_FD $CONTROL_FD"');
    const { stdout } = await start(t, 'python3', ['-c', line, ...DEFAULT_WAY.line(t), '--port', '0', ...program]).ended;
    assert.equal(stdout, 'took +, CONTROL_FD 5\n');
  });

  it('is the port of the debugger in NODE_OPTIONS', async (t) => {
    const port = await freePort();
    const command = [process.execPath, '-e', 'console.log(require("inspector").url())'];
    const { running } = await startRun(t, [], command, { NODE_OPTIONS: `--inspect=127.0.0.1:${port}` });
    assert.equal(await exitCodeOf(running), 0);
    assert.match(running.output(), new RegExp(`^ws://127\\.0\\.0\\.1:${port}/`, 'm'));
  });
});
