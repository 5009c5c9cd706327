// control-console and questions on a terminal: they are lines above the prompt; answers, Tab, and what happens when a
// question ends while somebody types an answer.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { defer, HOSTILE, launchSystem, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { CTRL_C, HARMFUL } from '../../screen.ts';
import { LIMIT } from '../../wait.ts';
import { at, completes, counts, prompt, shown, terminal } from './helpers.ts';
import type { StartedServer } from '../../helpers.ts';

const FILE = { file: { type: 'string', enum: ['a.pt', 'b.pt'] }, note: { type: 'string', default: '' } } as const;
const BEN = { by: 'ben@desk', arguments: { approved: true } };
const P = `(${prompt('\\w+')})`; // drawn again for each line above it

/** The ids of the open questions, the oldest first. */
async function idsOf({ client }: Pick<StartedServer, 'client'>): Promise<string[]> {
  return (await client.getInfo())?.asks?.map(({ id }) => id) ?? [];
}

describe('control-console and questions', { ...LIMIT, concurrency: 4, skip: lacks('script') }, () => {
  it('prints a question above the prompt, completes and sends its answer, and needs an id for several', async (t) => {
    const started = await startServer(t);
    const { server, client, port } = started;
    const first = server.ask('Is it there already?');
    const console = await terminal(t, at(port), { CONTROL_BY: 'ana' });
    const { type, shows, output } = console;

    await t.test('one that is there at the start', async () => {
      await shows(new RegExp(`asks: Is it there already\\? \\(answer yes or no\\)\n${P}+$`));
      await counts(console);
      await completes(console, 'answer ', /yes +no/);
      await type('yes\r', shown('approved=true \\(Is it there already\\?\\)'));
      const { arguments: given, by } = await first;
      assert.deepEqual([given, by], [{ approved: true }, 'ana']);
    });

    await t.test('one that comes while a line is typed', async () => {
      await type('help qu', /help qu$/);
      const chosen = server.ask('Which?', { parameters: FILE });
      await shows(new RegExp(`asks: Which\\? \\(answer file=a\\.pt\\|b\\.pt \\[note=…\\]\\)\n(${P}help qu)+$`));
      await type('it\r', shown('  q, quit, exit .*'));
      await counts(console);
      await type('answer yes\r', shown('\\w{3}-q2 takes file=a\\.pt\\|b\\.pt \\[note=…\\], got yes'));
      await type('answer file=c.pt\r', shown('answer: file must be one of .*'));
      await type('answer file=b.pt note="so so"\r', shown('file=b\\.pt, note="so so" \\(Which\\?\\)'));
      assert.deepEqual((await chosen).arguments, { file: 'b.pt', note: 'so so' });
      await type('answer no\r', shown('no question is open'));
    });

    await t.test('one that somebody else answers', async () => {
      void server.ask('Delete?');
      await shows(/asks: Delete\? \(answer yes or no\)/);
      const [id] = await idsOf(started);
      await client.request('answer', { ...BEN, id });
      await shows(new RegExp(`answer by ben@desk: approved=true \\(Delete\\?\\)\n${P}+$`));
      await type('status\r', shown('active.*'));
      assert.doesNotMatch(output(), /answer by ana/, 'its own answers are not announced');
    });

    await t.test('two', async () => {
      const one = server.ask('A?');
      await shows(/asks: A\? \(answer yes or no\)/);
      const other = server.ask('B?', { parameters: FILE });
      const [a, b] = await idsOf(started);
      await shows(new RegExp(`asks: B\\? \\(answer ${b} file=a\\.pt\\|b\\.pt \\[note=…\\]\\)`));
      await type('answer yes\r', shown(`the id must be given: open are ${a} \\(A\\?\\), ${b} \\(B\\?\\)`));
      await completes(console, `answer ${b?.slice(0, 3)}`, new RegExp(`${a} +${b}`));
      await completes(console, `${b?.slice(-1)} fi`, /le=/);
      await completes(console, 'a', /\.pt/);
      await type('\r', shown('file=a\\.pt \\(B\\?\\)'));
      assert.equal((await other).arguments.file, 'a.pt');
      await counts(console);
      await type('answer no\r', shown('approved=false \\(A\\?\\)'));
      assert.equal((await one).arguments.approved, false);
    });
  });

  it('never answers another question than the one that was there when the line was begun', async (t) => {
    const started = await startServer(t);
    const { server, client, port } = started;
    const console = await terminal(t, at(port));
    const { type, shows } = console;
    void server.ask('Delete 3 branches?');
    await shows(/asks: Delete 3 branches\?/);
    await counts(console);
    await type('answer ye', /answer ye$/);
    const [id = ''] = await idsOf(started);
    await client.request('answer', { ...BEN, id });
    await shows(new RegExp(`answer by ben@desk: approved=true \\(Delete 3 branches\\?\\)\n(${P}answer ye)+$`));
    const next = server.ask('Delete all branches?');
    await shows(new RegExp(`asks: Delete all branches\\? \\(answer yes or no\\)\n(${P}answer ye)+$`));
    await type('s\r', shown(`ben@desk has answered ${id}`));
    assert.equal((await idsOf(started)).length, 1);
    await counts(console);
    await type('answer no\r', shown('approved=false \\(Delete all branches\\?\\)'));
    assert.equal((await next).arguments.approved, false);
    void server.ask('Go on?');
    await shows(/asks: Go on\?/);
    await counts(console);
    await type('answer ye', /answer ye$/);
    const [last] = await idsOf(started);
    server.withdrawQuestions();
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
      const refused = `the id must be given, because the questions have just changed: open are ${id}`;
      await type('answer yes\r', shown(`(${refused}|approved=true) \\(Delete main\\?\\)`));
      isFast = performance.now() - askedAt < 1000;
      if (isFast) assert.deepEqual(await idsOf(started), [id]);
      await type(`answer ${id} no\r`, shown('.+'));
      server.withdrawQuestions();
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
    const console = await terminal(t, at(port), { CONTROL_BY: 'ana' });
    const { type, shows, write } = console;
    write('clean\r');
    await begun.promise;
    await shows(/\(Ctrl-C gives up\) … $/);
    go.resolve();
    await shows(/\nasks: Really, ana\? \(answer yes or no\), after Ctrl-C\n$/);
    await type(CTRL_C, /the command is still pending\n[^\n]*> $/);
    await counts(console);
    await type('answer yes\r', shown('approved=true \\(Really, ana\\?\\)'));
    await type('info\r', /clean by ana done in \S+ s: true\n/);
  });

  it('prints no control characters of a question', async (t) => {
    const parameters = { a: { enum: [HOSTILE] }, [HOSTILE]: {} };
    const post = { code: 409, error: HOSTILE };
    const { port, set } = await startPuppet(t, { asks: [{ id: 'k3f-q2', message: HOSTILE, parameters }], post });
    const console = await terminal(t, at(port));
    const { type, shows, output } = console;
    await shows(/asks: PW .*\(answer a=…\)\n/);
    await counts(console);
    await type('answer a=1\r', shown('PW .*'));
    const end = { command: 'answer', message: HOSTILE, state: 'done', by: HOSTILE, arguments: { [HOSTILE]: HOSTILE } };
    set({ asks: [], commands: [{ ...end, id: 'k3f-q2' }] });
    await shows(/answer by PW .*\n/);
    assert.doesNotMatch(output(), HARMFUL);
  });
});
