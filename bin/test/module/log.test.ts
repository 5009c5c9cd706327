// The log: what each line says, when it is written, and what others do to the file. Whether a line is missing, whatever
// happens, is a matter of the chronicle.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  appendFileSync, chmodSync, chownSync, existsSync, lstatSync, mkdirSync, readFileSync, readdirSync, readlinkSync,
  renameSync, rmSync, rmdirSync, statSync, symlinkSync, truncateSync, writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION, WebApiServer } from '../../../control.ts';
import {
  TOKEN, collectThreads, collectWarnings, freePort, launchSystem, makeFolder, startForeign, startServer,
} from '../helpers.ts';
import { runHost } from '../host.ts';
import { BEARER, INFO, PAUSE, SAVE, WAIT, ask } from '../http.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import { NOBODY, becomeNobody, contentsOf, lockObstacles, reaches, refusalOf } from './helpers.ts';
import { FILLER, FILLERS, countEvents, parseLog, readLog, wordsOf } from './log.ts';
import type { WebApiClient } from '../../../control.ts';
import type { StartedServer } from '../helpers.ts';
import type { Host } from '../host.ts';
import type { Line } from './log.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;

const EMOJI = '😀'.repeat(200);

function makePath(t: TestContext): string { return join(makeFolder(t), 'log.jsonl'); }

/** Completes all commands until the server is closed. */
async function complete(server: WebApiServer): Promise<void> {
  while (await server.nextCommand().catch(() => null) !== null) server.report({ value: 1 });
}

/** A server that completes all commands. */
async function startBusy(t: TestContext, path: string): Promise<StartedServer> {
  const started = await startServer(t, { host: '127.0.0.1', log: path });
  void complete(started.server);
  return started;
}

/** The same in a process of its own: it says its warnings, and ends when it is told. */
function runBusy(t: TestContext, path: string, prefix: readonly string[] = []): Host {
  return runHost(t, `
    process.removeAllListeners('warning');
    process.on('warning', ({ message }) => say(message));
    const server = await serve({ log: ${JSON.stringify(path)} });
    obey({ end: () => server.close() });
    while (await server.nextCommand().catch(() => null) !== null) server.report({ value: 1 });
  `, [], prefix);
}

/** Saves, and waits until that is done. */
async function save(client: WebApiClient, times: number = 1): Promise<void> {
  for (let count = 0; count < times; count += 1) assert.ok((await client.request('save-state', { wait: 60 })).ok);
}

async function post(port: number, times: number = 1): Promise<void> {
  for (let count = 0; count < times; count += 1) assert.equal((await ask(port, SAVE, WAIT)).statusCode, 200);
}

/** Why a log cannot be written, as /api/info has it. */
async function errorAt(port: number): Promise<string | undefined> { return (await ask(port, INFO)).body.log.error; }

// ───── Lines ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** What the first test logs: event, id, other fields in order, and who holds the pause. */
const STORY = `
  start ${VERSION}
  status active held by
  command 1 note {"text":"${'x'.repeat(300)}"} ana long
  outcome 1 note done {"loss":0.5} ana long
  command 2 note {"text":"{\\"\\nä😀"}
  outcome 2 note {"text":"{\\"\\nä😀"} done ${'x'.repeat(1000)}
  command 3 save-state ana
  outcome 3 save-state done the value must be JSON of at most 4096 bytes ana
  command 4 save-state again
  outcome 4 save-state failed ENOSPC again
  command 5 pause ana heat
  status paused ana heat held by ana heat
  outcome 5 pause done ana heat
  command 6 pause ben
  status paused ana heat held by ana heat, ben
  outcome 6 pause done ben
  command 7 resume ana
  command 8 resume eve
  status paused ben held by ben
  outcome 7 resume done {"released":true} ana
  outcome 8 resume done {"released":false} eve
  command i9 resume itself timer
  status active itself timer held by
  outcome i9 resume done itself timer
  command 10 save-state
  outcome 10 save-state failed expired after 1 s
  command 11 shutdown
  command 12 note {"text":""}
  command 13 note {"text":""}
  status shutting down shutdown held by
  outcome 11 shutdown done
  outcome 12 note {"text":""} failed the program has shut down
  outcome 13 note {"text":""} failed the program has shut down
  end`;

/** Checks and leaves out what every run changes. */
function tell({ time, name, pid, event, id, at, seconds, holds, ...fields }: Line): string {
  assert.deepEqual([name, pid], ['train', process.pid]);
  assert.deepEqual([at !== undefined, seconds >= 0], Array(2).fill(event === 'outcome'));
  const holders = holds?.map(({ since, by, reason, ...others }: Record<string, string>) => {
    assert.deepEqual([new Date(since as string).toISOString(), others], [since, {}]);
    return [by, reason].join(' ').trim();
  });
  const shown = Object.values(fields).map((value) => typeof value === 'string' ? value : JSON.stringify(value));
  const held = holders === undefined ? [] : [`held by ${holders.join(', ')}`.trim()];
  return [event, ...id === undefined ? [] : [id.slice(4)], ...shown, ...held].join(' ');
}

describe('The log', { ...LIMIT, concurrency: 4 }, () => {
  it('has what happened, with all fields, but no token and no request that was refused', async (t) => {
    const path = makePath(t);
    let status: SystemStatus = ACTIVE;
    const { server, port, client } = await startServer(t, {
      name: 'train', log: path, token: TOKEN, autoReport: false, maxQueueSize: 2, systemStatus: () => status,
      commands: { note: { parameters: { text: { type: 'string' } } } },
    });
    const act = async (command: string, options: object = {}): Promise<void> => {
      assert.equal((await client.request(command, options)).ok, true);
    };
    const note = (text: string, more: object = {}): Promise<void> => act('note', { arguments: { text }, ...more });
    const take = (outcome: object, next: SystemStatus = status): void => {
      server.receiveCommand();
      status = next;
      server.report(outcome);
    };
    await note('x'.repeat(300), { by: 'ana', reason: 'long' });
    take({ value: { loss: 0.5 } });
    await note('{"\nä😀');
    take({ value: 'x'.repeat(5000) });
    await act('save-state', { by: 'ana' });
    take({ value: Array(5000).fill(0) });
    await act('save-state', { reason: 'again' });
    take({ error: new Error('ENOSPC') });
    await act('pause', { by: 'ana', reason: 'heat' });
    take({}, PAUSED);
    await act('pause', { by: 'ben' });
    take({});
    await act('resume', { by: 'ana', mine: true });
    await act('resume', { by: 'eve', mine: true });
    server.hasCommands();
    server.post('resume', { reason: 'timer' });
    take({}, ACTIVE);
    await act('save-state', { expires: 1 });
    await sleep(1200);
    server.hasCommands();
    await act('shutdown');
    await note('');
    await note('');
    for (const [expected, line, ...fields] of [
      [401, PAUSE], [403, PAUSE, BEARER, 'Host: evil.example'], [403, PAUSE, BEARER, 'Origin: null'],
      [405, 'GET /api/pause', BEARER], [404, 'POST /api/nothing', BEARER], [400, `${PAUSE}?expires=0`, BEARER],
      [400, 'POST /api/note', BEARER],
    ] as const) {
      assert.equal((await ask(port, line, ...fields)).statusCode, expected);
    }
    const full = await client.request('note', { arguments: { text: '' } });
    assert.equal(full.ok === false && full.statusCode, 503);
    take({}, SHUTTING_DOWN);
    await server.close();
    assert.equal(readFileSync(path, 'utf8').includes(TOKEN), false);
    assert.equal(readLog(path).map((line) => `\n  ${tell(line)}`).join(''), STORY);
  });

  it('has lines of at most 32 KiB, and all holds', async (t) => {
    const path = makePath(t);
    const cause = Array.from({ length: 20 }, (_, number) => ({
      by: `${number}`.padEnd(2, '.') + EMOJI.slice(4), reason: EMOJI,
    }));
    const { server, client } = await startServer(t, {
      log: path, name: EMOJI, cause, systemStatus: () => PAUSED,
      commands: { say: { parameters: { text: { type: 'string' } } } },
    });
    const text = '"'.repeat(2000);
    assert.equal((await client.request('say', { arguments: { text }, by: EMOJI, reason: EMOJI })).ok, true);
    server.receiveCommand();
    server.report({ error: new Error('😀'.repeat(2000)) });
    await server.close();
    const [, status, command, outcome] = readLog(path); // which checks the length
    assert.deepEqual([status?.['by'], status?.['reason']], [cause[0]?.by, EMOJI]);
    assert.deepEqual(status?.['holds'].map(({ by }: { by: string }) => by), [
      ...cause.slice(0, 15).map(({ by }) => by), undefined,
    ]);
    assert.deepEqual(command?.['arguments'], { text });
    assert.equal(outcome?.['error'], '😀'.repeat(1000));
  });

  it('is a file that only this user can read, not kept open, also in a folder that the program has left', {
    skip: lacks('Linux'),
  }, async (t) => {
    const [folder, port] = [makeFolder(t), await freePort()];
    const host = runHost(t, `
      process.chdir(${JSON.stringify(folder)});
      const server = await serve({ log: 'log.jsonl', port: ${port}, systemStatus: () => null });
      process.chdir('/');
      halt();
      await server.close();
    `, ['--no-warnings']);
    await host.hear();
    const path = join(folder, 'log.jsonl');
    assert.deepEqual((await ask(port, INFO)).body.log, { path });
    assert.equal(statSync(path).mode & 0o777, 0o600);
    const files = `/proc/${host.process.pid}/fd`;
    const open = readdirSync(files).map((file) => existsSync(join(files, file)) && readlinkSync(join(files, file)));
    assert.equal(open.includes(path), false);
    host.release();
    await host.ends();
    const statuses = readLog(path).map(({ event, status }) => [event, status]);
    assert.deepEqual(statuses, [['start', undefined], ['status', null], ['end', undefined]], 'which it fails to tell');
  });

  it('is an option of launch(), which logs until it ends, and which statuses belong to a save or an end', async (t) => {
    const path = makePath(t);
    let release = (): void => {};
    const { address: { port }, client, finished } = await launchSystem(t, {
      step: () => new Promise<void>((resolve) => (release = resolve)),
      saveState: () => 'saved', onShutdown: () => 'bye',
    }, { log: path, name: 'train', startPaused: { by: 'ben', reason: 'night' } });
    for (const line of [SAVE, 'POST /api/resume']) await ask(port, `${line}?by=ana`, WAIT);
    for (let count = 0; count < 10; count += 1) assert.equal(await client.saveState(), 'ok');
    assert.equal(await client.shutdown(), 'ok');
    release();
    await finished;
    const lines = wordsOf(readLog(path), 'command', 'status', 'value', 'during');
    const started = [
      'start', 'command pause', 'status paused', 'status pausing', 'status paused', 'outcome pause',
      'command save-state', 'outcome save-state saved',
      'command resume', 'status resuming', 'status active', 'outcome resume',
    ];
    assert.deepEqual(lines.slice(0, started.length), started);
    const saves = lines.slice(started.length).filter((line) => line.startsWith('status'));
    const statuses = ['pausing', 'paused', 'resuming', 'active'].map((status) => `status ${status} save-state`);
    assert.deepEqual(saves, [...Array(10).fill(statuses).flat(), 'status shutting down shutdown']);
    assert.deepEqual(lines.slice(-2), ['outcome shutdown bye', 'end']);
  });
});

// ───── Times ─────────────────────────────────────────────────────────────────────────────────────────────────────

describe('A line', { ...LIMIT, concurrency: 4 }, () => {
  it('of a command is there before its response, and all others soon, while the program computes', async (t) => {
    const path = makePath(t);
    const host = runHost(t, `
      let status = ACTIVE;
      const server = await serve({ log: ${JSON.stringify(path)}, systemStatus: () => status });
      while (!server.hasCommands()) await sleep(1);
      server.receiveCommand();
      status = PAUSED;
      server.report({ value: 1 });
      server.post('save-state');
      halt();
      await server.close();
    `);
    const port = await host.hear<number>();
    await ask(port, `${PAUSE}?by=ana`);
    const seen = (): string => wordsOf(parseLog(path).lines, 'by').join(', ');
    const expected = 'start, status, command ana, status ana, outcome ana, command itself';
    await until(() => seen() === expected, seen);
    for (let count = 1; count < 16; count += 1) {
      await ask(port, SAVE);
      assert.equal(seen(), expected + ', command'.repeat(count));
    }
    host.release();
    await host.ends();
    assert.equal(seen(), `${expected}${', command'.repeat(15)}, end`);
  });

  it('has its time by the clock of the computer, even if that is set', async (t) => {
    const path = makePath(t);
    const { server } = await startServer(t, { log: path });
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() + 3_600_000 }); // of the host only
    const from = Date.now();
    server.post('save-state');
    server.receiveCommand();
    server.report();
    await server.close(); // writes this
    const times = readLog(path).slice(-3).map(({ event, time }) => [event, Math.abs(Date.parse(time) - from) < 60_000]);
    t.mock.timers.reset();
    assert.deepEqual(times, [['command', true], ['outcome', true], ['end', true]]);
  });

  it('is counted if there are too many at once', async (t) => {
    const path = makePath(t);
    let status: SystemStatus = ACTIVE;
    const { server } = await startServer(t, { log: path, systemStatus: () => status });
    for (let changes = 0; changes < 301; changes += 1) {
      status = status === ACTIVE ? PAUSED : ACTIVE;
      server.publish();
    }
    await until(() => parseLog(path).lines.at(-1)?.['status'] === 'paused');
    for (let posts = 0; posts < 150; posts += 1) {
      server.post('save-state', { reason: `post ${posts}` });
      server.receiveCommand();
      server.report({ value: posts });
    }
    await server.close();
    const lines = readLog(path);
    const lost = lines.filter(({ event }) => event === 'lost');
    assert.ok(lost.length > 0 && lost.every(({ error }) => error === 'not written in time'), JSON.stringify(lost));
    const sum = lost.reduce((total, line) => total + line['lines'], 0);
    assert.equal(lines.length - lost.length + sum, 1 + 302 + 300 + 1); // start, statuses, commands and outcomes, end
    assert.deepEqual(lines.at(-2)?.['value'], 149);
    assert.equal(lines.at(-1)?.event, 'end');
  });

  it('begins after a torn one, and at the beginning of a file that was truncated', async (t) => {
    const path = makePath(t);
    writeFileSync(path, '{"time":"20');
    const { server, client } = await startBusy(t, path);
    appendFileSync(path, '{"half');
    await save(client);
    appendFileSync(path, '\n\n');
    await until(() => parseLog(path).lines.length === 4);
    const { lines, torn } = parseLog(path);
    assert.deepEqual(torn, ['{"time":"20', '{"half']);
    assert.deepEqual(wordsOf(lines), ['start', 'status', 'command', 'outcome']);
    truncateSync(path);
    await save(client);
    await server.close();
    assert.deepEqual(wordsOf(readLog(path)), ['command', 'outcome', 'end']);
  });
});

// ───── What others do to the file ────────────────────────────────────────────────────────────────────────────────

describe('A log above 4 MiB', { ...LIMIT, concurrency: 4, skip: lacks('Unix') }, () => {
  it('is renamed, and not before, over a link instead of through it', async (t) => {
    const [path, other] = [makePath(t), makePath(t)];
    const length = FILLER.length / FILLERS;
    writeFileSync(path, FILLER.slice(0, 2 ** 22 - 2 ** 22 % length - length));
    writeFileSync(other, 'nothing to lose');
    symlinkSync(other, `${path}.1`);
    const { server, client } = await startBusy(t, path);
    await save(client);
    assert.ok(lstatSync(`${path}.1`).isSymbolicLink());
    appendFileSync(path, FILLER.slice(0, 2 * length));
    await save(client);
    await server.close();
    assert.equal(readFileSync(other, 'utf8'), 'nothing to lose');
    assert.ok(lstatSync(`${path}.1`).isFile() && statSync(path).size < 2000);
    const { filler, ...others } = countEvents(readLog(`${path}.1`, path));
    assert.deepEqual(others, { start: 1, status: 1, command: 2, outcome: 2, end: 1 });
  });

  it('is not renamed while something of others, or more than an empty folder, is in place of the lock', async (t) => {
    const path = makePath(t);
    const warnings = collectWarnings(t);
    const { server, client } = await startBusy(t, path);
    const lock = `${path}.${statSync(path).ino}.lock`;
    for (const [index, [reason, make]] of lockObstacles().entries()) {
      make(lock);
      const before = contentsOf(dirname(path)).filter(([name]) => String(name).includes('.lock'));
      if (index === 0) appendFileSync(path, FILLER);
      await save(client);
      assert.equal(existsSync(`${path}.1`), false);
      assert.deepEqual(contentsOf(dirname(path)).filter(([name]) => String(name).includes('.lock')), before);
      const { error = '' } = (await client.getInfo())?.log ?? {};
      assert.ok(error.includes(reason) && error.includes(lock), error);
      await until(() => parseLog(path).lines.at(-1)?.event === 'outcome');
      rmSync(lock, { recursive: true }); // nothing is written meanwhile
    }
    mkdirSync(lock); // another process renames
    await save(client);
    assert.equal(existsSync(`${path}.1`), false);
    rmdirSync(lock);
    await save(client);
    assert.equal(existsSync(`${path}.1`), true);
    await server.close();
    assert.match(warnings.join(), /^Cannot log: ENOTEMPTY[^,]*, rmdir '[^,]*'$/, 'one until it works');
    assert.deepEqual(countEvents(readLog(`${path}.1`, path))['lost'], undefined);
  });

  it('is not renamed if another process has just done so', async (t) => {
    const path = makePath(t);
    const host = runHost(t, `
      const fs = process.getBuiltinModule('node:fs'); // of close(): the thread has its own
      const path = ${JSON.stringify(path)};
      const server = await serve({ log: path });
      halt();
      const write = fs.writeSync;
      fs.writeSync = (...args) => {
        fs.writeSync = write;
        const written = write(...args);
        fs.renameSync(path, path + '.1');
        fs.copyFileSync(path + '.fresh', path);
        return written;
      };
      await server.close();
    `);
    await host.hear();
    appendFileSync(path, FILLER);
    writeFileSync(`${path}.fresh`, FILLER.slice(0, FILLER.length / FILLERS));
    host.release();
    await host.ends();
    assert.equal(readLog(`${path}.1`).length, 2 + FILLERS + 1);
    assert.deepEqual(countEvents(readLog(path)), { filler: 1 });
  });

  it('goes on without, if a folder is in the way, and costs one warning', async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'log.jsonl');
    const host = runBusy(t, path);
    const port = await host.hear<number>();
    mkdirSync(`${path}.1`);
    appendFileSync(path, FILLER);
    await post(port, 3);
    assert.match(String(await errorAt(port)), /EISDIR.*rename/);
    assert.match(await host.hear<string>(), /^Cannot log: EISDIR.*rename/);
    host.order('end');
    await host.ends();
    const expected = { start: 1, status: 1, filler: FILLERS, command: 3, outcome: 3, end: 1 };
    assert.deepEqual(countEvents(readLog(path)), expected);
    assert.deepEqual(readdirSync(folder).sort(), ['log.jsonl', 'log.jsonl.1']);
  });
});

describe('The folder of the log', { skip: lacks('Unix') }, () => {
  it('must be one in which others cannot replace the file: not even with the sticky bit, as /tmp has', async (t) => {
    for (const mode of [0o1777, 0o1770, 0o777, 0o2775]) {
      const folder = makeFolder(t);
      chmodSync(folder, mode);
      const isSticky = (mode & 0o1000) > 0;
      const [start, end] = isSticky
        ? [`: cannot log: others can write to '${folder}`, ': put the log into a folder of your own']
        : [`: cannot log: '${folder}' is not trusted, because others can write to it`, ''];
      for (const log of [join(folder, 'log.jsonl'), `${folder}/../${basename(folder)}/log.jsonl`]) {
        const { message = '' } = await refusalOf({ port: 0, log }) ?? {};
        assert.ok(message.includes(start) && message.endsWith(end), message);
        assert.deepEqual(readdirSync(folder), []);
      }
      const own = join(folder, 'own'); // there, the sticky bit protects it
      mkdirSync(own, 0o700);
      assert.equal(await refusalOf({ port: 0, log: join(own, 'log.jsonl') }) === null, isSticky);
      assert.deepEqual(readdirSync(own), isSticky ? ['log.jsonl'] : []);
    }
  });
});

// ───── Disks and obstacles ───────────────────────────────────────────────────────────────────────────────────────

describe('A log that cannot be written', { ...LIMIT, concurrency: 4, skip: lacks('Unix') }, () => {
  it('because the disk is full, costs one warning, and then counts what is missing', async (t) => {
    const path = makePath(t);
    const host = runBusy(t, path, ['sh', '-c', 'ulimit -f 20; exec "$@"', 'sh']); // in blocks of 512 bytes
    const port = await host.hear<number>();
    let [count, tag]: [number, string | undefined] = [0, ''];
    /** Returns why the log cannot be written. */
    const fill = async (): Promise<string | undefined> => {
      assert.equal((await ask(port, `${SAVE}?by=${encodeURIComponent(EMOJI)}`, WAIT)).statusCode, 200);
      count += 1;
      const { body: { log }, headers } = await ask(port, INFO);
      tag = headers.etag;
      return log.error;
    };
    await until(async () => await fill() !== undefined);
    assert.match(await host.hear<string>(), /^Cannot log: .*(EFBIG|no room)/);
    for (let more = 0; more < 10; more += 1) assert.ok(await fill() !== undefined);
    assert.match(String(tag), /-lost"$/);
    renameSync(path, `${path}.old`);
    await until(async () => await fill() === undefined);
    assert.doesNotMatch(String(tag), /-lost"$/);
    await until(() => parseLog(path).lines.at(-1)?.event === 'outcome');
    const { lines, torn } = parseLog(`${path}.old`, path);
    host.order('end');
    const warnings = await host.hearAll();
    assert.deepEqual([(await host.ended).code, warnings], [0, []]);
    assert.ok(torn.length <= 1, JSON.stringify(torn));
    const [lost, ...others] = lines.filter(({ event }) => event === 'lost');
    assert.match(String(lost?.['error']), /EFBIG|no room/);
    assert.deepEqual(others, []);
    assert.equal(lines.length - 1 + lost?.['lines'], 2 + 2 * count); // start, status, commands and outcomes
  });

  it('because the disk is full when it starts, costs one warning', async (t) => {
    const path = makePath(t);
    const host = runBusy(t, path, ['sh', '-c', 'ulimit -f 0; exec "$@"', 'sh']);
    assert.equal(await host.hear(), 'Cannot log: EFBIG: file too large, write');
    const port = await host.hear<number>();
    assert.equal((await ask(port, SAVE)).statusCode, 200);
    assert.match(String(await errorAt(port)), /EFBIG/);
    host.order('end');
    await host.ends();
    assert.equal(readFileSync(path, 'utf8'), '');
  });

  it('because nobody may write to its folder, refuses the start', { skip: lacks('nobody') }, async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'log.jsonl');
    const host = runHost(t, `
      import { chmodSync } from 'node:fs';
      process.on('warning', () => {});
      ${becomeNobody(folder)}
      chmodSync(${JSON.stringify(folder)}, 0o500);
      const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place, log: ${JSON.stringify(path)} });
      say(await server.runInBackground().catch(({ message }) => message));
      chmodSync(${JSON.stringify(folder)}, 0o700);
      await server.runInBackground();
      await server.close();
    `, ['--no-warnings']);
    assert.match(await host.hear<string>(), /: cannot log: EACCES: .*'$/);
    await host.ends();
    assert.deepEqual(readLog(path).map(({ event }) => event), ['start', 'status', 'end']);
  });
});

describe('What is in place of the log', { ...LIMIT, skip: lacks('Unix') }, () => {
  const other = (path: string): string => join(path, '..', '..', 'other'); // where a link leads
  const notOwn = /is not a file of this user$/;
  type Obstacle = [
    what: string, skip: string | false, make: (path: string) => void, remove: (path: string) => void, error: RegExp,
  ];
  const OBSTACLES: Obstacle[] = [
    ['a link', false, (path) => symlinkSync(other(path), path), rmSync, /is a symbolic link$/],
    ['a link to nothing', false, (path) => symlinkSync('nothing', path), rmSync, /is a symbolic link$/],
    ['a folder', false, (path) => mkdirSync(path), rmdirSync, /EISDIR/],
    ['a FIFO', lacks('mkfifo'), (path) => execFileSync('mkfifo', [path]), rmSync, notOwn],
    ['a device', lacks('root'), (path) => execFileSync('mknod', [path, 'c', '1', '3']), rmSync, notOwn],
    ["somebody else's file", lacks('root'), (path) => {
      writeFileSync(path, '', { mode: 0o666 });
      chownSync(path, NOBODY, NOBODY);
    }, rmSync, notOwn],
    ['in no folder', false, (path) => rmdirSync(join(path, '..')), (path) => mkdirSync(join(path, '..')), /ENOENT/],
    ['in a file', false, (path) => {
      rmdirSync(join(path, '..'));
      writeFileSync(join(path, '..'), '');
    }, (path) => {
      rmSync(join(path, '..'));
      mkdirSync(join(path, '..'));
    }, /ENOTDIR/],
  ];

  for (const [what, skip, make, remove, error] of OBSTACLES) {
    it(`refuses the start if it is ${what}, later costs one warning, until that is removed`, { skip }, async (t) => {
      const [top, port, warnings] = [makeFolder(t), await freePort(), collectWarnings(t)];
      const path = join(top, 'folder', 'log.jsonl');
      mkdirSync(join(top, 'folder'));
      writeFileSync(other(path), 'nothing to lose');
      make(path);
      const before = contentsOf(top);
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port, log: path });
      t.after(() => server.close());
      for (let starts = 0; starts < 2; starts += 1) { // the port is free again
        const message = await server.runInBackground().then(String, (reason: Error) => reason.message);
        assert.ok(message.startsWith(`Cannot serve at 127.0.0.1:${port}: cannot log: `), message);
        assert.match(message, error);
        assert.ok(message.includes(`'${dirname(path)}`) && !message.includes('\n'), message);
      }
      assert.deepEqual(contentsOf(top), before);
      remove(path);
      await server.runInBackground();
      void complete(server);
      assert.deepEqual([wordsOf(readLog(path)), warnings], [['start', 'status'], []]);
      rmSync(path);
      make(path);
      await post(port, 5);
      assert.match(String(await errorAt(port)), error);
      remove(path);
      await post(port);
      assert.equal(await errorAt(port), undefined);
      await server.close();
      assert.equal(warnings.length, 1);
      assert.match(String(warnings[0]), error);
      assert.equal(readFileSync(other(path), 'utf8'), 'nothing to lose');
      const [lost, ...lines] = readLog(path);
      assert.deepEqual([lost?.event, lost?.['error'] === 'not written in time'], ['lost', false]);
      assert.deepEqual(wordsOf(lines).slice(-3), ['command', 'outcome', 'end']);
      assert.equal(lost?.['lines'] + lines.length, 13); // the fifth outcome may be in time
    });
  }
});

// ───── Ends ──────────────────────────────────────────────────────────────────────────────────────────────────────

describe('At an end, the log', LIMIT, () => {
  it('names the cause of the death of a thread, and has everything, even if no thread is there to write', async (t) => {
    collectWarnings(t);
    const threads = collectThreads(t);
    const path = makePath(t);
    let status: SystemStatus = ACTIVE;
    const { server, port, client } = await startServer(t, { log: path, systemStatus: () => status });
    await threads[0]?.terminate();
    await reaches(client, ACTIVE);
    await ask(port, PAUSE);
    await threads.at(-1)?.terminate();
    server.receiveCommand();
    status = PAUSED;
    server.report({ value: 'late' });
    server.post('save-state', { reason: 'own' });
    await server.close();
    const lines = readLog(path);
    assert.deepEqual(wordsOf(lines, 'error', 'status', 'value', 'reason'), [
      'start', 'status active', 'thread its thread exited', 'command', 'status paused', 'outcome late', 'command own',
      'end',
    ]);
    await server.close();
    assert.equal(readLog(path).length, lines.length);
  });

  it('has no line of a server that could not start', async (t) => {
    const path = makePath(t);
    const { port } = await startForeign(t, () => {});
    const options = { systemStatus: () => ACTIVE, host: '127.0.0.1', port, log: path };
    assert.equal((await refusalOf(options))?.code, 'EADDRINUSE');
    const another = new WebApiServer(options);
    const start = another.runInBackground().catch(() => {});
    await another.close(); // while it starts
    await start;
    await new WebApiServer(options).close();
    assert.equal(existsSync(path), false);
  });

  it('says how much was lost, if it can be written again', async (t) => {
    const warnings = collectWarnings(t);
    const folder = join(makeFolder(t), 'folder');
    mkdirSync(folder);
    const path = join(folder, 'log.jsonl');
    const { server, client, port } = await startServer(t, { log: path });
    renameSync(folder, `${folder}-`);
    assert.equal(await client.pause(), 'ok');
    assert.match(String(await errorAt(port)), /ENOENT/);
    renameSync(`${folder}-`, folder);
    server.receiveCommand();
    await server.close();
    const lost = readLog(path).find(({ event }) => event === 'lost');
    assert.equal(lost?.['lines'], 1);
    assert.deepEqual(warnings.map((warning) => /^Cannot log: ENOENT/.test(warning)), [true]);
  });
});
