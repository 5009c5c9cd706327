// The state that control-board keeps of systems of all kinds.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { SystemStatus } from '../../../../control.ts';
import { BY, type Fault } from '../../../shared/client.ts';
import {
  assertHarmless, defer, freePort, HOSTILE, launchSystem, startBasicServer, startServer,
} from '../../helpers.ts';
import { LIMIT, until } from '../../wait.ts';
import { startSilent, startWeb } from '../client/systems.ts';
import { checkMetrics, createSystem, INFO, newsOf, NOWHERE, startBoard, untilSystem } from './helpers.ts';
import type { OwnCommand } from '../../../board/forms.ts';
import type { BoardSystem, State, Update } from '../../../board/system.ts';

describe('What control-board knows of systems', { ...LIMIT, concurrency: 3 }, () => {
  it('reads the detail about once a second while a page is open, and rarely otherwise', async (t) => {
    const calls: number[] = [];
    const describe = (): object => {
      calls.push(performance.now());
      return { step: calls.length };
    };
    const { address } = await launchSystem(t, { describe, step: () => sleep(20) });
    const board = await startBoard(t, [`127.0.0.1:${address.port}`]);
    await sleep(1200); // nothing must happen
    assert.ok(calls.length <= 2, `${calls.length} calls`);
    const before = calls.length;
    const start = performance.now();
    let { version } = await newsOf(board);
    while (calls.length < before + 4) ({ version } = await newsOf(board, version, 10)); // a changed detail is news
    assert.ok(performance.now() - start > 1500, 'not more often');
    const leaving = new AbortController();
    const headers = { Authorization: `Bearer ${board.key}`, Prefer: 'wait=30' };
    const last = fetch(`${board.url}api/systems?since=${version}`, { headers, signal: leaving.signal });
    leaving.abort();
    await assert.rejects(last);
    while (performance.now() - Number(calls.at(-1)) < 5000) await sleep(200); // until it stops
    const count = calls.length;
    await newsOf(board);
    await until(() => calls.length > count);
  });

  it('keeps samples of numbers, and sends those that a page lacks, even for a slow system', async (t) => {
    let step = 0;
    const slow = await startWeb(t, async () => {
      step += 1;
      const own = step;
      await sleep(300);
      return { ...INFO, detail: { step: own, name: 'x' } };
    });
    const fast = await startWeb(t, () => ({ ...INFO, detail: { time: Math.random() } }));
    const board = await startBoard(t, [slow.target, fast.target]);
    const received: [time: number, value: number][] = [];
    let version = 0;
    while (received.length < 4) {
      const news = await newsOf(board, version, 10);
      for (const { id, fields } of news.systems) {
        if (id !== 0) continue;
        assert.ok(fields.every(({ name, samples }) => name === 'step' || samples === undefined));
        const { samples = [] } = fields.find(({ name }) => name === 'step') ?? {};
        assert.ok(samples.every(([time]) => time > version && time <= news.version), 'only what is new');
        received.push(...samples);
      }
      ({ version } = news);
    }
    const [{ fields } = assert.fail()] = (await newsOf(board)).systems;
    const all = fields.find(({ name }) => name === 'step')?.samples ?? [];
    assert.deepEqual(received, all.slice(0, received.length), 'each sample arrives once');
    assert.ok(all.length - received.length <= 1, `${all.length - received.length} samples are missing`);
  });

  it('attributes the end to its own shutdown, even if the program ends at once', async (t) => {
    const web = await startWeb(t, ({ method }) => {
      if (method === 'GET') return { ...INFO, name: 'loop' };
      web.end();
      return null;
    });
    const board = await startBoard(t, [web.target, NOWHERE]);
    await untilSystem(board, ({ status }) => status === 'active');
    for (const id of [0, 1]) await board.post(`/api/systems/${id}/shutdown?reason=lunch`);
    const { cause, status, when } = await untilSystem(board, ({ heading }) => heading === 'ended');
    assert.deepEqual([cause, status], [` by ${BY}: lunch`, 'offline']);
    assert.match(when, /^\d+ s ago$/);
    const other = await untilSystem(board, ({ sent: [first] }) => first?.state === 'done', 1);
    assert.deepEqual([other.status, other.heading, other.sent[0]?.text], ['offline', 'offline', 'already offline']);
  });

  it('shows a server that reports only its status, and one that dies and comes back', async (t) => {
    const { port, posted } = await startBasicServer(t);
    const mortal = await freePort();
    const board = await startBoard(t, [`localhost:${port}`, `127.0.0.1:${mortal}`]);
    await untilSystem(board, ({ status }) => status === 'active');
    await board.post('/api/systems/0/pause');
    const { fields, commands } = await untilSystem(board, ({ status, sent: [first] }) => {
      return status === 'paused' && first?.state === 'done';
    });
    assert.deepEqual([fields, commands], [[], []]);
    for (const [command, text] of [
      ['resume', /^active \(/], ['save-state', /^save-state accepted, but the server reports no outcome$/],
      ['shutdown', /^offline \(/],
    ] as const) {
      await board.post(`/api/systems/0/${command}`);
      await untilSystem(board, ({ sent }) => sent.some((one) => one.command === command && text.test(one.text)));
    }
    await untilSystem(board, ({ status }) => status === 'offline');
    assert.deepEqual(posted, ['pause', 'resume', 'save-state', 'shutdown']);
    for (const status of [SystemStatus.ACTIVE, SystemStatus.PAUSED]) {
      await untilSystem(board, (system) => system.status === 'offline', 1);
      const { server } = await startServer(t, { host: '127.0.0.1', port: mortal, systemStatus: () => status });
      await untilSystem(board, (system) => system.status === status.statusName, 1);
      await server.close();
    }
  });

  it('survives arbitrary responses', async (t) => {
    const many = Object.fromEntries(Array.from({ length: 500 }, (_, index) => [`field ${index}`, index]));
    const deep = `${'['.repeat(30_000)}${']'.repeat(30_000)}`;
    const bodies: [what: string, body: string][] = [
      ...Object.entries<object>({
        'hostile texts': {
          name: HOSTILE, by: HOSTILE, reason: HOSTILE, pid: HOSTILE, host: HOSTILE, since: HOSTILE,
          detail: { [HOSTILE]: HOSTILE, x: [HOSTILE], y: { [HOSTILE]: HOSTILE } },
          commands: [{ command: HOSTILE, state: HOSTILE, by: HOSTILE, value: HOSTILE, error: HOSTILE, at: HOSTILE }],
        },
        'hostile holds': { holds: Array(500).fill({ by: HOSTILE, reason: HOSTILE.repeat(99), since: HOSTILE }) },
        'hostile questions': {
          asks: Array(20).fill({
            id: HOSTILE, message: HOSTILE, at: HOSTILE, expiresAt: HOSTILE, by: HOSTILE,
            parameters: { [HOSTILE]: {}, a: { type: 'string', description: HOSTILE } },
          }),
          commands: ['done', 'failed'].map((state) => ({
            id: HOSTILE, command: 'answer', message: HOSTILE, arguments: { [HOSTILE]: HOSTILE }, state, by: HOSTILE,
            reason: HOSTILE, error: HOSTILE,
          })),
        },
        'no questions': { asks: [null, 1, 'x', [], { message: {}, parameters: [1], at: 1e300 }] },
        'no list of questions': { asks: { length: 5 } },
        'no holds': { holds: [null, 1, 'x', [], { by: {}, reason: [1], since: 1e300 }] },
        'no list of holds': { holds: { length: 5 } },
        'a hostile status': { status: HOSTILE }, 'no text as status': { status: [1e300] },
        'a hostile progress': { detail: { [HOSTILE]: 5, of: 9 } },
        '500 fields': { detail: { ...many, run: { ...many, ...RUN } } },
        'a long detail': { detail: { x: 'x'.repeat(60_000), ['y'.repeat(2000)]: 1 } },
        'names with the same excerpt': {
          detail: { '\u0001': 1, '\u0002': '1e20', x: 2, 'run.x': 3, run: { x: 4, 'y\u0001': 6, 'y ': 7, ...RUN } },
        },
        '500 commands': { commands: Array<object>(500).fill({ command: 'pause', seconds: -1 }) },
        'no commands': { commands: [null, 1, 'x', [], { command: {} }] }, 'no list': { commands: { length: 5 } },
        'current values': {
          accepts: declare('a', 'b', 'c', 'd', 'e', 'f', 'toString'),
          detail: { a: 1.5, b: false, c: 'x', d: null, e: { f: 1 }, f: 'x'.repeat(1001), g: 1 },
        },
      }).map(([what, fields]): [string, string] => [what, JSON.stringify({ ...INFO, ...fields })]),
      ...Object.entries({
        'numbers that are none': '"detail":{"x":1e999,"y":-1e999,"z":5},"since":1e999,"heardAt":1e999',
        'the names of prototypes':
          '"detail":{"__proto__":{"x":1},"constructor":7,"toString":null,"":1,"hasOwnProperty":"x"},"__proto__":[]',
        'a deep detail': `"detail":${deep}`, 'a deep field of the detail': `"detail":{"x":${deep}}`,
        'deep commands': `"commands":${deep}`, 'deep holds': `"holds":${deep}`, 'a deep status': `"status":${deep}`,
        'deep questions': `"asks":${deep}`,
        'a deep question':
          `"asks":[{"id":${deep},"message":${deep},"parameters":{"a":{"type":"string","enum":${deep}}}}]`,
        'a current value that is too large': `"detail":{"a":1e999},"accepts":${JSON.stringify(declare('a'))}`,
        ...Object.fromEntries(['"7"', '-5', '0', '1e308', '1e999', '[9]', 'null', '"<b>"'].map((of) => {
          return [`of ${of}`, `"detail":{"step":5,"of":${of}}`];
        })),
        ...hostileDeclarations(deep),
      }).map(([what, fields]): [string, string] => [what, JSON.stringify(INFO).replace(/}$/, `,${fields}}`)]),
      ...['null', '7', '[]', '{}', '', '<html>', '{"status":', 'x'.repeat(500_000)].map((body): [string, string] => {
        return [`the body ${body}`, body];
      }),
    ];
    const targets: string[] = [];
    for (const [, body] of bodies) targets.push((await startWeb(t, () => body)).target);
    targets.push((await startWeb(t, () => null)).target, await startSilent(t));
    let reads = 0;
    const { port } = await startServer(t, { describe: () => ({ x: reads += 1 }) });
    const board = await startBoard(t, [...targets, `127.0.0.1:${port}`]);
    await untilSystem(board, ({ fields }) => fields.length > 0, targets.length);
    await until(() => reads > 2); // so the others were read, too
    for (const id of targets.keys()) assert.equal((await board.post(`/api/systems/${id}/save-state`)).status, 202);
    await untilSystem(board, ({ sent: [first] }) => first?.state === 'failed', bodies.length);
    await untilSystem(board, ({ status }) => status === 'no answer', bodies.length + 1);
    checkMetrics(await (await board.get('/metrics')).text());
    const { systems } = await newsOf(board);
    for (const [index, system] of systems.entries()) {
      const [what = ''] = bodies[index] ?? [];
      assert.ok(JSON.stringify(system).length < 60_000, what);
      assert.ok(system.fields.length <= 64, what);
      assert.equal(new Set(system.fields.map(({ name }) => name)).size, system.fields.length, what);
      assert.ok(system.commands.length <= 5 && system.holds.length <= 16 && system.asks.length <= 16, what);
      checkDeclarations(system.accepts ?? assert.fail(what), what);
      for (const text of textsOf(system)) assertHarmless(text);
      const { progress } = system;
      const isPlausible = progress === null || (progress.done === 5 && Number.isFinite(progress.of));
      assert.ok(isPlausible, `${what} ${JSON.stringify(progress)}`);
      for (const { value, samples } of system.fields) {
        assert.ok(['string', 'number'].includes(typeof value), what);
        assert.ok((samples ?? []).every(([time, number]) => Number.isFinite(time) && Number.isFinite(number)), what);
      }
      assert.match(system.when, /^((for )?\d+ (s|min|h|days)( ago)?)?$/, what);
      for (const words of [system.step, ...system.holds, ...system.asks.map(({ times }) => times)]) {
        assert.doesNotMatch(words, /NaN|Infinity|null|undefined/, what);
      }
    }
    const declared = new Map(bodies.map(([what], index) => [what, systems[index]?.accepts?.map(({ name }) => name)]));
    assert.deepEqual(declared.get('reserved names'), ['ok']);
    const find = (what: string): Update => systems[bodies.findIndex(([name]) => name === what)] ?? assert.fail(what);
    const { asks, askEnds } = find('hostile questions');
    assert.deepEqual([asks.length, askEnds.map(({ isAnswered }) => isAnswered)], [16, [true, false]]);
    assert.deepEqual(find('a deep question').asks.map(({ id, parameters: [one] }) => [id, one?.name]), [['', 'a']]);
    assert.equal(find('10,000 commands').accepts?.length, 32);
    assert.equal(find('40 parameters').accepts?.[0]?.parameters.length, 32);
    assert.deepEqual(find('fields that do not fit their type').accepts?.[0]?.parameters, FITTING);
    assert.deepEqual(find('current values').current, [['a', 1.5], ['b', false], ['c', 'x']]);
    assert.deepEqual(find('a current value that is too large').current, []);
    assert.deepEqual(declared.get('the names of prototypes as commands'), ['constructor']);
    const { fields: ofProto } = find('the names of prototypes');
    const shown = Object.fromEntries(ofProto.map(({ name, value }) => [`[${name}]`, value]));
    assert.deepEqual(shown, {
      '[__proto__]': '{"x":1}', '[constructor]': 7, '[toString]': 'null', '[]': 1, '[hasOwnProperty]': 'x',
    });
    assert.equal(systems.at(-1)?.status, 'active');
    assert.equal(board.running.output().split('\n').length, 2, board.running.output());
  });
});

// ───── What a system reports, and the state on the board ─────────────────────────────────────────────────────────

/** The reply to a request that waits for a change. */
const NEVER = new Promise<object>(() => {});

/** A response with these fields. */
function info(fields: object = {}): object {
  const body = JSON.parse(JSON.stringify({ ...INFO, ...fields }));
  return { ok: true, value: body.status, original: body.status, fault: null, body, tag: undefined };
}

function failure(phase: string, code: string, fault: Fault): object {
  return { ok: false, phase, code, fault, body: {}, error: code, original: code };
}

const OFFLINE = failure('connect', 'ECONNREFUSED', 'offline');
const FULL = failure('connect', 'EMFILE', 'unknown');
const SAVE_MS = 2000;
const SAVED_AT = Date.now() - 3.5 * 3_600_000;

/** The time of a report. */
function timeOf(ms: number): string {
  return new Date(ms).toISOString();
}

/** A response that lists one command. */
function listing(command: string, fields: object, more: object = {}): object {
  return info({ ...more, commands: [{ command, state: 'done', ...fields }] });
}

const SAVE = listing('save-state', { value: 'states/1', at: timeOf(SAVED_AT - SAVE_MS), seconds: 2, by: 'ana' });
const FAILED_SAVE = listing('save-state', { state: 'failed', error: 'ENOSPC' });
const SAVED: Pick<State, 'saved'> = { saved: 'saved states/1 3 h ago by ana' };
const NOTED = { saved: { value: 'states/1', at: SAVED_AT, by: 'ana' } };
const NONE_FAILED: Partial<State> = { unsaved: '', failed: '' };
const NO_WAY = 'no way to save: start control-run with --save-signal or --save-command';
const RUN = { pid: 7, started: '2026-11-21T14:03:07.120Z' };
const UNABLE = { detail: { run: { ...RUN, canSave: false } } };

/** What a page shows of an end. */
function ended(isCrashed: boolean, cause: string): Partial<State> {
  if (isCrashed) return { status: 'offline', word: 'crashed', heading: 'crashed', cause: ': exit', level: 'bad' };
  return { status: 'offline', heading: 'ended', cause, statusLevel: 'ended' };
}

/** The replies of a system, the state after the last one, and what is known besides. */
const STATES: [what: string, replies: object[], state: Partial<State>, facts?: Partial<BoardSystem>][] = [
  ['killed', [info(), OFFLINE], {
    status: 'offline', heading: 'offline', word: 'offline', level: 'bad', cause: '', error: '',
  }, { end: null, error: 'ECONNREFUSED' }],
  ['shut down', [info({ status: 'shutting down', by: 'ana', reason: 'lunch' }), OFFLINE], {
    status: 'offline', heading: 'ended', word: 'ended', level: 'ended', cause: ' by ana: lunch',
  }],
  ['shut down too fast to report it', [listing('shutdown', { state: 'running', by: 'ana' }), OFFLINE], {
    heading: 'ended', cause: ' by ana',
  }],
  ['restarted', [info({ status: 'shutting down', by: 'ana' }), OFFLINE, info()], {
    status: 'active', heading: 'active', cause: '',
  }, { end: null }],
  ...([
    [7, true], [1, true], [127, true], [137, true], [139, true], // control-run reports 128 + the signal
    [0, false], [129, false], [130, false], [141, false], [143, false], ['7', false], [undefined, false],
  ] as const).flatMap(([exitCode, isCrashed]): typeof STATES => {
    const value = { ended: 'exit', exitCode };
    const status = 'shutting down';
    const [by, reason] = ['itself', 'exit'];
    const shown = ended(isCrashed, ' by itself: exit');
    return [
      ['ends, as its command says', [listing('shutdown', { by, reason, value }), OFFLINE], shown],
      ['ends, as its detail says', [
        info({ status, by, reason, detail: { run: { ...RUN, ...value } } }), OFFLINE,
      ], shown],
      ['ends, as both say', [listing('shutdown', { by, reason, value }, { status, by, reason }), OFFLINE], shown],
      ['ends, and own commands with it', [info({ status, by, reason, commands: [
        { command: 'shutdown', state: 'done', by, reason, value },
        { command: 'evaluate', state: 'failed', error: 'x' },
      ] }), OFFLINE], { ...shown, failed: 'evaluate failed: x', level: 'bad' }],
      ['was shut down', [listing('shutdown', { by: 'ana', value }), OFFLINE], ended(false, ' by ana')],
    ];
  }),
  ['saved', [SAVE], { ...SAVED, ...NONE_FAILED, word: 'active', level: 'good' }, { ...NOTED, failedSave: null }],
  ['the latest save failed', [SAVE, FAILED_SAVE], {
    ...SAVED, unsaved: 'save failed: ENOSPC', failed: 'save failed: ENOSPC',
    word: 'failed', level: 'bad', heading: 'active', statusLevel: 'good',
  }, NOTED],
  ['a later one succeeded', [FAILED_SAVE, SAVE], { ...SAVED, ...NONE_FAILED, level: 'good' }, NOTED],
  ['restarted since a save failed', [info({ pid: 1 }), FAILED_SAVE, info({ pid: 2 })], NONE_FAILED],
  ['has no way to save', [listing('save-state', { state: 'failed', error: 'x' }, UNABLE)], {
    ...NONE_FAILED, saved: '', canSave: false, level: 'good',
    commands: [{ text: 'save-state refused: x', state: 'refused' }],
  }, { saved: null, failedSave: null }],
  ...([[RUN, ''], [{}, NO_WAY]] as const).map(([run, error]): typeof STATES[number] => {
    const failed = { state: 'failed', error: NO_WAY };
    return ['has no way to save, but does not know it yet', [listing('save-state', failed, { detail: { run } })], {
      unsaved: error && `save failed: ${error}`, failed: error && `save failed: ${error}`, canSave: true,
    }];
  }),
  ...([
    [{ ended: 'exit code 0', exitCode: 0 }, null], [{ saved: 'states/1', ended: 'SIGTERM', exitCode: 143 }, 'states/1'],
    ['states/1', 'states/1'], ['', null], [{ saved: 1 }, '{"saved":1}'],
  ] as const).map(([value, saved]): typeof STATES[number] => {
    return ['saves when it ends', [listing('shutdown', { value })], { saved: saved === null ? '' : `saved ${saved}` }, {
      saved: saved && { value: saved, at: null, by: '' },
    }];
  }),
  ['paused by several', [info({ status: 'paused', by: 'ben', reason: 'leak', since: timeOf(SAVED_AT), holds: [
    { by: 'ben', reason: 'leak', since: timeOf(SAVED_AT) }, { by: 'ana', reason: 'lunch', since: timeOf(SAVED_AT) },
    { since: timeOf(SAVED_AT) }, { by: 'eve' },
  ] })], {
    heading: 'paused', when: '3 h ago', cause: ' by ben: leak',
    holds: ['and 3 h ago by ana: lunch', 'and 3 h ago by others', 'and by eve'],
    othersHold: 'paused by ben: leak; and by ana: lunch; and by others; and by eve',
  }],
  ['paused by the board alone', [info({ status: 'paused', by: BY, holds: [{ by: BY }] })], {
    cause: ` by ${BY}`, holds: [], othersHold: '',
  }],
  ['busy with an own command', [info({ commands: [
    { command: 'say', state: 'running' },
    ...Array(16).fill({ command: 'look', state: 'waiting', at: timeOf(SAVED_AT) }),
    { command: 'see', state: 'waiting' },
  ] })], {
    commands: [
      { text: 'see waiting for 0 s', state: 'waiting' },
      ...Array<State['commands'][number]>(4).fill({ text: 'look waiting for 3 h', state: 'waiting' }),
      { text: 'say running for 0 s', state: 'running' },
    ],
  }],
  ['offline before a command was done', [listing('pause', { state: 'waiting' }), OFFLINE], {
    commands: [{ text: 'pause outcome unknown', state: 'outcome unknown' }],
  }],
  ['too many open files', [FULL], { status: 'unknown', error: 'EMFILE' }, { unansweredSince: null }],
  ['fewer open files', [FULL, info()], { status: 'active', error: '' }, { error: '' }],
];

describe('The state of a system', LIMIT, () => {
  it('follows what the system reports', async (t) => {
    await Promise.all(STATES.map(async ([what, replies, expected, facts = {}]) => {
      const { promise: areNoted, resolve } = defer();
      let count = 0;
      const system = createSystem(t, ({ signal }) => {
        const reply = replies[signal === undefined ? replies.length - 1 : count];
        if (signal !== undefined) count += 1;
        if (reply === undefined) resolve();
        return reply === undefined ? NEVER : { ...reply, tag: `${count}` }; // with a tag, the next request is soon
      });
      system.setWatched(true);
      await areNoted;
      await system.readDetail();
      assert.deepEqual(system.state, { ...system.state, ...expected }, `${what}: ${inspect(replies, { depth: 5 })}`);
      for (const [name, fact] of Object.entries(facts)) {
        assert.deepEqual(Object(system)[name], fact, `${what}: ${name}`);
      }
    }));
  });

  it('includes since when the program is in a step', async (t) => {
    const heardAt = Date.now();
    const system = createSystem(t, () => info({ heardAt: timeOf(heardAt) }));
    system.setWatched(true);
    await system.readDetail();
    assert.deepEqual([system.unheardSince, system.state.step], [null, ''], 'a short step is none');
    await until(async () => {
      await system.readDetail();
      return system.unheardSince !== null;
    });
    const { unheardSince, unansweredSince, state: { step, status } } = system;
    assert.deepEqual([unheardSince, unansweredSince, status], [heardAt, null, 'active']);
    assert.match(step, /^in a step for \d s$/);
  });

  it('has new words when time passes, and only then', async (t) => {
    const start = Date.now();
    t.mock.timers.enable({ apis: ['Date'], now: start });
    const report = info({ since: timeOf(start - 200_000), heardAt: undefined });
    const system = createSystem(t, () => report);
    system.setWatched(true);
    await until(() => system.state.status === 'active');
    await system.readDetail();
    const { version } = system;
    await system.readDetail();
    assert.deepEqual([system.state.when, system.version], ['for 3 min', version]);
    t.mock.timers.tick(60_000);
    await system.readDetail();
    assert.equal(system.state.when, 'for 4 min');
    assert.ok(system.version > version, 'this is news for pages');
  });

  it('includes since when it is silent, also when a read fails and while no page is open', async (t) => {
    const failed = failure('sent', 'ETIMEDOUT', 'silent');
    const { promise: reply, resolve } = defer<object>();
    const replies: (object | Promise<object>)[] = [reply, failed];
    const system = createSystem(t, ({ signal }) => (signal === undefined ? replies.shift() ?? info() : NEVER));
    system.setWatched(true);
    const silentSince = (): number | null => {
      const { unansweredSince, state: { status, when } } = system;
      assert.equal(status, unansweredSince === null ? '' : 'no answer');
      if (unansweredSince !== null) assert.match(when, /^for \d s$/);
      return unansweredSince;
    };
    const reading = system.readDetail();
    await until(() => {
      void system.readDetail(); // while the other request waits
      return silentSince() !== null;
    });
    const since = silentSince();
    resolve(failed);
    await reading;
    assert.equal(silentSince(), since);
    await system.readDetail();
    assert.equal(silentSince(), since);
    system.setWatched(false);
    system.setWatched(true);
    assert.equal(silentSince(), since);
    await system.readDetail();
    assert.equal(silentSince(), null);
  });

  it('has no outcome of a command once the system is a new process', async (t) => {
    let process: object = { pid: undefined, host: undefined };
    const refused = { ...failure('answered', 'the queue is full', 'refused'), code: undefined, statusCode: 503 };
    const system = createSystem(t, (_, endpoint) => (endpoint === 'pause' ? refused : info(process)));
    system.send('pause', '');
    await until(() => system.state.sent[0]?.state === 'failed');
    assert.equal(system.state.sent[0]?.text, 'not paused: the queue is full');
    for (const [pid, count] of [[1, 1], [2, 0]] as const) {
      process = { pid, host: 'box' };
      await until(() => system.state.process === `process ${pid} on box`);
      assert.equal(system.state.sent.length, count);
    }
  });
});

/** A command with parameters of these names. */
function declare(...names: string[]): object {
  return { x: { parameters: Object.fromEntries(names.map((name) => [name, { type: 'string' }])) } };
}

/** Fields of parameters, most of which do not fit the type. */
const MISFITS: Record<string, unknown> = {
  a: { type: 'integer', default: 1.5, minimum: '1', maximum: null, enum: 7 },
  b: { type: 'integer', default: 3, enum: [1, 2, '3', null, 1.5] }, c: { type: 'number', default: '1', enum: [] },
  d: { type: 'boolean', default: 0, enum: ['x'] }, e: { type: 'string', default: 7, maxLength: [], description: {} },
  f: {}, g: { type: 'array' }, h: { type: ['string'] }, i: { type: null }, j: [], k: 7, l: null,
  constructor: { type: 'number', default: 0.1, minimum: 0 },
};

/** What a page receives of them. */
const FITTING: readonly object[] = [
  { name: 'a', type: 'integer', description: '', hint: 'required' },
  { name: 'b', type: 'integer', description: '', hint: 'required', enum: [1, 2] },
  { name: 'c', type: 'number', description: '', hint: 'required' },
  { name: 'd', type: 'boolean', description: '', hint: '' },
  { name: 'e', type: 'string', description: '', hint: 'required' },
  { name: 'constructor', description: '', hint: 'from 0', type: 'number', default: 0.1, minimum: 0 },
];

/** Fields `accepts` as JSON. */
function hostileDeclarations(deep: string): Record<string, string> {
  const entries = (count: number, value: unknown): object => {
    return Object.fromEntries(Array.from({ length: count }, (_, index) => [`a${index}`, value]));
  };
  const string = { type: 'string' };
  const values: Record<string, unknown> = {
    'a list': [{ evaluate: {} }], '10,000 commands': entries(10_000, {}),
    'large commands': entries(30, { description: 'x'.repeat(999) }),
    '40 parameters': { x: { parameters: entries(40, string) } },
    'an enum of 10,000': { x: { parameters: { a: { type: 'integer', enum: [...Array(10_000).keys()] } } } },
    'hostile declarations': {
      [HOSTILE]: {},
      x: { description: HOSTILE, parameters: { [HOSTILE]: string, a: { ...string, description: HOSTILE } } },
    },
    'fields that do not fit their type': { x: { parameters: MISFITS } },
    'reserved names': { pause: {}, info: {}, 'save-state': {}, Evaluate: {}, '': {}, 'a b': {}, ok: null },
  };
  const texts: Record<string, string> = {
    'deep declarations': deep, 'deep parameters': `{"x":{"parameters":${deep}}}`,
    'a deep default': `{"x":{"parameters":{"a":{"type":"string","default":${deep},"enum":${deep}}}}}`,
    'limits that are no numbers':
      '{"x":{"parameters":{"a":{"type":"number","minimum":-1e999,"maximum":1e999,"default":1e999}}}}',
    'the names of prototypes as commands':
      '{"__proto__":{},"constructor":{"parameters":{"__proto__":{"type":"string"},"toString":{"type":"string"}}}}',
  };
  for (const [what, value] of Object.entries(values)) texts[what] = JSON.stringify(value);
  return Object.fromEntries(Object.entries(texts).map(([what, json]) => [what, `"accepts":${json}`]));
}

function checkDeclarations(accepts: readonly OwnCommand[], what: string): void {
  assert.ok(accepts.length <= 32 && JSON.stringify(accepts).length < 20_000, what);
  for (const { name, parameters } of accepts) {
    assert.match(name, /^[a-z][a-z0-9-]*$/, what);
    assert.ok(parameters.length <= 32, what);
    for (const parameter of parameters) {
      assert.match(parameter.name, /^[A-Za-z]\w*$/, what);
      assert.ok(['boolean', 'integer', 'number', 'string'].includes(parameter.type), what);
    }
  }
}

function textsOf(value: unknown): string[] {
  if (typeof value === 'string') return [value];
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([name, field]) => [name, ...textsOf(field)]);
}
