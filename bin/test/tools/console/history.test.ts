// The history of control-console: its file, what it keeps, and what it recalls.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { History } from '../../../console/history.ts';
import { makeFolder, startServer } from '../../helpers.ts';
import { LIMIT } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { capture } from '../client/capture.ts';
import { ACTIVE, at, readHistory, shown, terminal, UP, writeHistory } from './helpers.ts';

describe('The history of control-console', { ...LIMIT, skip: lacks('Unix') }, () => {
  const read: [what: string, text: string, recalled: string[]][] = [
    ['a repeated command once', `resume\n${'status\n'.repeat(50)}help\n${'status\n'.repeat(50)}`,
      ['status', 'help', 'resume']],
    ['lines without control characters', 'one\x1b]0;title\x07\x9b2Jtwo\u202e\n', ['one ]0;title 2Jtwo ']],
  ];
  for (const [what, text, recalled] of read) {
    it(`recalls ${what}, and makes a readable file private`, async (t) => {
      const folder = makeFolder(t);
      const file = writeHistory(folder, text, 0o644);
      assert.deepEqual(await load(folder), { lines: recalled, warnings: '' });
      assert.equal(statSync(file).mode & 0o777, 0o600);
    });
  }

  it('leaves anything but a file alone, and warns', { skip: lacks('mkfifo') }, async (t) => {
    const folder = makeFolder(t);
    const pipe = join(folder, 'pipe');
    execFileSync('mkfifo', ['--mode=644', pipe]);
    mkdirSync(join(folder, 'control'));
    symlinkSync(pipe, join(folder, 'control', 'history')); // like the common link to /dev/null
    const { lines, warnings } = await load(folder);
    assert.deepEqual(lines, []);
    assert.match(warnings, /cannot keep the history: '.*' is not a file; --no-history disables it\n$/);
    assert.equal(statSync(pipe).mode & 0o777, 0o644);
  });

  for (const [what, value] of [['empty', ''], ['relative', 'state']] as const) {
    it(`is in ~/.local/state if XDG_STATE_HOME is ${what}`, async (t) => {
      const home = makeFolder(t);
      await withHistory({ HOME: home, XDG_STATE_HOME: value }, (history) => {
        assert.deepEqual(history.load(), []);
        history.add('status');
      });
      assert.deepEqual(readHistory(join(home, '.local', 'state')), ['status']);
      assert.ok(!existsSync('state'));
    });
  }

  it('recalls at most 1,000 lines, and shortens a long file', async (t) => {
    const folder = makeFolder(t);
    const lines = Array.from({ length: 2500 }, (_, index) => `# ${index}`);
    const file = writeHistory(folder, `${lines.join('\n')}\n`);
    assert.deepEqual((await load(folder)).lines, lines.slice(1500).reverse());
    assert.deepEqual(readHistory(folder), lines.slice(1500));
    assert.equal(statSync(file).mode & 0o777, 0o600);
  });

  it('keeps the lines of two consoles at once', async (t) => {
    const folder = makeFolder(t);
    await withHistory({ XDG_STATE_HOME: folder }, (one) => {
      const other = new History(true);
      for (const history of [one, other]) history.load();
      for (const round of [1, 2]) [one, other].forEach((history, index) => history.add(`# ${round}.${index}`));
    });
    assert.deepEqual(readHistory(folder), ['# 1.0', '# 1.1', '# 2.0', '# 2.1']);
  });

  const spoils: [what: string, before: (folder: string) => void, after?: (folder: string) => void][] = [
    ['is a folder', (folder) => mkdirSync(join(folder, 'control', 'history'), { recursive: true })],
    ['has a file in place of its folder', (folder) => writeFileSync(join(folder, 'control'), '')],
    ['is deleted with its folder', () => {}, (folder) => rmSync(join(folder, 'control'), { recursive: true })],
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
      assert.match(warnings, /^[^\n]*cannot keep the history: [^\n]*; --no-history disables it\n$/, what);
    }
  });
});

describe('The history of control-console on a terminal', { ...LIMIT, skip: lacks('script') }, () => {
  it('is neither read nor written with --no-history', async (t) => {
    const folder = makeFolder(t);
    const { port } = await startServer(t);
    const file = writeHistory(folder, 'help quit\n', 0o644);
    const { type } = await terminal(t, `${at(port)} --no-history`, { XDG_STATE_HOME: folder });
    await type('status\r', shown(ACTIVE));
    await type(UP, /> status$/); // from this run
    await type(UP, /> $/);
    assert.deepEqual([readFileSync(file, 'utf8'), statSync(file).mode & 0o777], ['help quit\n', 0o644]);
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

/** Loads the history in a folder. */
async function load(folder: string): Promise<{ lines: string[]; warnings: string }> {
  let lines: string[] = [];
  const warnings = await withHistory({ XDG_STATE_HOME: folder }, (history) => (lines = history.load()));
  return { lines, warnings };
}
