// The link: why it cannot be opened, how it ends and is opened again, and what is left of it.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { defer, makeFolder, preload, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startWeb } from '../../puppet.ts';
import { LIMIT, until } from '../../wait.ts';
import { call, linesOf, makeFile, onTerminal } from '../client/helpers.ts';
import { openSession } from '../client/systems.ts';
import { callVia, linesIn, optionsOf, processesWith, quote, reach, via, viaShell } from './helpers.ts';
import type { Running } from '../../helpers.ts';

const HINT = '; it needs Node 20.19 or newer there, in the PATH of such commands';
const TERMINAL = 'there is a terminal in between: remove the option -t';
const INPUT = '; it must pass standard input on: docker and kubectl need exec -i';

/** A line of a script. */
const DENIED_WITHOUT_TERMINAL = '( : </dev/tty ) 2>/dev/null || { echo "Permission denied" >&2; exit 255; }';

/** Scripts, and why the machine cannot be reached. */
const FAILURES: readonly [what: string, script: string, reason: string | RegExp][] = [
  ['ends with an error', "echo a debug message; printf 'one\\n\\ntwo \\033[31m\\r\\n' >&2; exit 255",
    'sh ended with exit code 255: two  [31m'],
  ['ends without a word', 'exit 7', 'sh ended with exit code 7'],
  ['says a lot', 'head -c 100000 /dev/zero | tr "\\0" x >&2; exit 1',
    `sh ended with exit code 1: ${'x'.repeat(200)}…`],
  ['is killed', 'kill -9 $$', 'sh was killed by SIGKILL'],
  ['finds no node', 'PATH=/nowhere; "$@"', /: sh ended with exit code 127: .*node: .*not found; it needs Node 20\.19 /],
  ['finds no node through env', 'exec env PATH=/nowhere "$@"',
    /: sh ended with exit code 127: env: .*node.*: No such file or directory; it needs Node 20\.19 /],
  ['finds a node of docker', 'echo \'exec: "node": executable file not found in $PATH: unknown\' >&2; exit 126',
    `sh ended with exit code 126: exec: "node": executable file not found in $PATH: unknown${HINT}`],
  ['says so on standard output', 'echo "first"; echo \'exec: "node": executable file not found\'; exit 126',
    `sh ended with exit code 126: exec: "node": executable file not found${HINT}`],
  ['finds an old node', 'echo "node: bad option: --import" >&2; exit 9',
    `sh ended with exit code 9: node: bad option: --import${HINT}`],
  ['finds a node that lacks something', `
    exec env NODE_OPTIONS="--import=data:text/javascript,delete%20process.getBuiltinModule" "$@"`,
  `sh ended with exit code 1: Node.js ${process.version}${HINT}`],
  ['passes no input on', '"$@" </dev/null', `sh ended with exit code 0${INPUT}`],
  ['ends at once', 'exit 0', `sh ended with exit code 0${INPUT}`],
  ['passes no input on, and says so', 'echo Bye >&2', `sh ended with exit code 0: Bye${INPUT}`],
  ['wants a terminal', 'echo "the input device is not a TTY" >&2; exit 1', `sh ended with exit code 1: ${TERMINAL}`],
  ['ends lines as a terminal does', "printf '\\ncontrol-dial 1\\r\\n'; exec sleep 60", TERMINAL],
  ['ends after the hello', "printf '\\ncontrol-dial 1\\n'; echo oh >&2; exit 3", 'sh ended with exit code 3: oh'],
  ['is denied', "echo 'ana@gpu1: Permission denied (publickey).' >&2; exit 255",
    'sh ended with exit code 255: ana@gpu1: Permission denied (publickey).'],
];

describe('a link', { ...LIMIT, concurrency: 2, skip: lacks('Unix') }, () => {
  it('reports why its command has failed', async () => {
    const inBetween = lacks('script') === false
      ? [['has a terminal in between', 'exec script -qec "$*" /dev/null', TERMINAL] as const] : [];
    const all = [...FAILURES, ...inBetween];
    const ended = await callVia(all.map(([, script], index) => viaShell(`m${index}`, script)), ['list']);
    assert.deepEqual([ended.code, ended.stdout], [5, '']);
    const reasons = new Map(linesOf(ended.stderr).map((line) => {
      const [, label = '', reason = ''] = /^control-client: (m\d+): (.*)$/.exec(line) ?? [];
      return [label, reason];
    }));
    for (const [index, [what, , reason]] of all.entries()) {
      const found = `${what}: ${reasons.get(`m${index}`)}`;
      if (typeof reason === 'string') assert.equal(found, `${what}: ${reason}`);
      else assert.match(found, reason);
    }
  });

  it('waits 30 s for the far end, and 120 s on a terminal', { skip: lacks('script') }, async (t) => {
    const hasted = preload(`
      const { setTimeout } = globalThis;
      globalThis.setTimeout = (run, ms, ...rest) => setTimeout(run, ms >= 5000 ? ms / 50 : ms, ...rest);
    `);
    const scripts = ['exec sleep 60', "printf '\\ncontrol-dial 1\\n'; exec sleep 60"];
    const vias = scripts.map((script, index) => `m${index}=sh ${makeFile(t, script)}`);
    const { code, stderr } = await reach(t, vias, ['list'], hasted);
    const lines = vias.map((_, index) => `control-client: m${index}: no answer within 30 s`);
    assert.deepEqual([code, linesOf(stderr)], [5, lines]);
    const asks = makeFile(t, `${DENIED_WITHOUT_TERMINAL}\n${scripts[1]}`);
    const shown = onTerminal(t, ['--via', `m=sh ${asks}`, 'list'], hasted);
    assert.equal((await shown.ended).code, 5);
    assert.match(shown.output(), /client: m: no answer within 120 s\r\n/);
  });

  it('waits for the command before a request to an address, too', async (t) => {
    const { port } = await startWeb(t);
    const target = `m=sh ${makeFile(t, 'sleep 6; exec "$@"')}`; // longer than a request may take
    for (const words of [[`m/:${port}`], [`:${port}`], ['--port', `${port}`]]) {
      const ended = await callVia([target], ['status', ...words]);
      const title = words.length > 1 ? `m/localhost:${port}` : `m/:${port}`;
      assert.deepEqual(ended, { code: 0, stdout: `${title}  active\n`, stderr: '' });
    }
  });

  it('lets a command ask on the terminal once, if it is denied without it', { skip: lacks('script') }, async (t) => {
    const session = openSession(t);
    await session.serve('train-7');
    const folder = makeFolder(t);
    const [words, pids] = [join(folder, 'words'), join(folder, 'pids')];
    const script = makeFile(t, `
      echo $$ >>${pids}
      ${DENIED_WITHOUT_TERMINAL.replace('{', `{ echo none >>${words};`)}
      printf "Password: " >/dev/tty
      read -r word </dev/tty
      echo "typed $word" >>${words}
      CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`);
    const { child, shows } = onTerminal(t, ['--via', `m=sh ${script}`, 'watch', 'm/train']);
    await shows(/Password: /);
    child.stdin?.write('secret\n');
    await shows(/m\/train  active/);
    const [, pid] = await linesIn(pids, 2);
    process.kill(Number(pid), 'SIGKILL');
    assert.deepEqual(await linesIn(words, 3), ['none', 'typed secret', 'none']);
  });

  for (const signal of ['SIGKILL', 'SIGSTOP'] as const) {
    it(`that ends with ${signal} makes no system offline`, { skip: lacks('Linux') }, async (t) => {
      const session = openSession(t);
      const pausing = defer();
      const { client } = await session.launch('train', { onPaused: () => pausing.promise });
      t.after(() => pausing.resolve());
      const { requests } = await session.serve('eval-6');
      const pids = join(makeFolder(t), 'pids');
      const enter = `echo $$ >>${pids}; CONTROL_DIR=${session.env.CONTROL_DIR}`;
      const target = viaShell('m', signal === 'SIGKILL' ? `${enter} "$@"; exit` : `${enter} exec "$@"`);
      const hasted = preload(`
        const { setInterval } = globalThis; // of its pings
        globalThis.setInterval = (run, ms, ...rest) => setInterval(run, ms === 10_000 ? 5000 : ms, ...rest);
      `);
      const run = (...args: string[]): Running => startProgram(t, 'client', ['--via', target, ...args], hasted);
      const watch = run('watch', 'train', '--exec', 'echo "ran $CONTROL_STATUS"', '--on', 'offline');
      const wait = run('wait', 'offline', 'train', 'eval', '--timeout', '200');
      await until(() => requests.length > 0); // its link is open
      const pause = run('pause', '--wait', 'train', '--timeout', '200');
      await watch.shows(/  pausing by /);
      for (const pid of await linesIn(pids, 3)) process.kill(Number(pid), signal);
      const { code, stderr } = await pause.ended;
      const how = signal === 'SIGKILL' ? 'sh was killed by SIGKILL' : 'no answer within 20 s';
      assert.equal(code, 5);
      assert.ok(stderr.includes(`pause sent, but no response (${how}): it may still take effect\n`), stderr);
      if (signal === 'SIGSTOP') await watch.shows(/  no answer: .*\n(.*\n)*.*  pausing by /);
      await linesIn(pids, 5); // the others are back
      pausing.resolve();
      await watch.shows(/  paused by /);
      assert.doesNotMatch(watch.output(), /offline/);
      assert.equal(wait.output(), '');
      await client.shutdown();
      await wait.shows(/^m\/train +offline\n/);
      await watch.shows(/^ran offline\n/m);
    });
  }

  it('is opened again after 1, 2 and 4 s, but not if a person is needed, and shows no answer until then', async (t) => {
    const session = openSession(t);
    await session.launch('train');
    const folder = makeFolder(t);
    const [lost, denied] = ['lost', 'denied'].map((name) => join(folder, name)) as [string, string];
    const scriptFor = (starts: string, from: number, to: number, error: string): string => `
      echo $$ $(date +%s%N) >>${starts}
      count=$(wc -l <${starts})
      if [ $count -ge ${from} ] && [ $count -le ${to} ]; then echo "${error}" >&2; exit 255; fi
      CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
    const vias = [
      viaShell('lost', scriptFor(lost, 2, 3, 'ssh: connect to host gpu1 port 22: No route to host')),
      viaShell('denied', scriptFor(denied, 2, 9, 'ana@gpu1: Permission denied (publickey).')),
    ];
    const { shows, output } = startProgram(t, 'client', [...optionsOf(vias), 'watch', 'train']);
    const pids = await Promise.all([lost, denied].map(async (starts, index) => {
      await shows([/lost\/train +active\n/, /denied\/train +active\n/][index]!);
      return parseInt((await linesIn(starts))[0]!);
    }));
    for (const pid of pids) process.kill(pid, 'SIGKILL');
    const killedAt = Date.now();
    const reason = /sh was killed by SIGKILL|sh ended with exit code 255: ssh: .* No route to host/;
    await shows(new RegExp(`lost/train +no answer: (${reason.source})\n[^]*lost/train +active\n`));
    await shows(/denied\/train +no answer: /);
    assert.doesNotMatch(output(), /offline/);
    const times = (await linesIn(lost, 4)).map((line) => Number(line.split(' ')[1]) / 1e6);
    const pauses = times.map((time, index) => time - (index <= 1 ? killedAt : times[index - 1]!)).slice(1);
    [1000, 2000, 4000].forEach((least, index) => assert.ok(pauses[index]! > least - 50, `${pauses}`));
    assert.equal((await linesIn(denied)).length, 2);
  });

  it('says to wait why its system does not answer any more', async (t) => {
    const session = openSession(t);
    const { requests } = await session.serve('train-7');
    const file = join(makeFolder(t), 'pid');
    const script = `[ -e ${file} ] && exit 7; echo $$ >${file}; CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
    const waiting = reach(t, [viaShell('m', script)], ['wait', 'paused', 'train', '--timeout', '12']);
    await until(() => requests.length > 1);
    process.kill(parseInt((await linesIn(file))[0]!), 'SIGKILL');
    const { code, stderr } = await waiting;
    assert.match(stderr, /: m\/train: not paused after \S+ s: sh (ended with exit code 7|was killed by SIGKILL)\n$/);
    assert.equal(code, 4);
  });

  const commands = {
    plain: 'exec "$@"', shell: '"$@"; exit', stubborn: 'trap "" TERM; "$@"; exit', deaf: 'exec sleep 200',
  };
  for (const [end, names] of [
    ['exit', ['plain', 'shell', 'stubborn']], ['SIGKILL', ['plain', 'shell', 'stubborn']],
    ['SIGTERM', ['plain', 'stubborn', 'deaf']], ['SIGINT', ['shell', 'deaf']], ['SIGHUP', ['shell', 'deaf']],
  ] as const) {
    it(`leaves nothing of any command behind after ${end}`, { skip: lacks('Linux') }, async (t) => {
      const session = openSession(t);
      const { requests } = await session.serve('train-7');
      const vias = names.map((name) => via(name, session, `sh -c ${quote(commands[name])} sh`));
      const left = (): number[] => processesWith(`CONTROL_DIR=${session.env.CONTROL_DIR}`);
      t.after(() => left().forEach((pid) => process.kill(pid, 'SIGKILL')));
      const live = names.filter((name) => name !== 'deaf');
      const words = end === 'exit' ? ['list'] : ['watch', ...live.map((name) => `${name}/train`)];
      const { child, ended, until: untilTrue } = startProgram(t, 'client', [...optionsOf(vias), ...words]);
      if (end !== 'exit') {
        await untilTrue(() => requests.length >= live.length);
        assert.ok(left().length >= names.length, `${left()}`);
        if (end === 'SIGHUP') for (const pid of left()) process.kill(pid, 'SIGSTOP');
        child.kill(end);
      }
      const { code } = await ended;
      assert.deepEqual([code, child.signalCode], end === 'exit' ? [0, null] : [null, end]);
      await until(() => left().length === 0, () => `left: ${left()}`);
    });
  }

  it('carries the requests to 100 systems, each once', async (t) => {
    const session = openSession(t);
    const webs = await Promise.all(Array.from({ length: 100 }, (_, index) => session.serve(`train-${index + 1}`)));
    for (const [args, request] of [
      [['list'], 'GET /api/info'], [['pause', '--all'], 'POST /api/pause'], [['status', 'train'], 'GET /api/status'],
    ] as const) {
      const { code, stdout, stderr } = await callVia([via('m', session)], args);
      assert.deepEqual([code, linesOf(stdout).length, stderr], [0, 100, ''], `${args}`);
      for (const { requests } of webs) assert.deepEqual(requests.splice(0), [request]);
    }
  });

});

describe('a link that is lost again and again', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('delivers a command once if it succeeds, at most once if it was sent, and never if not', async (t) => {
    const session = openSession(t);
    const pids = join(makeFolder(t), 'pids');
    const [delivered, ends] = [[] as string[], new Set([3, 4, 22, 40])];
    await session.serve('train-7', async ({ method, url }) => {
      if (method !== 'POST') return { status: 'active' };
      const number = new URL(`${url}`, 'http://x').searchParams.get('reason') ?? '';
      delivered.push(number);
      if (ends.has(delivered.length)) process.kill(Number((await linesIn(pids)).at(-1)), 'SIGKILL');
      return { status: 'active', result: 'ok' };
    });
    const script = `echo $$ >>${pids}; CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
    const options = ['--via', viaShell('flood', script)];
    const outcomes: Record<string, string[]> = { ok: [], 'not sent': [], sent: [] };
    let number = 0;
    await Promise.all(Array.from({ length: 4 }, async () => {
      while (delivered.length < 50) {
        const reason = `${number += 1}`;
        const { stdout, stderr } = await call([...options, 'pause', 'flood/train', '--reason', reason]);
        const phase = stdout !== '' ? 'ok' : stderr.includes('pause sent, but no response') ? 'sent' : 'not sent';
        outcomes[phase]?.push(reason);
        await sleep(1); // what is lost is refused at once, without a turn of the event loop in which it could come back
      }
    }));
    const { ok = [], 'not sent': never = [], sent = [] } = outcomes;
    assert.equal(new Set(delivered).size, delivered.length);
    assert.equal(ok.length + never.length + sent.length, number);
    assert.deepEqual(ok.filter((reason) => !delivered.includes(reason)), []);
    assert.deepEqual(never.filter((reason) => delivered.includes(reason)), []);
    assert.ok(sent.length > 0);
  });
});
