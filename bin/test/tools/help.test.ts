// The help of all tools at the widths of terminals.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { helpOn, VERBS } from '../../client/verbs.ts';
import { wrap } from '../../shared/cli.ts';
import { makeFolder, runProgram } from '../helpers.ts';
import { lacks } from '../needs.ts';
import { lineOf, openTerminal } from '../screen.ts';
import { LIMIT } from '../wait.ts';
import { startDemo } from './demo/helpers.ts';

const WIDTHS = [60, 80, 120];
const TOOLS = ['board', 'client', 'console', 'demo', 'kbctl', 'mcp', 'run'] as const;
const LABEL = /^(?: {2}\S.*? {2,}|(?:Usage:| {6}) \S+ )(?=\S)/; // and what precedes the text beside it
const LONG_LABEL = /^ {2}-[^ ]+( [^ ]+){1,2}$/;

const wordsOf = (text: string): string => text.trim().split(/\s+/).join(' ');

/** Checks that all words are there, that no line is too long, and that a text stays in the column where it begins. */
function checkHelp(help: string, width: number, text: string): void {
  assert.equal(wordsOf(help), wordsOf(text));
  let column = 0;
  for (const line of help.split('\n')) {
    assert.ok(Array.from(line).length <= width || line.startsWith('Example: '), `${width}: ${line}`);
    assert.doesNotMatch(line, / $/);
    const [start] = LABEL.exec(line) ?? (LONG_LABEL.test(line) ? [' '.repeat(22)] : []);
    const [indent = ''] = /^ */.exec(line) ?? [];
    if (start !== undefined) column = start.length;
    else if (indent.length > 2) assert.equal(indent.length, column, `${width}: ${line}`);
  }
}

describe('--help', { ...LIMIT, concurrency: 3 }, () => {
  it('of each command of control-client fits all widths', () => {
    for (const { name } of VERBS) {
      const text = helpOn(name);
      for (const width of WIDTHS) checkHelp(wrap(text, width), width, text);
    }
  });

  it('fills 40 to 120 columns, and 80 without a terminal', async (t) => {
    const text = `${'word '.repeat(60)}\n  ${'label'}  ${'text '.repeat(60)}`.trimEnd();
    const widest = (help: string): number => Math.max(...help.split('\n').map(({ length }) => length));
    const widths = [10, 60, 200].map((columns) => widest(wrap(text, columns)));
    assert.deepEqual(widths, [39, 59, 119]);
    const { stdout } = await runProgram(t, 'run', ['ask', '--help'], '', { COLUMNS: '60' });
    assert.equal(widest(stdout), 80);
  });

  for (const width of WIDTHS) {
    it(`of all tools fits a terminal of ${width} columns`, { skip: lacks('script') }, async (t) => {
      const all = TOOLS.map((tool) => `${lineOf(tool, ['--help'])}; echo`).join('; ');
      const { ended, text } = await openTerminal(t, `sh -c "${all.replaceAll("'", '')}"`, /Usage/, { columns: width });
      await ended;
      const helps = text().trimEnd().split(/(?=^Usage: )/m);
      assert.equal(helps.length, TOOLS.length);
      for (const [index, help] of helps.entries()) {
        const { stdout } = await runProgram(t, TOOLS[index] as typeof TOOLS[number], ['--help']);
        checkHelp(help, width, stdout);
      }
    });
  }
});

describe('help in control-console', LIMIT, () => {
  it('fits a screen of 24 rows with the commands of control-demo and the prompts before and after it', async (t) => {
    const { port } = await startDemo(t, makeFolder(t), '--no-log');
    const { stdout } = await runProgram(t, 'console', ['--port', `${port}`], 'help\n');
    const lines = stdout.trimEnd().split('\n');
    assert.ok(lines.some((line) => line.startsWith('  evaluate  ')), stdout);
    assert.ok(lines.length <= 22 && lines.every(({ length }) => length <= 80), stdout);
  });
});
