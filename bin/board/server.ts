// The board's web server. Anyone can load the page, which is empty. Its data requires the key.

import { createHash, timingSafeEqual } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import page from '#board-page';
import { isAllowedHost } from '../../control.ts';
import { CONTROL_COMMANDS } from '../shared/declared.ts';
import { isRecord } from '../shared/text.ts';
import { formatMetrics, METRICS_TYPE } from './metrics.ts';
import type { AddressInfo, Socket } from 'node:net';
import type { BoardSystem, Limits } from './system.ts';
import type { Systems } from './systems.ts';

const MAX_WAIT_S = 30;
const MAX_FOR_S = 2_592_000; // as in control.ts
const MAX_BODY_LENGTH = 4096; // bytes, as in control.ts
const MAX_CONNECTIONS = 256; // over both addresses of localhost
const SCRAPE_MS = 1000; // then slow systems count with their last report
// Long enough for a board that gets little of the processor: Node closes what it has not read by then.
const LIMITS = { headersTimeout: 20_000, requestTimeout: 20_000, connectionsCheckingInterval: 1000 };
const IDLE_MS = (MAX_WAIT_S + 10) * 1000; // then a connection without traffic is closed

export interface Settings {
  systems: Systems;
  key: string;
  /** A key that permits no commands and no answers. */
  viewKey: string | undefined;
  /** The host that the server listens on. */
  host: string;
  /** More host names of the server: `box.lan`, `.lan`, `*`. */
  allowedHosts: readonly string[];
}

interface Context extends Settings {
  connections: Connections;
}

/** Listens on a port; 0 picks a free one. Returns the addresses. */
export async function serve(settings: Settings, port: number): Promise<AddressInfo[]> {
  const { host } = settings;
  const addresses: AddressInfo[] = [];
  const context: Context = { ...settings, connections: new Connections() };
  // A browser tries both addresses of localhost: if one were free, another user could listen there.
  for (const address of host.toLowerCase() === 'localhost' ? ['127.0.0.1', '::1'] : [host]) {
    const server = createServer(LIMITS, (request, response) => {
      route(context, request, response).catch(({ statusCode = 500, message, headers }: Partial<Refusal>) => {
        send(response, statusCode, { error: message }, headers);
      });
    });
    server.setTimeout(IDLE_MS);
    server.on('connection', (socket) => context.connections.add(socket));
    server.listen(addresses[0]?.port ?? port, address);
    try {
      await once(server, 'listening');
      addresses.push(server.address() as AddressInfo);
    } catch (error) {
      const lacksFamily = ['EADDRNOTAVAIL', 'EAFNOSUPPORT'].includes((error as NodeJS.ErrnoException).code ?? '');
      if (addresses.length === 0 || !lacksFamily) throw error; // without IPv6, the first is enough
    }
  }
  return addresses;
}

async function route(context: Context, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { systems } = context;
  const [, path = '', search] = /^([^?]*)(.*)$/.exec(request.url ?? '') ?? [];
  const query = new URLSearchParams(search);
  checkHost(context, request);
  if (path === '/') {
    checkMethod(request, 'GET', 'HEAD');
    return send(response, 200, page, PAGE_HEADERS);
  }
  const canPress = checkKey(context, request);
  context.connections.hold(request.socket, response);
  if (!canPress && request.method === 'POST') throw new Refusal(403, 'The view key permits no commands');
  if (path === '/api/systems') {
    checkMethod(request, 'GET');
    const end = new AbortController();
    response.on('close', () => end.abort());
    const news = await systems.newsSince(parseVersion(query.get('since')), secondsToWait(request) * 1000, end.signal);
    return send(response, 200, { canPress, ...news });
  }
  const get = (id: string): BoardSystem => {
    const found = systems.all.find((one) => one.id === Number(id));
    if (found === undefined) throw new Refusal(404, `No system has the id ${id}: GET /api/systems lists them`);
    return found;
  };
  const [, part, read] = /^\/api\/(log|stack)s\/(\d+)$/.exec(path) ?? [];
  if (read !== undefined) {
    checkMethod(request, 'GET');
    return send(response, 200, await (part === 'log' ? get(read).readLog() : get(read).readStack()));
  }
  if (path === '/metrics') {
    checkMethod(request, 'GET');
    await Promise.race([systems.read(), sleep(SCRAPE_MS)]);
    return send(response, 200, formatMetrics(systems.all), { 'Content-Type': METRICS_TYPE });
  }
  const [, settled, how = ''] = /^\/api\/systems\/(\d+)\/(answer|withdraw)$/.exec(path) ?? [];
  if (settled !== undefined) {
    checkMethod(request, 'POST');
    const given = [query.get('id') ?? '', query.get('reason') ?? ''] as const;
    const values = how === 'answer' ? await readArguments(request) : undefined;
    return send(response, ...await get(settled).settle(how, ...given, values));
  }
  const [, id, command = ''] = /^\/api\/systems(?:\/(\d+))?\/([a-z0-9-]+)$/.exec(path) ?? [];
  const system = id === undefined ? undefined : get(id);
  const isControl = CONTROL_COMMANDS.includes(command);
  if (!isControl && system?.declares(command) !== true) throw new Refusal(404, 'Not found');
  checkMethod(request, 'POST');
  if (system?.canDo(command) === false) {
    throw new Refusal(409, 'The program cannot save: start control-run with --save-signal or --save-command');
  }
  const values = isControl ? undefined : await readArguments(request);
  const [reason, limits] = [query.get('reason') ?? '', limitsIn(command, query)];
  if (system === undefined) systems.sendToAll(command, reason, limits);
  send(response, 202, { result: 'sent', id: system?.send(command, reason, values, limits) });
}

function limitsIn(command: string, query: URLSearchParams): Limits {
  const [within, duration] = [query.get('within'), query.get('for')];
  if (within !== null && within !== '0') throw new Refusal(400, 'within must be 0');
  if (duration !== null && command !== 'pause') throw new Refusal(400, `for requires pause, got ${command}`);
  const isValid = duration === null || (/^[1-9]\d*$/.test(duration) && Number(duration) <= MAX_FOR_S);
  if (!isValid) throw new Refusal(400, `for must be an integer from 1 to ${MAX_FOR_S}`);
  return { ...within !== null && { within: 0 }, ...duration !== null && { for: Number(duration) } };
}

/**
 * Reads the body of an own command or an answer: a JSON object, or nothing. Node discards the bodies of the standard
 * commands.
 */
async function readArguments(request: IncomingMessage): Promise<object> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length <= MAX_BODY_LENGTH) chunks.push(chunk);
  }
  if (length > MAX_BODY_LENGTH) throw new Refusal(413, `The arguments exceed ${MAX_BODY_LENGTH} bytes`);
  let values: unknown;
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(chunks));
    values = length === 0 ? {} : JSON.parse(text);
  } catch {} // refused below
  if (isRecord(values)) return values;
  throw new Refusal(400, 'The body must be a JSON object');
}

// ───── Connections ───────────────────────────────────────────────────────────────────────────────────────────────

/** The connections of all addresses. Of too many, those without a key make room: anyone can open them. */
class Connections {
  readonly #states: Map<Socket, 'without key' | 'idle' | 'responding'> = new Map(); // the oldest of each state first

  /** Closes another connection if there are too many: the new one only if all others are responding. */
  add(socket: Socket): void {
    if (this.#states.size >= MAX_CONNECTIONS) {
      const closed = this.#oldest('without key') ?? this.#oldest('idle') ?? socket;
      this.#states.delete(closed); // the event 'close' comes later
      closed.destroy();
      if (closed === socket) return;
    }
    this.#states.set(socket, 'without key');
    socket.on('close', () => this.#states.delete(socket));
  }

  /** Keeps a connection that has sent a valid key open until the response is complete. */
  hold(socket: Socket, response: ServerResponse): void {
    this.#move(socket, 'responding');
    response.on('close', () => this.#move(socket, 'idle'));
  }

  #oldest(state: string): Socket | undefined {
    return [...this.#states.keys()].find((socket) => this.#states.get(socket) === state);
  }

  /** Puts the connection behind all others. */
  #move(socket: Socket, state: 'idle' | 'responding'): void {
    if (this.#states.delete(socket)) this.#states.set(socket, state);
  }
}

// ───── Responses ─────────────────────────────────────────────────────────────────────────────────────────────────

const COMMON_HEADERS = {
  'Cache-Control': 'no-store',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
};

const PAGE_HEADERS = {
  'Content-Type': 'text/html; charset=utf-8',
  'Content-Security-Policy': [
    "default-src 'none'",
    `script-src ${hashOf('script')}`,
    `style-src ${hashOf('style')}`,
    "connect-src 'self'",
    'img-src data:', // the icon
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
  ].join('; '),
};

function hashOf(element: 'script' | 'style'): string {
  const [, content = ''] = new RegExp(`<${element}[^>]*>(.*?)</${element}>`, 's').exec(page) ?? [];
  return `'sha256-${sha256(content).toString('base64')}'`;
}

/** An object is sent as JSON. */
function send(
  response: ServerResponse,
  statusCode: number,
  body: string | object,
  headers: Record<string, string> = {},
): void {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  response.writeHead(statusCode, {
    ...COMMON_HEADERS, 'Content-Type': 'application/json', ...headers, 'Content-Length': Buffer.byteLength(text),
  }).end(text);
}

// ───── Checks ────────────────────────────────────────────────────────────────────────────────────────────────────

class Refusal extends Error {
  readonly statusCode: number;
  readonly headers: Record<string, string>;

  constructor(statusCode: number, message: string, headers: Record<string, string> = {}) {
    super(message);
    this.statusCode = statusCode;
    this.headers = headers;
  }
}

/** Keeps other sites out, including names that resolve to this machine (DNS rebinding). */
function checkHost({ host, allowedHosts }: Settings, { headers, rawHeaders }: IncomingMessage): void {
  const names = rawHeaders.filter((_, index) => index % 2 === 0).map((name) => name.toLowerCase());
  for (const name of ['host', 'origin', 'authorization']) { // Node keeps only the first of duplicates
    if (names.indexOf(name) !== names.lastIndexOf(name)) throw new Refusal(400, 'Duplicate header field');
  }
  const { host: authority, origin } = headers;
  if (authority !== undefined && !isAllowedHost(authority, [host, ...allowedHosts])) {
    throw new Refusal(403, 'Host not allowed: use localhost or an IP address, or set the option --allow-host');
  }
  const own = authority === undefined ? undefined : `http://${authority}`;
  if (origin !== undefined && origin !== own) throw new Refusal(403, 'Origin not allowed');
}

function checkMethod({ method = '' }: IncomingMessage, ...allowed: string[]): void {
  if (!allowed.includes(method)) throw new Refusal(405, 'Method not allowed', { Allow: allowed.join(', ') });
}

/** Returns whether the key permits commands. Compares digests, so that the timing reveals nothing about the key. */
function checkKey({ key, viewKey }: Settings, { headers: { authorization = '' } }: IncomingMessage): boolean {
  const [, given = ''] = /^Bearer +(\S+)$/i.exec(authorization) ?? [];
  if (timingSafeEqual(sha256(given), sha256(key))) return true;
  if (viewKey !== undefined && timingSafeEqual(sha256(given), sha256(viewKey))) return false;
  throw new Refusal(401, 'Missing or wrong key: open the address that control-board prints', {
    'WWW-Authenticate': 'Bearer',
  });
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

function parseVersion(text: string | null): number {
  if (text === null || /^\d{1,15}$/.test(text)) return Number(text);
  throw new Refusal(400, `since must be a version, got '${text}'`);
}

/** The seconds of `Prefer: wait=N` (RFC 7240 §4.3), or 0. */
function secondsToWait({ headers: { prefer } }: IncomingMessage): number {
  const [, seconds = 0] = /^wait=(\d+)$/.exec(String(prefer)) ?? [];
  return Math.min(Number(seconds), MAX_WAIT_S);
}
