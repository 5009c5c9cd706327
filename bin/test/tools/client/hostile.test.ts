// Everything that control-client prints of a system, a path or an argument is free of control characters.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { assertHarmless, HARMLESS, HOSTILE, makeFolder } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { AT_ONCE, call, linesOf, run } from './helpers.ts';
import { ACTIVE, startSilent, startWeb } from './systems.ts';

const PARAMETER = { type: HOSTILE, description: HOSTILE, default: HOSTILE, enum: [HOSTILE, [HOSTILE]] };
const PARAMETERS = { a: PARAMETER, b: { ...PARAMETER, enum: HOSTILE, default: { [HOSTILE]: 1 } }, [HOSTILE]: {} };
const ACCEPTS = {
  set: { description: HOSTILE, parameters: PARAMETERS }, [HOSTILE]: {}, odd: null, list: [], text: HOSTILE,
};
const ENTRY = { id: '1', command: 'set', state: 'done', arguments: { [HOSTILE]: HOSTILE }, value: [HOSTILE] };
const FIELDS = Object.fromEntries(['name', 'pid', 'since', 'by', 'reason'].map((field) => [field, HOSTILE]));
const UNKNOWN = `the status must be one of active, pausing, paused, resuming, shutting down, got '${HARMLESS}'`;

/** What a system responds, a command, its exit code, and what both outputs show, or what --json prints. */
const ROWS: readonly [body: object, args: string[], code: number, shown: string | RegExp | object][] = [
  [{ status: HOSTILE }, ['status'], 1, `unknown\ncontrol-client: ${UNKNOWN}\n`],
  [{ status: HOSTILE }, ['status', '--json'], 1, { status: HOSTILE, error: UNKNOWN }],
  [{ status: 'offline' }, ['status'], 1, /^unknown\n/], // only clients say that
  [{ result: HOSTILE }, ['pause'], 0, `${HARMLESS}\n`],
  [{ result: HOSTILE }, ['pause', '--json'], 0, { result: HOSTILE }],
  [{ code: 500, error: HOSTILE }, ['status'], 1, `control-client: ${HARMLESS}\n`],
  [{ code: 500, error: HOSTILE }, ['pause', '--json'], 1, { error: HOSTILE }],
  [{ status: HOSTILE, result: HOSTILE }, ['pause', '--wait', '--timeout', '2'], 4, /^control-client: not paused /],
  [{ ...ACTIVE, accepts: ACCEPTS }, ['run'], 0, /^ {2}set [^]*^ {4}a [^]*^ {4}b [^]*^ {2}odd\n {2}list\n {2}text\n$/m],
  ...[7, HOSTILE, null, [HOSTILE]].map((accepts): [object, string[], number, RegExp] => {
    return [{ ...ACTIVE, accepts }, ['run', HOSTILE], 1, /^control-client: /];
  }),
  [{ ...ACTIVE, ...FIELDS, commands: [ENTRY, { ...ENTRY, arguments: HOSTILE }] }, ['info'], 0, HARMLESS.slice(0, 40)],
  ...['loss < 1', 'text = x', 'long = x'].map((condition): [object, string[], number, RegExp] => {
    const detail = { [HOSTILE]: 1, text: HOSTILE, long: 'x'.repeat(100_000) };
    return [{ ...ACTIVE, detail }, ['wait', condition, '--timeout', '1'], 4, /^.{1,3000}\n$/];
  }),
  [{ ...ACTIVE, detail: { text: HOSTILE } }, ['wait', 'text != \x1b[2J'], 0, HARMLESS.slice(0, 40)],
  [{ ...ACTIVE, detail: { text: HOSTILE } }, ['wait', 'text != x', '--json'], 0, { status: 'active', value: HOSTILE }],
];

describe('control-client prints no control characters', { ...AT_ONCE, skip: lacks('Unix') }, () => {
  it('of a server; with --json, it escapes them', async (t) => {
    await Promise.all(ROWS.map(async ([body, args, code, expected]) => {
      const { port } = await startWeb(t, () => body);
      const ended = await call(['--host', '127.0.0.1', '--port', `${port}`, ...args]);
      const shown = ended.stdout + ended.stderr;
      assertHarmless(shown);
      assert.equal(ended.code, code, shown);
      if (expected instanceof RegExp) return assert.match(shown, expected);
      if (typeof expected === 'string') return assert.ok(shown.includes(expected), shown);
      const { seconds, ...printed } = JSON.parse(ended.stdout) as { seconds?: number };
      assert.deepEqual([printed, linesOf(ended.stdout).length], [expected, 1]);
    }));
  });

  it('of a name, a path or a target', async (t) => {
    const folder = makeFolder(t);
    const systems = [['a\x1b[2J\n-5', ACTIVE], ['b\x1b[2J-6', { ...FIELDS, status: HOSTILE }],
      ['c\x1b[2J-7', { code: 500, error: HOSTILE }]] as const;
    for (const [name, body] of systems) await startWeb(t, () => body, { socketPath: join(folder, `${name}.sock`) });
    await startSilent(t, join(folder, 'd\x1b[2J-8.sock'));
    const rows: [args: string[], shown: RegExp][] = [
      [['list', '--timeout', '0.5'], /^PW \]0;title .*\n/m], [['list', '--json', '--timeout', '0.5'], /^\{/],
      [['status', '--all', '--timeout', '0.5'], /: c \[2J-7: PW /], [['pause', '5'], /a \[2J -5/],
      [['pause', '7', '--json'], /c \[2J-7/], [['pause', 'x'], /only a \[2J , b \[2J/],
      [['status', `unix:${folder}/\x1b[2J\u202e`], / \[2J {3}offline: /],
    ];
    await Promise.all(rows.map(async ([args, pattern]) => {
      const { stdout, stderr } = await run(t, args[1]?.startsWith('unix:') ? args : [...args, '--dir', folder]);
      assertHarmless(stdout + stderr);
      assert.match(stdout + stderr, pattern);
    }));
  });
});
