// Own commands: what declarations and requests the server refuses, and what the program receives. And what no command
// takes: bodies and parameters that would be ignored.

import assert from 'node:assert/strict';
import { STATUS_CODES } from 'node:http';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { SystemStatus, WebApiServer } from '../../../control.ts';
import { launchSystem, startServer, takeAll } from '../helpers.ts';
import { COMMANDS, HOST, INFO, PAUSE, STATUS, WAIT, Connection, Talk, ask, head } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import type { CommandDeclaration, CommandInfo, CommandRequest, Parameter } from '../../../control.ts';

const { ACTIVE } = SystemStatus;
const TOO_LARGE = `413 ${STATUS_CODES[413]}`; // of a body above 64 KiB; Node 20 has an older name

// ───── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────

/** Sends a body as it is. Returns the status code, and the error or the result. */
async function post(talk: Talk, name: string, body: string | Buffer): Promise<string> {
  return (await talk.post(name, Buffer.from(body as string).toString('latin1'))).summary;
}

/** The error of a command, other than an own one, that comes with a body. */
function noBody(command: string): string {
  return `${command} takes no body: send by and reason in the query, ?by=ana&reason=lunch`;
}

describe('Arguments', LIMIT, () => {
  const TELL = 'tell-'.padEnd(32, 'x'); // the longest name
  const COUNT: Parameter = { type: 'integer' };
  const commands = Object.fromEntries(Object.entries<Record<string, Parameter>>({
    evaluate: { episodes: { type: 'integer', minimum: 1, maximum: 1000, default: 100 } },
    rate: { value: { type: 'number', minimum: 0, maximum: 1 } },
    above: { value: { type: 'number', minimum: 0.5 } },
    below: { value: { type: 'integer', maximum: -1 } },
    count: { value: COUNT },
    any: { value: { type: 'number' } },
    say: { text: { type: 'string', maxLength: 3 } },
    [TELL]: { text: { type: 'string' } },
    flag: { on: { type: 'boolean' } },
    pick: { mode: { type: 'string', enum: ['fast', 'exact'] }, size: { ...COUNT, enum: [1, 2], default: 2 } },
    many: { a: COUNT, toString: { ...COUNT, default: 1 }, b: { type: 'string', default: 'b' } },
    none: {},
  }).map(([name, parameters]): [string, CommandDeclaration] => [name, { parameters }]));

  const EPISODES = 'episodes must be an integer from 1 to 1000, got';
  const RATE = 'value must be a number from 0 to 1, got';
  const WRONG: [name: string, body: string, error: string][] = [
    ['evaluate', '{"episodes":0}', `${EPISODES} 0`],
    ['evaluate', '{"episodes":1.5}', `${EPISODES} 1.5`],
    ['evaluate', '{"episodes":"5"}', `${EPISODES} "5"`],
    ['evaluate', '{"episodes":null}', `${EPISODES} null`],
    ['evaluate', '{"episodes":1e999}', `${EPISODES} null`],
    ['evaluate', `{"episodes":${'['.repeat(2000)}${']'.repeat(2000)}}`, `${EPISODES} ${'['.repeat(100)}`],
    ['evaluate', `{"episodes":"${'x'.repeat(4000)}"}`, `${EPISODES} "${'x'.repeat(99)}`],
    ['evaluate', '{"episode":5}', 'episode is unknown, not one of [episodes]'],
    ['evaluate', '{"episodes":5,"seed":1}', 'seed is unknown, not one of [episodes]'],
    ['evaluate', '{"":5}', ' is unknown, not one of [episodes]'],
    ['evaluate', '{"__proto__":{"episodes":5}}', '__proto__ is unknown, not one of [episodes]'],
    ['evaluate', `{"${'é'.repeat(2000)}":5}`, `${'é'.repeat(100)} is unknown, not one of [episodes]`],
    ['evaluate', '[]', 'a JSON object is required'],
    ['evaluate', 'null', 'a JSON object is required'],
    ['rate', '', `${RATE} nothing`],
    ['rate', '{}', `${RATE} nothing`],
    ['rate', '{"value":1.0000001}', `${RATE} 1.0000001`],
    ['above', '{"value":0.49}', 'value must be a number from 0.5, got 0.49'],
    ['below', '{"value":0}', 'value must be an integer up to -1, got 0'],
    ['count', '{"value":9007199254740993}', 'value must be an integer, got 9007199254740992'],
    ['any', '{"value":1e999}', 'value must be a number, got null'],
    ['say', '{"text":"😀😀😀😀"}', 'text must be a string of at most 3 characters, got "😀😀😀😀"'],
    [TELL, '{"text":null}', 'text must be a string, got null'],
    ['flag', '{"on":1}', 'on must be a boolean, got 1'],
    ['pick', '{"mode":"slow"}', 'mode must be one of fast, exact, got "slow"'],
    ['pick', '{"mode":"fast","size":3}', 'size must be one of 1, 2, got 3'],
    ['many', '{"toString":1}', 'a must be an integer, got nothing'],
    ['many', '{"a":1,"valueOf":1}', 'valueOf is unknown, not one of [a, toString, b]'],
    ['none', '{"a":1}', 'a is unknown, not one of []'],
  ];

  it('that are wrong get a 400 with their name and what is expected, and nothing is queued', async (t) => {
    const { server, port } = await startServer(t, { commands });
    const talk = new Talk(port);
    for (const [name, body, error] of WRONG) {
      const { summary, body: { parameter } } = await talk.post(name, Buffer.from(body).toString('latin1'));
      assert.deepEqual([summary, parameter], [`400 ${name}: ${error}`, /^(\w*) must be/.exec(error)?.[1]], body);
    }
    assert.match(await post(talk, TELL, 'text=é'), /^400 tell-x*: .*JSON/);
    assert.match(await post(talk, TELL, Buffer.from('{"text":"é"}', 'latin1')), /^400 tell-x*: .*utf-?8/i);
    assert.equal(server.hasCommands(), false);
    assert.deepEqual((await ask(port, INFO)).body.commands, []);
  });

  it('reach the program as sent, in the order of the declaration, with the defaults', async (t) => {
    const { server, port } = await startServer(t, { commands, maxQueueSize: 1000 });
    const talk = new Talk(port);
    const text = (length: number): string => JSON.stringify({ text: 'é'.repeat(length / 2) });
    const rows: [name: string, body: string, values: object][] = [
      ['evaluate', '', { episodes: 100 }],
      ['evaluate', '\ufeff{ "episodes" :\r\n 1.0 }\n', { episodes: 1 }],
      ['evaluate', '{"episodes":7,"episodes":1e2}', { episodes: 100 }],
      ['rate', '{"value":1e-300}', { value: 1e-300 }],
      ['above', '{"value":1e308}', { value: 1e308 }],
      ['below', '{"value":-9007199254740991}', { value: Number.MIN_SAFE_INTEGER }],
      ['say', '{"text":"😀é\\n"}', { text: '😀é\n' }],
      [TELL, '{"text":"\\u0000\\ud83d\\n\\\\"}', { text: '\0\ud83d\n\\' }],
      [TELL, text(4084), { text: 'é'.repeat(2042) }],
      ['flag', '{"on":false}', { on: false }],
      ['pick', '{"size":1,"mode":"exact"}', { mode: 'exact', size: 1 }],
      ['many', '{"b":"","a":0}', { a: 0, toString: 1, b: '' }],
    ];
    const [sender, why] = ['😀'.repeat(200), '🚀'.repeat(200)];
    const query = `?${new URLSearchParams({ by: sender, reason: `\n${why}` })}`;
    for (const [name, body, values] of rows) {
      assert.equal(await post(talk, name + query, body), '200 ok', body);
      assert.equal(server.receiveCommand(), name);
      const { arguments: received, by, reason } = server.request as CommandRequest<string>;
      assert.deepEqual([received, by, reason], [values, sender, why]);
      assert.deepEqual(Object.keys(received), Object.keys(values));
    }
    const chunk = '2\r\n{}\r\n1\r\n \r\n0\r\n\r\n';
    const { summary } = await talk.send(head('POST /api/evaluate', HOST, 'Transfer-Encoding: chunked') + chunk);
    assert.equal(summary, '200 ok');
    assert.equal(server.receiveCommand(), 'evaluate');
  });

  it('of more than 4 KiB get a 413, defaults included; so does such a body of a pause', async (t) => {
    const preset = 'x'.repeat(2000);
    const long: CommandDeclaration = { parameters: { a: { type: 'string' }, b: { type: 'string', default: preset } } };
    const { server, port } = await startServer(t, { commands: { ...commands, long } });
    const talk = new Talk(port);
    const body = (length: number): string => JSON.stringify({ text: 'x'.repeat(length) });
    const error = '413 The arguments exceed 4096 bytes';
    assert.equal(await post(talk, TELL, body(4085)), '200 ok');
    for (const length of [4086, 10_000, 60_000]) assert.equal(await post(talk, TELL, body(length)), error);
    assert.equal(await post(talk, 'long', JSON.stringify({ a: preset })), '200 ok');
    assert.equal(await post(talk, 'long', JSON.stringify({ a: preset + preset })), error);
    assert.equal(await post(talk, 'long', JSON.stringify({ a: preset, b: '' })), '200 ok');
    assert.equal(await post(talk, TELL, body(66_000)), TOO_LARGE);
    for (const length of [4086, 60_000]) {
      assert.equal(await post(talk, 'pause', body(length)), `413 ${noBody('pause')}`);
    }
    assert.equal(await post(talk, 'pause', body(66_000)), TOO_LARGE);
    const taken = [1, 2, 3].map(() => server.receiveCommand());
    assert.deepEqual([taken, server.hasCommands()], [[TELL, 'long', 'long'], false]);
  });
});

describe('What would be ignored', LIMIT, () => {
  const commands = { evaluate: { parameters: { episodes: { type: 'integer', default: 100 } } } } as const;

  const BLANK = ' '.repeat(4096);
  const EMPTY = ['', '{}', ' { } ', 'null', '\t{\r\n}\n', '\r\nnull ', BLANK, `{${BLANK.slice(2)}}`];
  it('is no body without content, with or without a query: the command is accepted', async (t) => {
    const { server, port } = await startServer(t, { commands });
    const talk = new Talk(port);
    for (const command of COMMANDS) {
      for (const [query, by, reason] of [
        ['', undefined, undefined], ['?', undefined, undefined], ['?by=ana&reason=lunch', 'ana', 'lunch'],
        ['?expires=60&&by=&', undefined, undefined],
      ] as const) {
        for (const body of EMPTY) {
          assert.equal(await post(talk, command + query, body), '200 ok', body);
          assert.equal(server.receiveCommand(), command);
          const { request } = server;
          assert.deepEqual([request?.by, request?.reason, request?.arguments], [by, reason, {}], query);
          assert.equal(server.hasCommands(), false);
        }
      }
    }
  });

  const BODIES: [statusCode: number, body: string | Buffer][] = [
    ...['[]', '0', '"x"', '{"reason":"lunch"}', 'not JSON', '{}{}', '{} null', 'nullnull', 'NULL', '{', '}', '\0', 'é',
      `${BLANK.slice(1)}x`].map((body): [number, string] => [400, body]),
    ...[`${BLANK} `, `{}${BLANK}`, `${BLANK}x`, 'x'.repeat(65_536)].map((body): [number, string] => [413, body]),
  ];
  it('is any other body of the four commands: a 400, or a 413 above 4 KiB, and nothing is queued', async (t) => {
    const { server, port } = await startServer(t, { commands });
    const talk = new Talk(port);
    for (const command of COMMANDS) {
      for (const [statusCode, body] of BODIES) {
        for (const query of ['', '?by=ana&reason=lunch', '?x']) { // the body comes first
          assert.equal(await post(talk, command + query, body), `${statusCode} ${noBody(command)}`, String(body));
          assert.equal(server.hasCommands(), false);
        }
      }
    }
    assert.equal(await post(talk, 'pause', 'x'.repeat(65_537)), TOO_LARGE);
    assert.deepEqual((await ask(port, INFO)).body.commands, []);
    assert.equal(await post(talk, 'evaluate', ' { } '), '200 ok', 'an own command has arguments');
    assert.deepEqual(takeAll(server), ['evaluate']);
  });

  const FOUR = 'by, reason, expires';
  const LONG = 'x'.repeat(101);
  const QUERIES: [request: string, error: string][] = [
    ...['pause', 'resume', 'evaluate'].flatMap((name): [string, string][] => {
      const known = name === 'evaluate' ? FOUR : `${FOUR}, ${name === 'resume' ? 'mine' : 'within, for'}`;
      return [
        ['by=&by=', 'by is given twice'], ['by&%62y', 'by is given twice'],
        ['reason=a&by=a&reason=a', 'reason is given twice'],
        ['expires=5&expires=5', 'expires is given twice'], ['x&x&by&by', 'unknown parameter x'],
        ['by&by&x', 'by is given twice'], ['expire=10', 'unknown parameter expire'], ['=', 'unknown parameter '],
        ['Reason=a', 'unknown parameter Reason'], ['reason%20=a', 'unknown parameter reason '],
        ['by[]=a', 'unknown parameter by[]'], ['by=a?by=b&?', 'unknown parameter ?'], ['id=1', 'unknown parameter id'],
        ['__proto__=1', 'unknown parameter __proto__'], ['toString', 'unknown parameter toString'],
        [`%1B[2J%0A${LONG}=1`, `unknown parameter [2J${LONG.slice(4)}`], ['expires=0&x', 'unknown parameter x'],
      ].map(([query, fault]) => [`${name}?${query}`, `${fault}: ${known}`]);
    }),
    ...['pause', 'shutdown', 'save-state', 'evaluate'].flatMap((name): [string, string][] => {
      const known = { pause: `${FOUR}, within, for`, shutdown: `${FOUR}, within` }[name] ?? FOUR;
      return ['true', 'false', ''].map((mine) => [`${name}?mine=${mine}`, `unknown parameter mine: ${known}`]);
    }),
    ['resume?mine=true&mine=true', `mine is given twice: ${FOUR}, mine`],
    ['evaluate?priority=1', `unknown parameter priority: ${FOUR}`],
    ['evaluate?episodes=5', `unknown parameter episodes: ${FOUR}`],
    ...[
      ['reasons=x', 'unknown parameter reasons'], ['expires=5', 'unknown parameter expires'],
      ['mine=true', 'unknown parameter mine'], ['by=a&by=b', 'by is given twice'], ['id=x-q1', 'id is given twice'],
      ['=x', 'unknown parameter '], ['approved=true', 'unknown parameter approved'],
    ].map(([query, fault]): [string, string] => [`answer?id=ID&${query}`, `${fault}: id, by, reason`]),
  ];
  it('is an unknown or a repeated parameter of a POST: a 400, and nothing is queued or answered', async (t) => {
    const { server, port } = await startServer(t, { commands });
    const talk = new Talk(port);
    const question = server.ask('Delete?');
    const { asks: [{ id }] } = (await ask(port, INFO)).body;
    for (const [request, error] of QUERIES) {
      const body = request.startsWith('answer') ? '{"approved":false}' : '';
      assert.equal(await post(talk, request.replace('ID', id), body), `400 ${error}`, request);
      assert.equal(server.hasCommands(), false, request);
    }
    const { asks, commands: listed } = (await ask(port, INFO)).body;
    assert.deepEqual([asks.length, listed], [1, []]);
    for (const line of [STATUS, INFO]) {
      assert.equal((await ask(port, `${line}?expire=10&by=a&by=b&=x`)).statusCode, 200, 'a GET ignores its query');
    }
    assert.equal(await post(talk, `answer?id=${id}&by=ana&reason=lunch`, '{"approved":true}'), '200 ok');
    assert.deepEqual(await question, { arguments: { approved: true }, by: 'ana', reason: 'lunch' });
    assert.equal(await post(talk, 'resume?mine=true&by=ana&reason=lunch&expires=60', ''), '200 ok');
    assert.deepEqual(takeAll(server), []);
  });
});

describe('An own command', LIMIT, () => {
  it('takes only POST; no other path has its name', async (t) => {
    const { server, port } = await startServer(t, { commands: { constructor: {}, 'a-1': {} } });
    for (const method of ['GET', 'HEAD', 'PUT', 'OPTIONS']) {
      const { statusCode, headers } = await ask(port, `${method} /api/a-1`);
      assert.deepEqual([statusCode, headers['allow']], [405, 'POST'], method);
    }
    const names = 'pause, resume, shutdown, save-state, constructor, a-1';
    for (const path of ['/api/b', '/api/A-1', '/api/a-1/', '/a-1', '/x/api/a-1', '/api/toString', '/api/']) {
      const { statusCode, body } = await ask(port, `POST ${path}`);
      assert.deepEqual([statusCode, body.error], [404, `Invalid API endpoint: the commands are ${names}`], path);
    }
    assert.equal((await ask(port, 'POST /api/constructor')).statusCode, 200);
    assert.deepEqual([server.receiveCommand(), server.hasCommands()], ['constructor', false]);
  });

  it('has its own body on a connection with several requests, also after a refusal', async (t) => {
    const parameters = { text: { type: 'string', default: 'none' } } as const;
    const { server, port } = await startServer(t, { commands: { say: { parameters } } });
    const request = (body: string, line: string = 'POST /api/say'): string => {
      return `${head(line, HOST, ...(body === '' ? [] : [`Content-Length: ${body.length}`]))}${body}`;
    };
    const connection = new Connection(port);
    t.after(() => connection.socket.destroy());
    const codes: number[] = [];
    for (const bytes of [
      request('{"text":"one"}'), request(''), request('{"text":2}'), request(''), request('x'.repeat(5000)),
      request(''), request('{"text":"refused"}', PAUSE), request(''), request('x'.repeat(5000), PAUSE), request(''),
      request('{ }', PAUSE), request(''), request('{"text":2}'), request('x'.repeat(65_537), PAUSE),
    ]) codes.push((await connection.request(bytes)).statusCode);
    assert.deepEqual(codes, [200, 200, 400, 200, 413, 200, 400, 200, 413, 200, 200, 200, 400, 413]);
    const texts: unknown[] = [];
    while (server.hasCommands()) {
      server.receiveCommand();
      texts.push(server.request?.arguments['text']);
    }
    assert.deepEqual(texts, [undefined, 'one', ...Array(6).fill('none')], 'the pause first');
  });

  it('is listed with its arguments, unless their JSON exceeds 200 characters', async (t) => {
    const parameters = { text: { type: 'string' } } as const;
    const { server, port } = await startServer(t, { commands: { say: { parameters }, stop: {} } });
    const talk = new Talk(port);
    for (const length of [189, 190]) await post(talk, 'say', JSON.stringify({ text: 'x'.repeat(length) }));
    await post(talk, 'stop', '');
    await ask(port, PAUSE);
    while (server.hasCommands()) server.receiveCommand();
    const { commands } = (await ask(port, INFO)).body;
    assert.deepEqual(commands.map(({ command, arguments: values }: CommandRequest) => [command, values]), [
      ['say', { text: 'x'.repeat(189) }], ['say', undefined], ['stop', undefined], ['pause', undefined],
    ]);
  });

  it('stays in the history when the declarations are replaced, and is delivered if it waits', async (t) => {
    const { server, port } = await startServer<string>(t, { commands: { one: {}, two: {} } });
    await ask(port, 'POST /api/one');
    await ask(port, 'POST /api/two');
    const { headers: { etag } } = await ask(port, INFO);
    const waiting = ask(port, INFO, `If-None-Match: ${etag}`, WAIT);
    const three: CommandDeclaration = { description: 'd', parameters: { x: { type: 'boolean', default: true } } };
    server.commands = { three };
    const { body } = await waiting;
    assert.deepEqual(body.accepts, server.commands);
    assert.deepEqual(Object.keys(body.accepts), ['three']);
    assert.deepEqual(body.commands.map(({ command }: CommandRequest) => command), ['one', 'two']);
    assert.deepEqual([server.receiveCommand(), server.receiveCommand()], ['one', 'two']);
    assert.equal((await ask(port, 'POST /api/one')).statusCode, 404);
    assert.equal((await ask(port, 'POST /api/three')).statusCode, 200);
    assert.throws(() => { server.commands = { pause: {} }; }, RangeError);
    assert.deepEqual(Object.keys(server.commands), ['three'], 'a wrong declaration changes nothing');
  });

  it('that launch() runs does not change the status, and delays a pause behind it', async (t) => {
    let release = (): void => {};
    const { address: { port } } = await launchSystem(t, {
      commands: {
        slow: { run: () => new Promise<void>((resolve) => (release = resolve)) },
        constructor: { run: (values: object, { command }: CommandRequest) => [values, command] },
      },
    });
    assert.deepEqual((await ask(port, 'POST /api/constructor', WAIT)).body.value, [{}, 'constructor']);
    const slow = ask(port, 'POST /api/slow?by=ana', WAIT);
    const latest = async (): Promise<CommandInfo> => (await ask(port, INFO)).body.commands.at(-1);
    await until(async () => (await latest()).state === 'running');
    const pause = ask(port, PAUSE, WAIT);
    await until(async () => (await latest()).command === 'pause');
    const { status, by } = (await ask(port, INFO)).body;
    assert.deepEqual([status, by, (await latest()).state], ['active', undefined, 'waiting']);
    release();
    assert.deepEqual([(await slow).summary, (await pause).summary], ['200 done', '200 done']);
  });
});

// ───── Declarations ──────────────────────────────────────────────────────────────────────────────────────────────

describe('A declaration', LIMIT, () => {
  const declare = (commands: unknown): unknown => {
    return new WebApiServer({ systemStatus: () => ACTIVE, commands: commands as Record<string, CommandDeclaration> });
  };
  const named = (name: string): object => JSON.parse(`{${JSON.stringify(name)}:{"type":"string"}}`); // also __proto__
  const set = (parameters: unknown): object => ({ set: { parameters } });
  const itself = {};

  const NAMES = [...COMMANDS, 'status', 'info', 'stack', '', 'Set', '1st', 'a_b', 'é', '-a', 'x'.repeat(33)];
  const PARAMETER_NAMES = ['', '1st', '_a', 'a-b', 'é', '__proto__', 'x'.repeat(33)];
  const TYPES = 'boolean, integer, number, string';
  const MANY = Object.fromEntries(Array.from({ length: 33 }, (_, index) => [`c${index}`, {}]));
  const WRONG: [commands: unknown, message: string][] = [
    [null, 'commands must be an object, got null'],
    ...NAMES.map((name): [unknown, string] => [{ [name]: {} }, `the name of a command must be … got '${name}'`]),
    [[{}], "the name of a command must be … got '0'"],
    [{ set: { parameter: {} } }, 'set has no option parameter; it has description, parameters'],
    [{ set: { description: 5 } }, 'set.description must be a string, got 5'],
    [{ set: null }, 'the options of set must be an object, got null'],
    [{ set: { parameters: null } }, 'set.parameters must be an object, got null'],
    ...PARAMETER_NAMES.map((name): [unknown, string] => {
      return [set(named(name)), `the name of a parameter must be … got '${name}'`];
    }),
    [set(['rate']), "the name of a parameter must be … got '0'"],
    [MANY, 'the number of commands must be an integer from 0 to 32, got 33'],
    [{ set: { description: `${'é'.repeat(4083)}x` } },
      'the size of the commands as JSON must be an integer from 0 to 8192, got 8193'],
    [Object.assign(itself, set(itself)), 'Converting circular structure to JSON…'],
  ];
  const WRONG_PARAMETERS: [parameter: unknown, message: string][] = [
    [{}, `type must be one of ${TYPES}, got nothing`],
    ['number', '0 is unknown, not one of [type, description, minimum, maximum]'],
    [{ type: 'float' }, `type must be one of ${TYPES}, got "float"`],
    [{ type: 'number', multipleOf: 2 }, 'multipleOf is unknown, not one of [type, description, minimum, maximum]'],
    [{ type: 'string', minimum: 1 }, 'minimum is unknown, not one of [type, description, maxLength]'],
    [{ type: 'number', maxLength: 1 }, 'maxLength is unknown, not one of [type, description, minimum, maximum]'],
    [{ type: 'number', minimum: '1' }, 'minimum must be a number, got "1"'],
    [{ type: 'number', maximum: NaN }, 'maximum must be a number, got null'],
    [{ type: 'number', minimum: 2, maximum: 1 }, 'maximum must be a number from 2, got 1'],
    [{ type: 'string', maxLength: -1 }, 'maxLength must be an integer from 0, got -1'],
    [{ type: 'integer', default: '5' }, 'default must be an integer, got "5"'],
    [{ type: 'number', maximum: 1, default: 2 }, 'default must be a number up to 1, got 2'],
    [{ type: 'string', enum: ['a'], default: 'b' }, 'default must be one of a, got "b"'],
    [{ type: 'string', enum: 'abc' }, "enum must be a list, got 'abc'"],
    [{ type: 'string', enum: [] }, 'enum must be a list, got []'],
    [{ type: 'integer', enum: [1, 'b'] }, 'enum must be an integer, got "b"'],
    [{ type: 'integer', minimum: 1, enum: [0] }, 'enum must be an integer from 1, got 0'],
  ];

  it('that is wrong causes a TypeError or a RangeError that names the fault', () => {
    const rows = WRONG_PARAMETERS.map(([rate, message]): [unknown, string] => [set({ rate }), `set.rate.${message}`]);
    for (const [commands, message] of [...WRONG, ...rows]) {
      const [start, end] = message.split('…') as [string, string | undefined];
      assert.throws(() => declare(commands), (error: Error) => {
        assert.ok(error instanceof TypeError || error instanceof RangeError);
        if (end === undefined) assert.equal(error.message, message);
        else assert.ok(error.message.startsWith(start) && error.message.endsWith(end.trim()), error.message);
        return true;
      }, inspect(commands));
    }
  });

  it('of up to 32 commands and 8 KiB of JSON is accepted, with every word', async (t) => {
    const every: Record<string, Parameter> = {
      a: { type: 'boolean', default: false, description: 'd', enum: [false] },
      b: { type: 'integer', minimum: -1, maximum: 1, default: 0, enum: [0, 1] },
      c: { type: 'number', minimum: 0.5, maximum: 0.5, default: 0.5 },
      ['d'.repeat(32)]: { type: 'string', maxLength: 0, default: '', minimum: undefined },
    };
    const commands: Record<string, CommandDeclaration> = Object.fromEntries(
      Array.from({ length: 31 }, (_, index) => [`c${index}`, {}]),
    );
    const name = 'every-'.padEnd(32, 'x');
    commands[name] = { description: '', parameters: every };
    const rest = 8192 - Buffer.byteLength(JSON.stringify(commands));
    commands[name] = { description: 'é'.repeat(rest / 2).padEnd(rest - Math.floor(rest / 2), 'x'), parameters: every };
    const { server, port } = await startServer(t, { commands });
    const { accepts } = (await ask(port, INFO)).body;
    assert.deepEqual(accepts, JSON.parse(JSON.stringify(commands)));
    assert.deepEqual(server.commands, accepts);
    assert.equal(Buffer.byteLength(JSON.stringify(accepts)), 8192);
  });
});
