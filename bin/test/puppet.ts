// The one fake system: a web API that says what a test tells it to say, misbehaves as told, and keeps what it receives.

import { subscribe } from 'node:diagnostics_channel';
import { errorMonitor, type EventEmitter, once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import { isIPv6 } from 'node:net';
import { VERSION } from '../../control.ts';
import { until } from './wait.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

export const ACTIVE: Record<'status' | 'result' | 'version', string> = {
  status: 'active', result: 'ok', version: VERSION,
};

/** A fake web API, and the requests to it. */
export interface Web {
  port: number;
  /** Its address on the command line. */
  target: string;
  /** `POST /api/pause?by=ana&reason=lunch`; without the query if no reason was sent. */
  requests: string[];
  /** The same with their queries. */
  urls: string[];
  /** The `Authorization` of each request. */
  tokens: (string | undefined)[];
  /** How many responses have been sent, or connections cut. */
  served(): number;
  /** Closes it and all connections. */
  end(): void;
  /** How many connections of this process have been refused since then. */
  refused(): number;
}

/** Returns a body, with `code` if the status code is not 200, or its text, or null to cut the connection. */
export type Respond = (request: IncomingMessage) => object | string | null | Promise<object | string | null>;

/** Where it listens: by default, at a port of 127.0.0.1. */
export interface Place {
  host?: string;
  /** By default, a free one. */
  port?: number;
  socketPath?: string;
}

interface RefusalError extends NodeJS.ErrnoException {
  port?: number;
  address?: string;
}

/** How many connections of this process have been refused, by port or path. */
const refusals = new Map<string | number, number>();

subscribe('net.client.socket', (message) => {
  const { socket } = message as { socket: EventEmitter };
  socket.once(errorMonitor, ({ syscall, code, port, address }: RefusalError) => {
    const place = port ?? `${address}`;
    if (syscall === 'connect' && code !== 'ECONNRESET') refusals.set(place, (refusals.get(place) ?? 0) + 1);
  });
});

/** Starts a fake web API until the end of the test. */
export async function startWeb(
  t: TestContext,
  respond: Respond = () => ACTIVE,
  { host = '127.0.0.1', port: givenPort = 0, socketPath }: Place = {},
): Promise<Web> {
  const requests: string[] = [];
  const urls: string[] = [];
  const tokens: (string | undefined)[] = [];
  let served = 0;
  const server = createServer(async (request, response) => {
    const { method, url, headers, socket } = request;
    const query = new URL(`${url}`, 'http://localhost').searchParams;
    requests.push(`${method} ${query.get('reason') === null ? url?.replace(/\?.*/, '') : url}`);
    urls.push(`${method} ${url}`);
    tokens.push(headers.authorization);
    response.once('close', () => (served += 1));
    const body = await respond(request);
    if (body === null) return void socket.destroy();
    const isText = typeof body === 'string';
    const { code = 200, ...fields } = (isText ? {} : body) as { code?: number };
    response.writeHead(code, { 'Content-Type': 'application/json' }).end(isText ? body : JSON.stringify(fields));
  });
  const countRefused = (): number => refusals.get(socketPath ?? port) ?? 0;
  const end = (): void => {
    server.close().closeAllConnections();
    refusedBefore = countRefused();
  };
  t.after(() => server.close().closeAllConnections());
  if (socketPath === undefined) server.listen(givenPort, host);
  else server.listen(socketPath);
  await once(server, 'listening');
  const { port } = Object(server.address()) as AddressInfo;
  let refusedBefore = countRefused();
  const target = socketPath === undefined ? `${isIPv6(host) ? `[${host}]` : host}:${port}` : `unix:${socketPath}`;
  const refused = (): number => countRefused() - refusedBefore;
  return { port, target, requests, urls, tokens, served: () => served, end, refused };
}

/** For all requests, those of a method, or those like `GET /api/status` that match. */
type Manner = boolean | 'GET' | 'POST' | RegExp;

/** What a puppet reports (the fields of `/api/info`), and how it behaves. */
export interface PuppetState {
  [field: string]: any;
  /** The status code of what it reports; 200 by default. */
  code?: number;
  /** What it reports instead, as a text. */
  raw?: string;
  /** The response to a command, or a function of the request. By default, what it reports with `result: 'ok'`. */
  post?: object | ((request: IncomingMessage) => object | Promise<object>);
  /** What a command changes, before its response. */
  effects?: Readonly<Record<string, PuppetState>>;
  /** Reports its status only, as servers of the specification do. */
  old?: boolean;
  /** Sends no response while this is set. */
  silent?: Manner;
  /** Cuts the connection instead of responding. */
  cut?: Manner;
}

export interface Puppet extends Web {
  state: PuppetState;
  /** Changes what it reports and how it behaves. What it has kept waiting gets its response then, if it may. */
  set(change: PuppetState): void;
  /** The commands received, without their queries. */
  posted(): string[];
  /** Resolves when so many requests with the method wait for a response. */
  holds(method: 'GET' | 'POST', count: number): Promise<void>;
  /** Ends when the next request arrives, without a response. */
  endWithNext(): Promise<void>;
  /** How many requests have got no response yet. */
  held(): number;
  /** How many requests have met it as it is since its latest change, or have been refused since its end. */
  met(): number;
}

/** Starts a puppet until the end of the test: an active system, unless the state says otherwise. */
export async function startPuppet(t: TestContext, given: PuppetState = {}, place?: Place): Promise<Puppet> {
  const state: PuppetState = { status: 'active', version: '9.0.0', ...given };
  const waiting = new Map<IncomingMessage, () => void>();
  let met = 0;
  let [isLast, isOver] = [false, false];
  const applies = (manner: Manner = false, { method, url }: IncomingMessage): boolean => {
    return manner instanceof RegExp ? manner.test(`${method} ${url}`) : manner === true || manner === method;
  };
  const respond: Respond = async (request) => {
    if (request.url === '/visit') return {};
    while (applies(state.silent, request)) {
      met += 1;
      await new Promise<void>((resolve) => {
        waiting.set(request, resolve);
        request.socket.once('close', () => waiting.delete(request));
      });
      waiting.delete(request);
    }
    met += 1;
    if (isLast) end();
    if (isLast || applies(state.cut, request)) return null;
    const [, command = ''] = /^POST \/api\/([\w-]+)/.exec(`${request.method} ${request.url}`) ?? [];
    Object.assign(state, state.effects?.[command]);
    return respondAs(state, request);
  };
  const web = await startWeb(t, respond, place);
  const end = (): void => {
    web.end();
    [met, isOver] = [0, true];
  };
  return {
    ...web,
    state,
    end,
    async endWithNext() {
      isLast = true; // so no connection waits in the queue, which would be reset
      await until(() => isOver);
    },
    set(change) {
      Object.assign(state, change);
      met = 0;
      for (const look of waiting.values()) look();
    },
    posted() {
      const posts = web.requests.filter((request) => request.startsWith('POST '));
      return posts.map((request) => request.replace(/^POST \/api\/|\?.*/g, ''));
    },
    holds: (method, count) => until(() => [...waiting.keys()].filter((one) => one.method === method).length === count),
    held: () => waiting.size,
    met: () => met + web.refused(),
  };
}

async function respondAs(state: PuppetState, request: IncomingMessage): Promise<object | string> {
  const { post, effects, raw, old, silent, cut, ...info } = state;
  if (request.method === 'POST' && old === true) return { result: 'ok' };
  if (request.method === 'POST') {
    return { result: 'ok', ...info, ...typeof post === 'function' ? await post(request) : post };
  }
  if (raw !== undefined) return raw;
  if (old !== true) return info;
  return request.url === '/api/status' ? { status: info['status'] } : { code: 404, error: 'Not found' };
}
