// The history of control-console: its file, what it keeps, and what it recalls.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { History } from '../../../console/lines.ts';
import { makeFolder, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { capture } from '../client/capture.ts';
import { at, terminal, UP } from './helpers.ts';

const UNUSABLE = /^[^\n]*cannot keep the history: [^\n]*; --no-history disables it\n$/;

describe('The history of control-console', { ...LIMIT, skip: lacks('Unix', 'mkfifo') }, () => {
  const lines = Array.from({ length: 2500 }, (_, index) => `# ${index}`);
  const files: [what: string, text: string, recalled: string[]][] = [
    ['repeated commands', `resume\n${'status\n'.repeat(50)}help\n${'status\n'.repeat(50)}`,
      ['status', 'help', 'resume']],
    ['control characters', 'one\x1b]0;title\x07\x9b2Jtwo\u202e\n', ['one ]0;title 2Jtwo ']],
    ['more than 1,000 lines', `${lines.join('\n')}\n`, lines.slice(1500).reverse()],
  ];
  it('recalls the latest 1,000 commands, each once, and makes the file private', async (t) => {
    for (const [what, text, recalled] of files) {
      const folder = makeFolder(t);
      mkdirSync(join(folder, 'control'));
      writeFileSync(fileIn(folder), text, { mode: 0o644 });
      await withHistory({ XDG_STATE_HOME: folder }, (history) => assert.deepEqual(history.load(), recalled, what));
      assert.equal(statSync(fileIn(folder)).mode & 0o777, 0o600);
      if (recalled.length === 1000) assert.equal(readFileSync(fileIn(folder), 'utf8').split('\n').length, 1001);
    }
  });

  it('is in ~/.local/state unless XDG_STATE_HOME is absolute, and keeps the lines of two consoles', async (t) => {
    for (const value of ['', 'state']) {
      const home = makeFolder(t);
      await withHistory({ HOME: home, XDG_STATE_HOME: value }, (one) => {
        const other = new History(true);
        for (const history of [one, other]) assert.deepEqual(history.load(), []);
        for (const round of [1, 2]) [one, other].forEach((history, index) => history.add(`# ${round}.${index}`));
      });
      assert.equal(readFileSync(fileIn(join(home, '.local', 'state')), 'utf8'), '# 1.0\n# 1.1\n# 2.0\n# 2.1\n');
      assert.ok(!existsSync('state'));
    }
  });

  const spoils: [what: string, before: (folder: string) => void, after?: (folder: string) => void][] = [
    ['is a folder', (folder) => mkdirSync(fileIn(folder), { recursive: true })],
    ['is deleted with its folder', () => {}, (folder) => rmSync(join(folder, 'control'), { recursive: true })],
    ['is a link, as to /dev/null', (folder) => {
      execFileSync('mkfifo', ['--mode=644', join(folder, 'pipe')]); // the file itself, unlike a FIFO, is made private
      mkdirSync(join(folder, 'control'));
      symlinkSync(join(folder, 'pipe'), fileIn(folder));
    }, (folder) => assert.equal(statSync(join(folder, 'pipe')).mode & 0o777, 0o644)],
  ];
  it('warns once about a file that cannot be used or has become unusable', async (t) => {
    for (const [what, before, after] of spoils) {
      const folder = makeFolder(t);
      before(folder);
      const warnings = await withHistory({ XDG_STATE_HOME: folder }, (history) => {
        assert.deepEqual(history.load(), [], what);
        after?.(folder);
        for (const line of ['status', 'help']) history.add(line);
      });
      assert.match(warnings, UNUSABLE, what);
    }
  });

  it('is neither read nor written with --no-history; errors and the status have colors', async (t) => {
    const folder = makeFolder(t);
    const { port, server } = await startServer(t);
    mkdirSync(join(folder, 'control'));
    writeFileSync(fileIn(folder), 'help quit\n', { mode: 0o644 });
    const colors = { NO_COLOR: undefined, COLORTERM: undefined, TMUX: undefined };
    const { type, shows } = await terminal(t, `${at(port)} --no-history`, { XDG_STATE_HOME: folder, ...colors });
    await type('nonsense\r', /\n\x1b\[31munknown command 'nonsense'.*\x1b\[39m\n.*\(\x1b\[32mactive\x1b\[39m\) > $/);
    await type(UP, /> nonsense$/); // from this run
    await type(UP, /> $/);
    await server.close();
    await shows(/\(\x1b\[31moffline\x1b\[39m\) > $/);
    assert.deepEqual([readFileSync(fileIn(folder), 'utf8'), statSync(fileIn(folder)).mode & 0o777],
      ['help quit\n', 0o644]);
  });
});

/** Uses a history with these environment variables. Returns its output on stderr. */
async function withHistory(env: Record<string, string>, use: (history: History) => void): Promise<string> {
  const { HOME = '', XDG_STATE_HOME = '' } = process.env;
  Object.assign(process.env, env);
  try {
    const { stderr } = await capture(async () => {
      use(new History(true));
      return 0;
    });
    return stderr;
  } finally {
    Object.assign(process.env, { HOME, XDG_STATE_HOME });
  }
}

/** The file in a folder for `XDG_STATE_HOME`. */
function fileIn(folder: string): string {
  return join(folder, 'control', 'history');
}
