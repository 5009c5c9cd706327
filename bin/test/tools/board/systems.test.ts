// What control-board learns from systems of all kinds: numbers over time, ends, silence, and whatever they send.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { SeriesGroup } from '../../../board/series.ts';
import { assertHarmless, freePort, HOSTILE, preload, startBasicServer, startServer } from '../../helpers.ts';
import { startPuppet, startWeb } from '../../puppet.ts';
import { END_MS, LIMIT, until } from '../../wait.ts';
import { startSilent } from '../client/systems.ts';
import { checkMetrics, INFO, newsOf, NOWHERE, startBoard, untilSystem } from './helpers.ts';
import type { AddressInfo } from 'node:net';
import type { Sample } from '../../../board/series.ts';
import type { Update } from '../../../board/system.ts';

const HOUR_MS = 3_600_000;
const RUN = { pid: 7, started: '2026-11-21T14:03:07.120Z' };

/** A board that takes each 10 ms for 10 s, and whose wall clock jumps. */
const FAST = preload(`
  const [now, today, repeat] = [performance.now.bind(performance), Date.now, setInterval];
  let ticks = 0;
  performance.now = () => now() + 10_000 * ticks;
  Date.now = () => today() + (ticks % 7 === 0 ? 3_600_000 : -600_000);
  globalThis.setInterval = (work, ms) => ms !== 1000 ? repeat(work, ms) : repeat(() => {
    ticks += 1;
    work();
  }, 10);
`);

describe('What control-board knows of systems', LIMIT, () => {
  it('is the last number of each interval of a long series, so the latest, too', () => {
    const series = new SeriesGroup();
    for (let time = 0; time <= 3000; time += 1) series.add(time, [['step', -time]]);
    const times = [...Array.from({ length: 300 }, (_, index) => 10 * index + 9), 3000];
    assert.deepEqual(series.get('step')?.since(-1), times.map((time) => [time, -time]));
  });

  it('are numbers once a second while a page is open, and those of the last hour', async (t) => {
    let [calls, step] = [0, 0];
    let status = SystemStatus.ACTIVE;
    let isGrowing = true;
    const { port } = await startServer(t, {
      systemStatus: () => status,
      describe() {
        calls += 1;
        if (isGrowing) step += 2;
        return { step, of: step + 400, pid: 4, run: { ...RUN, step: 5, 'CPU seconds': 2 } };
      },
    });
    const since = new Date().toISOString();
    const slow = await startWeb(t, async () => {
      await sleep(20);
      return { ...INFO, since, heardAt: since, detail: { x: 1 } }; // only the ages are news
    });
    const board = await startBoard(t, [`127.0.0.1:${port}`, slow.target], [], FAST);
    await until(() => calls > 0);
    await sleep(200); // nothing must happen
    assert.ok(calls <= 2, `${calls} calls without a page`);

    const received: Sample[][] = [[], []];
    let [version, looks] = [0, 0];
    let latest: Update | undefined;
    /** Looks as a page does, and as Prometheus does. */
    const look = async (): Promise<void> => {
      const news = await newsOf(board, version, 5);
      for (const system of news.systems) {
        const known = received[system.id]?.at(-1)?.[0] ?? 0;
        const samples = system.fields[0]?.samples ?? [];
        assert.ok(samples.every(([time]) => time <= news.version));
        received[system.id]?.push(...samples.filter(([time]) => time > known));
        if (system.id === 0) latest = system;
      }
      ({ version } = news);
      looks += 1;
      if (looks % 4 === 0) await board.get('/metrics');
    };
    const shows = (isShown: (system: Update, left: string) => boolean): Promise<void> => until(async () => {
      await look();
      return latest !== undefined && isShown(latest, latest.progress?.text ?? '');
    }, () => JSON.stringify(latest), END_MS);
    await shows((_, left) => { // the last minute counts
      const [count = 0, unit = ''] = /, (\d+) (s|min|h) left$/.exec(left)?.slice(1) ?? [];
      const [[from, first] = [0, 0], [to, last] = [0, 0]] = [received[0]?.at(-6), received[0]?.at(-1)];
      const expected = (to - from) / (last - first) * 400;
      const share = Number(count) * Number({ s: 1000, min: 60_000, h: HOUR_MS }[unit]) / expected;
      return share > 0.3 && share < 3;
    });
    isGrowing = false;
    status = SystemStatus.PAUSED;
    await shows((system, left) => system.status === 'paused' && /^\d+ %$/.test(left));
    status = SystemStatus.ACTIVE; // the pause does not count: nothing has been done since
    await shows((system, left) => system.status === 'active' && /^\d+ %$/.test(left));
    isGrowing = true;
    await shows((_, left) => / left$/.test(left));
    isGrowing = false;
    step = 1; // the progress restarts
    await shows((_, left) => /^\d+ %$/.test(left));
    isGrowing = true;
    await shows(() => received.every((samples) => Number(samples.at(-1)?.[0]) - Number(samples[0]?.[0]) > HOUR_MS));
    const { systems } = await newsOf(board);
    for (const { id, fields: [field] } of systems) {
      const times = received[id]?.map(([time]) => time) ?? [];
      const shortest = Math.min(...times.slice(1).map((time, index) => time - Number(times[index])));
      assert.ok(shortest >= 950, `each once, and not more often: ${shortest} ms`);
      const { samples = [], intervalMs = 0 } = field ?? {};
      const missed = samples.filter(([time]) => time <= Number(times.at(-1)) && !times.includes(time));
      if (id === 0) assert.ok(missed.length < samples.length / 20, `${missed.length} are missed`);
      const coveredMs = Number(samples.at(-1)?.[0]) - Number(samples[0]?.[0]);
      assert.ok(coveredMs <= HOUR_MS && coveredMs > 0.9 * HOUR_MS, `${coveredMs} ms`);
      const { length } = times.filter((time) => time > Number(samples.at(-1)?.[0]) - HOUR_MS);
      const isThinned = samples.length <= 301 && samples.length >= Math.min(150, length - 1);
      assert.ok(isThinned, `${samples.length} of ${length} samples`);
      const gaps = samples.slice(1).map(([time], index) => time - Number(samples[index]?.[0]));
      assert.ok(Math.min(...gaps) > 0 && intervalMs >= coveredMs / 301, `in order, each ${intervalMs} ms`);
    }
    assert.deepEqual(systems[0]?.fields.map(({ name, isRun, samples }) => [name, isRun, samples !== undefined]), [
      ['step', undefined, true], ['of', undefined, true], ['pid', undefined, false], ['run.pid', true, false],
      ['started', true, false], ['run.step', true, true], ['CPU seconds', true, true],
    ]);
    await until(async () => {
      const before = calls;
      await sleep(300);
      return calls === before;
    }, () => 'it reads without a page');
  });

  it('are ends, silence and other processes', async (t) => {
    const { port: basic, posted } = await startBasicServer(t);
    const mortal = await freePort();
    const loop = await startWeb(t, ({ method }) => {
      if (method === 'GET') return { ...INFO, name: 'loop' };
      loop.end();
      return null;
    });
    let full: object = { ...INFO, pid: undefined, host: undefined };
    const refusal = { code: 503, error: 'the queue is full' };
    const busy = await startWeb(t, ({ method }) => (method === 'GET' ? full : refusal));
    const silent = await startPuppet(t, INFO);
    const targets = [`localhost:${basic}`, `127.0.0.1:${mortal}`, loop.target, NOWHERE, busy.target, silent.target];
    const board = await startBoard(t, targets, [], { CONTROL_BY: 'ana' });
    for (const id of [0, 2, 4, 5]) await untilSystem(board, ({ status }) => status === 'active', id);

    silent.set({ silent: true });
    for (const [command, text] of [
      ['pause', /^paused \(/], ['resume', /^active \(/],
      ['save-state', /^save-state accepted, but the server reports no outcome$/], ['shutdown', /^offline \(/],
    ] as const) {
      await board.post(`/api/systems/0/${command}`);
      const { fields, commands } = await untilSystem(board, ({ sent }) => sent.some((one) => {
        return one.command === command && text.test(one.text);
      }));
      assert.deepEqual([fields, commands], [[], []]);
    }
    assert.deepEqual(posted, ['pause', 'resume', 'save-state', 'shutdown']);
    for (const status of [SystemStatus.ACTIVE, SystemStatus.PAUSED]) { // it dies and comes back
      await untilSystem(board, (system) => system.status === 'offline', 1);
      const { server } = await startServer(t, { host: '127.0.0.1', port: mortal, systemStatus: () => status });
      await untilSystem(board, (system) => system.status === status.statusName, 1);
      await server.close();
    }
    for (const id of [2, 3]) await board.post(`/api/systems/${id}/shutdown?reason=lunch`);
    const { cause, status, when } = await untilSystem(board, ({ heading }) => heading === 'ended', 2);
    assert.deepEqual([cause, status], [' by ana: lunch', 'offline'], 'its own shutdown, although it ended at once');
    assert.match(when, /^\d+ s ago$/);
    const other = await untilSystem(board, ({ sent: [first] }) => first?.state === 'done', 3);
    assert.deepEqual([other.heading, other.sent[0]?.text], ['offline', 'already offline']);

    await board.post('/api/systems/4/pause');
    await untilSystem(board, ({ sent: [first] }) => first?.text === 'not paused: the queue is full', 4);
    for (const [pid, count] of [[1, 1], [2, 0]] as const) { // the first one may be the same process
      full = { ...INFO, pid };
      const { sent } = await untilSystem(board, (system) => system.process === `process ${pid} on box`, 4);
      assert.equal(sent.length, count);
    }
    await untilSystem(board, (system) => system.status === 'no answer' && /^for \d+ s$/.test(system.when), 5);
    silent.set({ silent: false });
    await untilSystem(board, (system) => system.status === 'active', 5);
  });

  it('survives arbitrary responses', async (t) => {
    const targets: string[] = [];
    const counts = BODIES.map(() => 0);
    for (const [index, [, body]] of BODIES.entries()) {
      const server = createServer(({ headers }, response) => {
        if (headers['if-none-match'] !== undefined) return; // nothing changes
        counts[index] = Number(counts[index]) + 1;
        response.setHeader('ETag', '"1"').end(body);
      });
      t.after(() => server.close().closeAllConnections());
      await once(server.listen(0, '127.0.0.1'), 'listening');
      targets.push(`127.0.0.1:${(server.address() as AddressInfo).port}`);
    }
    for (const body of [null, 'x'.repeat(500_000)]) targets.push((await startWeb(t, () => body)).target);
    targets.push(await startSilent(t));
    const board = await startBoard(t, targets);
    const latest = new Map<number, Update>();
    let version = 0;
    const isHeard = (id: number): boolean => {
      const { status, process } = latest.get(id) as Update; // a busy machine may be silent
      return Number(counts[id]) > 2 && (process !== '' || !['', 'no answer'].includes(status));
    };
    await until(async () => { // all that has changed, as a page does
      const news = await newsOf(board, version, 5);
      ({ version } = news);
      for (const system of news.systems) latest.set(system.id, system);
      return BODIES.every((_, id) => isHeard(id));
    }, () => BODIES.flatMap(([what], id) => (isHeard(id) ? [] : what)).join(), END_MS);
    const { systems } = await newsOf(board);
    const find = (what: string): Update => {
      return systems[BODIES.findIndex(([name]) => name === what)] ?? assert.fail(what);
    };
    for (const [what] of BODIES) {
      const system = find(what);
      assert.ok(JSON.stringify(system).length < 60_000, what);
      assert.ok(system.fields.length <= 64, what);
      assert.equal(new Set(system.fields.map(({ name }) => name)).size, system.fields.length, what);
      assert.ok(system.commands.length <= 5 && system.holds.length <= 16 && system.asks.length <= 16, what);
      checkForms(system, what);
      for (const text of textsOf(system)) assertHarmless(text);
      for (const { value, samples } of system.fields) {
        assert.ok(['string', 'number'].includes(typeof value), what);
        assert.ok((samples ?? []).every(([time, number]) => Number.isFinite(time) && Number.isFinite(number)), what);
      }
      const { done = 0, of = 1, text = '' } = system.progress ?? {};
      assert.ok(Number.isFinite(done) && Number.isFinite(of) && !/NaN|Infinity/.test(text), what);
      assert.match(system.when, /^((for )?\d+ (s|min|h|days)( ago)?)?$/, what);
      for (const words of [system.step, ...system.holds, ...system.asks.map(({ times }) => times)]) {
        assert.doesNotMatch(words, /NaN|Infinity|null|undefined/, what);
      }
    }
    const { asks, askEnds } = find('hostile texts');
    assert.deepEqual([asks.length, askEnds.map(({ isAnswered }) => isAnswered)], [16, [true, false]]);
    assert.deepEqual(find('deep entries').asks.map(({ id, parameters: [one] }) => [id, one?.name]), [['', 'a']]);
    const { accepts, fields: { length } } = find('many entries');
    assert.deepEqual([accepts?.length, length], [32, 64]);
    assert.equal(find('40 parameters').accepts?.[0]?.parameters.length, 32);
    assert.deepEqual(find('fields that do not fit their type').accepts?.map(({ name, parameters }) => [
      name, parameters,
    ]), [['ok', []], ['x', FITTING]], 'and no reserved names');
    assert.deepEqual(find('current values').current, [['a', 1.5], ['b', false], ['c', 'x']]);
    assert.deepEqual(find('numbers that are none').current, []);
    assert.deepEqual(find('the names of prototypes').accepts?.map(({ name }) => name), ['constructor']);
    assert.deepEqual(find('the names of prototypes').fields.map(({ name, value }) => [name, value]), [
      ['__proto__', '{"x":1}'], ['constructor', 7], ['toString', 'null'], ['', 1], ['hasOwnProperty', 'x'],
    ]);

    const saves = await Promise.all(targets.map((_, id) => board.post(`/api/systems/${id}/save-state`)));
    assert.ok(saves.every(({ status }) => status === 202));
    await untilSystem(board, ({ sent: [first] }) => first?.state === 'failed', BODIES.length);
    await untilSystem(board, ({ status }) => status === 'no answer', BODIES.length + 2);
    checkMetrics(await (await board.get('/metrics')).text());
    assert.equal(board.running.output().split('\n').length, 2, board.running.output());
  });
});

function entries(count: number, value: unknown): object {
  return Object.fromEntries(Array.from({ length: count }, (_, index) => [`a${index}`, value]));
}

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

const STRING = { type: 'string' };
const HOSTILE_ASK = {
  id: HOSTILE, message: HOSTILE, at: HOSTILE, expiresAt: HOSTILE, by: HOSTILE,
  parameters: { [HOSTILE]: {}, a: { ...STRING, description: HOSTILE } },
};
const HOSTILE_COMMAND = {
  id: HOSTILE, command: HOSTILE, message: HOSTILE, arguments: { [HOSTILE]: HOSTILE }, state: HOSTILE, by: HOSTILE,
  reason: HOSTILE, value: HOSTILE, error: HOSTILE, at: HOSTILE,
};
const NOTHINGS = [null, 1, 'x', []];
const DEEP = `${'['.repeat(30_000)}${']'.repeat(30_000)}`;

/** The bodies of responses, by what they are. */
const BODIES: readonly [what: string, body: string][] = [
  ...Object.entries<object>({
    'hostile texts': {
      name: HOSTILE, by: HOSTILE, reason: HOSTILE, pid: HOSTILE, host: HOSTILE, since: HOSTILE,
      detail: { [HOSTILE]: HOSTILE, x: [HOSTILE], y: { [HOSTILE]: HOSTILE } },
      asks: Array(20).fill(HOSTILE_ASK),
      commands: [
        HOSTILE_COMMAND, ...['done', 'failed'].map((state) => ({ ...HOSTILE_COMMAND, command: 'answer', state })),
      ],
      accepts: {
        [HOSTILE]: {},
        x: { description: HOSTILE, parameters: { [HOSTILE]: STRING, a: { ...STRING, description: HOSTILE } } },
      },
    },
    'a hostile pause': {
      status: 'paused', holds: Array(20).fill({ by: HOSTILE, reason: HOSTILE.repeat(3), since: HOSTILE }),
      detail: { [HOSTILE]: 5, of: 9 },
    },
    'a hostile status': { status: HOSTILE }, 'no text as status': { status: [1e300] },
    'wrong entries': {
      status: 'paused', asks: [...NOTHINGS, { message: {}, parameters: [1], at: 1e300 }, { parameters: { length: 5 } }],
      holds: [...NOTHINGS, { by: {}, reason: [1], since: 1e300 }], commands: [...NOTHINGS, { command: {} }],
      accepts: [{ evaluate: {} }],
    },
    'no lists': { status: 'paused', asks: { length: 5 }, holds: { length: 5 }, commands: { length: 5 } },
    'many entries': {
      detail: { ...entries(500, 1), run: { ...entries(500, 1), ...RUN } }, accepts: entries(10_000, {}),
      commands: Array<object>(500).fill({ command: 'pause', seconds: -1 }),
    },
    'a long detail': { detail: { x: 'x'.repeat(60_000), ['y'.repeat(2000)]: 1 } },
    'names with the same excerpt': {
      detail: { '\u0001': 1, '\u0002': '1e20', x: 2, 'run.x': 3, run: { x: 4, 'y\u0001': 6, 'y ': 7, ...RUN } },
    },
    'large commands': { accepts: entries(30, { description: 'x'.repeat(999) }) },
    'large questions': {
      asks: [{ id: 'x', message: 'x', parameters: { a: { ...STRING, enum: ['x'.repeat(20_000)] } } }],
    },
    '40 parameters': { accepts: { x: { parameters: entries(40, STRING) } } },
    'an enum of 10,000': {
      accepts: { x: { parameters: { a: { type: 'integer', enum: [...Array(10_000).keys()] } } } },
    },
    'fields that do not fit their type': {
      accepts: {
        pause: {}, info: {}, 'save-state': {}, Evaluate: {}, '': {}, 'a b': {}, ok: null, x: { parameters: MISFITS },
      },
    },
    'current values': {
      accepts: declare('a', 'b', 'c', 'd', 'e', 'f', 'toString'),
      detail: { a: 1.5, b: false, c: 'x', d: null, e: { f: 1 }, f: 'x'.repeat(1001), g: 1 },
    },
  }).map(([what, fields]): [string, string] => [what, JSON.stringify({ ...INFO, ...fields })]),
  ...Object.entries({
    'numbers that are none': '"detail":{"a":1e999,"y":-1e999,"z":5},"since":1e999,"heardAt":1e999,"accepts":' +
      '{"x":{"parameters":{"a":{"type":"number","minimum":-1e999,"maximum":1e999,"default":1e999}}}}',
    'a progress without an end': '"detail":{"a":5,"of":1e999}',
    'the names of prototypes':
      '"detail":{"__proto__":{"x":1},"constructor":7,"toString":null,"":1,"hasOwnProperty":"x"},"__proto__":[],' +
      '"accepts":{"__proto__":{},"constructor":{"parameters":{"__proto__":{"type":"string"},"toString":{}}}}',
    'deep fields': `"detail":${DEEP},"commands":${DEEP},"holds":${DEEP}`,
    'deep forms': `"asks":${DEEP},"accepts":${DEEP},"status":${DEEP}`,
    'deep parameters': `"detail":{"x":${DEEP}},"accepts":{"x":{"parameters":${DEEP}}}`,
    'deep entries': `"asks":[{"id":${DEEP},"message":${DEEP},"parameters":{"a":{"type":"string","enum":${DEEP}}}}]`,
    'a deep default': `"accepts":{"x":{"parameters":{"a":{"type":"string","default":${DEEP},"enum":${DEEP}}}}}`,
  }).map(([what, fields]): [string, string] => [what, JSON.stringify(INFO).replace(/}$/, `,${fields}}`)]),
  ...['null', '7', '[]', '{}', '', '<html>', '{"status":'].map((body): [string, string] => {
    return [`the body ${body}`, body];
  }),
];

/** Checks what a page makes forms of. */
function checkForms({ accepts = assert.fail(), asks }: Update, what: string): void {
  assert.ok(accepts.length <= 32 && JSON.stringify(accepts).length < 20_000, what);
  assert.ok(asks.every((ask) => JSON.stringify(ask).length <= 16_384), what);
  for (const { name } of accepts) assert.match(name, /^[a-z][a-z0-9-]*$/, what);
  for (const { parameters } of [...accepts, ...asks]) {
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
