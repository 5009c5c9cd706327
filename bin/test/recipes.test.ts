// The files in bin/recipes: their syntax and options, and what the scripts do. `npm run engines` runs them.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  chownSync, lstatSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../control.ts';
import { makeFolder, runProgram, start, startServer } from './helpers.ts';
import { lacks, PYTHON } from './needs.ts';
import { openSession } from './tools/client/systems.ts';
import { until } from './wait.ts';
import type { Need } from './needs.ts';
import type { Parameter, WebApiClient } from '../../control.ts';
import type { Ended } from './helpers.ts';
import type { TestContext } from 'node:test';

const FOLDER = 'bin/recipes';

/** Commands that fail if a file has a syntax error. */
const SYNTAX: readonly (readonly [name: string, need: Need, ...command: string[]])[] = [
  ['trainer.sbatch', 'bash', 'bash', '-n'],
  ['compose.yaml', 'yaml', PYTHON, '-c', 'import sys, yaml; yaml.safe_load(open(sys.argv[1]))'],
  ['trainer.yaml', 'yaml', PYTHON, '-c', 'import sys, yaml; yaml.safe_load(open(sys.argv[1]))'],
  ['supervisord.conf', 'yaml', PYTHON, '-c', `
import configparser, sys
configparser.RawConfigParser(inline_comment_prefixes=(' ;', '\\t;')).read_file(open(sys.argv[1]))
`],
];
const UNIX = { skip: lacks('Unix') };
const NOT_INSTALLED = /: Command \S+ is not executable: No such file or directory$/;

describe('The recipes', () => {
  it('use commands and options that the tools have', async (t) => {
    const [client, demo, run] = await Promise.all([helpOf(t, 'client'), helpOf(t, 'demo'), helpOf(t, 'run')]);
    let count = 0;
    for (const name of [...readdirSync(FOLDER), '../run/stops.md']) {
      const text = readFileSync(join(FOLDER, name), 'utf8')
        .replaceAll(/[[\]",']|\\\n/g, ' ')
        .replaceAll(/--entrypoint control-client \S+/g, 'control-client'); // of docker run
      for (const [call, word = ''] of text.matchAll(/control-client +(?!is on )([a-z][a-z-]*)[^\n#&;|)`]*/g)) {
        assert.ok(new RegExp(`^  (.*, )?${word}\\b`, 'm').test(client), `${name}: ${call}`);
        count += checkOptions(name, call, client);
      }
      for (const [call] of text.matchAll(/control-run ([^#\n]*? )??-- /g)) count += checkOptions(name, call, run);
      for (const [call] of text.matchAll(/node +trainer\.mjs[^\n&)]*/g)) count += checkOptions(name, call, demo);
    }
    assert.ok(count > 20, `${count} options`);
  });

  for (const [name, need, command, ...args] of SYNTAX) {
    it(`${name} has no syntax error`, { skip: lacks(need) }, () => {
      const { status, stderr } = spawnSync(String(command), [...args, join(FOLDER, name)], { encoding: 'utf8' });
      assert.equal(status, 0, stderr);
    });
  }

  describe('parametersOf() in asks.md', () => {
    const page = readFileSync(join(FOLDER, 'asks.md'), 'utf8');
    const [, recipe = ''] = /```js\n((?:(?!```)[^])*const parametersOf[^]*?)```/.exec(page) ?? [];
    const parametersOf = new Function(`${recipe}; return parametersOf;`)() as (schema: object) => Record<string, Parameter>;
    const COLORS = [{ const: 'r', title: 'Red' }, { const: 'g', description: 'Green' }];

    it('keeps what a question can check, makes an enum of titled choices, and leaves out notes', async (t) => {
      const schema = {
        $schema: 'https://json-schema.org/draft/2020-12/schema', type: 'object', additionalProperties: false,
        required: ['one', 'any', 'level'], title: 'Settings',
        properties: {
          one: { type: 'string', title: 'Color', oneOf: COLORS },
          any: { type: 'integer', anyOf: [{ const: 1 }, { const: 2, title: 'Two' }], default: 1 },
          level: { type: 'number', description: 'of the water', minimum: 0, maximum: 5 },
          name: { type: 'string', enum: ['a', 'b'], enumNames: ['A', 'B'], default: 'a', examples: ['b'] },
          note: { type: 'string', maxLength: 9, default: '' },
        },
      };
      const { server, client } = await startServer(t);
      server.ask('Which?', { parameters: parametersOf(schema) }).catch(() => {});
      assert.deepEqual((await client.getInfo())?.asks?.[0]?.parameters, {
        one: { type: 'string', enum: ['r', 'g'] }, any: { type: 'integer', enum: [1, 2], default: 1 },
        level: { type: 'number', description: 'of the water', minimum: 0, maximum: 5 },
        name: { type: 'string', enum: ['a', 'b'], default: 'a' }, note: { type: 'string', maxLength: 9, default: '' },
      });
    });

    const rows: [title: string, property: unknown, more?: object][] = [
      ...['exclusiveMinimum', 'exclusiveMaximum', 'multipleOf', 'minLength', 'pattern', 'const', 'format', 'not', '$ref',
        'allOf', 'x-unknown'].map((key): [string, object] => [key, { type: 'string', [key]: 1 }]),
      ['two lists of choices', { type: 'string', oneOf: COLORS, anyOf: COLORS }],
      ['choices beside an enum', { type: 'string', oneOf: COLORS, enum: ['r'] }],
      ['choices that are no constants', { anyOf: [{ type: 'string' }, { type: 'null' }] }],
      ['choices with a pattern', { type: 'string', oneOf: [{ const: 'r', pattern: 'g' }] }],
      ['a choice without a value', { type: 'string', oneOf: [{ title: 'Red' }] }],
      ['choices of another type', { type: 'string', oneOf: [{ const: 7 }] }],
      ['lists', { type: 'array', items: { type: 'string' } }],
      ['nested objects', { type: 'object', properties: {} }],
      ['a schema that is no object', true],
      ['a rule about all properties', { type: 'string' }, { minProperties: 2 }],
    ];
    it('refuses what may exclude an answer that the question would take', async (t) => {
      const { server } = await startServer(t);
      for (const [title, property, more] of rows) {
        const schema = { type: 'object', properties: { color: property }, ...more };
        assert.throws(() => void server.ask('Which?', { parameters: parametersOf(schema) }).catch(() => {}), title);
      }
    });
  });

  it('trainer.sbatch refuses a folder that another user may have created', { skip: lacks('bash') }, (t) => {
    const root = makeFolder(t);
    const script = readFileSync(join(FOLDER, 'trainer.sbatch'), 'utf8').replaceAll('/tmp/', `${root}/`);
    writeFileSync(join(root, 'node'), '#!/bin/sh\necho started', { mode: 0o755 });
    const prepare: [jobId: number, how: (folder: string) => void, isStarted: boolean][] = [
      [1, () => {}, true],
      [2, (folder) => mkdirSync(folder, 0o700), true], // from an earlier run or another task
      [3, (folder) => symlinkSync(mkdtempSync(join(root, 'own-')), folder), false],
      [4, (folder) => mkdirSync(folder, 0o755), false],
      [5, (folder) => writeFileSync(folder, '', { mode: 0o700 }), false],
    ];
    if (process.geteuid?.() === 0) {
      prepare.push([6, (folder) => { mkdirSync(folder, 0o700); chownSync(folder, 65534, 65534); }, false]);
    }
    for (const [jobId, how, isStarted] of prepare) {
      const folder = join(root, `trainer-${jobId}`);
      how(folder);
      const env = { PATH: `${root}:${process.env['PATH']}`, SLURM_JOB_ID: `${jobId}` };
      const { status, stdout, stderr } = spawnSync('bash', ['--norc', '-c', script], { encoding: 'utf8', env });
      const rule = `must be a folder of user ${process.geteuid?.()} with mode 700, not a link`;
      const refused = [1, '', `trainer.sbatch: ${folder} ${rule}\n`];
      assert.deepEqual([status, stdout, stderr], isStarted ? [0, 'started\n', ''] : refused);
      if (isStarted) assert.equal(lstatSync(folder).mode & 0o7777, 0o700);
    }
  });

  it('for systemd have only keys that it knows, and a timer for weekdays', { skip: lacks('systemd-analyze') }, () => {
    const units = ['trainer.service', 'office-hours.service', 'office-hours.timer'].map((name) => join(FOLDER, name));
    const { stderr } = spawnSync('systemd-analyze', ['verify', ...units], { encoding: 'utf8' });
    const lines = stderr.split('\n').filter((line) => line !== '' && !NOT_INSTALLED.test(line));
    assert.deepEqual(lines, []); // it exits with 0 even if it ignores a key
    const [, time = ''] = /^OnCalendar=(.*)$/m.exec(readFileSync(join(FOLDER, 'office-hours.timer'), 'utf8')) ?? [];
    const { stdout } = spawnSync('systemd-analyze', ['calendar', time], { encoding: 'utf8' });
    assert.match(stdout, /^Normalized form: Mon\.\.Fri \*-\*-\* 08:00:00$/m);
  });

  it('office-hours.cron pauses at 8:00 until 18:00, for nobody but itself', UNIX, async (t) => {
    const { session, path, ana } = await startTwo(t);
    const pause = cronIn(t, session, path);
    assert.deepEqual(await pause(), { code: 0, stdout: '', stderr: '' });
    await ana.waitFor(SystemStatus.PAUSED);
    const { by, reason, holds: [hold] = [] } = await ana.getInfo() ?? assert.fail();
    const end = new Date(hold?.until ?? '');
    assert.deepEqual([by, reason, end.getHours(), end.getMinutes()], ['office-hours', 'office hours', 18, 0]);
    assert.ok(end > new Date() && end.getTime() < Date.now() + 86_400_000, `${end}`);
    const resume = (): Promise<unknown> => ana.request('resume', { by: 'office-hours', mine: true, wait: 30 });
    await resume();
    const use = standInForGpu(makeFolder(t), path);
    const areHeldBy = (...holders: string[]): Promise<void> => until(async () => {
      const { holds = [] } = await ana.getInfo() ?? assert.fail();
      return holds.map(({ by }) => by).join() === holders.join();
    });
    use();
    const env = { CONTROL_DIR: session, PATH: `${path}:${process.env['PATH']}` };
    start(t, 'sh', [join(FOLDER, 'yield-gpu.sh')], env);
    await pause();
    use('102, 9000');
    await areHeldBy('office-hours', 'yield-gpu');
    await resume();
    await areHeldBy('yield-gpu');
    await pause();
    await areHeldBy('yield-gpu', 'office-hours');
    use();
    await areHeldBy('office-hours');
    assert.equal(await ana.getStatus(), SystemStatus.PAUSED);
    await resume();
    assert.equal(await ana.getStatus(), SystemStatus.ACTIVE);
  });

  it('yield-gpu.sh pauses while another user computes on the GPU, and keeps the pause of a person', UNIX, async (t) => {
    const { session, path, ana, ben } = await startTwo(t);
    const folder = makeFolder(t);
    const use = standInForGpu(folder, path);
    const asked = (): number => readFileSync(join(folder, 'asked'), 'utf8').split('\n').length - 1;
    const looks = async (count: number): Promise<void> => { // the one before the last has taken effect
      const before = asked();
      await until(() => asked() > before + count);
    };
    const becomes = async (status: SystemStatus): Promise<void> => {
      for (const client of [ana, ben]) await client.waitFor(status, { timeout: 60_000 });
    };
    writeFileSync(join(folder, 'asked'), '');
    use('300, 9000', '201, 9000', '100, 499'); // ours, one that has ended, and a small one
    const env = { CONTROL_DIR: session, PATH: `${path}:${process.env['PATH']}` };
    const { child, output, shows, ended } = start(t, 'sh', [join(FOLDER, 'yield-gpu.sh')], env);
    await looks(3);
    assert.equal(output(), '');
    use('300, 9000', '100, 499', '101, [N/A]', '102, 9000');
    await becomes(SystemStatus.PAUSED);
    const { by, reason } = await ana.getInfo() ?? assert.fail();
    assert.deepEqual([by, reason], ['yield-gpu', 'ben computes on the GPU (process 101, [N/A] MiB)']);
    rmSync(join(folder, 'apps')); // the driver does not respond
    await looks(9);
    assert.equal(await ana.getStatus(), SystemStatus.PAUSED);
    await ben.request('pause', { by: 'ben', reason: 'lunch', wait: 30 });
    use();
    await shows(/released; still paused by ben: lunch/);
    await ana.waitFor(SystemStatus.ACTIVE);
    await looks(9);
    assert.equal(output().match(/lunch/g)?.length, 1); // it does not retry
    assert.equal(await ben.getStatus(), SystemStatus.PAUSED);
    await ben.request('resume', { by: 'ben', wait: 30 });
    use('102, 500');
    await becomes(SystemStatus.PAUSED);
    child.kill('SIGTERM');
    assert.equal((await ended).code, 143);
    await becomes(SystemStatus.ACTIVE);
    const commands = (await ana.getInfo())?.commands.map(({ command }) => command);
    assert.deepEqual(commands, ['pause', 'resume', 'pause', 'resume']);
    const question = /^--query-compute-apps=pid,used_memory --format=csv,noheader,nounits\n/;
    assert.match(readFileSync(join(folder, 'asked'), 'utf8'), question);
  });

  it('yield-gpu.sh pauses again after a resume that not all systems have acknowledged', UNIX, async (t) => {
    const [folder, path] = [makeFolder(t), makeFolder(t)];
    const use = standInForGpu(folder, path);
    const client = `echo $1 >>${folder}/sent; [ $1 = pause ] || exit 5`;
    writeFileSync(join(path, 'control-client'), `#!/bin/sh\n${client}\n`, { mode: 0o755 });
    const hasSent = (pattern: RegExp): Promise<void> => {
      return until(() => pattern.test(readFileSync(join(folder, 'sent'), 'utf8')));
    };
    writeFileSync(join(folder, 'sent'), '');
    use('102, 9000');
    const { child, ended } = start(t, 'sh', [join(FOLDER, 'yield-gpu.sh')], { PATH: `${path}:${process.env['PATH']}` });
    await hasSent(/^pause\n$/);
    use();
    await hasSent(/^pause\nresume\nresume\n/); // it retries
    use('102, 9000');
    await hasSent(/resume\npause\n$/);
    child.kill('SIGTERM');
    assert.equal((await ended).code, 143);
    await hasSent(/pause\nresume\n$/);
  });
});

/** Starts two systems in the folder of a session, and makes a folder for the PATH with control-client. */
async function startTwo(
  t: TestContext,
): Promise<{ session: string; path: string; ana: WebApiClient; ben: WebApiClient }> {
  const { env, launch } = openSession(t);
  const path = makeFolder(t);
  const client = `#!/bin/sh\nexec '${process.execPath}' '${resolve('dist/bin/client.js')}' "$@"\n`;
  writeFileSync(join(path, 'control-client'), client, { mode: 0o755 });
  const [{ client: ana }, { client: ben }] = [await launch('ana'), await launch('ben')];
  return { session: env.CONTROL_DIR, path, ana, ben };
}

/** The line of office-hours.cron, with the environment of cron. */
function cronIn(t: TestContext, session: string, path: string): () => Promise<Ended> {
  const [environment, lines] = [{} as Record<string, string>, [] as string[]];
  for (const line of linesOf('office-hours.cron').filter((line) => !line.startsWith('#'))) {
    const [, name, value = ''] = /^(\w+)=(.*)$/.exec(line) ?? [];
    if (name === undefined) lines.push(line);
    else environment[name] = value;
  }
  const [line = '', ...others] = lines;
  const times = '0 8 * * 1-5 ';
  assert.ok(line.startsWith(times) && others.length === 0, lines.join('\n'));
  const env = { ...environment, CONTROL_DIR: session, PATH: `${path}:${environment['PATH']}` }; // nothing else
  const given = Object.entries(env).map((pair) => pair.join('='));
  return () => start(t, 'env', ['-i', ...given, 'sh', '-c', line.slice(times.length)]).ended;
}

/** Puts stand-ins for yield-gpu.sh on the PATH. Returns a function that sets the processes on the GPU. */
function standInForGpu(folder: string, path: string): (...lines: string[]) => void {
  const standIns = {
    'nvidia-smi': `echo "$*" >>${folder}/asked; cat ${folder}/apps`, // fails without that file
    ps: `case $4 in 1??) echo ben ;; 2??) ;; *) echo ana ;; esac`, // processes 2.. have ended
    sleep: `PATH=${process.env['PATH']}; exec sleep 0.1`,
  };
  for (const [name, script] of Object.entries(standIns)) {
    writeFileSync(join(path, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  }
  return (...lines) => {
    writeFileSync(join(folder, 'new'), lines.map((line) => `${line}\n`).join(''));
    renameSync(join(folder, 'new'), join(folder, 'apps'));
  };
}

function linesOf(name: string): string[] {
  return readFileSync(join(FOLDER, name), 'utf8').trimEnd().split('\n');
}

async function helpOf(t: TestContext, tool: 'client' | 'demo' | 'run'): Promise<string> {
  return (await runProgram(t, tool, ['--help'])).stdout;
}

/** Returns how many options a call has. */
function checkOptions(name: string, call: string, help: string): number {
  const options = call.match(/(?<= )--[a-z-]+/g) ?? [];
  for (const option of options) assert.ok(new RegExp(`^  ${option}\\b`, 'm').test(help), `${name}: ${call}`);
  return options.length;
}
