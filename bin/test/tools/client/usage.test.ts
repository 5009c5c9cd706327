// Usage errors of control-client, which send nothing, and its help.

import assert from 'node:assert/strict';
import { resolve } from 'node:path';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { VERBS } from '../../../client/verbs.ts';
import { UsageError } from '../../../shared/cli.ts';
import { createClient } from '../../../shared/client.ts';
import { findCommand, helpOf, STATUS_WORDS } from '../../../shared/commands.ts';
import { WRONG_ACCESS } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { call, run } from './helpers.ts';

const COMMAND = `the command must be one of ${VERBS.map(({ name }) => name).join(', ')}, got`;
const STATUS = STATUS_WORDS.join(', ');
const AWAITED = `the status must be one of ${STATUS}, or a quoted condition: 'loss < 0.1'`;
const SENDING = 'requires pause, resume, save-state, shutdown or run, got';
const SIGNING = 'requires pause, resume, save-state, shutdown, run or answer, got';
const PORT = 'must be an integer from 1 to 65535, got';
const HOST = 'must be a host name or an IP address, got';
const ADDRESS = 'an address has a port, such as gpu1:8391 or :9000';
const SECONDS = 'must be a number of seconds or a duration (30m, 2h, 1.5d), above 0 and up to';

const CONDITION = 'a condition must be FIELD < NUMBER (or <=, >, >=, =, !=) or FIELD = TEXT (or !=)';

type Row = [args: string[], line: string | RegExp];

const REFUSED: Record<string, Row[]> = {
  'an unknown command': [
    [[], `${COMMAND} nothing`],
    [['cancel'], `${COMMAND} 'cancel'`],
    ...[['restart'], ['start', 'train'], ['help', 'Start']].map((args): Row => {
      const word = args.find((text) => /start/i.test(text));
      const does = 'a service manager or control-run --restart does';
      return [args, `unknown command '${word}': nothing here starts programs; ${does}`];
    }),
    ...[
      [['restart', 'lr=0.1'], 'restart', 'run restart'],
      [['pasue'], 'pasue', 'pause'], [['help', 'Pausse'], 'Pausse', 'pause'], [['stop', 'train'], 'stop', 'shutdown'],
      [['kill'], 'kill', 'shutdown'], [['ls'], 'ls', 'list'], [['PS'], 'PS', 'list'], [['logs'], 'logs', 'log'],
      [['set', 'lr=0.1'], 'set', 'run set'], [['rnu', 'set', 'lr=0.1'], 'rnu', 'run'], // an own command
    ].map(([args, word, meant]): Row => {
      return [args as string[], `unknown command '${word}' (did you mean ${meant}?); see --help`];
    }),
  ],
  'an argument that the command does not take': [
    [['wait', 'pased'], `${AWAITED}, got 'pased' (did you mean paused?)`],
    [['wait'], `${AWAITED}, got nothing`],
    [['wait', 'loss', 'low'], `${AWAITED}, got 'loss'`],
    [['wait', 'loss', '<', 'low'], `${CONDITION}, got 'loss < low'`],
    ...['epoch = 3 and loss < 0.1', 'phase=warm||loss<1', 'a = 1, b != 2'].map((text): Row => [
      ['wait', text], `a condition must be one comparison; a text with <, > or = needs quotes, got '${text}'`,
    ]),
    [['help', 'pause', 'resume'], "unexpected argument 'resume'; see --help"],
    [['completion', 'tcsh'], "the shell must be one of bash, zsh, fish, got 'tcsh'"],
  ],
  'contradictory arguments, and invalid JSON': [
    [['run', 'set', 'a=1', 'b=', 'a=2'], "a must be given only once, got '1' and '2'"],
    [['run', 'set', '{}', 'a=1'], "one JSON object must hold all arguments, got '{}' and 'a=1'"],
    [['run', 'set', 'a=1', '{}'], "an argument must be name=value or one JSON object, got '{}'"],
    [['run', 'set', '{a:1}'], /^the arguments must be a JSON object, got '\{a:1\}': ./],
  ],
  'a word that is no system as a target': [
    [['watch', '200'], missing('200')],
    [['shutdown', 'gpu1:1', 'box.lan'], missing('box.lan', "; a reason is --reason 'TEXT'")],
    [['pause', '--reason', 'GPU', 'needed'], missing('needed', "; a reason is --reason 'TEXT'")],
    [['pause', '--reason', 'GPU needed', 'box.lan'], missing('box.lan')],
    [['wait', 'paused', 'gpu1:80', '200'], missing('200')],
    [['run', 'evaluate', 'episodes=5', 'gpu1:80', '200', '--wait'], missing('200', '; arguments are name=value')],
    [['status', 'all'], missing('all', '; all systems are --all')],
    [['answer', 'yes'], missing('yes', '; an answer is --yes, --no or name=value')],
  ],
  'a condition other than one comparison with a value': [
    'loss <', '< 0.1', '=', 'loss < low', 'loss =< 3', 'loss <> 3', 'loss >= ', 'loss < 0.1 < 3', '0.1 < loss',
  ].map((text) => [['wait', text, 'gpu1'], `${CONDITION}, got '${text}'`]),
  'an empty sender of a pause that only its sender can end': [
    [['resume', '--mine', '--by', ''], '--mine requires a sender: --by and CONTROL_BY must not be empty'],
    [['pause', '--for', '2h', '--by', '\t'], '--for requires a sender: --by and CONTROL_BY must not be empty'],
  ],
  'an option that the command would ignore': [
    [['pause', '--mine'], "--mine requires resume, got 'pause'"],
    [['resume', '--for', '2h'], "--for requires pause, got 'resume'"],
    [['status', '--wait'], `--wait ${SENDING} 'status'`],
    [['list', '--wait'], `--wait ${SENDING} 'list'`],
    [['info', '--reason', 'why'], `--reason ${SIGNING} 'info'`],
    [['watch', '--by', ''], `--by ${SIGNING} 'watch'`],
    [['pause', '--timeout', '5'], '--timeout requires --wait: pause does not wait without it'],
    [['watch', '--timeout', '5'],
      "--timeout requires status, info, list, wait, pause, resume, save-state, shutdown, run or asks, got 'watch'"],
    [['run', 'set', 'box:80', '--timeout', '5'], '--timeout requires --wait: run does not wait without it'],
    [['run', '--wait'], '--wait requires the name of a command; run alone lists them'],
    [['run', 'gpu1:80', '--reason', 'x'], '--reason requires the name of a command; run alone lists them'],
    [['run', 'set', '--yes'], "--yes requires answer, got 'run'"],
    [['asks', '--no'], "--no requires answer, got 'asks'"],
    [['answer', '--wait'], `--wait ${SENDING} 'answer'`],
    [['pause', '--exec', 'true'], "--exec requires watch, got 'pause'"],
    [['watch', '--on', 'paused'], '--on requires --exec'],
    [['status', '--dir', '.', '--port', '1'], '--port and --dir are mutually exclusive: an address needs no folder'],
  ],
  'an unknown option, a missing value, and an unexpected value': [
    [['status', '--prot', '1'], "unknown option '--prot' (did you mean --port?); see --help"],
    [['resume', '--name', 'x'], "unknown option '--name': a name is a target: resume x"],
    [['pause', '--color'], "unknown option '--color'; see --help"],
    [['shutdown', '--force'], "unknown option '--force'; see --help"], // not --for
    [['pause', '-x'], "unknown option '-x'; see --help"],
    [['status', '--port'], '--port requires a value; see --help'],
    [['status', '--port', '-1'],
      '--port requires a value (write --port=VALUE if it starts with a dash); see --help'],
    [['status', '--json=1'], "option '--json' does not take an argument; see --help"],
    [['watch', '--exec', ''], '--exec must not be empty'],
  ],
  'an option that is given twice': [
    [['status', '--host', 'a', '--host', 'b'], "--host must be given only once, got 'a' and 'b'"],
    [['pause', '--reason', '', '--reason', 'b'], "--reason must be given only once, got '' and 'b'"],
  ],
  'a port that is none': ['0', '-1', '65536', '80.5', '', 'NaN'].map((port) => {
    return [['status', `--port=${port}`], `--port ${PORT} '${port}'`];
  }),
  'a host that is none': ['', ' ', 'http://localhost', 'localhost:8391', '[::1'].map((host) => {
    return [['status', '--host', host], `--host ${HOST} '${host}'`];
  }),
  'a time limit that is none': [
    '', '0', '0h', '-1h', '1 h', '1H', '1h30m', 'h', '1w', '1e3', '.', '25d', '2073601', '∞', 'soon',
  ].map((limit) => {
    return [['status', `--timeout=${limit}`], `--timeout ${SECONDS} 24d, got '${limit}'`];
  }),
  'a pause that is too long': [[['pause', '--for', '366d'], `--for ${SECONDS} 365d, got '366d'`]],
  'a status of --on that is none': ['done', 'shutting down', ''].map((word) => {
    const hint = word === 'shutting down' ? ' (did you mean shutting-down?)' : '';
    const line = `the status of --on must be one of ${STATUS}, no-answer, ask, got '${word}'${hint}`;
    return [['watch', '--exec', 'true', '--on', `paused,${word}`], line];
  }),
  'a socket that is none, and one beside a host or a port': WRONG_ACCESS
    .filter(([, , token]) => token === '')
    .map(([, args, , line]) => [['status', ...args], line]),
  'an address beside targets': ['host', 'port', 'socket'].flatMap((option) => {
    const line = `--${option} and targets are mutually exclusive: a target is a complete address`;
    const all = [['gpu1:1'], ['--targets', '/nowhere/x']];
    return all.map((targets): Row => [['pause', `--${option}`, '1', ...targets], line]);
  }),
  'an address or a target beside all systems of a folder': [
    ...['host', 'port', 'socket', 'targets'].map((option): Row => {
      const line = `--${option} and --all are mutually exclusive: --all means everything here`;
      return [['pause', '--all', `--${option}`, '1'], line];
    }),
    [['list', '--all', 'box:80'], "unexpected argument 'box:80': --all takes no targets"],
  ],
  'a folder that cannot be read': [
    [['list', '--dir', '/nowhere'], /^--dir must be a folder that can be read, got '\/nowhere': ENOENT: /],
    [['pause', '--all', '--dir', 'package.json'], /^--dir must be a folder that can be read, got '.*': ENOTDIR: /],
    [['list', '--dir='], '--dir must not be empty'],
  ],
};

describe('control-client refuses', LIMIT, () => {
  for (const [what, rows] of Object.entries(REFUSED)) {
    it(what, async () => {
      for (const [args, line] of rows) await refuses(args, line);
    });
  }

  it('an invalid address in the environment, and a folder instead of a socket', { skip: lacks('Unix') }, async () => {
    const long = `/${'x'.repeat(94)}`;
    const folder = "must be the path of a socket, not of a folder, got '/tmp/'";
    const both = 'CONTROL_SOCKET replaces CONTROL_HOST and CONTROL_PORT: give one or the other';
    const rows: [env: NodeJS.ProcessEnv, line: string][] = [
      [{ CONTROL_SOCKET: '/tmp/', CONTROL_PORT: '' }, `CONTROL_SOCKET ${folder}`],
      [{ CONTROL_HOST: 'gpu1:8391' }, `CONTROL_HOST ${HOST} 'gpu1:8391'`],
      [{ CONTROL_PORT: '0' }, `CONTROL_PORT ${PORT} '0'`],
      [{ CONTROL_PORT: '', CONTROL_SOCKET: long },
        `CONTROL_SOCKET must be at most 94 bytes long, without NUL, got ${inspect(resolve(long))}`],
      [{ CONTROL_SOCKET: '/nowhere', CONTROL_HOST: 'gpu1', CONTROL_PORT: '1' }, both],
      [{ CONTROL_SOCKET: '/nowhere', CONTROL_HOST: 'gpu1', CONTROL_PORT: '' }, both],
    ];
    for (const [env, line] of rows) await refuses(['pause'], line, env);
    await refuses(['status', '--socket', '/tmp/'], `--socket ${folder}`);
    await refuses(['status', 'unix:/tmp/'], `the path of the target 'unix:/tmp/' ${folder}`);
  });

  it('an invalid token in the environment, and does not print it', async (t) => {
    const [, args, token, line] = WRONG_ACCESS.find(([, , token]) => token !== '') ?? assert.fail();
    const ended = await run(t, ['status', ...args], '', { CONTROL_TOKEN: token });
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-client: ${line}\n` });
  });
});

describe('The address in the environment', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('is CONTROL_HOST and CONTROL_PORT, or CONTROL_SOCKET, and options win', (t) => {
    const empty = { CONTROL_HOST: '', CONTROL_PORT: '', CONTROL_SOCKET: '' };
    t.after(() => Object.assign(process.env, empty, { CONTROL_PORT: '1' }));
    const both = { CONTROL_HOST: 'gpu1', CONTROL_PORT: '9000' };
    const rows: [options: Parameters<typeof createClient>[0], env: NodeJS.ProcessEnv, url: string][] = [
      [{}, {}, 'http://localhost:8391'],
      [{}, both, 'http://gpu1:9000'],
      [{}, { CONTROL_SOCKET: '/a' }, 'unix:/a'],
      [{ port: '1' }, { CONTROL_HOST: 'gpu1', CONTROL_PORT: 'wrong' }, 'http://gpu1:1'],
      [{ host: 'gpu2' }, { CONTROL_HOST: '/', CONTROL_PORT: '9000' }, 'http://gpu2:9000'],
      [{ host: 'gpu2', port: '1' }, { CONTROL_SOCKET: '/a' }, 'http://gpu2:1'],
      [{ port: '1' }, { CONTROL_HOST: 'gpu1', CONTROL_SOCKET: '/a' }, 'http://gpu1:1'],
      [{ host: 'gpu2' }, { CONTROL_PORT: '9000', CONTROL_SOCKET: '/a' }, 'http://gpu2:9000'],
      [{ host: '[::1]' }, {}, 'http://[::1]:8391'],
      [{ socket: '/b' }, { CONTROL_HOST: 'gpu1', CONTROL_PORT: 'wrong' }, 'unix:/b'],
      [{ socket: '/b' }, { CONTROL_SOCKET: 'x'.repeat(200) }, 'unix:/b'],
    ];
    for (const [options, env, url] of rows) {
      Object.assign(process.env, empty, env);
      assert.equal(createClient(options).baseUrl, url, JSON.stringify([options, env]));
    }
  });
});

describe('The help of control-client', LIMIT, () => {
  it('lists every command, and every word for help prints it', async () => {
    const { stdout } = await call(['help']);
    for (const entry of VERBS) assert.ok(stdout.includes(`\n${helpOf(entry)}\n`), entry.name);
    assert.doesNotMatch(stdout, /\bquit\b/, 'a command of the console');
    for (const word of ['--help', '-h', 'HELP', 'h', '?']) {
      assert.deepEqual(await call([word]), { code: 0, stdout, stderr: '' }, word);
    }
  });

  it('explains one command: its line, its options, an example', async () => {
    const common = ['host', 'port', 'socket', 'targets', 'all', 'dir', 'via', 'json', 'help', 'version'];
    const sending = [...common.slice(0, 7), 'wait', 'timeout', 'for', 'reason', 'by', ...common.slice(7)];
    const rows: [word: string, options: string[], example: string][] = [
      ['pause', sending, "pause --wait --reason 'GPU needed until noon'"],
      ['p', sending, "pause --wait --reason 'GPU needed until noon'"],
      ['INFO', [...common.slice(0, 7), 'timeout', ...common.slice(7)], 'info'],
      ['list', [...common.slice(0, 7), 'timeout', ...common.slice(7)], 'list'],
      ['completion', ['help', 'version'], 'completion fish | source'],
    ];
    for (const [word, options, example] of rows) {
      const { code, stdout, stderr } = await call(['help', word]);
      assert.deepEqual([code, stderr], [0, '']);
      const line = helpOf(findCommand(VERBS, word) ?? assert.fail());
      assert.ok(stdout.startsWith(`${line}\n\n  -`), stdout);
      assert.deepEqual([...stdout.matchAll(/^ {2}(?:-\w, )?--([\w-]+)/gm)].map(([, name]) => name), options);
      assert.ok(stdout.includes(`\n\nExample: control-client ${example}\n`), stdout);
      for (const args of [[word, '--help'], ['--port', '1', word, 'box:80', '-h']]) {
        assert.deepEqual(await call(args), { code, stdout, stderr }, args.join(' '));
      }
    }
    for (const [word, limit] of [
      ['pause', 'of --wait and --for, such as 90s or 30m (default 30); with --wait'],
      ['resume', 'of --wait and --mine, such'], ['run', 'of --wait, such'],
      ['wait', 'such as 90s or 30m (default: none)'], ['info', 'at most 5 (default)'],
    ] as const) {
      const { stdout } = await call(['help', word]);
      assert.match(stdout, new RegExp(`^  --timeout SECONDS  time limit,? ${limit.replaceAll(/[()]/g, '\\$&')}`, 'm'));
    }
    const whole = await call(['--help']);
    assert.deepEqual(await call(['pasue', '--help']), whole);
    assert.deepEqual(await call(['help', '--help']), whole);
  });
});

function missing(word: string, hint: string = ''): RegExp {
  return new RegExp(`^there is no system '${word}' in '[^']+'[^;]*; ${ADDRESS}${hint}$`);
}

async function refuses(args: string[], line: string | RegExp, env?: NodeJS.ProcessEnv): Promise<void> {
  await assert.rejects(call(args, env), (error) => {
    assert.ok(error instanceof UsageError, `${args}: ${error}`);
    if (typeof line === 'string') assert.equal(error.message, line);
    else assert.match(error.message, line);
    return true;
  });
}
