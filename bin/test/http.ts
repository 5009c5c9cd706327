// HTTP written by hand, for requests that no library sends.

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Socket } from 'node:net';

/** A port of 127.0.0.1, or the path of a Unix socket. */
export type Where = number | string;

export interface HttpResponse {
  statusCode: number;
  headers: Record<string, string>; // by lowercase name
  text: string; // the body
  body: any; // the body as JSON, or undefined
  summary: string; // the status code, and the error, status, state or result: '200 active'
}

/** The head of a request: HTTP/1.1, unless the line has a version. */
export function head(line: string, ...fields: string[]): string {
  const version = / HTTP\/\d\.\d$/.test(line) ? '' : ' HTTP/1.1';
  return `${[line + version, ...fields].join('\r\n')}\r\n\r\n`;
}

/** Sends one request on a connection of its own. Its Host is localhost, unless the fields have another. */
export async function ask(where: Where, line: string, ...fields: string[]): Promise<HttpResponse> {
  const host = fields.some((field) => /^host:/i.test(field)) ? [] : ['Host: localhost'];
  const socket = connectTo(where);
  socket.write(head(line, ...host, ...fields, 'Connection: close'), 'latin1');
  const [response] = parse(await readToEnd(socket));
  if (response === undefined) throw new Error(`no response to ${line}`);
  return response;
}

/** Sends any bytes, ends its side of the connection, and returns all responses. */
export async function exchange(where: Where, bytes: string): Promise<HttpResponse[]> {
  const socket = connectTo(where);
  socket.end(bytes, 'latin1');
  return parse(await readToEnd(socket));
}

export function connectTo(where: Where): Socket {
  const socket = connect(typeof where === 'string' ? { path: where } : { port: where, host: '127.0.0.1' });
  return socket.on('error', () => {}); // its reader sees the end
}

/** All that arrives until the connection is closed or reset. */
export async function readToEnd(socket: Socket): Promise<string> {
  let bytes = '';
  socket.setEncoding('latin1').on('data', (chunk: string) => (bytes += chunk));
  if (!socket.closed) await new Promise((resolve) => socket.once('close', resolve));
  return bytes;
}

/** Parses responses. A response to HEAD must be the last: no body follows, whatever its length says. */
export function parse(bytes: string): HttpResponse[] {
  const responses: HttpResponse[] = [];
  for (let rest = bytes; rest !== '';) {
    const [all, statusCode, lines = ''] = /^HTTP\/1\.1 (\d\d\d) .+\r\n((?:.+\r\n)*)\r\n/.exec(rest) ?? [];
    if (all === undefined) throw new Error(`not a response: ${JSON.stringify(rest)}`);
    const headers: HttpResponse['headers'] = {};
    for (const [, name = '', value = ''] of lines.matchAll(/^(.+?): (.*)\r$/gm)) headers[name.toLowerCase()] = value;
    const end = all.length + Number(headers['content-length'] ?? 0);
    const text = Buffer.from(rest.slice(all.length, end), 'latin1').toString(); // one character is one byte
    rest = rest.slice(end);
    const body = text === '' ? undefined : JSON.parse(text);
    const summary = `${statusCode} ${body?.error ?? body?.status ?? body?.state ?? body?.result ?? ''}`.trimEnd();
    responses.push({ statusCode: Number(statusCode), headers, text, body, summary });
  }
  return responses;
}

/** Checks that these requests have no response, although two later ones have. */
export async function assertWaits(where: Where, ...requests: Promise<HttpResponse>[]): Promise<void> {
  for (let round = 0; round < 2; round += 1) await ask(where, 'GET /');
  for (const request of requests) assert.equal(await Promise.race([request, nextTurn('waits')]), 'waits');
}
