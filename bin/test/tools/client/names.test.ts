// Names of systems as targets, and the folder where clients and servers look for them.

import assert from 'node:assert/strict';
import dns from 'node:dns';
import {
  chmodSync, chownSync, existsSync, lchownSync, mkdirSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { socketFolders } from '../../../../control.ts';
import { parseCommandLine as parseBoard, setUp } from '../../../board/options.ts';
import { Directory } from '../../../mcp/systems.ts';
import { UsageError } from '../../../shared/cli.ts';
import { LocalFolder, type Target } from '../../../shared/folder.ts';
import { select, selectClient } from '../../../shared/names.ts';
import {
  collectWarnings, freePort, makeFolder, platformIs, preload, start, startProgram, startServer,
} from '../../helpers.ts';
import { leaveSocket } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { AT_ONCE, call, linesOf, makeFile, run } from './helpers.ts';
import { hereIs, openSession, startSilent } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };
const NOT_ROOT = lacks('root'); // before a test changes the user
const ADDRESS = 'an address has a port, such as gpu1:8391 or :9000';

describe('A name as a target', SUITE, () => {
  it('selects all live systems of that name, and each line begins with it or, for several, NAME-PID', async (t) => {
    const folder = await openFolder(t, 'train-5', 'train-12', 'train.py-7', 'eval-6');
    for (const title of ['train-8', 'dead-9']) await leaveSocket(join(folder, `${title}.sock`));
    const { code, stdout, stderr } = await call(['pause', 'train', 'train.py', '--dir', folder]);
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(linesOf(stdout).sort(), ['train-12  ok', 'train-5   ok', 'train.py  ok']);
    const json = linesOf((await call(['status', 'eval', '--json', '--dir', folder])).stdout);
    const outcomes = [{ target: `unix:${folder}/eval-6.sock`, status: 'active' }];
    assert.deepEqual(json.map((line) => JSON.parse(line)), outcomes);
    assert.match((await call(['status', 'eval'], { CONTROL_DIR: folder })).stdout, /^eval  active\n$/);
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
    const { targets } = await select(urls.map(([target]) => target), { dir: folder }, 'all');
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
    const message = "TARGET must be one system, got 'train-*', which matches train-a and train-b";
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
      await assert.rejects(select([target], { dir: folder, timeoutMs: 500 }, 'all'), error);
    }
  });

  it('is the name as in the path of the socket, or as reported; for any other, the error has that', async (t) => {
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
      [`${long}b`, titles[0]], ['train 7B!', titles[2]], ['学习', titles[3]], ['my app', titles[5]],
      ['lr=0.1', titles[6]],
    ]) assert.deepEqual(await titlesOf(`${target}`, folder), found, target);
    for (const [target, hint] of [
      [`${long}d`, long], ['train 7B?-2', 'train_7B_'], ['习学', '__'], ['a_b,c,d=e', 'a_b_c_d_e'],
    ]) {
      const message = new RegExp(`^there is no system '${target?.replace('?', '\\?')}' in .*${hint}`);
      await assert.rejects(titlesOf(`${target}`, folder), { message }, target);
      const ended = call(['wait', 'offline', `${target}`, '--dir', folder]);
      if (target?.includes('?') === true) await assert.rejects(ended, { message }, 'it may match others later');
      else assert.match((await ended).stderr, new RegExp(message.source.replace('^', '^control-client: ')));
    }
  });

  it('selects a system of another user only if there is no other', { skip: lacks('root') }, async (t) => {
    const folder = await openFolder(t, 'train-5', 'train-6', 'eval-7');
    for (const title of ['train-6', 'eval-7']) chownSync(join(folder, `${title}.sock`), 12345, 12345);
    assert.deepEqual(await titlesOf('train', folder), ['train-5']);
    const { code, stderr } = await call(['pause', 'eval', '--dir', folder]);
    assert.equal(code, 3);
    assert.match(stderr, /^control-client: eval: .* is not trusted, because it belongs to user 12345; nothing/);
  });

  it('works with run, and can be the name of a command or a status', async (t) => {
    const { folder, serve } = openSession(t);
    const body = { status: 'active', result: 'ok', accepts: { evaluate: {} } };
    for (const title of ['train.py-5', 'train-6', 'top-7']) await serve(title, () => body);
    const dir = ['--dir', folder];
    for (const [args, title] of [[['run', 'evaluate', 'train'], 'train-6'], [['pause', 'top'], 'top-7']] as const) {
      assert.deepEqual(await call([...args, ...dir]), { code: 0, stdout: `${title.replace(/-\d$/, '')}  ok\n`, stderr: '' });
    }
    for (const [target, title] of [['train.py', 'train.py'], ['6', 'train'], [`${folder}/train-6.sock`, folder]]) {
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
    assert.deepEqual([client.baseUrl, client.target], [`unix:${folder}/paused-7.sock`, 'paused']);
    const rows: [word: string | undefined, values: object, message: string][] = [
      ['train', { dir: folder }, "TARGET must be one system, got 'train', which matches train-5 and train-6"],
      ['eval', { dir: folder, port: '1' }, '--port and targets are mutually exclusive: a target is a complete address'],
      [undefined, { dir: folder }, `3 systems run in '${folder}': paused, train-5, train-6: name one`],
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
    const notes = ['a_b', 'eval', 'train-6'].map((name) => {
      const near = name === 'train-6' ? ' (did you mean train?)' : ', only train';
      return `control-client: there is no system '${name}' in '${folder}'${near}`;
    });
    const [stdout, stderr] = [linesOf(ended.stdout).sort(), linesOf(ended.stderr).sort()];
    assert.deepEqual([ended.code, stdout, stderr], [0, lines, notes]);
    const { seconds, ...outcome } = JSON.parse((await call(['wait', 'offline', 'eval', '--json', ...dir])).stdout);
    assert.deepEqual(outcome, { target: 'eval', status: 'offline' });
    const noFolder = { CONTROL_DIR: makeFolder(t) };
    assert.equal((await call(['wait', 'offline', 'eval'], noFolder)).stdout, 'eval  offline\n');
    assert.equal((await call(['wait', 'offline', 'train', '--timeout', '0.3', ...dir])).code, 4, 'it is live');
    await assert.rejects(call(['wait', 'offline', '', ...dir]), { message: /^there is no system '' / }, 'a forgotten name');
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
  const short = names.map((name) => name.replace(/-.*/, '')).sort();
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
    assert.deepEqual(lines.map((line) => /^[\w-]+/.exec(line)?.[0]).sort(), short, stdout + stderr);
    const failed = lines.filter((line) => line.includes('too many open files')).length;
    if (!command.startsWith('wait')) assert.ok(failed > 0 && failed < 60, `${failed} of 60 failed`);
  }
});

describe('The folders of a user', { ...SUITE, concurrency: 1 }, () => {
  it('are in XDG_RUNTIME_DIR, /run/user and /tmp: a server with a name makes the first that it can', async (t) => {
    const { inTmp, session } = openFolders(t);
    for (let time = 0; time < 2; time += 1) assert.deepEqual(await place(t), [`${session}/control`]);
    assert.equal(statSync(`${session}/control`).mode & 0o777, 0o700);
    const longest = '/control/'.length + `a-${process.pid}.sock`.length;
    const parentOf = (length: number): string => join(session, 'x'.repeat(length - longest - session.length - 1));
    const rows: [parent: string, make: (parent: string) => void, isUsed: boolean][] = [
      ['', () => {}, false], [parentOf(94), mkdirSync, true], [parentOf(95), mkdirSync, false],
      [join(session, 'none'), () => {}, false], [join(session, 'file'), (parent) => writeFileSync(parent, ''), false],
      [join(session, 'link'), (parent) => {
        mkdirSync(parent);
        symlinkSync('nowhere', `${parent}/control`);
      }, false],
      [join(session, 'open'), (parent) => {
        mkdirSync(parent);
        chmodSync(parent, 0o770);
      }, false],
    ];
    for (const [parent, make, isUsed] of rows) {
      make(parent);
      setVariable(t, 'XDG_RUNTIME_DIR', parent);
      assert.deepEqual(await place(t), [isUsed ? `${parent}/control` : inTmp], parent);
    }
    setVariable(t, 'CONTROL_RUN', 'mark');
    const warnings = collectWarnings(t);
    const { server } = await startServer(t, { name: 'a', socketPath: undefined });
    assert.deepEqual(socketFolders().flatMap((folder) => existsSync(folder) ? readdirSync(folder) : []), []);
    await server.close();
    assert.deepEqual(warnings, [], 'control-run has the name');
  });

  it('are all looked at by tools; CONTROL_DIR is the only one', async (t) => {
    const { inTmp, session } = openFolders(t);
    const place = new LocalFolder().place;
    await startServer(t, { name: 'a', socketPath: `${session}/control/` });
    await startServer(t, { name: 'b', socketPath: `${inTmp}/` });
    const namesIn = async (): Promise<string[]> => {
      const found = await new LocalFolder().find(() => true, {});
      return found.map(({ socket }) => `${socket?.name}`);
    };
    assert.deepEqual([place, await namesIn()], ['here', ['a', 'b']]);
    setVariable(t, 'XDG_RUNTIME_DIR', ''); // as for cron
    assert.deepEqual(await namesIn(), ['b']);
    setVariable(t, 'CONTROL_DIR', `${session}/control`);
    assert.deepEqual([new LocalFolder().place, await namesIn()], [`in '${session}/control'`, ['a']]);
    setVariable(t, 'CONTROL_DIR', `${session}/none/none`);
    assert.deepEqual(await namesIn(), []);
  });

  it('may go at logout: tools follow a system to /tmp, and find it later', { skip: lacks('root') }, async (t) => {
    const { inTmp } = openFolders(t);
    const session = setVariable(t, 'XDG_RUNTIME_DIR', inTmp.replace('/tmp/control-', '/run/user/'));
    t.after(() => rmSync(session, { recursive: true, force: true }));
    mkdirSync(session, { recursive: true, mode: 0o700 });
    const { server } = await startServer(t, { name: 'a', socketPath: undefined });
    const { targets: [target] } = await select(['a'], {}, 'all');
    const found = async (): Promise<string> => (await call(['list'])).stdout;
    assert.match(await found(), /^a +\d+ +active /);
    collectWarnings(t);
    rmSync(session, { recursive: true });
    await until(async () => (await target?.client.request('status'))?.ok === true);
    assert.deepEqual(readdirSync(inTmp), [`a-${process.pid}.sock`]);
    assert.equal((await call(['status', 'a'])).stdout, 'a  active\n');
    mkdirSync(`${session}/control`, { recursive: true, mode: 0o700 });
    assert.match(await found(), /^a +\d+ +active /);
    setVariable(t, 'XDG_RUNTIME_DIR', ''); // as cron does
    assert.match(await found(), /^a +\d+ +active /);
    await server.close();
    assert.equal((await (target as Target).client.request('status')).fault, 'offline');
    assert.deepEqual(readdirSync(inTmp), []);
  });

  it('are used only if nobody else can create sockets there, and tools that find nothing say so', async (t) => {
    const { inTmp } = openFolders(t);
    setVariable(t, 'XDG_RUNTIME_DIR', '');
    for (const [mode, uid, fault] of FOLDERS) {
      await t.test(`${mode} ${uid}`, { skip: uid !== undefined && NOT_ROOT }, async (t) => {
        t.after(() => rmSync(inTmp, { recursive: true, force: true }));
        if (typeof mode === 'string') symlinkSync(mode, inTmp);
        else mkdirSync(inTmp);
        if (typeof mode === 'number') chmodSync(inTmp, mode);
        if (uid !== undefined) lchownSync(inTmp, uid, uid);
        if (fault === null) return assert.deepEqual(await place(t), [inTmp]);
        const reason = `'${inTmp}' is not trusted, because ${fault.replace('FOLDER', inTmp)}`;
        const effect = 'clients find this program by its port only';
        const [warning = '', ...others] = await place(t);
        assert.deepEqual(others, []);
        assert.match(warning, new RegExp(`^Cannot serve at '${inTmp}/a-\\d+\\.sock': '/tmp.*${effect}$`));
        const message = `cannot use the folder '${inTmp}': ${reason}`;
        const given = `--dir must be a folder that can be read, got '${inTmp}': ${reason}`;
        assert.throws(() => new LocalFolder(inTmp), new UsageError(given));
        const none = `there is no system 'x' here; ${message}; ${ADDRESS}`;
        await assert.rejects(call(['status', 'x'], {}), new UsageError(none));
      });
    }
  });

  it('are not used for a name that a server of this process has there already', async (t) => {
    openFolders(t);
    await startServer(t, { name: 'a', socketPath: undefined });
    const [warning] = await place(t, `${process.env['XDG_RUNTIME_DIR']}`);
    const effect = 'clients find this program by its port only; give one of them a socketPath';
    assert.match(`${warning}`, new RegExp(`^Cannot serve at '.*/a-\\d+\\.sock': another server listens .*; ${effect}$`));
  });

  it('are not used by a server if there is a file in its place', async (t) => {
    const { inTmp, session } = openFolders(t);
    mkdirSync(`${session}/control`);
    writeFileSync(`${session}/control/a-${process.pid}.sock`, '');
    assert.deepEqual(await place(t, session), [inTmp]);
    assert.equal(readdirSync(`${session}/control`).length, 1, 'nothing else is left');
    writeFileSync(`${inTmp}/a-${process.pid}.sock`, '');
    const [warning, ...others] = await place(t, session, inTmp);
    assert.deepEqual(others, []);
    assert.match(`${warning}`, /^Cannot serve at '\/tmp.*' is not a socket; .*; clients find .* by its port only$/);
  });

  it('does not exist on Windows, and only tools that look for names say so', async (t) => {
    const windows = preload(platformIs('win32'));
    const { NODE_OPTIONS } = hereIs('/nowhere/control', await freePort());
    const env = { NODE_OPTIONS: `${NODE_OPTIONS} ${windows['NODE_OPTIONS']}` };
    const line = 'on Windows, systems have neither sockets nor names: use HOST:PORT';
    const rows: [args: string[], code: number, line: string][] = [
      [['list'], 0, `nothing runs here; ${line}`], [['pause', '--all'], 3, `nothing runs here; ${line}`],
      [['list', '--dir', '.'], 2, line], [['pause', 'x'], 2, `there is no system 'x' here; ${line}; ${ADDRESS}`],
    ];
    await Promise.all(rows.map(async ([args, code, text]) => {
      assert.deepEqual(await run(t, args, '', env), { code, stdout: '', stderr: `control-client: ${text}\n` });
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
  const { targets } = await select([target], { dir: folder }, 'all');
  for (const { name, id } of targets) assert.equal(name && basename(name, '.sock'), id);
  return targets.map(({ id }) => id);
}

/** Starts a named server. Returns where it has a socket, except in folders where something else is, or its warnings. */
async function place(t: TestContext, ...taken: string[]): Promise<string[]> {
  const warnings: string[] = [];
  const emit = t.mock.method(process, 'emitWarning', (warning: string | Error) => warnings.push(String(warning)));
  const { server } = await startServer(t, { name: 'a', socketPath: undefined });
  const folders = socketFolders().filter((folder) => {
    return !taken.some((start) => folder.startsWith(start)) && existsSync(`${folder}/a-${process.pid}.sock`);
  });
  await until(() => folders.length + warnings.length > 0);
  await server.close();
  emit.mock.restore();
  return [...folders, ...warnings];
}

const OTHERS = "others can write to it; chmod go-w 'FOLDER'";
const OWNED = 'it belongs to user 12345';

/** The mode of a folder, or where a link leads, its user, and why it is not trusted, if it is not. */
const FOLDERS: readonly [mode: number | string, uid: number | undefined, string | null][] = [
  [0o770, undefined, OTHERS], [0o755, undefined, null], [0o700, 12345, OWNED], ['/tmp', 12345, OWNED],
];

/** A session, and what is in /tmp, of a user who has neither, until the end of the test. */
function openFolders(t: TestContext): { session: string; inTmp: string } {
  setVariable(t, 'CONTROL_DIR', '');
  const uid = 2_000_000_000 + process.pid;
  t.mock.method(process as Required<typeof process>, 'geteuid', () => uid);
  const inTmp = `/tmp/control-${uid}`;
  t.after(() => rmSync(inTmp, { recursive: true, force: true }));
  return { session: setVariable(t, 'XDG_RUNTIME_DIR', makeFolder(t)), inTmp };
}

/** Sets a variable until the end of the test. */
function setVariable(t: TestContext, name: string, value: string): string {
  const before = process.env[name];
  t.after(() => {
    if (before === undefined) delete process.env[name];
    else process.env[name] = before;
  });
  process.env[name] = value;
  return value;
}
