// Words that are no system in all tools, and the folders where tools look for systems and servers put their sockets.

import assert from 'node:assert/strict';
import dns from 'node:dns';
import {
  chmodSync, existsSync, lchownSync, mkdirSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { socketFolders } from '../../../../control.ts';
import {
  collectWarnings, type Ended, freePort, makeFolder, platformIs, preload, start, startProgram, startServer,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { LIMIT, until } from '../../wait.ts';
import { AT_ONCE, call, linesOf, makeFile, refusal, run } from './helpers.ts';
import { hereIs, openSession } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };
const NOT_ROOT = lacks('root'); // before a test changes the user
const ADDRESS = 'an address has a port, such as gpu1:8391 or :9000';

describe('A word that is no system', SUITE, () => {
  it('is refused in all tools with the folder and the nearest name, and never looked up as a host', async (t) => {
    const folder = await openFolder(t, 'train.sh-5', 'train.sh-6', 'eval-7');
    const missing = `there is no system 'trian.sh' in '${folder}' (did you mean train.sh?); ${ADDRESS}\n`;
    const two = "TARGET must be one system, got 'train.sh', which matches train.sh-5 and train.sh-6\n";
    const three = `3 systems run in '${folder}': eval, train.sh-5, train.sh-6: name one`;
    const file = makeFile(t, 'localhost\ntrian.sh # a mistake\n');
    const inFile = `line 2 of ${file}: ${missing}`;
    const rows: [tool: string, ...rows: [args: string, message: string][]][] = [
      ['client', [`pause --targets ${file}`, inFile], ['pause', `${three}, or --all\n`]],
      ['console', ['trian.sh', missing], ['train.sh', two], ['', `${three}\n`]],
      ['kbctl', ['trian.sh', missing], ['train.sh', two]],
      ['board', [`--targets ${file}`, inFile]],
      ['mcp', ['trian.sh', missing]],
    ];
    const env = { CONTROL_DIR: folder, ...preload(`import dns from 'node:dns'; dns.lookup = (name, options, done) => {
      process.stderr.write('looked up ' + name + '\\n');
      done(new Error('no network'));
    };`) };
    for (const [tool, ...refusals] of rows) {
      await Promise.all(refusals.map(async ([line, message]) => {
        const args = line.split(' ').filter((arg) => arg !== '');
        const { ended, child } = startProgram(t, tool, args, env);
        child.stdin?.end();
        const expected = { code: 2, stdout: '', stderr: `control-${tool}: ${message}` };
        assert.deepEqual(await ended, expected, line);
      }));
    }
    const known = await run(t, ['pause', 'gpu1:80', 'http://gpu2'], '', env);
    assert.deepEqual(known.stderr.match(/(?<=looked up )\S+/g)?.sort(), ['gpu1', 'gpu2']);
    t.mock.method(process, 'exit', () => {}); // after 500 ms
    const lookup = t.mock.method(dns, 'lookup');
    await call(['__complete', `control-client run evaluate gpu1 --dir ${folder} `]);
    assert.equal(lookup.mock.callCount(), 0);
  });
});

it('A system that cannot be reached for lack of file descriptors is reported, and not as offline', {
  ...LIMIT, skip: lacks('Linux'),
}, async (t) => {
  const names = Array.from({ length: 60 }, (_, index) => `t${index}-${index + 5}`);
  const folder = await openFolder(t, ...names);
  const short = names.map((name) => name.replace(/-.*/, '')).sort();
  for (const command of ['list', 'pause --all', 'wait offline --timeout 1 --all']) {
    const client = `exec '${process.execPath}' dist/bin/client.js ${command} --dir '${folder}'`;
    const { code, stdout, stderr } = await start(t, 'sh', ['-c', `ulimit -n 40; ${client}`]).ended;
    assert.doesNotMatch(stdout + stderr, / offline\b(?! after)/);
    const isSlow = /no answer|not responded|no response|timeout/.test(stdout + stderr); // on a busy machine
    assert.equal(code, command.startsWith('wait') ? 4 : isSlow ? 5 : 3, stderr);
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
    await startServer(t, { name: 'a', socketPath: `${session}/control/` });
    await startServer(t, { name: 'b', socketPath: `${inTmp}/` });
    const found = async (): Promise<string[]> => linesOf((await list()).stdout).map((line) => line.replace(/ .*/, ''));
    assert.deepEqual(await found(), ['a', 'b']);
    setVariable(t, 'XDG_RUNTIME_DIR', ''); // as for cron
    assert.deepEqual(await found(), ['b']);
    setVariable(t, 'CONTROL_DIR', `${session}/control`);
    assert.deepEqual(await found(), ['a']);
    const none = setVariable(t, 'CONTROL_DIR', `${session}/none/none`);
    assert.deepEqual(await list(), { code: 0, stdout: '', stderr: `control-client: nothing runs in '${none}'\n` });
  });

  it('may go at logout: tools follow a system to /tmp, and find it later', { skip: lacks('root') }, async (t) => {
    const { inTmp } = openFolders(t);
    const session = setVariable(t, 'XDG_RUNTIME_DIR', inTmp.replace('/tmp/control-', '/run/user/'));
    t.after(() => rmSync(session, { recursive: true, force: true }));
    mkdirSync(session, { recursive: true, mode: 0o700 });
    const { server } = await startServer(t, { name: 'a', socketPath: undefined });
    const console = startProgram(t, 'console', ['a'], hereIs(`${session}/control`, await freePort()));
    const consoleShows = async (pattern: RegExp): Promise<void> => {
      console.child.stdin?.write('status\n');
      await console.shows(pattern);
    };
    await consoleShows(/^active\b/);
    assert.match((await list()).stdout, /^a +\d+ +active /);
    collectWarnings(t);
    rmSync(session, { recursive: true });
    await until(() => existsSync(inTmp) && readdirSync(inTmp).join() === `a-${process.pid}.sock`);
    await consoleShows(/^active\b.*\nactive\b/);
    assert.equal((await call(['status', 'a'])).stdout, 'a  active\n');
    mkdirSync(`${session}/control`, { recursive: true, mode: 0o700 });
    assert.match((await list()).stdout, /^a +\d+ +active /);
    setVariable(t, 'XDG_RUNTIME_DIR', ''); // as cron does
    assert.match((await list()).stdout, /^a +\d+ +active /);
    await server.close();
    await consoleShows(/nothing (listens|runs)/);
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
        assert.deepEqual(await call(['list', '--dir', inTmp]), refusal(given));
        const missing = refusal(`there is no system 'x' here; ${message}; ${ADDRESS}`);
        assert.deepEqual(await call(['status', 'x']), missing);
      });
    }
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
      [['list'], 0, `nothing runs here; ${line}`], [['list', '--dir', '.'], 2, line],
      [['pause', 'x'], 2, `there is no system 'x' here; ${line}; ${ADDRESS}`],
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
  const { folder } = openSession(t);
  for (const title of titles) await startPuppet(t, {}, { socketPath: join(folder, `${title}.sock`) });
  return folder;
}

function list(): Promise<Ended> {
  return call(['list']);
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
