// The Model Context Protocol over standard input and output: JSON-RPC 2.0, one message per line.
//
//   legacy   `initialize` starts a session with a version and a client      2025-11-25 and earlier
//   modern   each request has both in `_meta`; there is no session          2026-07-28
//
// https://modelcontextprotocol.io/specification/2026-07-28/basic/versioning

import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { VERSION } from '../../control.ts';
import { warn } from '../shared/cli.ts';
import { excerpt, isRecord } from '../shared/text.ts';
import type { Readable, Writable } from 'node:stream';
import type { Caller, Calls } from './calls.ts';

const MODERN_VERSION = '2026-07-28';
const LEGACY_VERSIONS = ['2025-11-25', '2025-06-18', '2024-11-05'] as const; // 2025-03-26 requires batches
const SERVER_INFO = { name: 'control-mcp', title: 'runtime-control', version: VERSION };
const CAPABILITIES = { tools: {} };
const CACHE_HINTS = { ttlMs: 300_000, cacheScope: 'private' }; // the tools never change

/** The prefix of the fields that the specification defines in `_meta`. */
const PREFIX = 'io.modelcontextprotocol';

const MAX_LINE_BYTES = 4 * 1024 * 1024;
const MAX_REQUESTS = 1000; // in flight
const END_MS = 500; // for requests in flight when the input ends

const ERROR = {
  PARSE: -32700, INVALID_REQUEST: -32600, METHOD_NOT_FOUND: -32601, INVALID_PARAMS: -32602, INTERNAL: -32603,
  UNSUPPORTED_VERSION: -32022,
} as const;

type Id = string | number;
type Fields = Readonly<Record<string, unknown>>;

/** An error that the client receives. */
function fault(code: number, message: string, data?: object): Error {
  return Object.assign(new Error(message), { code, data });
}

/** @throws {Error} With the message, if the condition is false. */
function check(isValid: boolean, message: string, code: number = ERROR.INVALID_PARAMS): asserts isValid {
  if (!isValid) throw fault(code, message);
}

/** Serves until the input ends. Requests in flight then have half a second to respond. */
export async function serve(calls: Calls, input: Readable, output: Writable): Promise<void> {
  const inFlight = new Map<Id, { end: AbortController; done: Promise<void> }>();
  let session: { client: string | undefined } | null = null; // legacy, from `initialize` on

  function send(message: object): void {
    output.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
  }

  function sendError(id: Id | undefined, error: Error & { code?: unknown; data?: object }): void {
    const isExpected = typeof error.code === 'number';
    if (!isExpected) warn(`${error.stack}`); // a defect
    const { code, message, data } = isExpected ? error : { ...fault(ERROR.INTERNAL, ''), message: 'Internal error' };
    send({ id, error: { code, message, data } });
  }

  function receive(line: string | null): void {
    let id: Id | undefined;
    try {
      check(line !== null, `a message must have at most ${MAX_LINE_BYTES} bytes`, ERROR.INVALID_REQUEST);
      if (line.trim() === '') return;
      const message = parse(line);
      const { jsonrpc, id: given, method, params, ...others } = Object(message) as Fields;
      if (isId(given)) id = given; // the response to a request without a valid id has none
      if (method === undefined && ('result' in others || 'error' in others)) return; // a response
      check(!Array.isArray(message), 'send one message per line, not a batch', ERROR.INVALID_REQUEST);
      check(jsonrpc === '2.0', 'jsonrpc must be "2.0"', ERROR.INVALID_REQUEST);
      check(typeof method === 'string', 'method must be a string', ERROR.INVALID_REQUEST);
      check(given === id, 'id must be a string or an integer', ERROR.INVALID_REQUEST);
      if (id !== undefined) start(id, method, params);
      else if (method === 'notifications/cancelled') inFlight.get(Object(params).requestId)?.end.abort();
    } catch (error) {
      sendError(id, error as Error);
    }
  }

  function start(id: Id, method: string, params: unknown): void {
    check(!inFlight.has(id), `the id ${id} is in use`, ERROR.INVALID_REQUEST);
    check(inFlight.size < MAX_REQUESTS, `more than ${MAX_REQUESTS} requests are in flight`, ERROR.INTERNAL);
    const end = new AbortController();
    const done = respond(id, method, params, end.signal).finally(() => inFlight.delete(id));
    inFlight.set(id, { end, done });
  }

  async function respond(id: Id, method: string, params: unknown = {}, signal: AbortSignal): Promise<void> {
    try {
      check(isRecord(params), 'params must be an object');
      const result = await perform(id, method, params, signal);
      if (!signal.aborted) send({ id, result });
    } catch (error) {
      if (!signal.aborted) sendError(id, error as Error);
    }
  }

  async function perform(id: Id, method: string, params: Fields, signal: AbortSignal): Promise<object> {
    const meta = metaOf(params);
    const version = meta[`${PREFIX}/protocolVersion`];
    if (typeof version === 'string') {
      if (version !== MODERN_VERSION) {
        const data = { supported: [MODERN_VERSION], requested: version };
        throw fault(ERROR.UNSUPPORTED_VERSION, 'Unsupported protocol version', data);
      }
      check(isRecord(meta[`${PREFIX}/clientCapabilities`]), `_meta must have ${PREFIX}/clientCapabilities, an object`);
      if (method === 'subscriptions/listen') return listen(id, params, signal);
      const result = method === 'server/discover'
        ? { supportedVersions: [MODERN_VERSION], capabilities: CAPABILITIES, instructions: calls.instructions }
        : await performCommon(method, params, nameIn(meta[`${PREFIX}/clientInfo`]), signal);
      const hints = method === 'tools/call' ? {} : CACHE_HINTS;
      return { resultType: 'complete', ...result, ...hints, _meta: { [`${PREFIX}/serverInfo`]: SERVER_INFO } };
    }
    if (method === 'initialize') {
      const { protocolVersion, clientInfo } = params;
      check(typeof protocolVersion === 'string', 'protocolVersion must be a string');
      session = { client: nameIn(clientInfo) };
      return {
        protocolVersion: LEGACY_VERSIONS.find((known) => known <= protocolVersion) ?? LEGACY_VERSIONS[0],
        capabilities: CAPABILITIES, serverInfo: SERVER_INFO, instructions: calls.instructions,
      };
    }
    if (method === 'ping') return {};
    const hint = `_meta must have ${PREFIX}/protocolVersion, a string, unless the client begins with initialize`;
    check(session !== null, hint);
    return performCommon(method, params, session.client, signal);
  }

  /** Acknowledges a subscription, which lasts until cancelled. It gets no notifications: the tools never change. */
  async function listen(id: Id, { notifications }: Fields, signal: AbortSignal): Promise<object> {
    check(isRecord(notifications), 'notifications must be an object');
    const params = { _meta: { [`${PREFIX}/subscriptionId`]: id }, notifications: {} };
    send({ method: 'notifications/subscriptions/acknowledged', params });
    return once(signal, 'abort'); // the result is not sent
  }

  async function performCommon(
    method: string,
    params: Fields,
    client: string | undefined,
    signal: AbortSignal,
  ): Promise<object> {
    if (method !== 'tools/call') {
      check(method === 'tools/list', `Method not found: ${excerpt(method)}`, ERROR.METHOD_NOT_FOUND);
      check(params['cursor'] === undefined, 'there is only one page');
      return { tools: calls.offered };
    }
    const { name, arguments: values = {} } = params;
    check(typeof name === 'string', 'name must be a string');
    check(isRecord(values), 'arguments must be an object');
    const { progressToken } = metaOf(params);
    const report: Caller['report'] = (progress) => {
      if (!isId(progressToken) || signal.aborted) return;
      send({ method: 'notifications/progress', params: { progressToken, ...progress } });
    };
    const result = calls.call(name, values, { name: client, signal, report });
    check(result !== null, `Unknown tool: ${excerpt(name)}`);
    return result;
  }

  for await (const line of linesOf(input)) {
    receive(line);
    if (output.writableNeedDrain) await once(output, 'drain');
  }
  const requests = [...inFlight.values()];
  await Promise.race([Promise.all(requests.map(({ done }) => done)), sleep(END_MS, undefined, { ref: false })]);
  for (const { end } of requests) end.abort();
}

// ───── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────

/** Yields each complete line without its line break, or null if it is too long. */
async function* linesOf(input: Readable): AsyncGenerator<string | null> {
  let line = '';
  for await (const chunk of input.setEncoding('utf8') as AsyncIterable<string>) {
    const [end = '', ...starts] = chunk.split('\n');
    if (line.length <= MAX_LINE_BYTES) line += end; // what is too long already does not fill the memory
    for (const start of starts) {
      yield Buffer.byteLength(line) <= MAX_LINE_BYTES ? line : null;
      line = start;
    }
  }
}

function parse(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch (error) {
    throw fault(ERROR.PARSE, `the line is not JSON: ${(error as Error).message}`);
  }
}

function isId(value: unknown): value is Id {
  return typeof value === 'string' || Number.isSafeInteger(value);
}

function metaOf({ _meta: meta }: Fields): Fields {
  return isRecord(meta) ? meta : {};
}

/** The name in the `Implementation` that a client reports. */
function nameIn(implementation: unknown): string | undefined {
  const { name } = Object(implementation) as Fields;
  return typeof name === 'string' ? name : undefined;
}
