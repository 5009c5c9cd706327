// Shared by the tests of control-mcp: starts it, with a client that sends anything and checks everything it receives.

import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { type Ended, makeFolder, type Running, startProgram } from '../../helpers.ts';
import { END_MS, inTime, LIMIT } from '../../wait.ts';
import type { ChildProcess } from 'node:child_process';
import type { TestContext } from 'node:test';

/** For suites whose tests mostly wait: what hangs is a failure, not an endless run. */
export const AT_ONCE: { timeout: number; concurrency: number } = { ...LIMIT, concurrency: 4 };

/** The protocol version of the modern era, and those of the legacy era. */
export const MODERN = '2026-07-28';
export const LEGACY: readonly string[] = ['2025-11-25', '2025-06-18', '2024-11-05'];

export const META = 'io.modelcontextprotocol';

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
  /** Sends a request of the legacy era, with an id above 1000, and waits for its response. */
  request(method: string, params?: object): Promise<Message>;
  /** The same in the modern era; `meta` is added to the `_meta` of the request. */
  modern(method: string, params?: object, meta?: object): Promise<Message>;
  /** The first response to a request. 1 is not "1". */
  responseTo(id: Id): Promise<Message>;
  responsesTo(id: Id): Message[];
  notifications(method: string): Message[];
  /** Resolves when the immediate responses to everything sent before have been received. */
  settled(): Promise<void>;
  /** Performs the handshake of the legacy era. `call` and `fail` then use that era. Returns the result. */
  initialize(version?: string, clientName?: string): Promise<any>;
  /** Calls a tool, which must succeed. Returns its structured content. */
  call(tool: string, args?: object): Promise<any>;
  /** Calls a tool, which must fail. Returns the fields of the error. */
  fail(tool: string, args?: object): Promise<any>;
  /** Closes standard input, and checks that the program ends with 0, with nothing on stderr. Each test ends so. */
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
export function startMcp(
  t: TestContext,
  args: readonly string[] = [],
  env: NodeJS.ProcessEnv = {},
  program: string = 'mcp',
): Mcp {
  t.after(() => child.exitCode ?? child.signalCode ?? mcp.end());
  const running = startProgram(t, program, args, { XDG_RUNTIME_DIR: makeFolder(t), ...env });
  const { child, output, hasEnded } = running;
  const messages: Message[] = [];
  const arrivals = new EventEmitter().setMaxListeners(0);
  child.on('close', () => arrivals.emit('news'));
  let rest = ''; // of a line that has not arrived completely
  let lastId = 1000;
  let isModern = true;
  let violation: Error | undefined;
  child.stdout?.on('data', (text: string) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    try {
      for (const line of lines) messages.push(parseMessage(line));
    } catch (error) {
      violation ??= error as Error;
    }
    arrivals.emit('news');
  });

  const responsesTo: Mcp['responsesTo'] = (id) => messages.filter((one) => one.id === id && one.method === undefined);
  const responseTo: Mcp['responseTo'] = (id) => {
    const what = (): string => `no response to ${JSON.stringify(id)}: ${output()}`;
    const receive = async (): Promise<Message> => {
      for (;;) {
        const [response] = responsesTo(id);
        if (response !== undefined) return response;
        if (violation !== undefined) throw violation;
        if (hasEnded()) throw new Error(what());
        await once(arrivals, 'news');
      }
    };
    return inTime(receive(), what, END_MS);
  };
  const send: Mcp['send'] = (...parts) => {
    for (const part of parts) {
      const isRaw = typeof part === 'string' || part instanceof Uint8Array;
      child.stdin?.write(isRaw ? part : `${JSON.stringify(part)}\n`);
    }
  };
  const request: Mcp['request'] = (method, params) => {
    send({ jsonrpc: '2.0', id: lastId += 1, method, params });
    return responseTo(lastId);
  };
  const modern: Mcp['modern'] = (method, params, meta) => {
    return request(method, { ...params, _meta: { ...metaOf(), ...meta } });
  };
  const callTool = async (name: string, args: object = {}): Promise<any> => {
    const { result, error } = await (isModern ? modern : request)('tools/call', { name, arguments: args });
    assert.equal(error, undefined, JSON.stringify(error));
    return result;
  };
  const mcp: Mcp = {
    running, child, messages, send, request, modern, responseTo, responsesTo,
    notify: (method, params) => send({ jsonrpc: '2.0', method, params }),
    notifications: (method) => messages.filter((message) => message.method === method),
    settled: async () => void await request('ping'),
    async initialize(protocolVersion = LEGACY[0], name = 'test') {
      const clientInfo = { name, version: '1.0' };
      const { result } = await request('initialize', { protocolVersion, capabilities: {}, clientInfo });
      send({ jsonrpc: '2.0', method: 'notifications/initialized' });
      isModern = false;
      return result;
    },
    call: async (tool, args) => valueOf(await callTool(tool, args)),
    fail: async (tool, args) => failureOf(await callTool(tool, args)),
    async end() {
      child.stdin?.end();
      const ended = await running.ended;
      assert.deepEqual([ended.code, ended.stderr, rest, violation], [0, '', '', undefined]);
      return ended;
    },
  };
  return mcp;
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

/** Parses a line as what a server may send: a response, or a notification. Requests are not among these. */
function parseMessage(line: string): Message {
  const message = JSON.parse(line);
  const { jsonrpc, id, method, params = {}, result = {}, error } = message;
  assert.equal(jsonrpc, '2.0', line);
  const fields = Object.keys(message).sort().join(' ');
  const isNotification = /^jsonrpc method( params)?$/.test(fields) && /^notifications\//.test(method);
  const isError = /^error( id)? jsonrpc$/.test(fields) && Number.isInteger(error.code) && /./.test(error.message);
  assert.ok(isNotification || isError || fields === 'id jsonrpc result', line);
  for (const object of [params, result]) assert.equal(Object.prototype.toString.call(object), '[object Object]', line);
  if (id !== undefined) assert.ok(typeof id === 'string' || Number.isInteger(id), line);
  return message;
}
