// The link: why it cannot be opened, how it ends and is opened again, and what is left of it.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { foldersOf } from '../../../shared/via.ts';
import { defer, makeFolder, preload, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { linesOf, makeFile, onTerminal } from '../client/helpers.ts';
import { openSession, startWeb } from '../client/systems.ts';
import { linesIn, processesWith, quote, reach, via, viaShell } from './helpers.ts';

const HINT = '; it needs Node 20.19 or newer there, in the PATH of such commands';
const SSH_HINT = ": --via 'LABEL=ssh HOST PATH=/DIRECTORY/OF/NODE:$PATH'";
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
  ['finds no node', 'PATH=/nowhere; "$@"', /^sh ended with exit code 127: .*node: .*not found; it needs Node 20\.19 /],
  ['finds no node through env', 'exec env PATH=/nowhere "$@"',
    /^sh ended with exit code 127: env: .*node.*: No such file or directory; it needs Node 20\.19 /],
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

describe('a link', { ...LIMIT, concurrency: 4, skip: lacks('Unix') }, () => {
  for (const [what, script, reason] of FAILURES) {
    it(`reports a command that ${what}`, async (t) => {
      const { code, stdout, stderr } = await reach(t, [viaShell('m', script)], ['list']);
      assert.deepEqual([code, stdout], [5, '']);
      const [, found = ''] = /^control-client: m: (.*)\n$/.exec(stderr) ?? [];
      if (typeof reason === 'string') assert.equal(found, reason);
      else assert.match(found, reason);
    });
  }

  it('says to a user of ssh where to put the folder of node', async (t) => {
    const folder = makeFolder(t);
    const script = '#!/bin/sh\necho "bash: line 1: node: command not found" >&2\nexit 127\n';
    writeFileSync(join(folder, 'ssh'), script, { mode: 0o755 });
    const env = { PATH: `${folder}:${process.env['PATH']}` };
    const { code, stderr } = await reach(t, ['gpu1'], ['list'], env);
    const error = `ssh ended with exit code 127: bash: line 1: node: command not found${HINT}${SSH_HINT}`;
    assert.deepEqual([code, stderr], [5, `control-client: gpu1: ${error}\n`]);
  });

  it('reports a terminal in between', { skip: lacks('script') }, async (t) => {
    const { code, stderr } = await reach(t, [viaShell('m', 'exec script -qec "$*" /dev/null')], ['list']);
    assert.deepEqual([code, stderr], [5, `control-client: m: ${TERMINAL}\n`]);
  });

  it('waits 30 s for the far end, and 120 s on a terminal', { skip: lacks('script') }, async (t) => {
    const hasted = preload(`
      const { setTimeout } = globalThis;
      globalThis.setTimeout = (run, ms, ...rest) => setTimeout(run, ms >= 5000 ? ms / 50 : ms, ...rest);
    `);
    for (const script of ['exec sleep 60', "printf '\\ncontrol-dial 1\\n'; exec sleep 60"]) {
      const target = `m=sh ${makeFile(t, script)}`;
      const { code, stderr } = await reach(t, [target], ['list'], hasted);
      assert.deepEqual([code, stderr], [5, 'control-client: m: no answer within 30 s\n']);
      const asks = makeFile(t, `${DENIED_WITHOUT_TERMINAL}\n${script}`);
      const shown = onTerminal(t, ['--via', `m=sh ${asks}`, 'list'], hasted);
      assert.equal((await shown.ended).code, 5);
      assert.match(shown.output(), /client: m: no answer within 120 s\r\n/);
    }
  });

  it('waits for the command before a request to an address, too', async (t) => {
    const { port } = await startWeb(t);
    const target = `m=sh ${makeFile(t, 'sleep 6; exec "$@"')}`; // longer than a request may take
    for (const words of [[`m/:${port}`], [`:${port}`], ['--port', `${port}`]]) {
      const ended = await reach(t, [target], ['status', ...words]);
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
    const requirements = { skip: lacks('Linux') };
    it(`that ends with ${signal} makes no system offline`, requirements, async (t) => {
      const session = openSession(t);
      const pausing = defer();
      const { client } = await session.launch('train', { onPaused: () => pausing.promise });
      t.after(() => pausing.resolve());
      const { requests } = await session.serve('eval-6');
      const pids = join(makeFolder(t), 'pids');
      const enter = `echo $$ >>${pids}; CONTROL_DIR=${session.env.CONTROL_DIR}`;
      const target = viaShell('m', signal === 'SIGKILL' ? `${enter} "$@"; exit` : `${enter} exec "$@"`);
      const run = (...args: string[]) => startProgram(t, 'client', ['--via', target, ...args]);
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

  it('is opened again after 1, 2 and 4 s, and shows no answer until then', async (t) => {
    const session = openSession(t);
    await session.launch('train');
    const starts = join(makeFolder(t), 'starts');
    const script = `
      echo $$ $(date +%s%N) >>${starts}
      case $(wc -l <${starts}) in
        2|3) echo "ssh: connect to host gpu1 port 22: No route to host" >&2; exit 255;;
      esac
      CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
    const { shows, output } = startProgram(t, 'client', ['--via', viaShell('m', script), 'watch', 'train']);
    await shows(/  active\n/);
    const [pid = ''] = await linesIn(starts);
    process.kill(parseInt(pid), 'SIGKILL');
    const killedAt = Date.now();
    const reason = /sh was killed by SIGKILL|sh ended with exit code 255: ssh: .* No route to host/;
    await shows(new RegExp(`  no answer: (${reason.source})\n[^]*  active\n`));
    assert.doesNotMatch(output(), /offline/);
    const times = (await linesIn(starts, 4)).map((line) => Number(line.split(' ')[1]) / 1e6);
    const pauses = times.map((time, index) => time - (index <= 1 ? killedAt : times[index - 1]!)).slice(1);
    [1000, 2000, 4000].forEach((least, index) => assert.ok(pauses[index]! > least - 50, `${pauses}`));
  });

  it('is not opened again after Permission denied', async (t) => {
    const session = openSession(t);
    await session.launch('train');
    const starts = join(makeFolder(t), 'starts');
    const script = `
      echo $$ >>${starts}
      if [ $(wc -l <${starts}) -gt 1 ]; then echo "ana@gpu1: Permission denied (publickey)." >&2; exit 255; fi
      CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
    const { shows } = startProgram(t, 'client', ['--via', viaShell('m', script), 'watch', 'train']);
    await shows(/  active\n/);
    process.kill(Number((await linesIn(starts))[0]), 'SIGKILL');
    await shows(/  no answer: /);
    await linesIn(starts, 2);
    await sleep(5000); // the next attempts would come after 1 and 2 s
    assert.equal((await linesIn(starts)).length, 2);
  });

  const starts = {
    'the command': 'exec "$@"', 'a shell around it': '"$@"; exit',
    'a shell that ignores SIGTERM': 'trap "" TERM; "$@"; exit',
  };
  for (const [what, script] of Object.entries(starts)) {
    for (const end of ['exit', 'SIGINT', 'SIGTERM', 'SIGHUP', 'SIGKILL'] as const) {
      it(`leaves nothing of ${what} behind after ${end}`, { skip: lacks('Linux') }, async (t) => {
        const session = openSession(t);
        await session.serve('train-7');
        const target = via('m', session, `sh -c ${quote(script)} sh`);
        const left = (): number[] => processesWith(`CONTROL_DIR=${session.env.CONTROL_DIR}`);
        if (end === 'exit') {
          assert.equal((await reach(t, [target], ['list'])).code, 0);
        } else {
          const { child, shows, ended } = startProgram(t, 'client', ['--via', target, 'watch', '--all']);
          await shows(/  active\n/);
          assert.equal(left().length, what === 'the command' ? 1 : 2);
          child.kill(end);
          await ended;
          assert.equal(child.signalCode, end);
        }
        await until(() => left().length === 0, () => `left: ${left()}`);
      });
    }
  }

  for (const end of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    it(`leaves no command behind after ${end} that does not read its input`, { skip: lacks('Linux') }, async (t) => {
      const session = openSession(t);
      const left = (): number[] => processesWith(`CONTROL_DIR=${session.env.CONTROL_DIR}`);
      const target = via('m', session, "sh -c 'exec sleep 200'");
      const { child, ended } = startProgram(t, 'client', ['--via', target, 'list']);
      await until(() => left().length === 1);
      t.after(() => left().forEach((pid) => process.kill(pid, 'SIGKILL')));
      child.kill(end);
      await ended;
      assert.equal(child.signalCode, end);
      await until(() => left().length === 0, () => `left: ${left()}`);
    });
  }

  it('leaves nothing behind that is stopped', { skip: lacks('Linux') }, async (t) => {
    const session = openSession(t);
    const left = (): number[] => processesWith(`CONTROL_DIR=${session.env.CONTROL_DIR}`);
    await session.serve('train-7', () => {
      for (const pid of left()) process.kill(pid, 'SIGSTOP');
      return { status: 'active' };
    });
    const { code } = await reach(t, [via('m', session, `sh -c '"$@"; exit' sh`)], ['status', '--all']);
    assert.equal(code, 5);
    await until(() => left().length === 0, () => `left: ${left()}`);
  });

  it('carries the requests to 100 systems, each once', async (t) => {
    const session = openSession(t);
    const webs = await Promise.all(Array.from({ length: 100 }, (_, index) => session.serve(`train-${index + 1}`)));
    const starts = join(makeFolder(t), 'starts');
    const target = viaShell('m', `echo $$ >>${starts}; CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`);
    for (const [args, request] of [
      [['list'], 'GET /api/info'], [['pause', '--all'], 'POST /api/pause'], [['status', 'train'], 'GET /api/status'],
    ] as const) {
      const { code, stdout, stderr } = await reach(t, [target], args);
      assert.deepEqual([code, linesOf(stdout).length, stderr], [0, 100, ''], `${args}`);
      for (const { requests } of webs) assert.deepEqual(requests.splice(0), [request]);
    }
    assert.equal((await linesIn(starts)).length, 3);
  });

  it('delivers a command once if it succeeds, at most once if it was sent, and never if not', async (t) => {
    const session = openSession(t);
    const pids = join(makeFolder(t), 'pids');
    const [delivered, ends] = [[] as string[], new Set([3, 4, 9, 22, 23, 40, 71, 100, 101])];
    await session.serve('train-7', async ({ url }) => {
      const number = new URL(`${url}`, 'http://x').searchParams.get('reason') ?? '';
      delivered.push(number);
      if (ends.has(delivered.length)) process.kill(Number((await linesIn(pids)).at(-1)), 'SIGKILL');
      return { status: 'active', result: 'ok' };
    });
    const script = `echo $$ >>${pids}; CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
    const [folder] = foldersOf({ via: [viaShell('flood', script)] });
    const [system] = await folder!.systems({ timeoutMs: 60_000 });
    const outcomes: Record<string, string[]> = { ok: [], connect: [], sent: [] };
    let number = 0;
    await Promise.all(Array.from({ length: 4 }, async () => {
      while (delivered.length < 110) {
        const reason = `${number += 1}`;
        const reply = await system!.client.request('pause', { reason });
        await sleep(1); // without a link, it fails at once, in this turn of the event loop
        outcomes[reply.ok ? 'ok' : reply.phase]?.push(reason);
        if (!reply.ok) assert.match(reply.error, reply.phase === 'connect' ? /^pause not sent: / : /^pause sent, /);
      }
    }));
    const { ok = [], connect = [], sent = [] } = outcomes;
    assert.equal(new Set(delivered).size, delivered.length);
    assert.equal(ok.length + connect.length + sent.length, number);
    assert.deepEqual(ok.filter((reason) => !delivered.includes(reason)), []);
    assert.deepEqual(connect.filter((reason) => delivered.includes(reason)), []);
    assert.ok(sent.length > 0);
  });
});
