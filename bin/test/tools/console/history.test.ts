// The history of control-console: its file, what it keeps, and what it recalls.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { CTRL_D, type Terminal, UP } from '../../screen.ts';
import { LIMIT } from '../../wait.ts';
import { ACTIVE, at, shown, terminal } from './helpers.ts';

const UNUSABLE = /cannot keep the history: [^\n]*; --no-history disables it\n/g;
const SUITE = { ...LIMIT, concurrency: 2, skip: lacks('script', 'mkfifo') };

describe('The history of control-console', SUITE, () => {
  it('is kept between two runs in a private file, whose latest 1,000 commands are recalled, each once', async (t) => {
    const { port } = await startServer(t);
    const { home, state, file } = makeState(t);
    const first = await terminal(t, at(port), { HOME: home, XDG_STATE_HOME: 'state' }); // relative: ignored
    await first.type('status\r', shown(ACTIVE));
    await first.type('   \r', /> $/);
    await first.type('help quit\r', /q, quit.*\n.*> $/);
    await first.type(CTRL_D, /\n/);
    assert.equal((await first.ended).code, 0);
    assert.equal(readFileSync(file, 'utf8'), 'status\nhelp quit\n');
    const modes = [file, join(state, 'control'), state].map((path) => statSync(path).mode & 0o777);
    assert.deepEqual(modes, [0o600, 0o700, 0o700]);
    const old = Array.from({ length: 1200 }, (_, index) => `# ${index}`);
    writeFileSync(file, [...old, 'one\x1b]0;title\x07\x9b2Jtwo\u202e', ...Array(50).fill('status'), ''].join('\n'));
    const second = await terminal(t, at(port), { XDG_STATE_HOME: state });
    await recalls(second, 'status', 'one \\]0;title 2Jtwo ', '# 1199');
    assert.equal(readFileSync(file, 'utf8').split('\n').length, 1001);
    await second.type(UP.repeat(997), /> # 202$/); // the oldest
    await second.type('\r', /> $/);
    const third = await terminal(t, at(port), { XDG_STATE_HOME: state }); // beside the second one
    await third.type('help quit\r', /q, quit.*\n.*> $/);
    await second.type('help pause\r', /p, pause.*\n.*> $/);
    assert.ok(readFileSync(file, 'utf8').endsWith('\nstatus\n# 202\nhelp quit\nhelp pause\n'));
  });

  const spoils: [what: string, before: (file: string) => void, after?: (file: string) => void][] = [
    ['is a folder', (file) => mkdirSync(file)],
    ['is deleted with its folder', () => {}, (file) => rmSync(join(file, '..'), { recursive: true })],
    ['is a link, as to /dev/null', (file) => {
      execFileSync('mkfifo', ['--mode=644', `${file}-pipe`]); // the file itself, unlike a FIFO, is made private
      symlinkSync(`${file}-pipe`, file);
    }],
  ];
  it('warns once about a file that cannot be used or has become unusable', async (t) => {
    const { port } = await startServer(t);
    await Promise.all(spoils.map(async ([what, before, after = () => {}]) => {
      const { state, file } = makeState(t);
      mkdirSync(join(state, 'control'), { recursive: true });
      before(file);
      const { type, output } = await terminal(t, at(port), { XDG_STATE_HOME: state });
      after(file);
      await type('help quit\r', /q, quit.*\n.*> $/);
      await type('help pause\r', /p, pause.*\n.*> $/);
      assert.equal(output().replaceAll('\r', '').match(UNUSABLE)?.length, 1, what);
      if (existsSync(`${file}-pipe`)) assert.equal(statSync(`${file}-pipe`).mode & 0o777, 0o644);
    }));
  });

  it('is neither read nor written with --no-history; errors and the status have colors', async (t) => {
    const { state, file } = makeState(t);
    const { port, server } = await startServer(t);
    mkdirSync(join(state, 'control'), { recursive: true });
    writeFileSync(file, 'help quit\n', { mode: 0o644 });
    const colors = { NO_COLOR: undefined, COLORTERM: undefined, TMUX: undefined };
    const { type, shows } = await terminal(t, `${at(port)} --no-history`, { XDG_STATE_HOME: state, ...colors });
    await type('nonsense\r', /\n\x1b\[31munknown command 'nonsense'.*\x1b\[39m\n.*\(\x1b\[32mactive\x1b\[39m\) > $/);
    await type(UP, /> nonsense$/); // from this run
    await type(UP, /> $/);
    await server.close();
    await shows(/\(\x1b\[31moffline\x1b\[39m\) > $/);
    assert.deepEqual([readFileSync(file, 'utf8'), statSync(file).mode & 0o777], ['help quit\n', 0o644]);
  });
});

/** A home, the folder for XDG_STATE_HOME in it, which is yet to be created, and the file there. */
function makeState(t: Parameters<typeof makeFolder>[0]): { home: string; state: string; file: string } {
  const home = makeFolder(t);
  const state = join(home, '.local', 'state');
  return { home, state, file: join(state, 'control', 'history') };
}

/** Presses Up once for each pattern. */
async function recalls({ type }: Terminal, ...patterns: string[]): Promise<void> {
  for (const pattern of patterns) await type(UP, new RegExp(`> ${pattern}$`));
}
