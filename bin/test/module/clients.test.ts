// Common HTTP clients: they need no permission, whatever fields they send.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { describe, it } from 'node:test';
import { promisify } from 'node:util';
import { LIMIT, startServer, takeAll } from '../helpers.ts';
import { lacks } from '../needs.ts';

const run = promisify(execFile);

const CURL = ['-q', '-sS', '--noproxy', '*', '--http2'];

const PYTHON = `
import sys
from urllib.request import ProxyHandler, Request, build_opener
send = build_opener(ProxyHandler({})).open
for data, path in (None, 'status'), (b'', 'pause'), (b'{}', 'pause'):
  sys.stdout.write(send(Request(sys.argv[1] + path, data)).read().decode())
`;

/** Each sends a GET, a POST without a body and a POST with a body. */
const CLIENTS: [name: string, skip: string | false, send: (url: string) => Promise<string>][] = [
  ['fetch()', false, async (url) => {
    let texts = '';
    const post = { method: 'POST' };
    for (const [path, init] of [['status', {}], ['pause', post], ['pause', { ...post, body: '{}' }]] as const) {
      texts += await (await fetch(`${url}${path}`, init)).text();
    }
    return texts;
  }],
  ['curl, with Upgrade and Expect', lacks('curl'), async (url) => {
    const post = (...args: string[]): string[] => ['--next', ...CURL.slice(1), ...args, `${url}pause`];
    const body = ['-H', 'Expect: 100-continue', '--expect100-timeout', '60', '--data', 'x'.repeat(60_000)];
    return (await run('curl', [...CURL, `${url}status`, ...post('-X', 'POST'), ...post(...body)])).stdout;
  }],
  ["Python's urllib", lacks('python3'), async (url) => (await run('python3', ['-c', PYTHON, url])).stdout],
];

describe('A server', LIMIT, () => {
  for (const [name, skip, send] of CLIENTS) {
    it(`responds to ${name}`, { skip }, async (t) => {
      const { server, port } = await startServer(t);
      assert.equal(await send(`http://localhost:${port}/api/`), '{"status":"active"}{"result":"ok"}{"result":"ok"}');
      assert.deepEqual(takeAll(server), ['pause', 'pause']);
    });
  }
});
