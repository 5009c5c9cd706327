// Names of systems as targets, and the folder where clients and servers look for them.

import assert from 'node:assert/strict';
import dns from 'node:dns';
import fs, {
  chmodSync, chownSync, lchownSync, mkdirSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { basename, join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { parseCommandLine as parseBoard, setUp } from '../../../board/options.ts';
import { Directory } from '../../../mcp/systems.ts';
import { UsageError } from '../../../shared/cli.ts';
import { isAbsent } from '../../../shared/client.ts';
import { choosePlace, LocalFolder, type Target } from '../../../shared/folder.ts';
import { parseTargets, selectClient } from '../../../shared/names.ts';
import {
  collectWarnings, makeFolder, platformIs, preload, start, startProgram, startServer, until,
} from '../../helpers.ts';
import { leaveSocket, LIMIT } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { AT_ONCE, call, linesOf, makeFile, run } from './helpers.ts';
import { openSession, startSilent } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };
const ADDRESS = 'an address has a port, such as gpu1:8391 or :9000';

describe('A name as a target', SUITE, () => {
  it('selects all live systems of that name, and each line begins with NAME-PID', async (t) => {
    const folder = await openFolder(t, 'train-5', 'train-12', 'train.py-7', 'eval-6');
    for (const title of ['train-8', 'dead-9']) await leaveSocket(join(folder, `${title}.sock`));
    const { code, stdout, stderr } = await call(['pause', 'train', 'train.py', '--dir', folder]);
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(linesOf(stdout).sort(), ['train-12    ok', 'train-5     ok', 'train.py-7  ok']);
    const json = linesOf((await call(['status', 'eval', '--json', '--dir', folder])).stdout);
    const outcomes = [{ target: `unix:${folder}/eval-6.sock`, status: 'active' }];
    assert.deepEqual(json.map((line) => JSON.parse(line)), outcomes);
    const session = join(folder, '..');
    assert.match((await call(['status', 'eval'], { XDG_RUNTIME_DIR: session })).stdout, /^eval-6  active\n$/);
    await assert.rejects(titlesOf('dead', folder), missing('dead', folder, ', only eval, train, train.py'));
  });

  it('can be NAME-PID or a process id, come from a file, and look like a host, but not like an address', async (t) => {
    const folder = await openFolder(
      t, 'train-5', 'train-12', 'exp-7-9', 'bare', 'job-13', 'job-13-40', 'localhost-5', 'box.lan-6', '127.0.0.1-7',
      'gpu1:80-8',
    );
    const rows: [target: string, ...names: string[]][] = [
      ['train-5', 'train-5'], ['12', 'train-12'], ['exp-7', 'exp-7-9'], ['exp-7-9', 'exp-7-9'], ['bare', 'bare'],
      ['job-13-40', 'job-13-40'], ['job', 'job-13'],
    ];
    for (const [target, ...names] of rows) assert.deepEqual(await titlesOf(target, folder), names, target);
    const file = makeFile(t, '12\n:12\ntrain # both\n');
    const { stdout } = await call(['status', '--targets', file, '--dir', folder]);
    assert.deepEqual(linesOf(stdout).map((line) => line.split(' ')[0]).sort(), [':12', 'train-12', 'train-5']);
    const message = "'job-13' is a name and a process id, of " +
      `unix:${folder}/job-13-40.sock and unix:${folder}/job-13.sock: write one of these`;
    await assert.rejects(call(['shutdown', 'job-13', '--dir', folder]), new UsageError(message));
    const urls: [target: string, url: string][] = [
      ['localhost', `unix:${folder}/localhost-5.sock`], ['box.lan', `unix:${folder}/box.lan-6.sock`],
      ['127.0.0.1', 'http://127.0.0.1:8391'], ['gpu1:80', 'http://gpu1:80'], ['LOCALHOST', 'http://LOCALHOST:8391'],
    ];
    const targets = await parseTargets(urls.map(([target]) => target), { dir: folder });
    assert.deepEqual(targets.map(({ client }) => client.baseUrl), urls.map(([, url]) => url));
  });

  it('can be a pattern of names, but not of NAME-PIDs', async (t) => {
    const folder = await openFolder(t, 'train-a-5', 'train-b-6', 'train.py-7', 'eval_x-61', 'train-9');
    const rows: [pattern: string, ...titles: string[]][] = [
      ['train-*', 'train-a-5', 'train-b-6'], ['train-?', 'train-a-5', 'train-b-6'], ['train?py', 'train.py-7'],
      ['train.*', 'train.py-7'], ['*n', 'train-9'],
      ['*', 'eval_x-61', 'train-9', 'train-a-5', 'train-b-6', 'train.py-7'],
    ];
    for (const [pattern, ...titles] of rows) {
      assert.deepEqual((await titlesOf(pattern, folder)).sort(), titles, pattern);
    }
    const names = ', only eval_x, train, train-a, train-b, train.py';
    for (const none of ['oval-*', 'x??', 't*i', '?', '*l+x', '*-6', '*-undefined']) {
      await assert.rejects(titlesOf(none, folder), missing(none, folder, names), none);
    }
    const message = "TARGET must be one system, got 'train-*', which matches train-a-5 and train-b-6";
    await assert.rejects(selectClient('train-*', { dir: folder }), { message });
  });

  it('can contain the process id of the program under control-run', async (t) => {
    const { folder, serve } = openSession(t);
    const rows = [
      ['train-7', { run: { pid: 70, started: '2026-11-21' } }], ['train-9', { pid: 71, command: 'x', run: 71 }],
      ['train-11', { run: { pid: 72 } }],
    ] as const;
    for (const [title, detail] of rows) await serve(title, () => ({ name: 'train', status: 'active', detail }));
    for (const target of ['70', 'train-70', '7']) assert.deepEqual(await titlesOf(target, folder), ['train-7'], target);
    await startSilent(t, join(folder, 'silent-10.sock'));
    for (const target of ['71', '72', 'silent-70']) {
      const error = missing(target, folder, ', only silent, train');
      await assert.rejects(parseTargets([target], { dir: folder, timeoutMs: 500 }), error);
    }
  });

  it('is the name as in the path of the socket; for any other, the error has that', async (t) => {
    const { folder, serve } = openSession(t);
    const long = 'a-name-of-exactly-32-characters-';
    const names = [`${long}b`, `${long}c`, 'train 7B!', '学习', 'my_app', 'my app', 'lr=0.1', 'a/b:c,d=e', 'x', 'y'];
    const titles = names.map((name, index) => `${name.replaceAll(/[^\w.-]/g, '_').slice(0, 32)}-${index}`);
    for (const [index, title] of titles.entries()) {
      await serve(title, () => ({ name: names[index], status: 'active' }));
    }
    for (const [target, ...found] of [
      [long, titles[0], titles[1]], ['train_7B_', titles[2]], ['__', titles[3]], ['my_app', titles[4], titles[5]],
      ['my_app-5', titles[5]], ['lr_0.1', titles[6]], ['6', titles[6]],
    ]) assert.deepEqual(await titlesOf(`${target}`, folder), found, target);
    for (const [target, hint] of [
      [`${long}b`, long], [`${long}d`, long], ['train 7B!', 'train_7B_'], ['train 7B?-2', 'train_7B_'],
      ['my app', 'my_app'], ['lr=0.1', 'lr_0.1'], ['学习', '__'], ['a_b,c,d=e', 'a_b_c_d_e'],
    ]) {
      const message = new RegExp(`^there is no system '${target?.replace('?', '\\?')}' in .*${hint}`);
      await assert.rejects(titlesOf(`${target}`, folder), { message }, target);
      await assert.rejects(call(['wait', 'offline', `${target}`, '--dir', folder]), { message }, target);
    }
  });

  it('selects a system of another user only if there is no other', { skip: lacks('root') }, async (t) => {
    const folder = await openFolder(t, 'train-5', 'train-6', 'eval-7');
    for (const title of ['train-6', 'eval-7']) chownSync(join(folder, `${title}.sock`), 12345, 12345);
    assert.deepEqual(await titlesOf('train', folder), ['train-5']);
    const { code, stderr } = await call(['pause', 'eval', '--dir', folder]);
    assert.equal(code, 3);
    assert.match(stderr, /^control-client: eval-7: .* is not trusted, because it belongs to user 12345; nothing/);
  });

  it('works with run, and can be the name of a command or a status', async (t) => {
    const { folder, serve } = openSession(t);
    const body = { status: 'active', result: 'ok', accepts: { evaluate: {} } };
    for (const title of ['train.py-5', 'train-6', 'top-7']) await serve(title, () => body);
    const dir = ['--dir', folder];
    for (const [args, title] of [[['run', 'evaluate', 'train'], 'train-6'], [['pause', 'top'], 'top-7']] as const) {
      assert.deepEqual(await call([...args, ...dir]), { code: 0, stdout: `${title}  ok\n`, stderr: '' });
    }
    for (const [target, title] of [['train.py', 'train.py-5'], ['6', 'train-6'], [`${folder}/train-6.sock`, folder]]) {
      const { code, stdout } = await call(['run', `${target}`, ...dir]);
      assert.deepEqual([code, stdout.startsWith(`${title}`), /evaluate\n$/.test(stdout)], [0, true, true], target);
    }
    const names = ', only top, train, train.py';
    const error = missing('9', folder, names);
    await assert.rejects(call(['run', 'evaluate', '9', ...dir]), {
      message: `${error.message}; arguments are name=value`,
    });
    await assert.rejects(call(['pause', 'top', 'run', ...dir]), {
      message: `${missing('run', folder, names).message}; a reason is --reason 'TEXT'`,
    });
  });

  it('selects one system in tools that control one', async (t) => {
    const folder = await openFolder(t, 'train-5', 'train-6', 'paused-7');
    const client = await selectClient('paused', { dir: folder });
    assert.deepEqual([client.baseUrl, client.target], [`unix:${folder}/paused-7.sock`, 'paused-7']);
    const rows: [word: string | undefined, values: object, message: string][] = [
      ['train', { dir: folder }, "TARGET must be one system, got 'train', which matches train-5 and train-6"],
      ['eval', { dir: folder, port: '1' }, '--port and targets are mutually exclusive: a target is a complete address'],
      [undefined, { dir: folder }, '--dir requires a TARGET'],
    ];
    for (const [word, values, message] of rows) {
      await assert.rejects(selectClient(word, values), new UsageError(message));
    }
  });
});

describe('A word that is no system', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('is refused in all tools with the folder and the nearest name, and never looked up as a host', async (t) => {
    const lookups: string[] = [];
    t.mock.method(dns, 'lookup', (name: string, _: object, done: (error: Error) => void) => {
      lookups.push(name);
      done(new Error('no network'));
    });
    const [folder, none] = [await openFolder(t, 'train.sh-5', 'train.sh-6', 'eval-7'), await openFolder(t)];
    const rows: [word: string, folder: string, names?: string][] = [
      ['trian.sh', folder, ' (did you mean train.sh?)'], ['gpu1', folder, ', only eval, train.sh'], ['gpu1', none],
      ['0.1', folder, ', only eval, train.sh'], ['9000', none], ['a,b', none], ['pause', none], ['gpu1 gpu2', none],
    ];
    for (const [word, dir, names] of rows) {
      const error = missing(word, dir, names);
      for (const command of [['pause'], ['wait', 'active'], ['watch']]) {
        await assert.rejects(call([...command, word, '--dir', dir]), error);
      }
      await assert.rejects(selectClient(word, { dir }), error);
      await assert.rejects(setUp(parseBoard([word, '--dir', dir]) ?? assert.fail(), 1000), error);
      await assert.rejects(new Directory([word], { dir }).check(), error);
      const file = makeFile(t, `localhost\n${word} # a mistake\n`);
      const inFile = new UsageError(`line 2 of ${file}: ${error.message}`);
      await assert.rejects(call(['pause', '--targets', file, '--dir', dir]), inFile);
    }
    t.mock.method(process, 'exit', () => {}); // after 500 ms
    await call(['__complete', `control-client run evaluate gpu1 --dir ${folder} `]);
    assert.deepEqual(lookups, []);
    await call(['pause', 'gpu1:80', 'http://gpu2', '--dir', folder]);
    assert.deepEqual(lookups.sort(), ['gpu1', 'gpu2']);
  });

  it('is offline for wait offline only, because the system may have ended just now', async (t) => {
    const folder = await openFolder(t, 'train-5');
    const dir = ['--dir', folder];
    const ended = await call(['wait', 'offline', 'eval', 'train-6', 'a_b', ...dir]);
    const lines = ['a_b      offline', 'eval     offline', 'train-6  offline'];
    assert.deepEqual({ ...ended, stdout: linesOf(ended.stdout).sort() }, { code: 0, stdout: lines, stderr: '' });
    const { seconds, ...outcome } = JSON.parse((await call(['wait', 'offline', 'eval', '--json', ...dir])).stdout);
    assert.deepEqual(outcome, { target: 'eval', status: 'offline' });
    const noFolder = { XDG_RUNTIME_DIR: makeFolder(t) };
    assert.equal((await call(['wait', 'offline', 'eval'], noFolder)).stdout, 'eval  offline\n');
    assert.equal((await call(['wait', 'offline', 'train', '--timeout', '0.3', ...dir])).code, 4, 'it is live');
    for (const command of [['shutdown'], ['shutdown', '--wait'], ['wait', 'paused'], ['wait', 'x = 1']]) {
      await assert.rejects(call([...command, 'eval', ...dir]), missing('eval', folder, ', only train'));
    }
  });
});

it('A system that cannot be reached for lack of file descriptors is reported, and not as offline', {
  ...LIMIT, skip: lacks('Linux'),
}, async (t) => {
  const names = Array.from({ length: 60 }, (_, index) => `t${index}-${index + 5}`);
  const folder = await openFolder(t, ...names);
  for (const command of ['list', 'status --all', 'pause --all', 'wait offline --timeout 1 --all']) {
    const client = `exec '${process.execPath}' dist/bin/client.js ${command} --dir '${folder}'`;
    const { code, stdout, stderr } = await start(t, 'sh', ['-c', `ulimit -n 40; ${client}`]).ended;
    assert.doesNotMatch(stdout + stderr, / offline\b(?! after)/);
    assert.equal(code, command.startsWith('wait') ? 4 : 3, stderr);
    if (command === 'list') {
      const sockets = linesOf(stdout).map((line) => line.split('/').at(-1));
      assert.deepEqual(sockets.sort(), names.map((name) => `${name}.sock`).sort());
      continue;
    }
    const lines = [...linesOf(stdout), ...linesOf(stderr).map((line) => line.replace('control-client: ', ''))];
    assert.deepEqual(lines.map((line) => /^[\w-]+/.exec(line)?.[0]).sort(), names.sort(), stdout + stderr);
    const failed = lines.filter((line) => line.includes('EMFILE')).length;
    if (!command.startsWith('wait')) assert.ok(failed > 0 && failed < 60, `${failed} of 60 failed`);
  }
});

describe('The folder of the session', { ...SUITE, concurrency: 1 }, () => {

  it('is in XDG_RUNTIME_DIR or /tmp, and is created by servers, for this user only', async (t) => {
    const session = setVariable(t, makeFolder(t));
    for (let time = 0; time < 2; time += 1) assert.deepEqual(await place(), [`${session}/control/`]);
    assert.equal(statSync(`${session}/control`).mode & 0o777, 0o700);
    assert.deepEqual(readdirSync(`${session}/control`), [], 'until they listen');
    assert.equal(new LocalFolder().place, `in '${session}/control'`);
    setVariable(t, '');
    t.mock.method(process as Required<typeof process>, 'geteuid', () => 987_654_321);
    assert.equal(new LocalFolder().place, `in '/tmp/control-987654321'`);
  });

  it('may go at logout: tools follow a system to /tmp, and find it later', { skip: lacks('root') }, async (t) => {
    const other = folderInTmp(t);
    const session = setVariable(t, other.replace('/tmp/control-', '/run/user/'));
    t.after(() => rmSync(session, { recursive: true, force: true }));
    mkdirSync(session, { recursive: true, mode: 0o700 });
    const { server } = await startServer(t, { socketPath: `${session}/control/`, name: 'a' });
    const title = `a-${process.pid}`;
    const [target] = await parseTargets(['a'], {});
    const found = async (): Promise<string> => (await call(['list'])).stdout;
    assert.match(await found(), /^a +\d+ +active /);
    collectWarnings(t);
    rmSync(session, { recursive: true });
    await until(async () => (await target?.client.request('status'))?.ok === true);
    assert.deepEqual(readdirSync(other), [`${title}.sock`]);
    assert.equal((await call(['status', 'a'])).stdout, `${title}  active\n`);
    mkdirSync(`${session}/control`, { recursive: true, mode: 0o700 });
    assert.match(await found(), /^a +\d+ +active /);
    setVariable(t, ''); // as cron does
    assert.match(await found(), /^a +\d+ +active /);
    await server.close();
    assert.equal(isAbsent(await (target as Target).client.request('status')), true);
    assert.deepEqual(readdirSync(other), []);
  });

  it('is used by servers and clients only if nobody else can create sockets there', async (t) => {
    for (const [where, mode, uid, fault] of FOLDERS) {
      const isForeign = uid !== undefined || where === '/tmp';
      await t.test(`${where} ${mode} ${uid}`, { skip: isForeign && lacks('root') }, async (t) => {
        const folder = where === '/tmp' ? folderInTmp(t) : join(setVariable(t, makeFolder(t)), 'control');
        if (typeof mode === 'string') symlinkSync(mode, folder);
        else mkdirSync(folder);
        if (typeof mode === 'number') chmodSync(folder, mode);
        if (uid !== undefined) lchownSync(folder, uid, uid);
        if (fault === null) {
          assert.deepEqual(await place(), [`${folder}/`]);
          return assert.equal(new LocalFolder().place, `in '${folder}'`);
        }
        const reason = `'${folder}' is not trusted, because ${fault.replace('FOLDER', folder)}`;
        assert.deepEqual(await place(), [undefined, notIn(folder, reason)]);
        const message = `cannot use the folder '${folder}': ${reason}`;
        assert.equal(new LocalFolder().fault, message);
        const given = `--dir must be a folder that can be read, got '${folder}': ${reason}`;
        assert.throws(() => new LocalFolder(folder), new UsageError(given));
        await assert.rejects(call(['status', 'x']), new UsageError(`there is no system 'x': ${message}; ${ADDRESS}`));
      });
    }
  });

  it('is not used by servers if it cannot be created, or its path is too long', async (t) => {
    const session = makeFolder(t);
    const longest = '/control/'.length + 32 + `-${process.pid}.sock`.length;
    const parentOf = (length: number): string => join(session, 'x'.repeat(length - longest - session.length - 1));
    const rows: [parent: string, make: (parent: string) => void, fault: string | null][] = [
      [parentOf(94), mkdirSync, null], [parentOf(95), mkdirSync, 'its path is too long'],
      [join(session, 'none'), () => {}, 'ENOENT: '],
      [join(session, 'file'), (parent) => writeFileSync(parent, ''), 'ENOTDIR: '],
      [join(session, 'link'), (parent) => {
        mkdirSync(parent);
        symlinkSync('nowhere', `${parent}/control`);
      }, 'EEXIST: '],
    ];
    for (const [parent, make, fault] of rows) {
      make(parent);
      setVariable(t, parent);
      const [folder, line = ''] = await place();
      assert.equal(folder, fault === null ? `${parent}/control/` : undefined);
      assert.ok(line.startsWith(fault === null ? '' : notIn(`${parent}/control`, fault)), line);
    }
  });

  it('is not used by a server if another container has a server with its process id there', async (t) => {
    const folder = `${setVariable(t, makeFolder(t))}/control`;
    assert.deepEqual(await place(), [`${folder}/`]);
    await leaveSocket(join(folder, `b-${process.pid}.sock`));
    assert.deepEqual(await place(), [`${folder}/`], 'that one is dead');
    await startSilent(t, join(folder, `c-${process.pid}.sock`));
    const reason = `'c-${process.pid}.sock' has the same process id, in another container`;
    assert.deepEqual(await place(), [undefined, notIn(folder, reason)]);
    assert.deepEqual(await choosePlace({ ...ACCESS, socketPath: 'x.sock' }, assert.fail), {
      socketPath: 'x.sock', token: undefined, allowedHosts: [], name: 'a',
    });
  });

  it('is not used by a server if its file system refuses links to sockets', async (t) => {
    const session = setVariable(t, makeFolder(t));
    const folder = `${session}/control`;
    const reason = 'EBADF: bad file descriptor, link';
    const link = t.mock.method(fs, 'linkSync', () => {
      throw new Error(reason);
    });
    syncBuiltinESMExports();
    t.after(() => {
      link.mock.restore();
      syncBuiltinESMExports();
    });
    assert.deepEqual(await place(), [undefined, notIn(folder, reason)]);
    assert.deepEqual(readdirSync(folder), []);
    writeFileSync(`${session}/file`, '');
    const env = { XDG_RUNTIME_DIR: `${session}/file` };
    for (const [tool, ...args] of [['run', '--', 'sleep', '60'], ['demo', '--states-dir', session]] as const) {
      const { shows } = startProgram(t, tool, ['--port', '0', ...args], env);
      await shows(new RegExp(`^control-${tool}: clients find this program by its port only: `, 'm'));
      await shows(/web API at http:\/\/localhost:\d+/);
    }
  });

  it('does not exist on Windows, and only tools that look for names say so', async (t) => {
    const windows = preload(platformIs('win32'));
    const line = 'on Windows, systems have neither sockets nor names: use HOST:PORT';
    const rows: [args: string[], line: string][] = [
      [['list'], line], [['status', '--all'], line], [['list', '--dir', '.'], line],
      [['pause', 'x'], `there is no system 'x': ${line}; ${ADDRESS}`],
    ];
    await Promise.all(rows.map(async ([args, text]) => {
      const ended = await run(t, args, '', windows);
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-client: ${text}\n` });
    }));
    const { child, shows, output } = startProgram(t, 'demo', ['--port', '0', '--states-dir', makeFolder(t)], windows);
    await shows(/web API at http:\/\/localhost:\d+/);
    assert.doesNotMatch(output(), /clients find/);
    child.kill();
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

/** A folder with systems of these titles. */
async function openFolder(t: TestContext, ...titles: string[]): Promise<string> {
  const { folder, serve } = openSession(t);
  for (const title of titles) await serve(title);
  return folder;
}

/** @param names How the error continues. */
function missing(word: string, folder: string, names: string = ''): UsageError {
  return new UsageError(`there is no system '${word}' in '${folder}'${names}; ${ADDRESS}`);
}

async function titlesOf(target: string, folder: string): Promise<string[]> {
  const targets = await parseTargets([target], { dir: folder });
  for (const { name, title } of targets) assert.equal(name && basename(name, '.sock'), title);
  return targets.map(({ title }) => title);
}

const ACCESS = { host: 'localhost', port: 0, socketPath: undefined, token: undefined, allowedHosts: [], name: 'a' };

/** Returns where a server has its socket, and the lines it prints. */
async function place(): Promise<(string | undefined)[]> {
  const lines: string[] = [];
  const { socketPath, host, port } = await choosePlace(ACCESS, (line) => lines.push(line));
  assert.deepEqual([host, port], ['localhost', 0]);
  return [socketPath, ...lines];
}

function notIn(folder: string, reason: string): string {
  return `clients find this program by its port only: cannot use the folder '${folder}': ${reason}`;
}

const OTHERS = "others can write to it; chmod go-w 'FOLDER'";
const OWNED = 'it belongs to user 12345';

/** A folder of the session, its mode, or where a link leads, and why it is not trusted, if it is not. */
const FOLDERS: readonly [where: 'session' | '/tmp', mode: number | string, uid: number | undefined, string | null][] = [
  ['session', 0o770, undefined, OTHERS], ['session', 0o755, undefined, null], ['session', 0o700, 12345, OWNED],
  ['/tmp', 0o700, undefined, null], ['/tmp', 0o700, 12345, OWNED], ['/tmp', '/tmp', 12345, OWNED],
];

/** The path of the session folder in /tmp of another user, who has none yet. */
function folderInTmp(t: TestContext): string {
  setVariable(t, '');
  const uid = 2_000_000_000 + process.pid;
  t.mock.method(process as Required<typeof process>, 'geteuid', () => uid);
  const folder = `/tmp/control-${uid}`;
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Sets the session folder until the end of the test. */
function setVariable(t: TestContext, session: string): string {
  const before = process.env['XDG_RUNTIME_DIR'];
  t.after(() => {
    if (before === undefined) delete process.env['XDG_RUNTIME_DIR'];
    else process.env['XDG_RUNTIME_DIR'] = before;
  });
  process.env['XDG_RUNTIME_DIR'] = session;
  return session;
}
