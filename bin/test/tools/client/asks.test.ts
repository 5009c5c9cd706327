// control-client asks and answer, questions in list, top, watch and the log, and the words for them.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { UsageError } from '../../../shared/cli.ts';
import {
  completeAnswer, describeAnswer, describeQuestion, describeTimes, describeValues, type Question, questionsIn,
  readAnswer,
} from '../../../shared/declared.ts';
import { describeCommand } from '../../../shared/describe.ts';
import { describeInfo, viewOf } from '../../../shared/view.ts';
import { assertHarmless, HARMLESS, HOSTILE, type StartedServer, startBasicServer, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { systemOf } from '../view.ts';
import { at, call, linesOf, run, watch } from './helpers.ts';
import { ACTIVE, openSession, startSilent, startWeb } from './systems.ts';

const SUITE = { ...LIMIT, skip: lacks('Unix') };
const FILE = { file: { type: 'string', enum: ['a.pt', 'b.pt'] }, note: { type: 'string', default: '' } } as const;
const BOOLEAN = { approved: { type: 'boolean' } };

/** The time some seconds ago, by the clock of this machine. */
function ago(seconds: number): string {
  return new Date(Date.now() - seconds * 1000).toISOString();
}

/** A question as a server lists it. */
function listed(id: string, message: string, fields: object = {}): object {
  return { id, message, parameters: BOOLEAN, at: ago(200), ...fields };
}

function questionOf(fields: object): Question {
  return questionsIn({ asks: [listed('k3f-q2', 'Delete 3 branches?', fields)] })[0] as Question;
}

/** The ids of the open questions, the oldest first. */
async function idsOf({ client }: Pick<StartedServer, 'client'>): Promise<string[]> {
  return (await client.getInfo())?.asks?.map(({ id }) => id) ?? [];
}

describe('control-client asks', SUITE, () => {
  it('lists the open questions with their age and expiry, and what they take', async (t) => {
    const { server, port } = await startServer(t);
    assert.deepEqual(await call([...at(port), 'asks']), {
      code: 0, stdout: '', stderr: 'control-client: no question is open\n',
    });
    assert.deepEqual(await call([...at(port), 'asks', '--json']), { code: 0, stdout: '{"asks":[]}\n', stderr: '' });
    void server.ask('Delete 3 branches?', { timeout: 900_000 });
    void server.ask('Which checkpoint?', { parameters: FILE });
    const { code, stdout, stderr } = await call([...at(port), 'asks']);
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(linesOf(stdout).map((line) => line.replace(/^\w{3}-q|\d+ s/g, 'N').replace(/14|15/, 'M')), [
      'N1, asked N ago, expires in M min: Delete 3 branches?', '    approved         true or false (required)',
      'N2, asked N ago: Which checkpoint?', '    file             one of a.pt, b.pt (required)',
      "    note             a string (default '')",
    ]);
    const json = await call([...at(port), 'asks', '--json']);
    const [first, second] = JSON.parse(json.stdout).asks;
    assert.deepEqual([first.message, second.message], ['Delete 3 branches?', 'Which checkpoint?']);
    assert.equal(Date.parse(first.expiresAt) - Date.parse(first.at), 900_000);
    assert.deepEqual(second.parameters, FILE);
  });

  it('lists those of all systems, each line with its system, and nothing for the others', async (t) => {
    const { folder, serve } = openSession(t);
    await serve('idle-1', () => ({ ...ACTIVE, asks: [] }));
    await serve('train-2', () => ({ ...ACTIVE, asks: [listed('k3f-q2', 'Delete?')] }));
    const all = ['asks', '--all', '--dir', folder];
    assert.deepEqual(await call(all), {
      code: 0, stderr: '',
      stdout: 'train  k3f-q2, asked 3 min ago: Delete?\ntrain      approved         true or false (required)\n',
    });
    const rows = linesOf((await call([...all, '--json'])).stdout).map((line) => JSON.parse(line));
    assert.deepEqual(rows.map(({ asks }) => asks.length).sort(), [0, 1]);
    assert.deepEqual(await call(['asks', 'idle', '--dir', folder]), {
      code: 0, stdout: '', stderr: 'control-client: no question is open\n',
    });
  });

  it('says in one line that a server has none, as answer does', async (t) => {
    const { port } = await startBasicServer(t);
    for (const args of [['asks'], ['answer', '--yes'], ['answer', 'k3f-q2', 'a=1']]) {
      const error = `${args[0] === 'answer' ? 'answer not sent: ' : ''}the server reports its status only`;
      const place = ['--host', 'localhost', '--port', `${port}`];
      const ended = await call([...place, ...args]);
      assert.deepEqual(ended, { code: 1, stdout: '', stderr: `control-client: ${error}\n` });
      assert.deepEqual(JSON.parse((await call([...place, ...args, '--json'])).stdout), { error });
    }
  });
});

describe('control-client answer', SUITE, () => {
  it('answers a question, prints what it answered, and sends the sender and the reason', async (t) => {
    const started = await startServer(t);
    const { server, port } = started;
    const answerIt = async (...args: string[]) => call([...at(port), 'answer', ...await idsOf(started), ...args]);
    const rows: [args: string[], expected: object, stdout: string][] = [
      [['--yes'], { approved: true }, 'approved=true (Go on?)\n'],
      [['--no'], { approved: false }, 'approved=false (Go on?)\n'],
      [['approved=true'], { approved: true }, 'approved=true (Go on?)\n'],
      [['{"approved":false}'], { approved: false }, 'approved=false (Go on?)\n'],
    ];
    for (const [args, expected, stdout] of rows) {
      const asked = server.ask('Go on?');
      const sent = await answerIt(...args, '--by', 'ana@phone', '--reason', 'looked');
      assert.deepEqual(sent, { code: 0, stdout, stderr: '' });
      assert.deepEqual(await asked, { arguments: expected, by: 'ana@phone', reason: 'looked' });
    }
    const chosen = server.ask('Which?', { parameters: FILE });
    const { stdout } = await answerIt('file=a.pt', 'note=a b', '--json');
    assert.deepEqual((await chosen).arguments, { file: 'a.pt', note: 'a b' });
    const { id, ...json } = JSON.parse(stdout);
    assert.match(id, /^\w{3}-q5$/);
    assert.deepEqual(json, { result: 'ok', message: 'Which?', arguments: { file: 'a.pt', note: 'a b' } });
    const ready = server.ask<object>('Ready?', { parameters: {} });
    assert.equal((await answerIt()).stdout, 'answered (Ready?)\n');
    assert.deepEqual((await ready).arguments, {});
  });

  it('needs an id if several questions are open', async (t) => {
    const started = await startServer(t);
    const { server, port } = started;
    void server.ask('Delete 3 branches?');
    const other = server.ask('Go on?');
    const [one, two] = await idsOf(started);
    await assert.rejects(call([...at(port), 'answer', '--yes']), (error: Error) => error instanceof UsageError &&
      error.message === `the id must be given: open are ${one} (Delete 3 branches?), ${two} (Go on?)`);
    assert.equal((await call([...at(port), 'answer', `${two}`, '--no'])).stdout, 'approved=false (Go on?)\n');
    assert.equal((await other).arguments.approved, false);
    assert.deepEqual(await idsOf(started), [one]);
  });

  it('exits with 1 and the sentence of the server if somebody was faster, and never answers another one', async (t) => {
    const started = await startServer(t);
    const { server, port } = started;
    const asked = server.ask('Delete 3 branches?');
    const [id] = await idsOf(started);
    const sent = await Promise.all(['ana', 'ben'].map((sender) => {
      return call([...at(port), 'answer', `${id}`, '--yes', '--by', sender]);
    }));
    const { by } = await asked;
    assert.deepEqual(sent.map(({ code }) => code).sort(), [0, 1]);
    const late = sent.find(({ code }) => code === 1);
    assert.deepEqual(late, { code: 1, stdout: '', stderr: `control-client: ${by} has answered ${id}\n` });
    void server.ask('Delete all branches?');
    for (const args of [['--yes'], ['--no'], ['approved=false'], ['x=1'], []]) {
      const again = await call([...at(port), 'answer', `${id}`, ...args]);
      assert.deepEqual(again, { code: 1, stdout: '', stderr: `control-client: ${by} has answered ${id}\n` });
    }
    const [next = ''] = await idsOf(started);
    assert.notEqual(next, '');
    const unknown = await call([...at(port), 'answer', 'zzz-q9', '--yes']);
    assert.equal(unknown.stderr, `control-client: There is no question zzz-q9: open are ${next}\n`);
    server.withdraw();
    const ended = await call([...at(port), 'answer', next, '--yes']);
    assert.equal(ended.stderr, `control-client: ${next} was withdrawn\n`);
    await assert.rejects(call([...at(port), 'answer', '--yes']), { message: 'no question is open' });
  });

  it('exits with 2 after wrong arguments, which leave the question open', async (t) => {
    const started = await startServer(t);
    const { server, port } = started;
    const asked = server.ask('Which?', { parameters: FILE });
    const [id = ''] = await idsOf(started);
    const wrong: [args: string[], error: string][] = [
      [['file=c.pt'], 'answer: file must be one of a.pt, b.pt, got "c.pt"'],
      [['files=a.pt'], 'answer: files is unknown'], [[], 'answer: file must be'],
    ];
    for (const [args, error] of wrong) {
      const { code, stdout, stderr } = await call([...at(port), 'answer', id, ...args]);
      assert.deepEqual([code, stdout], [2, '']);
      assert.ok(stderr.startsWith(`control-client: ${error}`), stderr);
    }
    const refused: [args: string[], message: string][] = [
      [['--yes'], `${id} takes file=a.pt|b.pt [note=…], got yes`],
      [['--yes', '--no'], '--yes and --no are mutually exclusive'],
      [['--no', 'file=a.pt'], '--no and file=a.pt are mutually exclusive'],
      [['file=a.pt', 'file=b.pt'], "file must be given only once, got 'a.pt' and 'b.pt'"],
    ];
    for (const [args, message] of refused) {
      await assert.rejects(call([...at(port), 'answer', id, ...args]), (error: Error) => {
        return error instanceof UsageError && error.message === message;
      }, message);
    }
    const process = await run(t, [...at(port), 'answer', id, '--yes']);
    assert.deepEqual(process, { code: 2, stdout: '', stderr: `control-client: ${refused[0]?.[1]}\n` });
    assert.deepEqual(await idsOf(started), [id]);
    await call([...at(port), 'answer', id, 'file=b.pt']);
    assert.equal((await asked).arguments.file, 'b.pt');
  });
});

describe('control-client answer without an id', SUITE, () => {
  const CHANGED = 'the id must be given, because the questions have just changed: open are';

  it('refuses until a question has been open for 3 s', async (t) => {
    const { server, port } = await startServer(t);
    const begun = performance.now();
    const asked = server.ask('Delete main?');
    const answer = () => call([...at(port), 'answer', '--yes', '--by', 'ana']).catch((error: Error) => {
      assert.ok(error instanceof UsageError);
      assert.match(error.message, new RegExp(`^${CHANGED} \\w{3}-q1 \\(Delete main\\?\\)$`));
      return null;
    });
    await until(async () => await answer() !== null);
    assert.ok(performance.now() - begun > 2900);
    assert.equal((await asked).by, 'ana');
  });

  type Clock = (secondsAgo: number) => string;
  const ended = (from: string, seconds: number, fields: object = {}): object => {
    return { commands: [{ command: 'answer', message: 'A?', state: 'done', at: from, seconds, ...fields }] };
  };
  const rows: [title: string, isRefused: boolean, fields: (clock: Clock) => object][] = [
    ['a question that was asked 4 s ago', false, () => ({})],
    ['one that was asked 2 s ago', true, (clock) => ({ asks: [listed('k3f-q2', 'B?', { at: clock(2) })] })],
    ['one of unknown age', true, () => ({ asks: [listed('k3f-q2', 'B?', { at: undefined })] })],
    ['one of a system without a clock', true, () => ({ heardAt: undefined })],
    ['one while another was answered 2 s ago', true, (clock) => ended(clock(60), 58)],
    ['one while another expired 2 s ago', true, (clock) => ended(clock(902), 900, { state: 'failed', error: 'expired' })],
    ['one while another was withdrawn 2 s ago', true, (clock) => ended(clock(2), 0, { state: 'failed' })],
    ['one while another was answered 4 s ago', false, (clock) => ended(clock(60), 56)],
    ['one while an own command was done 2 s ago', false, (clock) => ended(clock(60), 58, { command: 'set' })],
  ];
  for (const [title, isRefused, fields] of rows) {
    it(`${isRefused ? 'refuses to answer' : 'answers'} ${title}`, async (t) => {
      for (const hours of [0, 1, -1]) { // by which its clock differs
        const now = Date.now() + hours * 3_600_000;
        const clock: Clock = (secondsAgo) => new Date(now - 1000 * secondsAgo).toISOString();
        const asks = [listed('k3f-q2', 'B?', { at: clock(4) })];
        const { target, requests } = await startWeb(t, () => ({ ...ACTIVE, heardAt: clock(0), asks, ...fields(clock) }));
        const answer = (...args: string[]) => call(['answer', '--yes', ...args, target]);
        const answered = { code: 0, stdout: `${target}  approved=true (B?)\n`, stderr: '' };
        if (isRefused) await assert.rejects(answer(), { message: `${CHANGED} k3f-q2 (B?)` });
        else assert.deepEqual(await answer(), answered);
        assert.deepEqual(await answer('k3f-q2'), answered, 'with the id');
        assert.equal(requests.filter((request) => request.startsWith('POST')).length, isRefused ? 1 : 2);
      }
    });
  }

  it('refuses it also while a question of another of its systems has just ended', async (t) => {
    const end = { commands: [{ command: 'answer', message: 'A?', state: 'done', at: ago(60), seconds: 59 }] };
    const [a, b] = await Promise.all([end, { asks: [listed('k3f-q2', 'B?')] }].map((fields) => {
      return startWeb(t, () => ({ ...ACTIVE, heardAt: ago(0), asks: [], ...fields }));
    }));
    const targets = [a?.target ?? '', b?.target ?? ''];
    await assert.rejects(call(['answer', '--yes', ...targets]), { message: `${CHANGED} k3f-q2 of ${targets[1]} (B?)` });
    assert.equal((await call(['answer', '--yes', `${targets[1]}`])).code, 0);
  });
});

describe('control-client answer and several systems', SUITE, () => {
  const deny = (id: string) => ({ code: 409, error: `ben has answered ${id}` });

  it('answers exactly one question of one system', async (t) => {
    const { folder, serve } = openSession(t);
    let asks: Record<string, object[]> = {};
    const webs = await Promise.all(['a-1', 'b-2', 'old-3'].map((title) => serve(title, ({ url = '', method }) => {
      const end = { id: 'aaa-q1', command: 'answer', message: 'A?', state: 'done', at: ago(300), seconds: 290 };
      const commands = title === 'a-1' ? [end] : [];
      if (method === 'POST' && !JSON.stringify(asks[title]).includes(`${/q\d/.exec(url)}`)) return deny('it');
      return { ...ACTIVE, heardAt: ago(0), asks: title === 'old-3' ? undefined : asks[title] ?? [], commands };
    })));
    const answer = (...args: string[]) => call(['answer', '--all', '--dir', folder, '--yes', ...args]);
    const posted = (): string[] => webs.map(({ requests }) => {
      return requests.splice(0, Infinity).filter((request) => request.startsWith('POST')).length.toString();
    });

    await assert.rejects(answer(), { message: 'no question is open' });
    await assert.rejects(answer('bbb-q1'), { message: 'there is no question bbb-q1: none is open' });
    asks = { 'b-2': [listed('bbb-q1', 'B?')] };
    assert.deepEqual(await answer(), { code: 0, stdout: 'b    approved=true (B?)\n', stderr: '' });
    assert.deepEqual(posted(), ['0', '1', '0']);
    asks = { 'a-1': [listed('aaa-q2', 'A?')], 'b-2': [listed('bbb-q1', 'B?'), listed('aaa-q2', 'C?')] };
    const list = 'open are aaa-q2 of a (A?), bbb-q1 of b (B?), aaa-q2 of b (C?)';
    await assert.rejects(answer(), { message: `the id must be given: ${list}` });
    await assert.rejects(answer('aaa-q2'), { message: `the target must be given: ${list}` });
    assert.deepEqual(posted(), ['0', '0', '0']);
    assert.equal((await answer('bbb-q1')).stdout, 'b    approved=true (B?)\n');
    assert.deepEqual(posted(), ['0', '1', '0']);
    const named = await call(['answer', 'aaa-q2', '--no', 'a', '--dir', folder]);
    assert.equal(named.stdout, 'a  approved=false (A?)\n');
    assert.deepEqual(posted(), ['1', '0', '0']);
    const late = await answer('aaa-q1');
    assert.deepEqual(late, { code: 1, stdout: '', stderr: 'control-client: a: ben has answered it\n' });
    assert.deepEqual(posted(), ['1', '0', '0']);
  });

  it('answers none without an id while a system that may ask does not respond', async (t) => {
    const { target, requests } = await startWeb(t, () => {
      return { ...ACTIVE, heardAt: ago(0), asks: [listed('aaa-q2', 'A?')] };
    });
    const silent = await startSilent(t);
    const answer = (...args: string[]) => call(['answer', '--yes', ...args, target, silent]);
    const [{ code, stdout, stderr }, named] = await Promise.all([answer(), answer('aaa-q2')]);
    assert.deepEqual([code, stdout], [5, '']);
    assert.match(stderr, new RegExp(`^control-client: ${silent}: answer not sent: has not responded within \\S+ s\n$`));
    const title = target.padEnd(silent.length);
    assert.deepEqual(named, { code: 0, stdout: `${title}  approved=true (A?)\n`, stderr: '' });
    assert.equal(requests.filter((request) => request.startsWith('POST')).length, 1);
    const { code: absent } = await call(['answer', '--yes', target, '127.0.0.1:1']);
    assert.equal(absent, 0, 'nothing asks where nothing listens');
  });
});

describe('control-client list and questions', SUITE, () => {
  it('puts systems that ask first, and adds the questions to --json', async (t) => {
    const { folder, serve } = openSession(t);
    const asks = [listed('k3f-q2', 'Delete?')];
    await serve('a-1', () => ({ ...ACTIVE, name: 'a', pid: 1, asks: [] }));
    await serve('z-2', () => ({ ...ACTIVE, name: 'z', pid: 2, asks }));
    const list = (...args: string[]) => call(['list', '--dir', folder, ...args]);
    assert.deepEqual(linesOf((await list()).stdout).map((line) => line.split(/ +/).slice(0, 3)), [
      ['z', '2', 'active'], ['a', '1', 'active'],
    ]);
    const rows = linesOf((await list('--json')).stdout).map((line) => JSON.parse(line));
    assert.deepEqual(rows.map((row) => row.asks), [asks, undefined]);
  });
});

describe('control-client watch and questions', SUITE, () => {
  it('prints a line for a question and for its end', async (t) => {
    const { server, port, client } = await startServer(t);
    void server.ask('Is it there already?');
    const watching = watch(t, at(port));
    const json = watch(t, [...at(port), '--json']);
    const shows = (text: string) => watching.until(() => watching.output().includes(`  ${text}\n`));
    await shows('asks: Is it there already? (answer yes or no)');
    server.withdraw();
    await shows('Is it there already? withdrawn');
    const both = [server.ask('Delete 3 branches?'), server.ask('Which?', { parameters: FILE })];
    await Promise.all([watching.shows(/Which\?/), json.shows(/Which\?/)]);
    assert.match(watching.output(), /  asks: Which\? \(answer \w{3}-q3 file=a\.pt\|b\.pt \[note=…\]\)\n/);
    const [id] = (await client.getInfo())?.asks?.map((ask) => ask.id) ?? [];
    await client.request('answer', { id, arguments: { approved: true }, by: 'ana', reason: 'looked' });
    await shows('answer by ana (looked): approved=true (Delete 3 branches?)');
    await both[0];
    server.withdraw();
    await json.shows(/"Which\?".*"withdrawn"/);
    const changes = linesOf(json.output()).map((line) => JSON.parse(line));
    const about = changes.filter(({ message }) => message === 'Delete 3 branches?');
    assert.deepEqual(about.map(({ event, command, state, by }) => [event, command, state, by]), [
      ['ask', undefined, undefined, undefined], [undefined, 'answer', 'done', 'ana'],
    ]);
    assert.deepEqual(about[0].parameters, BOOLEAN);
  });

  it('runs the command of --exec for each question with --on ask, also when it is asked again', async (t) => {
    const there = listed('k3f-q1', 'Is it there already?');
    const end = (id: string, message: string, error: string): object => {
      return { id, command: 'answer', state: 'failed', message, error };
    };
    let info: { asks: object[]; commands: object[] } = { asks: [there], commands: [] };
    const web = await startWeb(t, () => ({ ...ACTIVE, ...info }));
    const command = 'echo "<$CONTROL_QUESTION|$CONTROL_STATUS|$CONTROL_TARGET>"';
    const { output, shows } = watch(t, [web.target, '--exec', command, '--on', 'offline,ask']);
    const other = watch(t, [web.target, '--exec', command]);
    await shows(/^<Is it there already\?\|active\|127.0.0.1:\d+>\n/m);
    await other.shows(/asks: Is it /);
    const withdrawn = end('k3f-q1', 'Is it there already?', 'withdrawn');
    info = { asks: [], commands: [withdrawn] };
    await shows(/already\? withdrawn\n/);
    info = { asks: [{ ...there, id: 'k3f-q2' }, listed('k3f-q3', 'Go on?')], commands: [withdrawn] };
    await shows(/^<Go on\?\|/m);
    await other.shows(/asks: Go on\? /);
    assert.match(output(), /asks: Is it [^]*asks: Is it there already\? \(answer k3f-q2 yes or no\)\n/);
    const expired = end('k3f-q3', 'Go on?', 'expired');
    info = { asks: [], commands: [withdrawn, expired] };
    for (const one of [shows, other.shows]) await one(/Go on\? expired\n/);
    info = { asks: [listed('k3f-q4', 'Go on?')], commands: [withdrawn, expired] };
    await until(() => output().match(/^<Go on\?\|/gm)?.length === 2, output);
    await other.shows(/asks: Go on\? [^]*asks: Go on\? /);
    web.end();
    await shows(/^<\|offline\|127.0.0.1:\d+>\n/m);
    assert.equal(output().match(/^<Is it/gm)?.length, 2);
    await other.shows(/^<\|offline\|/m);
    assert.equal(other.output().match(/^</gm)?.length, 1, 'without --on, it runs for statuses only');
  });

  it('passes a hostile message as one harmless line', async (t) => {
    const asks = [listed('k3f-q2', HOSTILE)];
    const { target } = await startWeb(t, () => ({ ...ACTIVE, asks }));
    const { output, shows } = watch(t, [target, '--on', 'ask', '--exec', 'printf "<%s>\\n" "$CONTROL_QUESTION"']);
    await shows(/^<PW .*>\n/m);
    assertHarmless(output());
  });
});

describe('A question in words', LIMIT, () => {
  it('says what it takes, how old it is, and when it expires', () => {
    const rows: [fields: object, question: string][] = [
      [{}, 'Delete 3 branches? (answer yes or no)'],
      [{ parameters: {} }, 'Delete 3 branches? (answer)'], [{ parameters: 7 }, 'Delete 3 branches? (answer)'],
      [{ parameters: { ok: { type: 'boolean', default: false } } }, 'Delete 3 branches? (answer yes or no)'],
      [{ parameters: { ok: { type: 'boolean', enum: [true] } } }, 'Delete 3 branches? (answer ok=true|false)'],
      [{ parameters: { ok: { type: 'boolean' }, n: { type: 'integer' } } },
        'Delete 3 branches? (answer ok=true|false n=…)'],
      [{ parameters: FILE }, 'Delete 3 branches? (answer file=a.pt|b.pt [note=…])'],
      [{ parameters: { a: { enum: ['x'.repeat(41)] } } }, 'Delete 3 branches? (answer a=…)'],
    ];
    for (const [fields, question] of rows) assert.equal(describeQuestion(questionOf(fields)), question);
    const expiresAt = new Date(Date.now() + 750_500).toISOString();
    assert.equal(describeTimes(questionOf({ expiresAt })), 'k3f-q2, asked 3 min ago, expires in 12 min');
    const expired = questionOf({ expiresAt: '2026-01-01T00:00:00Z' });
    assert.equal(describeTimes(expired), 'k3f-q2, asked 3 min ago, expires in 0 s');
    assert.equal(describeTimes(questionOf({ at: 'x', expiresAt: null })), 'k3f-q2');
  });

  it('is part of the status and the info, and its end has the time of the answer', () => {
    const asks = [listed('k3f-q2', 'Delete?'), listed('k3f-q3', 'Go on?')];
    assert.equal(viewOf(systemOf({ status: 'active', asks })).summary, 'active; asks 2 questions: Delete?');
    assert.equal(viewOf(systemOf({ status: 'active', asks: asks.slice(1) })).summary, 'active; asks: Go on?');
    const at = new Date(new Date().setHours(3, 12, 9, 0)).toISOString();
    const ended = { command: 'answer', message: 'Go?', arguments: { ok: true }, at, state: 'done', seconds: 61 };
    assert.deepEqual(describeInfo(systemOf({ status: 'active', asks, commands: [ended] })).slice(1), [
      'asks      k3f-q2, asked 3 min ago: Delete? (answer yes or no)',
      '          k3f-q3, asked 3 min ago: Go on? (answer yes or no)',
      'status    active', 'commands  03:13:10 answer by somebody: ok=true (Go?)',
    ]);
  });

  it('ends with who has answered what and why, or without an answer', () => {
    const given = { approved: true };
    const entry = { command: 'answer', message: 'Delete?', state: 'done', arguments: given, by: 'ana@phone' };
    const rows: [fields: object, text: string][] = [
      [{}, 'answer by ana@phone: approved=true (Delete?)'],
      [{ reason: 'looked', arguments: { n: 3, note: 'a, b=2', path: '/a.pt' } },
        'answer by ana@phone (looked): n=3, note="a, b=2", path=/a.pt (Delete?)'],
      [{ by: undefined, arguments: {} }, 'answer by somebody (Delete?)'],
      [{ state: 'failed', error: 'expired' }, 'Delete? expired'],
      [{ state: 'failed', error: 'withdrawn' }, 'Delete? withdrawn'],
      [{ message: undefined, seconds: 1 }, 'answer {"approved":true} by ana@phone done in 1.00 s'], // an own command
    ];
    for (const [fields, text] of rows) assert.equal(describeCommand({ ...entry, ...fields }), text);
  });

  it('is read as typed', () => {
    const rows: [parameters: object, words: string[], given: object][] = [
      [BOOLEAN, ['yes'], { approved: true }], [BOOLEAN, ['no'], { approved: false }],
      [BOOLEAN, ['approved=true'], { approved: true }], [BOOLEAN, ['approved=yes'], { approved: 'yes' }],
      [BOOLEAN, [], {}], [{ n: { type: 'integer' } }, ['n=3'], { n: 3 }], [FILE, ['{"file":"a.pt"}'], { file: 'a.pt' }],
    ];
    for (const [parameters, words, given] of rows) {
      assert.deepEqual(readAnswer(questionOf({ parameters }), words), given);
    }
    for (const words of [['yes', 'no'], ['maybe'], ['Yes'], ['toString']]) {
      assert.throws(() => readAnswer(questionOf({}), words), UsageError, words.join());
    }
    const none = questionOf({ parameters: {} });
    assert.throws(() => readAnswer(questionOf({}), ['maybe']), { message: 'k3f-q2 takes yes or no, got maybe' });
    assert.throws(() => readAnswer(none, ['no']), { message: 'k3f-q2 takes no arguments, got no' });
  });

  it('is completed: ids, yes and no, parameters and values', () => {
    const [one, two] = [questionOf({}), questionOf({ id: 'k3f-q3', parameters: FILE })];
    const rows: [questions: Question[], words: string[], hasShort: boolean, found: string[]][] = [
      [[one], [''], true, ['yes', 'no']], [[one], ['y'], true, ['yes']], [[one], ['a'], true, ['approved=']],
      [[one], [''], false, ['approved=']], [[one], ['approved=t'], false, ['approved=true']],
      [[one], ['k'], true, ['k3f-q2']], [[one], ['k3f-q2', ''], true, ['yes', 'no']],
      [[one, two], [''], true, ['k3f-q2', 'k3f-q3']], [[one, two], ['k3f-q3', ''], true, ['file=', 'note=']],
      [[one, two], ['k3f-q3', 'file=b.pt', ''], true, ['note=']], [[two], ['file='], true, ['file=a.pt', 'file=b.pt']],
      [[], [''], true, []], [[one, two], ['yes', ''], true, []], [[questionOf({ id: '$(x)' })], ['$'], true, []],
    ];
    for (const [questions, words, hasShort, found] of rows) {
      assert.deepEqual(completeAnswer(questions, words, hasShort), found, words.join(' '));
    }
  });

  it('has only harmless texts, of whatever type the fields are', async (t) => {
    const parameter = { type: HOSTILE, enum: [HOSTILE, [HOSTILE]], default: HOSTILE, description: HOSTILE };
    const odd: unknown[] = [HOSTILE, 7, null, [HOSTILE], { [HOSTILE]: HOSTILE }];
    const asks = odd.flatMap((value) => [
      { id: value, message: value, parameters: value, at: value, expiresAt: value }, value,
      { id: 'k3f-q2', message: HOSTILE, parameters: { a: parameter, [HOSTILE]: parameter, b: value } },
    ]);
    const ends = odd.flatMap((value) => ['done', 'failed', value].map((state) => {
      return { command: 'answer', message: HOSTILE, state, arguments: value, error: value, by: value, reason: value };
    }));
    const info = { ...ACTIVE, asks, commands: ends.slice(-18), name: 'x' };
    for (const text of [...describeInfo(systemOf(info)), viewOf(systemOf(info)).summary, ...ends.map(describeAnswer)]) {
      assertHarmless(text);
    }
    assertHarmless(describeValues({ a: HOSTILE }));
    const { port } = await startWeb(t, ({ method }) => method === 'POST' ? { code: 409, error: HOSTILE } : info);
    const refused = { ...info, asks: [{ id: 'k3f-q2', message: HOSTILE, parameters: { a: parameter } }] };
    const one = await startWeb(t, ({ method }) => method === 'POST' ? { code: 409, error: HOSTILE } : refused);
    for (const [web, args] of [[port, ['asks']], [port, ['info']], [one.port, ['answer', 'k3f-q2', 'a=1']]] as const) {
      const { stdout, stderr } = await call([...at(web), ...args]);
      assertHarmless(stdout + stderr);
      assert.ok((stdout + stderr).includes(HARMLESS.slice(0, 40)));
    }
    const ambiguous = await run(t, [...at(port), 'answer', '--yes']);
    assert.equal(ambiguous.code, 2);
    assertHarmless(ambiguous.stderr);
    for (const value of odd.slice(0, 3)) assert.deepEqual(questionsIn({ asks: value }), []);
    assert.equal(questionsIn({ asks: Array.from({ length: 99 }, () => listed('k3f-q2', 'x')) }).length, 16);
  });
});
