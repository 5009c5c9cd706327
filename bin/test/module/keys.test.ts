// Questions with a key: an answer that was given once is the answer, whatever happens to the program.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  appendFileSync, chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { after, describe, it } from 'node:test';
import { clientAt, collectThreads, makeFolder, startServer } from '../helpers.ts';
import { runHost } from '../host.ts';
import { LIMIT, until } from '../wait.ts';
import { readLog } from './log.ts';
import type { Answer, AskInfo, WebApiClient, WebApiReply, WebApiServer } from '../../../control.ts';
import type { TestContext } from 'node:test';

const KEY = { key: 'deploy 4711' };
const CHOICE = { parameters: { pick: { type: 'integer' } } } as const;
const YES = { approved: true };
const NO = { approved: false };

interface Started {
  server: WebApiServer;
  client: WebApiClient;
  /** Answers the only open question, and returns the result, or the status code with the error. */
  answer(values: object, by: string): Promise<string>;
}

/** A program with a log in this folder. */
async function start(t: TestContext, folder: string, name = 'deployer'): Promise<Started> {
  const { server, port } = await startServer(t, { name, log: `${folder}/log` });
  const client = clientAt(t, { host: '127.0.0.1', port });
  return {
    server,
    client,
    async answer(values, by) {
      const [{ id }, ...others] = await asksOf(client) as [AskInfo];
      assert.equal(others.length, 0);
      return summaryOf(await client.request('answer', { id, arguments: values, by }));
    },
  };
}

async function asksOf(client: WebApiClient): Promise<AskInfo[]> { return (await client.getInfo())?.asks ?? []; }

function summaryOf(reply: WebApiReply): string {
  return reply.ok === true ? reply.value : `${reply.statusCode} ${reply.error}`;
}

/** Who has answered what. */
function wordsOf({ arguments: values, by }: Answer<any>): string { return `${JSON.stringify(values)} by ${by}`; }

const ROOT = makeFolder({ after }); // removed once all servers are closed, which write their logs until then
const makeRoom = (): string => mkdtempSync(`${ROOT}/`);

describe('A question with a key', { ...LIMIT, concurrency: true }, () => {
  it('has one answer, also after a restart: the log says when that was given', async (t) => {
    const folder = makeRoom();
    const one = await start(t, folder);
    const question = one.server.ask('Deploy?', KEY);
    assert.equal((await asksOf(one.client))[0]?.key, KEY.key);
    assert.equal(await one.answer(YES, 'ana'), 'ok');
    for (const asked of [question, one.server.ask('Deploy?', KEY), one.server.ask(' Deploy?\n', KEY)]) {
      assert.equal(wordsOf(await asked), '{"approved":true} by ana');
    }
    await one.server.close();
    const two = await start(t, folder);
    assert.equal(wordsOf(await two.server.ask('Deploy?', KEY)), '{"approved":true} by ana');
    assert.deepEqual(await asksOf(two.client), []);
    await two.server.close();
    const [kept, ...others] = readFileSync(`${folder}/log.answers`, 'utf8').split('\n');
    assert.deepEqual(others, ['']);
    const lines = readLog(`${folder}/log`).filter(({ event }) => event === 'ask' || event === 'answer');
    const [again, answered] = lines.slice(-2);
    assert.deepEqual([answered?.event, again?.['key'], answered?.['id']], ['answer', KEY.key, again?.['id']]);
    assert.deepEqual([answered?.['by'], answered?.['answeredAt']], ['ana', JSON.parse(kept ?? '').time]);
  });

  it('is refused if it is asked already, is another one, or its answer does not fit', async (t) => {
    const { server, answer } = await start(t, makeRoom());
    const question = server.ask('Deploy?', KEY);
    assert.throws(() => server.ask('Deploy?', KEY), /Cannot ask: 'deploy 4711' is asked already/);
    const other = server.ask('Deploy?', { signal: AbortSignal.abort() }); // without a key
    await assert.rejects(other, { name: 'AbortError' });
    await answer(YES, 'ana');
    await question;
    const place = "'deploy 4711' in '/.*/log\\.answers'";
    const another = new RegExp(`${place} is the key of another question: Deploy\\?`);
    assert.throws(() => server.ask('Deploy all?', KEY), another);
    const wrong = { ...KEY, ...CHOICE };
    assert.throws(() => server.ask('Deploy?', wrong), new RegExp(`the answer to ${place}: approved is unknown`));
    for (const key of ['', 'x'.repeat(201), 'a\nb', 5 as never]) {
      assert.throws(() => server.ask('Deploy?', { key }), /key must be 1 to 200 characters, got/);
    }
    const { server: plain } = await startServer(t);
    assert.throws(() => plain.ask('Deploy?', KEY), /key requires a log/);
  });

  it('has the first answer of two programs with one name and one log, and none of others', async (t) => {
    const folder = makeRoom();
    const [one, two] = await Promise.all([start(t, folder), start(t, folder)]);
    const other = await start(t, folder, 'other');
    const questions = [one, two, other].map(({ server }) => server.ask('Deploy?', KEY));
    assert.equal(await one.answer(YES, 'ana'), 'ok');
    assert.match(await two.answer(NO, 'ben'), /^409 ana has answered \w{3}-q1$/);
    assert.equal(await other.answer(NO, 'eve'), 'ok');
    const yes = '{"approved":true} by ana';
    assert.deepEqual((await Promise.all(questions)).map(wordsOf), [yes, yes, '{"approved":false} by eve']);
  });

  it('stays open, and adds nothing to the file, if its key has an answer to another one', async (t) => {
    const folder = makeRoom();
    const [one, two] = await Promise.all([start(t, folder), start(t, folder)]);
    void one.server.ask('Deploy?', KEY);
    const other = two.server.ask('Deploy all?', KEY);
    assert.equal(await one.answer(YES, 'ana'), 'ok');
    for (const by of ['ben', 'eve']) {
      assert.match(await two.answer(NO, by), /^503 Cannot keep .* is the key of another question: Deploy\?$/);
    }
    assert.equal(readFileSync(`${folder}/log.answers`, 'utf8').split('\n').length, 2);
    await two.server.close();
    await assert.rejects(other, /The server is closed/);
  });

  it('resolves although 16 others are open', async (t) => {
    const { server, answer } = await start(t, makeRoom());
    const question = server.ask('Deploy?', KEY);
    await answer(YES, 'ana');
    await question;
    for (let count = 0; count < 16; count += 1) void server.ask(`${count}?`);
    assert.deepEqual((await server.ask('Deploy?', KEY)).arguments, YES);
    assert.throws(() => server.ask('Deploy?', { key: 'other' }), /16 questions are open/);
  });

  it('stays open while its answer cannot be kept', async (t) => {
    const folder = makeRoom();
    const { server, answer } = await start(t, folder);
    const question = server.ask('Deploy?', KEY);
    const path = `${folder}/log.answers`;
    rmSync(path);
    mkdirSync(path);
    assert.match(await answer(YES, 'ana'), /^503 Cannot keep the answer, try again later: EISDIR/);
    rmSync(path, { recursive: true });
    assert.equal(await answer(NO, 'ben'), 'ok');
    assert.equal(wordsOf(await question), '{"approved":false} by ben');
  });

  it('throws if the file of answers is not to be trusted', { skip: process.platform === 'win32' }, async (t) => {
    const folder = makeRoom();
    const { server } = await start(t, folder);
    const path = `${folder}/log.answers`;
    const obstacles: [error: RegExp, make: () => void][] = [
      [/ELOOP/, () => symlinkSync(`${folder}/log`, path)],
      [/EISDIR/, () => mkdirSync(path)],
      [/is not a file of this user/, () => execFileSync('mkfifo', [path])],
      [/others can write to/, () => { writeFileSync(path, ''); chmodSync(path, 0o620); }],
    ];
    for (const [error, make] of obstacles) {
      make();
      assert.throws(() => server.ask('Deploy?', KEY), error);
      rmSync(path, { recursive: true });
    }
    const line = { time: new Date().toISOString(), name: 'deployer', key: KEY.key, message: 'Deploy?', arguments: YES };
    writeFileSync(path, `null\n5\n${JSON.stringify({ ...line, key: { key: KEY.key } })}\n`);
    appendFileSync(path, JSON.stringify(line).slice(0, -3)); // a crash left it incomplete
    const end = new AbortController();
    const question = server.ask('Deploy?', { ...KEY, signal: end.signal });
    end.abort();
    await assert.rejects(question, { name: 'AbortError' });
    appendFileSync(path, `${JSON.stringify({ ...line, key: 'long', message: 'Long?', by: 'x'.repeat(9000) })}\n`);
    assert.throws(() => server.ask('Long?', { key: 'long' }), /has too long an answer/);
    appendFileSync(path, `${JSON.stringify(line)}\n`);
    assert.deepEqual((await server.ask('Deploy?', KEY)).arguments, YES);
  });

  it('that expires or is withdrawn is not decided', async (t) => {
    const { server, answer } = await start(t, makeRoom());
    await assert.rejects(server.ask('Deploy?', { ...KEY, timeout: 1 }), { name: 'TimeoutError' });
    await assert.rejects(server.ask('Deploy?', { ...KEY, signal: AbortSignal.abort() }), { name: 'AbortError' });
    const question = server.ask('Deploy?', KEY);
    assert.equal(await answer(YES, 'ana'), 'ok');
    assert.equal(wordsOf(await question), '{"approved":true} by ana');
  });

  it('that ends while its answer is being kept says so, and the next one has that answer', async (t) => {
    const { server, client } = await start(t, makeRoom());
    let [lead, change, kept] = [0, 0.2, 0]; // of the answer, in milliseconds: the race becomes closer
    for (let round = 0; round < 40; round += 1) {
      const control = new AbortController();
      const options = { ...CHOICE, key: `round ${round}` };
      const question = server.ask('Which?', { ...options, signal: control.signal });
      const [{ id }] = await asksOf(client) as [AskInfo];
      const sent = client.request('answer', { id, arguments: { pick: round }, by: 'ana' });
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, lead)));
      control.abort();
      const last = new AbortController();
      const again = server.ask('Which?', { ...options, signal: last.signal }); // at once, as the next step does
      const [reply, got] = [summaryOf(await sent), await question.then(wordsOf, ({ name }: Error) => name)];
      const isKept = reply === `409 ${id} was withdrawn; the answer is kept`;
      const given = `{"pick":${round}} by ana`;
      assert.equal(got, reply === 'ok' ? given : 'AbortError', reply);
      const isTaken = /^409 ana has answered \w+-q\d+(; the answer is kept)?$/.test(reply); // asked again
      // Another one answers, too: it changes nothing, but ends what was asked just when the answer was kept.
      const isDecided = reply === 'ok' || isKept || isTaken;
      const left = isDecided ? await asksOf(client) : [];
      for (const one of left) await client.request('answer', { id: one.id, arguments: { pick: -1 }, by: 'ben' });
      if (isDecided) assert.equal(wordsOf(await again), given);
      else assert.equal(reply, `409 ${id} was withdrawn`);
      last.abort();
      await again.catch(() => {});
      kept += Number(isKept);
      lead = Math.max(0, lead + (reply === 'ok' ? -change : change));
    }
    t.diagnostic(`${kept} of 40 kept`);
  });
});

describe('An answer to a question with a key', LIMIT, () => {
  it('is kept if the server thread dies around it', async (t) => {
    const threads = collectThreads(t);
    const { server, client } = await start(t, makeRoom());
    for (let round = 0; round < 3; round += 1) {
      const options = { ...CHOICE, key: `round ${round}` };
      const question = server.ask('Which?', options);
      let asks: AskInfo[] = [];
      await until(async () => (asks = await asksOf(client)).length > 0);
      const first = client.request('answer', { id: asks[0]?.id, arguments: { pick: 1 }, by: 'ana' });
      await new Promise((resolve) => setTimeout(resolve, round));
      void threads.at(-1)?.terminate();
      const isAnswered = (await first).ok;
      let isOver = false;
      void question.then(() => { isOver = true; });
      await until(async () => {
        for (const { id } of await asksOf(client)) {
          await client.request('answer', { id, arguments: { pick: 2 }, by: 'ben' });
        }
        return isOver;
      });
      const { arguments: { pick } } = await question;
      if (isAnswered) assert.equal(pick, 1);
      assert.equal((await server.ask('Which?', options)).arguments.pick, pick);
    }
  });

  it('is kept if the program is killed once it has a response', async (t) => {
    const log = `${makeRoom()}/log`;
    const source = `
      const server = await serve({ name: 'deployer', log: ${JSON.stringify(log)} });
      const parameters = { pick: { type: 'integer' } };
      const { arguments: { pick } } = await server.ask('Which?', { key: 'k', parameters });
      say(pick);
      halt();
    `;
    const host = runHost(t, source);
    const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
    let asks: AskInfo[] = [];
    await until(async () => (asks = await asksOf(client)).length > 0);
    assert.equal((await client.request('answer', { id: asks[0]?.id, arguments: { pick: 7 }, by: 'ana' })).ok, true);
    host.process.kill('SIGKILL');
    const next = runHost(t, source);
    await next.hear();
    assert.equal(await next.hear(), 7);
    assert.equal(readFileSync(`${log}.answers`, 'utf8').trim().split('\n').length, 1);
  });
});
