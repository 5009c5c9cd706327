// control-console and questions: on a terminal, they are lines above the prompt; answers, Tab, and what happens when a
// question ends while somebody types an answer.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { defer, HOSTILE, launchSystem, runProgram, startBasicServer, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { ACTIVE, startWeb } from '../client/systems.ts';
import { at, completes, CTRL_C, prompt, shown, terminal } from './helpers.ts';
import type { StartedServer } from '../../helpers.ts';

const SUITE = { ...LIMIT, concurrency: 4, skip: lacks('script') };
const FILE = { file: { type: 'string', enum: ['a.pt', 'b.pt'] }, note: { type: 'string', default: '' } } as const;
const BEN = { by: 'ben@desk', arguments: { approved: true } };
const P = `(${prompt('\\w+')})`; // drawn again for each line above it

/** Until a question that is shown counts as seen, also on a busy machine. */
const SEEN_MS = 4000;

/** The ids of the open questions, the oldest first. */
async function idsOf({ client }: Pick<StartedServer, 'client'>): Promise<string[]> {
  return (await client.getInfo())?.asks?.map(({ id }) => id) ?? [];
}

describe('control-console and questions', SUITE, () => {
  it('prints a question above the prompt, and answers it', async (t) => {
    const started = await startServer(t);
    const { server, client, port } = started;
    const first = server.ask('Is it there already?');
    const { type, shows, output } = await terminal(t, at(port), { CONTROL_BY: 'ana' });
    await shows(new RegExp(`asks: Is it there already\\? \\(answer yes or no\\)\n${P}+$`));
    await sleep(SEEN_MS);
    await type('answer yes\r', shown('approved=true \\(Is it there already\\?\\)'));
    const { arguments: given, by } = await first;
    assert.deepEqual([given, by], [{ approved: true }, 'ana']);
    await type('help qu', /help qu$/);
    const chosen = server.ask('Which?', { parameters: FILE });
    await shows(new RegExp(`asks: Which\\? \\(answer file=a\\.pt\\|b\\.pt \\[note=…\\]\\)\n(${P}help qu)+$`));
    await sleep(SEEN_MS);
    await type('it\r', shown('  q, quit, exit .*'));
    await type('answer yes\r', shown('\\w{3}-q2 takes file=a\\.pt\\|b\\.pt \\[note=…\\], got yes'));
    await type('answer file=c.pt\r', shown('answer: file must be one of .*'));
    await type('answer file=b.pt note="so so"\r', shown('file=b\\.pt, note="so so" \\(Which\\?\\)'));
    assert.deepEqual((await chosen).arguments, { file: 'b.pt', note: 'so so' });
    await type('answer no\r', shown('no question is open'));
    void server.ask('Delete?');
    await shows(/asks: Delete\? \(answer yes or no\)/);
    const [id] = await idsOf(started);
    await client.request('answer', { ...BEN, id });
    await shows(new RegExp(`answer by ben@desk: approved=true \\(Delete\\?\\)\n${P}+$`));
    await type('status\r', shown('active.*'));
    assert.doesNotMatch(output(), /answer by ana/, 'its own answers are not announced');
  });

  it('needs an id if several are open, and completes ids, yes and no, parameters and values', async (t) => {
    const started = await startServer(t);
    const { server, port } = started;
    const console = await terminal(t, at(port));
    const { type, shows } = console;
    const one = server.ask('A?');
    await shows(/asks: A\? \(answer yes or no\)/);
    await completes(console, 'answer ', /yes +no/);
    await completes(console, 'n', /o/);
    await type(CTRL_C, /> $/);
    const other = server.ask('B?', { parameters: FILE });
    const [a, b] = await idsOf(started);
    await shows(new RegExp(`asks: B\\? \\(answer ${b} file=a\\.pt\\|b\\.pt \\[note=…\\]\\)`));
    await type('answer yes\r', shown(`the id must be given: open are ${a} \\(A\\?\\), ${b} \\(B\\?\\)`));
    await completes(console, `answer ${b?.slice(0, 3)}`, new RegExp(`${a} +${b}`));
    await completes(console, '2 fi', /le=/);
    await completes(console, 'a', /\.pt/);
    await type('\r', shown('file=a\\.pt \\(B\\?\\)'));
    assert.equal((await other).arguments.file, 'a.pt');
    await sleep(SEEN_MS);
    await type('answer no\r', shown('approved=false \\(A\\?\\)'));
    assert.equal((await one).arguments.approved, false);
  });

  it('never answers another question than the one that was there when the line was begun', async (t) => {
    const started = await startServer(t);
    const { server, client, port } = started;
    const { type, shows } = await terminal(t, at(port));
    void server.ask('Delete 3 branches?');
    await shows(/asks: Delete 3 branches\?/);
    await sleep(SEEN_MS);
    await type('answer ye', /answer ye$/);
    const [id = ''] = await idsOf(started);
    await client.request('answer', { ...BEN, id });
    await shows(new RegExp(`answer by ben@desk: approved=true \\(Delete 3 branches\\?\\)\n(${P}answer ye)+$`));
    const next = server.ask('Delete all branches?');
    await shows(new RegExp(`asks: Delete all branches\\? \\(answer yes or no\\)\n(${P}answer ye)+$`));
    await type('s\r', shown(`ben@desk has answered ${id}`));
    assert.equal((await idsOf(started)).length, 1);
    await sleep(SEEN_MS);
    await type('answer no\r', shown('approved=false \\(Delete all branches\\?\\)'));
    assert.equal((await next).arguments.approved, false);
    void server.ask('Go on?');
    await shows(/asks: Go on\?/);
    await sleep(SEEN_MS);
    await type('answer ye', /answer ye$/);
    const [last] = await idsOf(started);
    server.withdraw();
    await shows(new RegExp(`Go on\\? withdrawn\n(${P}answer ye)+$`));
    await type('s\r', shown(`${last} was withdrawn`));
  });

  it('never answers a question that appeared less than a second before the line was begun', async (t) => {
    const started = await startServer(t);
    const { server, client, port } = started;
    const { type, shows } = await terminal(t, at(port));
    for (let isFast = false; !isFast;) { // a slow machine needs several rounds
      const first = server.ask('Delete fix-1?');
      await shows(/asks: Delete fix-1\?.*\n[^\n]*> $/);
      await client.request('answer', { ...BEN, id: `${await idsOf(started)}` });
      await first;
      const askedAt = performance.now();
      const next = server.ask('Delete main?');
      next.catch(() => {});
      await shows(/asks: Delete main\?.*\n[^\n]*> $/);
      const [id] = await idsOf(started);
      const refused = `the id must be given, because the questions have just changed: open are ${id} \\(Delete main\\?\\)`;
      await type('answer yes\r', shown(`(${refused}|approved=true \\(Delete main\\?\\))`));
      isFast = performance.now() - askedAt < 1000;
      if (isFast) assert.deepEqual(await idsOf(started), [id]);
      await type(`answer ${id} no\r`, shown('.+'));
      server.withdraw();
    }
  });

  it('shows the question of a command that it waits for', async (t) => {
    const [begun, go] = [defer(), defer()];
    t.after(() => go.resolve());
    const { address: { port } } = await launchSystem(t, {
      commands: {
        clean: {
          run: async (_, request, control) => {
            begun.resolve();
            await go.promise;
            return (await control.ask(`Really, ${request.by}?`)).arguments.approved;
          },
        },
      },
    });
    const { type, shows, write } = await terminal(t, at(port), { CONTROL_BY: 'ana' });
    write('clean\r');
    await begun.promise;
    await shows(/\(Ctrl-C gives up\) … $/);
    go.resolve();
    await shows(/\nasks: Really, ana\? \(answer yes or no\), after Ctrl-C\n$/);
    await type(CTRL_C, /the command is still pending\n[^\n]*> $/);
    await sleep(SEEN_MS);
    await type('answer yes\r', shown('approved=true \\(Really, ana\\?\\)'));
    await type('info\r', /clean by ana done in \S+ s: true\n/);
  });

  it('prints no control characters of a question', async (t) => {
    const parameters = { a: { enum: [HOSTILE] }, [HOSTILE]: {} };
    let asks: object[] = [{ id: 'k3f-q2', message: HOSTILE, parameters }];
    let commands: object[] = [];
    const { port } = await startWeb(t, ({ method }) => {
      return method === 'POST' ? { code: 409, error: HOSTILE } : { ...ACTIVE, asks, commands };
    });
    const { type, shows, output } = await terminal(t, at(port));
    await shows(/asks: PW .*\(answer a=…\)\n/);
    await sleep(SEEN_MS);
    await type('answer a=1\r', shown('PW .*'));
    const end = { command: 'answer', message: HOSTILE, state: 'done', by: HOSTILE, arguments: { [HOSTILE]: HOSTILE } };
    [asks, commands] = [[], [{ ...end, id: 'k3f-q2' }]];
    await shows(/answer by PW .*\n/);
    const hostile = /\x1b\]|\x1b\[2J|\x1b\[31m|[\x07\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/;
    assert.doesNotMatch(output(), hostile);
  });
});

describe('control-console with a pipe and questions', LIMIT, () => {
  it('answers a question, and fails in one line otherwise', async (t) => {
    const started = await startServer(t);
    const { server, port } = started;
    const asked = server.ask('Delete 3 branches?');
    const [id] = await idsOf(started);
    const input = `answer ${id} maybe\nanswer ${id} approved=true\nanswer yes\nanswer zzz-q9 yes\n`;
    const args = ['--port', `${port}`];
    const { code, stdout, stderr } = await runProgram(t, 'console', args, input, { CONTROL_BY: 'ana' });
    const { arguments: given, by } = await asked;
    assert.deepEqual([given, by], [{ approved: true }, 'ana']);
    assert.deepEqual([code, stdout], [1, 'approved=true (Delete 3 branches?)\n']);
    assert.equal(stderr, [
      `${id} takes yes or no, got maybe`, 'no question is open',
      'There is no question zzz-q9: open are none', '',
    ].join('\n'));
  });

  it('answers without an id what has been open for 3 s by the clock of the system', async (t) => {
    const asks = [{ id: 'k3f-q2', message: 'Go on?', parameters: { approved: { type: 'boolean' } } }];
    for (const [second, lines] of [[3, 'approved=true (Go on?)\n'], [2, '']] as const) {
      const times = { at: '2020-01-01T00:00:00.000Z', heardAt: `2020-01-01T00:00:0${second}.000Z` };
      const { port, requests } = await startWeb(t, () => {
        return { ...ACTIVE, heardAt: times.heardAt, asks: asks.map((one) => ({ ...one, at: times.at })) };
      });
      const { stdout } = await runProgram(t, 'console', ['--host', '127.0.0.1', '--port', `${port}`], 'answer yes\n');
      assert.equal(stdout, lines);
      assert.equal(requests.includes('POST /api/answer'), lines !== '');
    }
  });

  it('says in one line that the server has no questions', async (t) => {
    const { port } = await startBasicServer(t);
    const { code, stderr } = await runProgram(t, 'console', ['--port', `${port}`], 'answer yes\n');
    assert.deepEqual([code, stderr], [1, 'answer not sent: the server reports its status only\n']);
  });
});
