// Questions: what a chronicle cannot hit by chance. The closest races, every moment between two threads, hosts that are
// busy, steps that ask, sizes.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../control.ts';
import { launchSystem, startForeign, startServer, takeAll } from '../helpers.ts';
import { runHost } from '../host.ts';
import { HOST, INFO, PAUSE, RESUME, SAVE, SHUTDOWN, STATUS, WAIT, Connection, ask, head } from '../http.ts';
import { LIMIT, inTime, until } from '../wait.ts';
import { standAtEach } from './chronicle.ts';
import type { Answer, AskInfo, Control, WebApiServer } from '../../../control.ts';
import type { Host } from '../host.ts';
import type { HttpResponse, Where } from '../http.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, RESUMING } = SystemStatus;

const CHOICE = { parameters: { pick: { type: 'integer' } } } as const;
const YES = { approved: true };

/** The bytes of an answer. */
function answerWith(id: string, values: object, query: Record<string, string> = {}): string {
  const json = Buffer.from(JSON.stringify(values)).toString('latin1');
  const line = `POST /api/answer?${new URLSearchParams({ id, ...query })}`;
  return head(line, HOST, `Content-Length: ${json.length}`) + json;
}

/** Answers on a connection of its own. */
async function answer(
  where: Where, id: string, values: object, query: Record<string, string> = {},
): Promise<HttpResponse> {
  const connection = new Connection(where);
  try {
    return await connection.request(answerWith(id, values, query));
  } finally {
    connection.socket.destroy();
  }
}

/** The open questions, oldest first. */
async function asksOf(where: Where): Promise<AskInfo[]> { return (await ask(where, INFO)).body.asks; }

/** The id of the only open question with this message. */
async function idOf(where: Where, message: string): Promise<string> {
  const [found, ...others] = (await asksOf(where)).filter((one) => one.message === message);
  assert.ok(found !== undefined && others.length === 0, message);
  return found.id;
}

/** What the program gets: the answer, or the reason why there is none. */
function outcomeOf(question: Promise<Answer>): Promise<Answer | Error> {
  return question.catch((error: Error) => error);
}

function staysOpen(): string { return 'the question stays open'; }

/** Busy, to the microsecond. */
function spin(milliseconds: number): void {
  for (const end = performance.now() + milliseconds; performance.now() < end;);
}

// ───── Races ─────────────────────────────────────────────────────────────────────────────────────────────────────

const SLOW = { timeout: 2 * LIMIT.timeout }; // on a busy machine

describe('An answer counts if its response is 200, and only then', { ...SLOW, concurrency: 4 }, () => {
  const ROUNDS = 15;
  type Race = { server: WebApiServer; control: AbortController; other: Connection };
  /** What else ends a question, and the name of what the program then gets. */
  const ENDS: [what: string, name: string, end: (race: Race) => unknown][] = [
    ['an AbortSignal', 'RangeError', ({ control }) => control.abort(new RangeError('enough'))],
    ['a pause', 'AbortError', ({ other }) => other.request(head(PAUSE, HOST))],
    ['a pause of the program', 'AbortError', ({ server }) => server.post('pause')],
    ['a save-state', 'AbortError', ({ other }) => other.request(head(SAVE, HOST))],
    ['a shutdown', 'AbortError', ({ other }) => other.request(head(SHUTDOWN, HOST))],
    ['close()', 'Error', ({ server }) => server.close()],
  ];
  for (const [what, name, end] of ENDS) {
    it(`at any distance from ${what}`, async (t) => {
      const rounds = what === 'close()' ? 8 : ROUNDS; // which takes another server each
      const start = async () => {
        const { server, port } = await startServer(t);
        const [connection, other] = [new Connection(port), new Connection(port)];
        await Promise.all([connection, other].map((one) => one.request(head(STATUS, HOST))));
        return { server, connection, other };
      };
      let started = await start();
      let [lead, change] = [0, 0.1]; // of the answer, in milliseconds: the race becomes closer
      const answered: boolean[] = [];
      for (let round = 0; round < rounds || new Set(answered).size < 2; round += 1) { // each has won
        assert.ok(round < 40, `answered: ${answered}`);
        if (what === 'close()' && round > 0) started = await start();
        const { server, connection, other } = started;
        const control = new AbortController();
        const question = server.ask('Which?', { ...CHOICE, signal: control.signal });
        const [{ id }] = (await connection.request(head(INFO, HOST))).body.asks;
        const act = (): unknown => end({ server, control, other });
        let ended = lead < 0 ? act() : null; // first
        spin(Math.max(0, -lead));
        const sent = connection.request(answerWith(id, { pick: round }, { by: 'ana' })).catch(() => null);
        spin(Math.max(0, lead));
        ended ??= act();
        const [reply, got] = [await sent, await inTime(outcomeOf(question), staysOpen)];
        const isAnswered = !(got instanceof Error);
        assert.equal(reply?.statusCode === 200, isAnswered, `${reply?.summary}: ${got}`);
        if (isAnswered) assert.deepEqual(got, { arguments: { pick: round }, by: 'ana', reason: undefined });
        else assert.equal(got.name, name);
        change *= isAnswered === (answered.at(-1) ?? isAnswered) ? 2 : 0.25;
        lead += isAnswered ? -change : change;
        answered.push(isAnswered);
        await ended;
        await until(() => (takeAll(server), !server.hasCommands()));
      }
      t.diagnostic(`${answered.filter(Boolean).length} of ${answered.length} answered`);
    });
  }

  for (const how of ['a step', 'an own command'] as const) {
    it(`at any distance from the end of ${how}, whatever the options of the question`, async (t) => {
      const options = [{}, { signal: new AbortController().signal }, { signal: undefined }, { timeout: 3e5 }];
      const outcomes: Promise<void>[] = [];
      let [port, lead] = [0, 0];
      const judge = async (reply: Promise<HttpResponse>, got: Answer | Error): Promise<void> => {
        const isAnswered = !(got instanceof Error);
        assert.equal((await reply).statusCode === 200, isAnswered);
        if (!isAnswered) assert.equal(got.name, 'AbortError');
        lead = Math.max(0, lead + (isAnswered ? -0.05 : 0.05));
      };
      const turn = async (control: Control): Promise<void> => {
        const others = options.map((one) => outcomeOf(control.ask('Other?', one))); // which nobody answers
        const got = outcomeOf(control.ask('Which?', CHOICE));
        const reply = answer(port, await idOf(port, 'Which?'), { pick: outcomes.length });
        spin(lead);
        outcomes.push((async () => {
          await judge(reply, await got);
          for (const other of await Promise.all(others)) assert.equal((other as Error).name, 'AbortError');
        })());
      };
      const { client } = await launchSystem(t, {
        async step(control) {
          await inTime(Promise.all(outcomes), staysOpen);
          if (how === 'a step' && outcomes.length < ROUNDS) await turn(control);
          else await sleep(1);
        },
        commands: { go: { run: (_values: object, _request: object, control: Control) => turn(control) } },
        onListening: (address: { port: number }) => { ({ port } = address); },
      });
      for (let round = 0; round < ROUNDS; round += 1) {
        if (how === 'an own command') assert.equal((await client.request('go', { wait: 60 })).ok, true);
        await until(() => outcomes.length > round);
        await inTime(Promise.resolve(outcomes[round]), staysOpen);
      }
    });
  }
});

// ───── Every moment between the two threads ──────────────────────────────────────────────────────────────────────

describe('At each access of the program to shared memory', { ...SLOW, concurrency: 2 }, () => {
  it('an open question is listed, while others begin and end', (t) => standAtEach(t, `
    server.ask('stays open');
    const end = () => server.ask('short', { signal: AbortSignal.abort() }).catch(() => 'ended');
    for (let count = 0; count < 126; count += 1) end(); // then the slots are used again
    await standAtEach(end);
  `, async (connection) => {
    const [one] = (await connection.request(head(INFO, HOST))).body.asks;
    assert.equal(one?.message, 'stays open');
  }, (result) => assert.equal(result, 'ended')));

  it('an answer reaches its own question, and not the next one in the same slot', (t) => standAtEach(t, `
    await standAtEach((old) => Promise.all([old, server.ask('new')]).then((both) => both.map(({ by }) => by)), () => {
      const old = server.ask('old');
      for (let count = 0; count < 127; count += 1) server.ask('short', { signal: AbortSignal.abort() });
      return old; // whose slot is the next
    });
  `, async (connection, release) => {
    for (const [message, by] of [['old', 'ana'], ['new', 'ben']] as const) {
      let asks: AskInfo[] = [];
      await until(async () => {
        ({ asks } = (await connection.request(head(INFO, HOST))).body);
        return asks.some((one) => one.message === message);
      });
      const { id } = asks.find((one) => one.message === message) as AskInfo;
      assert.equal((await connection.request(answerWith(id, YES, { by }))).statusCode, 200);
      release();
    }
  }, (result) => assert.deepEqual(result, ['ana', 'ben'])));
});

// ───── Commands that wait, hosts that are busy ───────────────────────────────────────────────────────────────────

describe('A command that waits', { ...LIMIT, concurrency: true }, () => {
  it('withdraws none if it is a resume, an own command, or a pause while the system is not active', async (t) => {
    let status = RESUMING;
    const { server, port } = await startServer<'say'>(t, { systemStatus: () => status, commands: { say: {} } });
    const [one, two] = [outcomeOf(server.ask('One?')), outcomeOf(server.ask('Two?'))];
    for (const line of ['POST /api/say', RESUME, PAUSE]) assert.equal((await ask(port, line)).statusCode, 200);
    const [first, second] = await asksOf(port);
    assert.equal((await answer(port, String(first?.id), YES)).statusCode, 200);
    assert.deepEqual((await one as Answer).arguments, YES);
    status = ACTIVE;
    server.publish();
    assert.equal((await answer(port, String(second?.id), YES)).summary, `409 ${second?.id} was withdrawn`);
    assert.equal(String(await two), 'AbortError: Interrupted by pause');
  });
});

describe('A host that is busy', { ...LIMIT, concurrency: true }, () => {
  /** One that asks, says what becomes of its questions once it is no longer busy, and closes its server later. */
  const startBusy = async (t: TestContext, questions: string): Promise<{ host: Host; port: number }> => {
    const host = runHost(t, `
      const server = await serve();
      const outcomes = (${questions}).map((question) => question.then((answer) => answer, (error) => error.message));
      await new Promise((resolve) => setImmediate(resolve)); // timers that are due come first afterwards
      say('busy');
      halt();
      for (const outcome of outcomes) say(await outcome);
      halt();
      await server.close();
    `);
    const port = await host.hear<number>();
    assert.equal(await host.hear(), 'busy');
    return { host, port };
  };

  it('has its questions answered and expired meanwhile, and hears of that later', async (t) => {
    const { host, port } = await startBusy(t, "[server.ask('One?'), server.ask('Late?', { timeout: 1500 })]");
    const { headers: { etag }, body } = await ask(port, INFO);
    const late = [...body.asks, ...body.commands].find(({ message }) => message === 'Late?'); // it may have expired
    const id = await idOf(port, 'One?');
    assert.equal((await answer(port, id, YES, { by: 'ana', reason: 'looked' })).summary, '200 ok');
    assert.equal((await answer(port, id, YES)).summary, `409 ana has answered ${id}`);
    let tag = etag;
    await until(async () => { // it does not take a host that yields
      if ((await asksOf(port)).length === 0) return true;
      tag = (await ask(port, INFO, `If-None-Match: ${tag}`, WAIT)).headers.etag;
      return false;
    });
    assert.equal((await answer(port, late.id, YES)).summary, `409 ${late.id} has expired`);
    const { commands } = (await ask(port, INFO)).body;
    host.release();
    assert.deepEqual(await host.hear(), { arguments: YES, by: 'ana', reason: 'looked' });
    assert.equal(await host.hear(), 'expired: Late?');
    assert.deepEqual((await ask(port, INFO)).body.commands, commands, 'the times too');
    host.release();
    await host.ends();
  });

  it('may ask again before it has yielded, as often as questions have been answered meanwhile', async (t) => {
    const host = runHost(t, `
      const server = await serve();
      const options = { parameters: { pick: { type: 'integer' } } };
      const questions = [];
      for (let round = 0; round < 3; round += 1) {
        for (let count = 0; count < 16; count += 1) questions.push(server.ask('Which?', options));
        say('busy');
        halt();
      }
      for (const question of questions) say((await question).arguments.pick);
      await server.close();
    `);
    const port = await host.hear<number>();
    const picks: number[] = [];
    for (let round = 0; round < 3; round += 1) {
      assert.equal(await host.hear(), 'busy');
      const asks = await asksOf(port);
      assert.equal(asks.length, 16);
      for (const { id } of asks) {
        assert.equal((await answer(port, id, { pick: picks.push(picks.length) })).statusCode, 200);
      }
      host.release();
    }
    await host.ends(...picks.map((_, index) => index + 1));
  });

  it('that has accepted a pause or a shutdown meanwhile gets no answer, unless that expires', async (t) => {
    const { host, port } = await startBusy(t, "[server.ask('One?')]");
    const id = await idOf(port, 'One?');
    const refusalOf = async (values: object): Promise<string> => (await answer(port, id, values)).summary;
    const wrong = { approved: 'yes' };
    for (const [line, refusal] of [[PAUSE, '409 a pause waits'], [SHUTDOWN, '409 a shutdown waits']] as const) {
      await until(async () => { // on a slow machine, it may have expired
        assert.equal((await ask(port, `${line}?expires=1`)).statusCode, 200);
        return await refusalOf(wrong) === refusal;
      });
      await until(async () => (await refusalOf(wrong)).startsWith('400'));
    }
    await ask(port, SAVE); // which an answer may precede
    assert.match(await refusalOf(wrong), /^400/);
    await ask(port, PAUSE);
    assert.equal(await refusalOf(YES), '409 a pause waits');
    host.release();
    assert.equal(await host.hear(), 'Interrupted by pause');
    assert.equal(await refusalOf(YES), `409 ${id} was withdrawn`);
    host.release();
    await host.ends();
  });

  it('lives while a question is open, need not handle it, and leaves nothing that keeps a process alive', async (t) => {
    const host = runHost(t, `
      process.on('unhandledRejection', (error) => say('unhandled: ' + error));
      const server = await serve();
      server.ask('Withdrawn?', { signal: AbortSignal.abort() });
      server.ask('Expired?', { timeout: 5 });
      await launchHost({ step(control) { control.ask('Never handled?'); control.shutdown(); } });
      const control = new AbortController();
      server.ask('Aborted?', { signal: control.signal, timeout: 3e5 });
      control.abort();
      for (const signal of [{}, 5, control]) try { server.ask('Wrong?', { signal }).catch(() => {}); } catch {}
      server.ask('Alive?').then(() => say('answered'));
    `);
    const port = await host.hear<number>();
    await host.hear();
    await until(async () => (await asksOf(port)).some(({ message }) => message === 'Alive?'));
    await sleep(500); // a process that nothing keeps alive would have ended
    assert.equal((await answer(port, await idOf(port, 'Alive?'), YES)).statusCode, 200);
    await host.ends('answered');
  });
});

// ───── launch() ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('A step of launch()', { ...LIMIT, concurrency: 4 }, () => {
  type Step = (control: Control, silence: string) => unknown; // the URL of a server that never responds
  const never = (control: Control): Promise<Answer> => control.ask('Never?');
  /** Steps that do nothing but wait, and whether a save ends them, too: it aborts no signal. */
  const STEPS: [what: string, step: Step, isAsking: boolean][] = [
    ['a question', never, true],
    ['a question whose rejection is the cause of another', async (control) => {
      await never(control).catch((cause) => { throw new Error('the work has ended', { cause }); });
    }, true],
    ['fetch()', ({ signal }, silence) => fetch(silence, { signal }), false],
    ['signal.throwIfAborted()', async ({ signal }) => {
      while (!signal.aborted) await sleep(5);
      signal.throwIfAborted();
    }, false],
    ['timers/promises and AbortSignal.any()', async ({ signal }) => {
      await sleep(3e5, undefined, { signal: AbortSignal.any([signal, AbortSignal.timeout(3e5)]) });
    }, false],
  ];
  for (const [what, step, isAsking] of STEPS) {
    it(`that waits with ${what} ends at a command, and the launch goes on`, async (t) => {
      const silence = `http://127.0.0.1:${(await startForeign(t, () => {})).port}/`;
      let calls: string[] = [];
      const hook = (name: string) => (): void => void calls.push(name);
      const { address: { port }, finished } = await launchSystem(t, {
        step: (control) => (calls.push('step'), step(control, silence)),
        onPaused: hook('onPaused'), onResumed: hook('onResumed'), saveState: hook('saveState'),
      });
      for (const [line, ...hooks] of [
        [PAUSE, 'onPaused'], [RESUME, 'onResumed'],
        ...isAsking ? [[SAVE, 'onPaused', 'saveState', 'onResumed']] : [],
        [SHUTDOWN, 'saveState'],
      ] as [string, ...string[]][]) {
        if (line !== RESUME) await until(() => calls.includes('step'));
        calls = [];
        assert.equal((await ask(port, line, WAIT)).summary, '200 done');
        assert.deepEqual(calls.filter((call) => call !== 'step'), hooks); // the next one may have begun
      }
      await finished;
    });
  }

  const FAILURES: [what: string, name: string, step: Step][] = [
    ['an AbortError whose cause is another', 'Error', () => {
      throw new Error('mine', { cause: new DOMException('mine', 'AbortError') });
    }],
    ['a question that its own signal withdraws', 'AbortError', (control) => {
      return control.ask('Mine?', { signal: AbortSignal.abort() });
    }],
    ['a question that expires', 'TimeoutError', (control) => control.ask('Late?', { timeout: 1 })],
    ['an AbortError that imitates', 'AbortError', () => {
      throw new DOMException('Interrupted by pause', 'AbortError');
    }],
  ];
  it('that fails otherwise ends the launch', async (t) => {
    for (const [what, name, step] of FAILURES) {
      let isSecond = false;
      const { finished } = await launchSystem(t, {
        async step(control) {
          if (isSecond) return control.shutdown(); // the launch goes on
          isSecond = true;
          await sleep(20); // not before the test waits for the end
          return step(control, '');
        },
      });
      await assert.rejects(finished, { name }, what);
    }
  });

  it('that fails with the reason of a former command ends the launch: its signal is an old one', async (t) => {
    let signal: AbortSignal | undefined;
    const { address: { port }, finished } = await launchSystem(t, {
      step: (control) => {
        signal ??= control.signal;
        return sleep(3e5, undefined, { signal });
      },
    });
    const failure = assert.rejects(finished, { name: 'AbortError' });
    await until(() => signal !== undefined);
    for (const line of [PAUSE, RESUME]) assert.equal((await ask(port, line, WAIT)).statusCode, 200);
    await inTime(failure, () => 'the launch goes on');
  });

  it('that asks is asked again by the next, with a new id, and an old answer is no answer', async (t) => {
    const approved: unknown[] = [];
    const { address: { port } } = await launchSystem(t, {
      async step(control) {
        approved.push((await control.ask('Delete?')).arguments.approved);
      },
    });
    await until(async () => (await asksOf(port)).length === 1);
    const first = await idOf(port, 'Delete?');
    assert.equal((await ask(port, SAVE, WAIT)).summary, '200 done');
    await until(async () => (await asksOf(port)).length === 1);
    const second = await idOf(port, 'Delete?');
    assert.notEqual(second, first);
    assert.equal((await answer(port, first, YES)).summary, `409 ${first} was withdrawn`);
    assert.equal((await answer(port, second, { approved: false })).statusCode, 200);
    await until(() => approved.length === 1);
    assert.deepEqual(approved, [false]);
  });
});

// ───── Sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────

describe('The size', { ...LIMIT, concurrency: true }, () => {
  it('of an answer is up to 2 KiB with its defaults; who and why have up to 200 characters', async (t) => {
    const { server, port } = await startServer(t);
    const parameters = { text: { type: 'string' }, more: { type: 'string', default: 'x'.repeat(1000) } } as const;
    for (const [character, size] of [['x', 1], ['😀', 4], ['"', 2], ['\u0000', 6]] as const) {
      const question = server.ask('Text?', { parameters });
      const id = await idOf(port, 'Text?');
      const room = 2048 - JSON.stringify({ text: '', more: '' }).length;
      const text = character.repeat(Math.floor(room / size)) + 'x'.repeat(room % size);
      const tooLong = [{ text: `${text}x`, more: '' }, { text: 'x'.repeat(room - 999) }, { text: 'x'.repeat(9000) }];
      for (const wrong of tooLong) assert.equal((await answer(port, id, wrong)).statusCode, 413);
      const [by, reason] = [`${character}"`.repeat(110), '\\😀'.repeat(110)];
      assert.equal((await answer(port, id, { text, more: '' }, { by, reason })).statusCode, 200);
      const tidied = [by, reason].map((one) => Array.from(one.replace(/\p{Cc}/gu, '')).slice(0, 200).join(''));
      assert.deepEqual(await question, { arguments: { text, more: '' }, by: tidied[0], reason: tidied[1] });
      const { commands } = (await ask(port, INFO)).body;
      assert.deepEqual([commands.at(-1).arguments, commands.at(-1).by], [{ text, more: '' }, tidied[0]]);
    }
  });

  it('of a question is up to 1,000 characters in one line and 4 KiB of JSON; else nothing is asked', async (t) => {
    const { server, port } = await startServer(t);
    const texts: [message: string, shown?: string][] = [
      ['x'.repeat(1000)], ['😀'.repeat(1000)], ['a'], [' a\r\n\r\nb\u2028c\t ', 'a b c'],
      ['\x1b]0;title\x07', ']0;title'],
      ['a\ud800b\udc00', 'a\ufffdb\ufffd'], ['\u202ea'], ['__proto__'], ['"\\'], ['null'],
    ];
    for (const [message, shown = message] of texts) {
      const control = new AbortController();
      void outcomeOf(server.ask(message, { signal: control.signal }));
      assert.deepEqual((await asksOf(port)).map((one) => one.message), [shown]);
      control.abort();
    }
    const described = (size: number) => ({ a: { type: 'string', description: 'x'.repeat(size) } } as const);
    const room = 4096 - Buffer.byteLength(JSON.stringify({ message: 'Which?', parameters: described(0) }));
    for (const timeout of [-1, NaN, Infinity, 2 ** 31]) assert.throws(() => server.ask('?', { timeout }), RangeError);
    assert.throws(() => server.ask('😀'.repeat(1001)), RangeError);
    assert.throws(() => server.ask('Which?', { parameters: described(room + 1) }), RangeError);
    assert.deepEqual(await asksOf(port), []);
    const question = server.ask('Which?', { parameters: described(room) });
    const [{ id, parameters } = assert.fail()] = await asksOf(port);
    assert.deepEqual(parameters, described(room));
    for (const [unknown, shown] of [
      ['', 'without an id'], ['q1', 'q1'], [`${id}0`, `${id}0`], [`${id} `, `${id} `], ['constructor', 'constructor'],
      [id.toUpperCase(), id.toUpperCase()], ['a\u0007b', 'ab'], ['x'.repeat(300), 'x'.repeat(200)],
    ] as const) {
      const { summary } = await answer(port, unknown, { a: '' });
      assert.equal(summary, `404 There is no question ${shown}: open are ${id}`);
    }
    assert.equal((await answer(port, id, { a: 'x'.repeat(2000) })).statusCode, 200);
    await question;
  });
});
