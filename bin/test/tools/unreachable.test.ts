// A system that cannot be reached, does not respond or denies access: for each cause, what each tool says of it, and
// its exit code. `offline` is only what is known to be absent; a command that was sent may still take effect.

import assert from 'node:assert/strict';
import { chownSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, describe, it, type TestContext } from 'node:test';
import {
  type Ended, freePort, makeFolder, makeSocketPath, preload, runProgram, startForeign, startProgram, startServer, TOKEN,
} from '../helpers.ts';
import { startUnreachable } from '../host.ts';
import { leaveSocket } from '../module/helpers.ts';
import { lacks } from '../needs.ts';
import { startPuppet } from '../puppet.ts';
import { LIMIT } from '../wait.ts';
import { forSuite, startBoard, untilSystems } from './board/helpers.ts';
import { call, linesOf } from './client/helpers.ts';
import { startFull, startOwnProcess, startSilent } from './client/systems.ts';
import { READY, startHelped } from './kbctl/helpers.ts';
import { startMcp } from './mcp/helpers.ts';
import type { Update } from '../../board/system.ts';

// ───── The causes ────────────────────────────────────────────────────────────────────────────────────────────────

type Kind = 'absent' | 'foreign' | 'untrusted' | 'wrong' | 'denied' | 'unconnected' | 'silent' | 'cut';

interface Cause {
  what: string;
  kind: Kind;
  /** In all messages, without the address. */
  error: string | RegExp;
  needs?: 'Linux' | 'root';
  start(t: TestContext): Promise<string>;
}

/** A cause, and the target that has it. */
interface Broken extends Cause {
  target: string;
}

const WAITED = 'has not responded within N s';
const CUT = /has not responded \([^()]+\)/;
const WRONG_TOKEN = 'Wrong token: set CONTROL_TOKEN_FILE or CONTROL_TOKEN';

const ALL_CAUSES: readonly Cause[] = [
  { what: 'nothing listens at the port', kind: 'absent', error: 'nothing listens',
    start: async () => `127.0.0.1:${await freePort()}` },
  { what: 'there is no socket', kind: 'absent', error: 'nothing listens',
    start: async (t) => `unix:${makeSocketPath(t)}` },
  { what: 'the server of the socket has died', kind: 'absent', error: 'nothing listens',
    async start(t) {
      const path = makeSocketPath(t);
      await leaveSocket(path);
      return `unix:${path}`;
    } },
  { what: 'it is another web server', kind: 'foreign',
    error: 'is not a control server: it responded with status code 200',
    start: async (t) => (await startPuppet(t, { raw: '{}', post: { result: undefined } })).target },
  { what: 'the socket belongs to another user', kind: 'untrusted', needs: 'root',
    error: /'\S+-ENOENT' is not trusted, because it belongs to user 12345; nothing was sent/,
    async start(t) {
      const path = `${makeSocketPath(t)}-ENOENT`;
      const { target, urls } = await startPuppet(t, {}, { socketPath: path });
      t.after(() => assert.deepEqual(urls, []));
      chownSync(path, 12345, 12345);
      return target;
    } },
  { what: 'the token is wrong', kind: 'wrong', error: WRONG_TOKEN,
    start: async (t) => `127.0.0.1:${(await startServer(t, { token: TOKEN })).port}` },
  { what: 'it permits no requests', kind: 'denied', error: 'Host not permitted',
    start: async (t) => (await startPuppet(t, { code: 403, error: 'Host not permitted' })).target },
  { what: 'the host does not exist', kind: 'unconnected',
    error: /there is no such host|no name server responds|(timeout after|no connection within) N s/,
    start: async () => 'ENOENT.invalid:1' },
  { what: 'its connection queue is full', kind: 'unconnected', needs: 'Linux',
    error: 'its queue of connections is full', start: async (t) => `unix:${await startFull(t)}` },
  { what: 'the network drops packets', kind: 'unconnected', error: /(timeout after|no connection within) N s/,
    start: async (t) => `127.0.0.1:${await startUnreachable(t)}` },
  { what: 'it never responds', kind: 'silent', error: WAITED, start: (t) => startSilent(t) },
  { what: 'its process is stopped', kind: 'silent', needs: 'Linux', error: WAITED,
    async start(t) {
      const { port, stop } = await startOwnProcess(t);
      await stop();
      return `127.0.0.1:${port}`;
    } },
  { what: 'it cuts the connection', kind: 'cut', error: CUT,
    start: async (t) => (await startPuppet(t, { cut: true })).target },
  { what: 'it speaks another protocol', kind: 'cut', error: CUT,
    start: async (t) => `127.0.0.1:${(await startForeign(t, (socket) => socket.end('SSH-2.0-x\r\n'))).port}` },
];
const CAUSES = ALL_CAUSES.filter(({ needs }) => needs === undefined || lacks(needs) === false);

// ───── The words ─────────────────────────────────────────────────────────────────────────────────────────────────

const COMMANDS = [
  'status', 'info', 'pause', 'pause --wait --timeout 5', 'shutdown --wait --timeout 5', 'resume --mine',
  'pause --for 1 --wait --timeout 5', 'run list', 'run', 'wait offline --timeout 8', 'wait active --timeout 8',
  'wait x=1 --timeout 8',
];

const OFFLINE = 'after N s: the system is offline';
const UNKNOWN = 'after N s: the system does not report its status';
const WAITS = [`4 not offline ${UNKNOWN}`, `4 not active ${UNKNOWN}`, `4 not x=1 ${UNKNOWN}`];
const OFFLINE_WAITS = ['0 [offline]', `4 not active ${OFFLINE}`, `4 not x=1 ${OFFLINE}`];
const UNSENT = ['pause not sent: ERROR', 'shutdown not sent: ERROR', 'resume not sent: ERROR', 'pause not sent: ERROR',
  'list not sent: ERROR', 'ERROR'];

/** The outcomes of all commands, of which all but the first three and the last three are sent after a report only. */
function unsent(code: number, firsts: readonly string[], lasts: readonly string[]): string[] {
  return [...firsts, ...UNSENT.map((text) => `${code} ${text}`), ...lasts].map((text) => {
    return /^\d/.test(text) ? text : `${code} ${text}`;
  });
}

interface Words {
  /** For each command: the exit code, what stdout shows in brackets, and what stderr shows. */
  client: readonly string[];
  /** What is said of `shutdown`; `status` and `pause` are alike for all. */
  console?: string;
  status: string;
  /** Of the pause, in control-mcp and control-board, and in control-kbctl. */
  outcome: string;
  pause: string;
  key: string;
}

const NOT_PAUSED = 'not paused: ERROR';
const NOT_SENT = 'pause not sent: ERROR';

const WORDS: Readonly<Record<Kind, Words>> = {
  absent: {
    client: [
      '3 [offline] ERROR', '3 ERROR', '3 ERROR', `3 ${NOT_PAUSED}`, '0 [already offline]',
      ...unsent(3, [], OFFLINE_WAITS).slice(2),
    ],
    console: 'already offline', status: 'offline', outcome: 'offline', pause: NOT_PAUSED, key: 'offline: ERROR',
  },
  foreign: {
    client: unsent(3, ['[offline] ERROR', 'ERROR', 'ERROR'], OFFLINE_WAITS),
    status: 'offline: ERROR', outcome: 'offline', pause: NOT_PAUSED, key: 'offline: ERROR',
  },
  untrusted: {
    client: unsent(3, ['[unknown] ERROR', 'ERROR', 'ERROR'], WAITS),
    status: 'unknown: ERROR', outcome: 'offline', pause: NOT_PAUSED, key: 'offline: ERROR',
  },
  wrong: {
    client: unsent(1, ['ERROR', 'ERROR', 'ERROR'], ['ERROR', 'ERROR', 'ERROR']),
    status: 'missing or wrong token: ERROR', outcome: 'refused', pause: NOT_PAUSED, key: 'refused: ERROR',
  },
  denied: {
    client: unsent(1, ['ERROR', 'ERROR', 'ERROR'], ['ERROR', 'ERROR', 'ERROR']),
    status: 'access denied: ERROR', outcome: 'refused', pause: NOT_PAUSED, key: 'refused: ERROR',
  },
  unconnected: {
    client: unsent(5, ['[no answer] ERROR', 'ERROR', NOT_SENT], WAITS),
    status: 'no answer: ERROR', outcome: 'unanswered', pause: NOT_SENT, key: 'not sent: ERROR',
  },
  silent: {
    client: unsent(5, ['[no answer] ERROR', 'ERROR', 'pause SENT'], WAITS),
    status: 'no answer: ERROR', outcome: 'unanswered', pause: 'pause SENT', key: 'SENT',
  },
  cut: {
    client: unsent(5, ['[no answer] ERROR', 'ERROR', 'pause SENT'], WAITS),
    status: 'no answer: ERROR', outcome: 'unanswered', pause: 'pause SENT', key: 'SENT',
  },
};

/** Whether requests end by their time limits. */
function isSlow({ what }: Cause): boolean {
  return /never|stopped|drops|host/.test(what);
}

/** A text without the address and the durations, and with ERROR in place of the error. */
function shape(text: string, { target, error }: Broken): string {
  const bare = text.trimEnd().replaceAll(`http://${target}`, target).replaceAll(/\d+(\.\d+)? s\b/g, 'N s')
    .replaceAll(`${target} does not respond: `, '').replaceAll(` at ${target}`, '').replaceAll(`${target} `, '');
  const pattern = typeof error === 'string' ? error.replaceAll(/[()[\].]/g, '\\$&') : error.source;
  return bare.replaceAll(/sent, but no response (within N s|\([^()]+\)): it may still take effect/g, 'SENT')
    .replaceAll(new RegExp(pattern, 'gi'), 'ERROR');
}

function addressOf(target: string): string[] {
  const [, path] = /^unix:(.*)/.exec(target) ?? [];
  const [host = '', port = ''] = target.split(/:(?=\d+$)/);
  return path === undefined ? ['--host', host, '--port', port] : ['--socket', path];
}

// ───── The tools ─────────────────────────────────────────────────────────────────────────────────────────────────

const TOKEN_ENV = { CONTROL_TOKEN: 'a-wrong-token-for-tests' };

describe('A system that cannot be reached', { ...LIMIT, skip: lacks('Unix') }, () => {
  const suite = forSuite();
  let all: readonly Broken[] = [];
  let targets: readonly string[] = [];
  let tokenFile = '';

  before(async () => {
    all = await Promise.all(CAUSES.map(async (cause) => ({ ...cause, target: await cause.start(suite) })));
    targets = all.map(({ target }) => target);
    tokenFile = join(makeFolder(suite), 'token');
    writeFileSync(tokenFile, TOKEN_ENV.CONTROL_TOKEN, { mode: 0o600 });
  });

  /** Compares what a tool says of each cause with what it should say. */
  const check = (said: readonly string[], expected: (words: Words, cause: Broken) => string): void => {
    const shown = said.map((text, index) => `${all[index]?.what}: ${shape(text, all[index] as Broken)}`);
    assert.deepEqual(shown, all.map((cause) => `${cause.what}: ${expected(WORDS[cause.kind], cause)}`));
  };

  /** Uses a tool once for each: all at once where it waits for seconds, and otherwise one after the other. */
  const each = async <Value>(some: readonly Broken[], use: (cause: Broken) => Promise<Value>): Promise<Value[]> => {
    let last: Promise<unknown> = Promise.resolve();
    return Promise.all(some.map((cause) => {
      const used = isSlow(cause) ? use(cause) : last.then(() => use(cause));
      if (!isSlow(cause)) last = used.catch(() => {});
      return used;
    }));
  };

  describe('has a line and an exit code for each command of control-client', { ...LIMIT, concurrency: 4 }, () => {
    for (const { what } of CAUSES) it(`if ${what}`, async () => {
      const cause = all.find((one) => one.what === what) as Broken;
      const env = { CONTROL_TOKEN_FILE: tokenFile };
      const { target } = cause;
      const said = ({ code, stdout, stderr }: Ended): string => {
        const texts = [stdout.replace(`${target}  `, ''), linesOf(stderr).at(-1) ?? '']; // after what it says meanwhile
        const [shown, error] = texts.map((text) => {
          return shape(text.replace('control-client: ', '').replace(`${target}: `, ''), cause);
        });
        return [code, shown && `[${shown}]`, error].filter((part) => part !== '').join(' ');
      };
      await Promise.all(COMMANDS.map(async (command, index) => {
        const words = command.split(' ');
        const expected = `${WORDS[cause.kind].client[index]}`;
        const alone = await call([...words, ...addressOf(target)], env);
        assert.equal(said(alone), expected, command);
        if (command !== 'status' && command !== 'pause') return;
        const named = await call([...words, target], env);
        assert.equal(said(named), expected.replace(/\[(.*)\] ERROR$/, '[$1: ERROR]'), command);
        const { code, stdout, stderr } = await call([...words, ...addressOf(target), '--json'], env);
        const { error = '' } = JSON.parse(stdout) as { error?: string };
        assert.ok(stderr.endsWith(error && `${error}\n`), stderr);
        assert.equal(code, alone.code, command);
      }));
    });
  });

  it('has the same words and codes in control-client over --via, except for other hosts', async (t) => {
    const via = ['--via', `x=env CONTROL_DIR=${makeFolder(t)}`, '--json'];
    const far = targets.map((target) => `x/${target.replace('unix:', '')}`);
    const env = { CONTROL_TOKEN_FILE: tokenFile };
    const byTarget = async (verb: string): Promise<string[]> => {
      const { code, stdout } = await call([verb, ...via, ...far], env);
      assert.equal(code, 5);
      const rows = linesOf(stdout).map((line) => JSON.parse(line));
      return far.map((target, index) => {
        const { status, error } = rows.find((row) => row.target === target);
        const near = error.replaceAll('x/unix:', 'x/').replaceAll(target, targets[index])
          .replace(/'\S+' is not localhost/, 'there is no such host');
        return [status, near].filter((text) => text !== undefined).join(': ');
      });
    };
    check(await byTarget('status'), ({ client }) => `${client[0]}`.slice(2).replace(/\[(.*)\]/, '$1:'));
    check(await byTarget('pause'), ({ client }) => `${client[2]}`.slice(2));
  });

  it('is reported by control-console in a pipe', async (t) => {
    const said = await each(all, async ({ target }) => {
      const input = 'status\npause\nshutdown\n';
      const { code, stdout, stderr } = await runProgram(t, 'console', addressOf(target), input, TOKEN_ENV);
      return [code, ...linesOf(stderr), ...linesOf(stdout)].join('; ');
    });
    check(said, ({ console = 'shutdown not sent: ERROR' }) => `1; ERROR; ${NOT_SENT}; ${console}`);
  });

  it('is reported by the tools of control-mcp', async (t) => {
    const { modern, end } = startMcp(t, targets, TOKEN_ENV);
    const ask = async (name: string, args: object): Promise<any> => {
      const { result } = await modern('tools/call', { name, arguments: args });
      return JSON.parse(result.content[0].text);
    };
    const reports = await each(all, async ({ target: system }) => {
      return [await ask('get_info', { system }), await ask('pause', { system, reason: 'lunch', seconds: 3 })];
    });
    const join = (...texts: unknown[]): string => texts.filter((text) => text !== undefined).join(': ');
    check(reports.map(([{ status, error }]) => join(status, error)), ({ status }) => status);
    const pauses = reports.map(([, { outcome, error }]) => join(outcome, error));
    check(pauses, ({ outcome, pause }) => `${outcome}: ${pause}`);
    await end();
  });

  it('is reported by the API of control-board', async (t) => {
    const board = await startBoard(t, targets, [], TOKEN_ENV);
    await untilSystems(board, (systems) => systems.every(({ status }) => status !== ''));
    for (const [id, cause] of all.entries()) { // it waits for 30 s before it says that there is no answer
      if (!isSlow(cause)) assert.equal((await board.post(`/api/systems/${id}/pause`)).status, 202);
    }
    const isDone = ({ id, sent }: Update): boolean => {
      return isSlow(all[id] as Broken) || sent.some(({ state }) => state === 'failed');
    };
    const systems = await untilSystems(board, (shown) => shown.every(isDone));
    check(systems.map(({ status, error }) => error === '' ? status : `${status}: ${error}`), ({ status }) => {
      return status.replace('no answer: ERROR', 'no answer'); // the page shows for how long
    });
    check(systems.map(({ sent }) => `${sent[0]?.text ?? ''}`), ({ pause }, cause) => isSlow(cause) ? '' : pause);
  });

  it('is reported by control-kbctl for a key press', async (t) => {
    const kinds = new Set<Kind>();
    const isFirst = ({ kind }: Broken): boolean => !kinds.has(kind) && kinds.add(kind).has(kind);
    const some = all.filter(isFirst); // one of each kind
    const lines = await each(some, async ({ target }) => {
      const { say, shows, output } = startHelped(t, addressOf(target), { env: TOKEN_ENV });
      say(READY);
      await shows(/^press Ctrl-C to quit/m);
      say('hit 0');
      await shows(/^pause … (.*\n)*(pause … )?(offline|refused|not sent|sent, ).+\n/m);
      const last = output().split('pause … ').at(-1) ?? '';
      const [line = ''] = /(offline|refused|not sent|sent,)[:, ].+$/m.exec(last) ?? [];
      return line;
    });
    const shown = lines.map((line, index) => `${some[index]?.kind}: ${shape(line, some[index] as Broken)}`);
    assert.deepEqual(shown, some.map(({ kind }) => `${kind}: ${WORDS[kind].key}`));
  });
});

it('control-client asks for the address of an unknown host every two seconds at most', LIMIT, async (t) => {
  const { output, shows } = startProgram(t, 'client', ['wait', 'active', '--host', 'box'], preload(`
    import dns from 'node:dns';
    dns.lookup = (name, options, done) => {
      console.log('asked at', performance.now());
      done(Object.assign(new Error('getaddrinfo ENOTFOUND box'), { code: 'ENOTFOUND' }));
    };
  `));
  await shows(/(asked at [^]*){2}\n/);
  const [first = 0, second = 0] = [...output().matchAll(/asked at (.+)/g)].map(([, time]) => Number(time));
  assert.ok(second - first >= 1990, `${second - first} ms`);
});
