// Other pages and other users against control-board: nobody without the key sees or controls anything.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { describe, it } from 'node:test';
import { startBoard } from './helpers.ts';
import { LOOPBACK_ONLY, startBrowser } from './browser.ts';
import {
  exchange, FOREIGN_HOSTS, head, HOST, LIMIT, LOCAL_HOSTS, NAME, NAMED_HOSTS, NAMES, UNNAMED_HOSTS, UPGRADE, WEBSOCKET,
} from '../../module/helpers.ts';
import { getInfo, lacks, startServer, until } from '../../helpers.ts';
import type { StartedBoard } from './helpers.ts';
import type { Browser } from './browser.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

const PAGE = 'GET /';
const READ = 'GET /api/systems';
const PAUSE = 'POST /api/systems/pause';

describe('control-board keeps others out', { ...LIMIT, concurrency: 3 }, () => {
  it('by Host', async (t) => {
    const { board, port } = await start(t);
    for (const request of [PAGE, READ, PAUSE]) {
      await decides(board, request, LOCAL_HOSTS, request === PAUSE ? 202 : 200);
      await decides(board, request, FOREIGN_HOSTS, 403);
    }
    const { commands } = await getInfo(port);
    assert.ok(commands.length > 0);
  });

  it('by Host, with --allow-host', async (t) => {
    const options = ['--listen', `${NAME}:0`, ...NAMES.flatMap((name) => ['--allow-host', name])];
    const { board } = await start(t, options);
    await decides(board, READ, NAMED_HOSTS, 200);
    await decides(board, READ, UNNAMED_HOSTS, 403);
    const { board: open } = await start(t, ['--allow-host', '*']);
    await decides(open, READ, ['evil.example', 'X:80', 'localhost.', '127.1', '[::1]'], 200);
    await decides(open, READ, ['0.0.0.0', '[::]', '[::ffff:0.0.0.0]', '', ':80', 'x:y', '[::1', '::1'], 403);
  });

  it('by fields that are missing or repeated', async (t) => {
    const { board, port } = await start(t);
    const key = `Authorization: Bearer ${board.key}`;
    for (const [expected, line, ...fields] of [
      [400, PAUSE, key], [400, PAGE], [202, `${PAUSE} HTTP/1.0`, key], [202, PAUSE, HOST, key],
      [400, READ, HOST, 'Host: evil', key], [400, READ, 'Host: evil', HOST, key], [400, READ, HOST, HOST, key],
      [400, PAUSE, HOST, 'Origin: http://localhost', 'Origin: http://evil', key],
      [400, PAUSE, HOST, key, 'Authorization: Bearer x'], [400, PAUSE, HOST, 'Authorization: Bearer x', key],
      [200, PAGE, HOST, ...WEBSOCKET], [200, READ, HOST, key, ...UPGRADE],
    ] as [number, string, ...string[]][]) {
      assert.equal(await statusOf(board, line, ...fields), expected, `${line} ${fields}`);
    }
    const { commands } = await getInfo(port);
    assert.ok(commands.length <= 2);
    for (const target of ['http://evil.example/api/systems', 'http://localhost/api/systems']) {
      const text = await exchange(board.port, [head(`GET ${target}`, HOST, 'Connection: close')], 1);
      assert.match(text, /^HTTP\/1\.1 40[134] /, target);
    }
    assert.doesNotMatch(await exchange(board.port, [head('CONNECT localhost:80', HOST)], 1), /^HTTP\/1\.1 2/);
  });

  it('by Origin, of which only its own is not refused, and which grants nothing', async (t) => {
    const { board, port } = await start(t);
    const key = `Authorization: Bearer ${board.key}`;
    const host = `localhost:${board.port}`;
    const foreign = [
      'null', '', '*', `https://${host}`, 'http://localhost', `http://127.0.0.1:${board.port}`, `http://${host}/`,
      `HTTP://${host}`, `http://${host}0`, `http://LOCALHOST:${board.port}`, 'http://evil.example', `http://x.${host}`,
      `${host}`, `http://${host} http://${host}`, `http://evil@${host}`, 'http://undefined', 'http://',
    ];
    for (const origin of foreign) {
      for (const line of [PAGE, READ, PAUSE, 'OPTIONS /api/systems/pause']) {
        assert.equal(await statusOf(board, line, `Host: ${host}`, `Origin: ${origin}`, key), 403, `${line} ${origin}`);
      }
      assert.equal(await statusOf(board, `${PAUSE} HTTP/1.0`, `Origin: ${origin}`, key), 403, `HTTP/1.0 ${origin}`);
    }
    assert.equal(await statusOf(board, PAUSE, `Host: ${host}`, `Origin: http://${host}`), 401);
    assert.deepEqual((await getInfo(port)).commands, []);
    assert.equal(await statusOf(board, PAUSE, `Host: ${host}`, `Origin: http://${host}`, key), 202);
  });

  it('by the key', async (t) => {
    const { board, port } = await start(t);
    const { key } = board;
    for (const field of [
      '', 'Bearer', 'Bearer ', key, `Basic ${key}`, `Basic ${Buffer.from(`x:${key}`).toString('base64')}`,
      `Bearer${key}`, `Bearer ${key.slice(0, -1)}`, `Bearer ${key}x`, `Bearer ${key} x`, `Bearer x ${key}`,
      `Bearer ${key.toUpperCase()}`, `Bearer ${key.slice(1)}`, `Bearer "${key}"`, `Bearer ${key},`, `Bearer ${key}=`,
      `Bearer ${key}, Bearer ${key}`, `Bearer #${key}`, `xBearer ${key}`, `Digest ${key}`, 'Bearer undefined',
    ]) {
      for (const line of [READ, PAUSE]) {
        assert.equal(await statusOf(board, line, HOST, `Authorization: ${field}`), 401, `${line} ${field}`);
      }
    }
    for (const [line, field] of [
      [`${PAUSE}?key=${key}`, 'X: x'], [PAUSE, `Cookie: key=${key}`], [PAUSE, `Proxy-Authorization: Bearer ${key}`],
    ] as const) {
      assert.equal(await statusOf(board, line, HOST, field), 401, line);
    }
    assert.deepEqual((await getInfo(port)).commands, []);
    for (const field of [`Bearer ${key}`, `bearer ${key}`, `BEARER   ${key}`]) {
      assert.equal(await statusOf(board, READ, HOST, `Authorization: ${field}`), 200, field);
    }
  });
});

const WITHOUT = lacks('chromium', 'chromedriver');

/** What a page of somebody else tries. Returns what it could read, of each. */
const ATTACK = `
  const [board, key] = arguments;
  const api = board + '/api/systems';
  const soon = (promise) => Promise.race([promise, new Promise((resolve) => setTimeout(resolve, 3000, 'nothing'))]);
  const read = async (url, options) => {
    try {
      const response = await fetch(url, { signal: AbortSignal.timeout(3000), ...options });
      if (response.ok) return 'read: ' + await response.text();
      return response.type === 'opaque' ? 'nothing' : String(response.status);
    } catch {
      return 'nothing';
    }
  };
  const load = (name, attributes) => soon(new Promise((resolve) => {
    const element = Object.assign(document.createElement(name), attributes);
    element.onload = () => resolve(name + ' loaded');
    element.onerror = () => resolve('nothing');
    document.body.append(element);
  }));
  const Authorization = 'Bearer ' + key;
  const results = {};
  for (const method of ['GET', 'POST']) {
    const url = method === 'GET' ? api : api + '/pause';
    results[method + ' simple'] = await read(url, { method });
    results[method + ' no-cors'] = await read(url, { method, mode: 'no-cors', credentials: 'include' });
    results[method + ' with the key'] = await read(url, { method, headers: { Authorization } });
    const init = { method, mode: 'no-cors', headers: { Authorization } };
    results[method + ' no-cors with the key'] = await read(url, init);
  }
  results.page = await read(board + '/');
  navigator.sendBeacon(api + '/pause', 'x');
  for (const url of [board + '/', api]) {
    results['img ' + url] = await load('img', { src: url });
    results['script ' + url] = await load('script', { src: url });
    results['style ' + url] = await load('link', { rel: 'stylesheet', href: url });
  }
  const frame = document.createElement('iframe');
  frame.name = 'frame';
  document.body.append(frame);
  const form = document.createElement('form');
  Object.assign(form, { method: 'post', target: 'frame', action: api + '/pause' });
  document.body.append(form);
  const submitted = new Promise((resolve) => frame.addEventListener('load', resolve, { once: true }));
  form.submit();
  await soon(submitted);
  const peek = (view) => {
    try {
      return 'read: ' + view.document.documentElement.outerHTML;
    } catch {
      return 'nothing';
    }
  };
  results.form = peek(frame.contentWindow);
  const framed = Object.assign(document.createElement('iframe'), { src: board + '/#' + key });
  const arrived = new Promise((resolve) => framed.addEventListener('load', resolve, { once: true }));
  document.body.append(framed);
  await soon(arrived);
  results.frame = peek(framed.contentWindow);
  results.frames = framed.contentWindow.length > 0 ? 'read: frames' : 'nothing';
  const popup = window.open(board + '/');
  await new Promise((resolve) => setTimeout(resolve, 500));
  results.popup = popup === null ? 'no popup' : peek(popup);
  popup?.close();
  results.events = await soon(new Promise((resolve) => {
    const events = new EventSource(api);
    events.onopen = () => resolve('read: events');
    events.onerror = () => { events.close(); resolve('nothing'); };
  }));
  results.socket = await soon(new Promise((resolve) => {
    const socket = new WebSocket(board.replace('http', 'ws') + '/api/systems');
    socket.onopen = () => resolve('read: socket');
    socket.onerror = () => resolve('nothing');
  }));
  return results;
`;

describe('Another page in the same browser', { ...LIMIT, skip: WITHOUT }, () => {
  it('reads nothing and controls nothing, under any name', async (t) => {
    const { board, port } = await start(t);
    const attacker = createServer((_, response) => {
      response.setHeader('Content-Type', 'text/html').end('<title>evil</title><body>evil');
    });
    t.after(() => attacker.close().closeAllConnections());
    await once(attacker.listen(0, '127.0.0.1'), 'listening');
    const { port: evilPort } = attacker.address() as AddressInfo;
    const rules = `MAP *.test 127.0.0.1, ${LOOPBACK_ONLY}`;
    const browser = await startBrowser(t, [`--host-resolver-rules=${rules}`]);
    const pages = [`http://localhost:${evilPort}/`, `http://evil.test:${evilPort}/`, `http://127.0.0.1:${evilPort}/`];
    for (const page of pages) {
      await browser.open(page);
      assert.equal(await browser.title(), 'evil');
      await browser.requests();
      const results = await browser.run<Record<string, string>>(ATTACK, board.url, board.key);
      assert.ok(Object.keys(results).length >= 18);
      for (const [attempt, result] of Object.entries(results)) assert.equal(result, 'nothing', `${page} ${attempt}`);
      const tried = (await browser.requests()).filter((url) => url.includes(`:${board.port}/`));
      assert.ok(tried.length >= 15, `the attempts have left the page: ${tried}`);
    }

    // DNS rebinding: the name of a page now leads to the board.
    await browser.open(`http://evil.test:${board.port}/`);
    const text = await browser.run<string>('return document.body.innerText');
    assert.match(text, /Host not allowed/);
    const codes = await browser.run<number[]>(`
      const headers = { Authorization: 'Bearer ' + arguments[0] };
      const requests = ['/', '/api/systems'].map((path) => fetch(path, { headers }));
      for (const init of [{ headers }, {}]) requests.push(fetch('/api/systems/pause', { method: 'POST', ...init }));
      return Promise.all(requests.map(async (request) => (await request).status));
    `, board.key);
    assert.deepEqual(codes, [403, 403, 403, 403]);
    assert.deepEqual((await getInfo(port)).commands, []);

    await browser.open(board.url); // its own page may
    const status = await browser.run<number>(`
      const headers = { Authorization: 'Bearer ' + arguments[0] };
      return (await fetch('/api/systems/pause', { method: 'POST', headers })).status;
    `, board.key);
    assert.equal(status, 202);
    await until(async () => (await getInfo(port)).commands.length === 1);
  });

  it('finds an empty page without the key, in which nothing injected runs', async (t) => {
    const { board, port } = await start(t);
    const browser = await startBrowser(t);
    await browser.open(board.url);
    await until(async () => /The key is missing/.test(await browser.text('body')));
    await checkEmpty(browser);
    await browser.open(`${board.url}?#${board.key}x`);
    await until(async () => /The key is wrong/.test(await browser.text('body')));
    await checkEmpty(browser);
    const { violations, ...effects } = await browser.run<{ violations: string[] }>(`
      const violations = [];
      addEventListener('securitypolicyviolation', (event) => violations.push(event.effectiveDirective));
      const attempt = (work) => { try { return work(); } catch (error) { return error.name; } };
      const add = (name, set) => attempt(() => {
        const element = document.createElement(name);
        attempt(() => set(element));
        document.body.append(element);
      });
      add('script', (script) => script.append('window.injected = 1'));
      add('script', (script) => { script.textContent = 'window.injected = 2'; });
      add('script', (script) => { script.src = 'data:text/javascript,window.injected=3'; });
      const same = (text) => text;
      const trusted = trustedTypes.createPolicy('test', { createScript: same, createScriptURL: same });
      add('script', (script) => { script.textContent = trusted.createScript('window.injected = 6'); });
      add('script', (script) => { script.src = trusted.createScriptURL(location.origin + '/x.js'); });
      add('img', (image) => {
        image.setAttribute('onerror', trusted.createScript('window.injected = 7'));
        image.src = 'data:image/png,x';
      });
      add('style', (style) => { style.textContent = 'body { outline: 7px solid red }'; });
      add('img', (image) => { image.setAttribute('onerror', 'window.injected = 4'); image.src = 'data:x'; });
      add('img', (image) => { image.src = location.origin + '/x.png'; });
      add('iframe', (frame) => { frame.src = location.origin + '/'; });
      add('base', (base) => { base.href = 'http://evil.test/'; });
      document.body.setAttribute('style', 'outline: 8px solid red');
      const html = attempt(() => { document.body.innerHTML = '<b>x</b>'; return 'set'; });
      const evaluated = await new Promise((resolve) => { // later: what WebDriver runs itself may call eval()
        setTimeout(() => resolve(attempt(() => eval('window.injected = 5; "run"'))));
      });
      const connected = await fetch('http://127.0.0.1:1/').then(() => 'sent', (error) => error.name);
      await new Promise((resolve) => setTimeout(resolve, 500));
      const styled = getComputedStyle(document.body).outlineStyle;
      return { injected: window.injected ?? null, html, evaluated, connected, styled, violations };
    `) as { violations: string[]; [name: string]: unknown };
    assert.equal(effects['injected'], null);
    assert.notEqual(effects['html'], 'set');
    assert.notEqual(effects['evaluated'], 'run');
    assert.notEqual(effects['connected'], 'sent');
    assert.equal(effects['styled'], 'none');
    for (const directive of [
      'script-src-elem', 'script-src-attr', 'style-src-elem', 'style-src-attr', 'connect-src', 'img-src', 'base-uri',
      'require-trusted-types-for',
    ]) {
      assert.ok(violations.includes(directive), `${directive}: ${violations}`);
    }
    assert.deepEqual((await getInfo(port)).commands, []);
  });
});

async function checkEmpty(browser: Browser): Promise<void> {
  assert.deepEqual(await browser.findAll('#systems *'), []);
  assert.doesNotMatch(await browser.run<string>('return document.documentElement.outerHTML'), /top-secret-name/);
}

async function start(t: TestContext, options: string[] = []): Promise<{ board: StartedBoard; port: number }> {
  const { port } = await startServer(t, { name: 'top-secret-name', maxQueueSize: 1000 });
  return { board: await startBoard(t, [`127.0.0.1:${port}`], options), port };
}

/** Checks the status code that requests with the key and each of these values of Host get. */
async function decides(board: StartedBoard, line: string, hosts: readonly string[], expected: number): Promise<void> {
  const codes = await Promise.all(hosts.map(async (host) => {
    return [host, await statusOf(board, line, `Host: ${host}`, `Authorization: Bearer ${board.key}`)];
  }));
  assert.deepEqual(codes, hosts.map((host) => [host, expected]), line);
}

async function statusOf(board: StartedBoard, line: string, ...fields: string[]): Promise<number> {
  const text = await exchange(board.port, [head(line, ...fields, 'Connection: close')], 1);
  return Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1]);
}
