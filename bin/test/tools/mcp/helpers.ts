// Shared by the tests of control-mcp: starts it, with a client that sends anything and checks everything it receives.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { defer, launchSystem, makeFolder, startProgram } from '../../helpers.ts';
import type { System } from '../../../../control.ts';
import type { Ended, LaunchedSystem, Running } from '../../helpers.ts';
import type { ChildProcess } from 'node:child_process';
import type { TestContext } from 'node:test';

/** For suites whose tests mostly wait: what hangs is a failure, not an endless run. */
export const AT_ONCE: { timeout: number; concurrency: number } = { timeout: 300_000, concurrency: 4 };

/** The protocol version of the modern era, and those of the legacy era. */
export const MODERN = '2026-07-28';
export const LEGACY: readonly string[] = ['2025-11-25', '2025-06-18', '2024-11-05'];

const RECEIVE_MS = 90_000; // a response that takes longer is missing; the longest wait of a test is shorter
const META = 'io.modelcontextprotocol';

export type Id = string | number;

/** Any message from control-mcp. Its fields differ by method: each test checks what it needs. */
export interface Message {
  jsonrpc: '2.0';
  id?: Id;
  method?: string;
  params?: any;
  result?: any;
  error?: { code: number; message: string; data?: any };
}

export interface Mcp {
  running: Running;
  child: ChildProcess;
  /** Everything received so far, in order. */
  messages: readonly Message[];
  /** Sends texts and bytes unchanged, without a line break, and objects as one line each. */
  send(...parts: (object | string | Uint8Array)[]): void;
  notify(method: string, params?: object): void;
  /** Sends a request of the legacy era. Returns its id, which is above 1000: no test uses such ids itself. */
  ask(method: string, params?: object): number;
  /** Sends a request of the legacy era and waits for its response. */
  request(method: string, params?: object): Promise<Message>;
  /** The same in the modern era; `meta` is added to the `_meta` of each request. */
  askModern(method: string, params?: object, meta?: object): number;
  modern(method: string, params?: object, meta?: object): Promise<Message>;
  /** The first message, received already or not, for which the function returns true. */
  receive(matches: (message: Message) => boolean): Promise<Message>;
  /** The response to a request: the first one, if an id is used again. 1 is not "1". */
  responseTo(id: Id): Promise<Message>;
  responsesTo(id: Id): Message[];
  notifications(method: string): Message[];
  /** Resolves when the immediate responses to everything sent before have been received. */
  settled(): Promise<void>;
  stderr(): string;
  /** Performs the handshake of the legacy era. `call` and `fail` then use that era. Returns the result. */
  initialize(version?: string, clientName?: string): Promise<any>;
  /** Calls a tool, which must succeed. Returns its structured content. */
  call(tool: string, args?: object): Promise<any>;
  /** Calls a tool, which must fail. Returns the fields of the error. */
  fail(tool: string, args?: object): Promise<any>;
  /** Closes standard input, and checks that the program ends with 0, with nothing on stderr. */
  end(): Promise<Ended>;
}

/** `_meta` of a request of the modern era. */
export function metaOf(version: string = MODERN, clientName: string = 'test'): Record<string, unknown> {
  return {
    [`${META}/protocolVersion`]: version,
    [`${META}/clientInfo`]: { name: clientName, version: '1.0' },
    [`${META}/clientCapabilities`]: {},
  };
}

/**
 * Starts control-mcp, in a session of its own. The test fails if anything but messages arrives on its standard output.
 *
 * @param env May have another `XDG_RUNTIME_DIR`, from `openSession()`.
 */
export function startMcp(t: TestContext, args: readonly string[] = [], env: NodeJS.ProcessEnv = {}): Mcp {
  const running = startProgram(t, 'mcp', args, { XDG_RUNTIME_DIR: makeFolder(t), ...env });
  const messages: Message[] = [];
  const responses = new Map<Id, Message[]>();
  let rest = ''; // of a line that has not arrived completely
  let stderr = '';
  let lastId = 1000;
  let isModern = true;
  let isEnded = false;
  let violation: Error | undefined;
  let arrived = defer();
  const wake = (): void => {
    arrived.resolve();
    arrived = defer();
  };
  running.child.stdout?.on('data', (text: string) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      try {
        const message = parseMessage(line);
        messages.push(message);
        if (message.method !== undefined || message.id === undefined) continue;
        responses.set(message.id, [...responses.get(message.id) ?? [], message]);
      } catch (error) {
        violation ??= error as Error;
      }
    }
    wake();
  });
  running.child.stderr?.on('data', (text: string) => (stderr += text));
  running.ended.then(() => (isEnded = true)).then(wake, wake);
  t.after(() => assert.ifError(violation));

  const receiveWith = async (find: () => Message | undefined, what: string): Promise<Message> => {
    const late = sleep(RECEIVE_MS, true, { ref: false });
    for (;;) {
      const found = find();
      if (found !== undefined) return found;
      if (violation !== undefined) throw violation;
      if (isEnded) throw new Error(`control-mcp has ended without ${what}: ${stderr}`);
      if (await Promise.race([arrived.promise, late])) throw new Error(`timed out waiting for ${what}: ${stderr}`);
    }
  };
  const receive: Mcp['receive'] = (matches) => receiveWith(() => messages.find(matches), `${matches}`);
  const responseTo: Mcp['responseTo'] = (id) => {
    return receiveWith(() => responses.get(id)?.[0], `a response to ${JSON.stringify(id)}`);
  };
  const send: Mcp['send'] = (...parts) => {
    for (const part of parts) {
      const isRaw = typeof part === 'string' || part instanceof Uint8Array;
      running.child.stdin?.write(isRaw ? part : `${JSON.stringify(part)}\n`);
    }
  };
  const ask: Mcp['ask'] = (method, params) => {
    send({ jsonrpc: '2.0', id: lastId += 1, method, ...params === undefined ? {} : { params } });
    return lastId;
  };
  const askModern: Mcp['askModern'] = (method, params, meta) => {
    return ask(method, { ...params, _meta: { ...metaOf(), ...meta } });
  };
  const callTool = async (name: string, args: object): Promise<any> => {
    const params = { name, arguments: args };
    const { result, error } = await responseTo((isModern ? askModern : ask)('tools/call', params));
    assert.equal(error, undefined, JSON.stringify(error));
    return result;
  };
  return {
    running, child: running.child, messages, send, ask, askModern, receive, responseTo,
    notify: (method, params) => send({ jsonrpc: '2.0', method, ...params === undefined ? {} : { params } }),
    request: (method, params) => responseTo(ask(method, params)),
    modern: (method, params, meta) => responseTo(askModern(method, params, meta)),
    responsesTo: (id) => responses.get(id) ?? [],
    notifications: (method) => messages.filter((message) => message.method === method),
    settled: async () => void await responseTo(ask('ping')),
    stderr: () => stderr,
    async initialize(version = LEGACY[0], clientName = 'test') {
      const clientInfo = { name: clientName, version: '1.0' };
      const params = { protocolVersion: version, capabilities: {}, clientInfo };
      const { result } = await responseTo(ask('initialize', params));
      send({ jsonrpc: '2.0', method: 'notifications/initialized' });
      isModern = false;
      return result;
    },
    call: async (tool, args = {}) => valueOf(await callTool(tool, args)),
    fail: async (tool, args = {}) => failureOf(await callTool(tool, args)),
    async end() {
      running.child.stdin?.end();
      const ended = await Promise.race([running.ended, sleep(RECEIVE_MS, null, { ref: false })]);
      if (ended === null) return assert.fail('control-mcp goes on without input');
      assert.deepEqual([ended.code, ended.stderr, rest], [0, '', '']);
      assert.ifError(violation);
      return ended;
    },
  };
}

/** The structured content of the result of a tool that has succeeded; the text is the same as JSON. */
export function valueOf(result: any): any {
  const { isError = false, content, structuredContent } = result;
  assert.equal(isError, false, JSON.stringify(result));
  assert.deepEqual(content.map(({ type }: { type: string }) => type), ['text']);
  assert.deepEqual(JSON.parse(content[0].text), structuredContent);
  return structuredContent;
}

/** The fields of the error with which a tool has failed. */
export function failureOf(result: any): any {
  assert.equal(result.isError, true, JSON.stringify(result));
  assert.ok(!('structuredContent' in result));
  assert.deepEqual(result.content.map(({ type }: { type: string }) => type), ['text']);
  const failure = JSON.parse(result.content[0].text);
  assert.equal(typeof failure.error, 'string');
  assert.notEqual(failure.error, '');
  return failure;
}

/** A folder of a session, and systems in it: `startMcp(t, [], session.env)` finds them. */
export interface Session {
  env: { XDG_RUNTIME_DIR: string };
  /** Where the sockets are. */
  folder: string;
  launch(name: string, hooks?: Partial<System>): Promise<LaunchedSystem>;
}

export function openSession(t: TestContext): Session {
  const systems: LaunchedSystem[] = [];
  t.after(() => Promise.all(systems.map(async ({ client, finished }) => { // while their sockets are still there
    await client.shutdown();
    await finished;
  })));
  const root = makeFolder(t);
  const folder = join(root, 'control');
  mkdirSync(folder, { mode: 0o700 });
  const launch: Session['launch'] = async (name, hooks) => {
    const system = await launchSystem(t, hooks, { name, webApiAddress: undefined, socketPath: `${folder}/` });
    systems.push(system);
    return system;
  };
  return { env: { XDG_RUNTIME_DIR: root }, folder, launch };
}

/** Parses a line as what a server may send: a response, or a notification. Requests are not among these. */
function parseMessage(line: string): Message {
  const message = JSON.parse(line);
  const fields = Object.keys(message).sort().join(' ');
  const { jsonrpc, id, method, params, result, error } = message;
  assert.equal(jsonrpc, '2.0', line);
  if (method !== undefined) {
    assert.match(fields, /^jsonrpc method( params)?$/, line);
    assert.match(method, /^notifications\//, line);
    if (params !== undefined) assertObject(params, line);
  } else if (error !== undefined) {
    assert.match(fields, /^error( id)? jsonrpc$/, line);
    assert.match(Object.keys(error).sort().join(' '), /^code( data)? message$/, line);
    assert.ok(Number.isInteger(error.code), line);
    assert.match(error.message, /./, line);
  } else {
    assert.equal(fields, 'id jsonrpc result', line);
    assertObject(result, line);
  }
  if ('id' in message) assert.ok(typeof id === 'string' || Number.isInteger(id), line);
  return message;
}

function assertObject(value: unknown, line: string): void {
  assert.ok(typeof value === 'object' && value !== null && !Array.isArray(value), line);
}
