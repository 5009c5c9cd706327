// --via and CONTROL_VIA: how a command is split and started, and who gets a token. labels.txt and machines.txt have the
// words.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, runProgram, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { linesOf, makeFile } from '../client/helpers.ts';
import { openSession } from '../client/systems.ts';
import { callVia, quote, reach, via, viaShell } from './helpers.ts';

describe('--via', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('splits the command as a shell does', async (t) => {
    const show = 'for word; do [ "$word" = node ] && exit 9; printf "<%s>" "$word" >&2; done';
    const script = quote(makeFile(t, show));
    const cases = [
      ['a  b', '<a><b>'], ["'a  b' c", '<a  b><c>'], ['"a  b"c', '<a  bc>'], ['a\\ b', '<a b>'], ["''", '<>'],
      ["'a\"b'", '<a"b>'], ["\"a'b\"", "<a'b>"], ['"a\\"b\\\\c\\$d\\`e\\f"', '<a"b\\c$d`e\\f>'], ["'a\\b'", '<a\\b>'],
      ['$HOME ~ * `id` ; | & > #', '<$HOME><~><*><`id`><;><|><&><>><#>'], ['é=\\é', '<é=é>'],
    ] as const;
    const vias = cases.map(([line], index) => `m${index}=sh ${script} ${line}`);
    const { code, stderr } = await callVia(vias, ['list']);
    const lines = cases.map(([, words], index) => `control-client: m${index}: sh ended with exit code 9: ${words}`);
    assert.deepEqual([code, linesOf(stderr).sort()], [5, lines.sort()]);
  });

  it('ends control-board if no target can be reached, because its page would stay empty', async (t) => {
    const args = ['--listen', 'localhost:0', '--via', 'm=/nowhere/x y', 'm/train'];
    const { code, stderr } = await runProgram(t, 'board', args);
    const error = "cannot start '/nowhere/x': there is no such command; only a single word is a host";
    assert.deepEqual([code, stderr], [1, `control-board: m: ${error}\n`]);
  });

  it('sends a token only to a machine that is named, to all, or from the file of the target', async (t) => {
    const [one, two, three] = [openSession(t), openSession(t), openSession(t)];
    const webs = [await one.serve('train-7'), await two.serve('train-7')];
    const vias = [via('a', one), via('b', two)];
    const own = 'the-token-of-a-file';
    const file = makeFile(t, `${own}\n`, 0o600);
    const targets = makeFile(t, `a/train token-file=${file}\nb/train\n`);
    const both = makeFile(t, `train token-file=${file}\n`);
    const env = { CONTROL_TOKEN_FILE: makeFile(t, `${TOKEN}\n`, 0o600) };
    for (const [args, expected, given = vias] of [
      [['train'], [undefined, undefined]], [['7'], [undefined, undefined]], [['a/train'], [TOKEN]],
      [['a/'], [TOKEN]], [['b/7', 'a/7'], [TOKEN, TOKEN]], [['--all'], [TOKEN, TOKEN]],
      [['train'], [TOKEN], vias.slice(0, 1)],
      [['--targets', targets], [own, TOKEN]], [['--targets', both], [own, own]],
    ] as [string[], (string | undefined)[], string[]?][]) {
      const { code, stderr } = await callVia(given, ['pause', ...args], env);
      assert.deepEqual([code, stderr], [0, ''], `${args}`);
      const sent = webs.flatMap(({ tokens }) => tokens.splice(0));
      assert.deepEqual(sent, expected.map((token) => token && `Bearer ${token}`), `${args}`);
    }
    const unread = await callVia(vias, ['pause', 'train'], { CONTROL_TOKEN_FILE: '/nowhere/token' });
    assert.deepEqual([unread.code, unread.stderr], [0, '']);
    await startServer(t, { name: 'eval', socketPath: `${three.folder}/`, token: TOKEN });
    const locked = await callVia([...vias, via('c', three)], ['pause', 'eval'], env);
    const hint = `it needs a token, and a name without a label gets none: write c/eval-${process.pid}`;
    assert.deepEqual([locked.code, locked.stderr], [1, `control-client: c/eval: ${hint}\n`]);
  });

  it('shows the command neither the token nor the names', async (t) => {
    const session = openSession(t);
    const { tokens } = await session.serve('train-7');
    const folder = makeFolder(t);
    const show = `env >${folder}/env; echo "$@" >${folder}/words`;
    const script = `${show}; CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
    const secrets = { CONTROL_TOKEN: TOKEN, CONTROL_NAME: 'own-name' };
    const { code } = await reach(t, [viaShell('m', script)], ['pause', 'train'], secrets);
    assert.deepEqual([code, tokens], [0, [`Bearer ${TOKEN}`]]);
    const secret = new RegExp(`CONTROL_(?!DIR=)|${TOKEN}|train|own-name`);
    for (const name of ['env', 'words']) assert.doesNotMatch(readFileSync(join(folder, name), 'utf8'), secret, name);
  });
});
