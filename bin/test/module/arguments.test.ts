// Wrong arguments: each causes an error with its name, the expected value and the received value.

import assert from 'node:assert/strict';
import { resolve } from 'node:path';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { SystemStatus, WebApiClient, WebApiServer, launch } from '../../../control.ts';
import { LIMIT } from '../wait.ts';
import type { LaunchConfig, System } from '../../../control.ts';

const { ACTIVE, PAUSED } = SystemStatus;

describe('A wrong argument', LIMIT, () => {
  const systemStatus = (): SystemStatus => ACTIVE;
  const server = new WebApiServer({ systemStatus });
  const client = new WebApiClient('127.0.0.1', 1);
  const construct = (options: object): unknown => new WebApiServer({ systemStatus, ...options });
  const connect = (...values: unknown[]): unknown => new WebApiClient(...values as [string, number, object]);
  const launchWith = (system: object, config: object = {}): unknown => {
    const step = (): void => assert.fail('a step ran');
    return launch({ step, ...system } as System, { webApiAddress: null, ...config } as LaunchConfig);
  };
  const assertThrows = (call: () => unknown, errorClass: ErrorConstructor, ...parts: string[]): Promise<void> => {
    return assert.rejects(async () => call(), (error: Error) => {
      return error instanceof errorClass && parts.every((part) => error.message.includes(part));
    });
  };

  const HOSTS = ['', 'http://localhost', 'localhost:80', 'a b'];
  const COUNTS = [NaN, 0, 1.5, 65_537];
  const TIMEOUTS = [NaN, 0, -1, Infinity, 2 ** 31];
  const PATHS = ['/a\0', '/'.padEnd(95, 'x')].map((path) => resolve(path)); // with a drive on Windows
  const NAMES = ['', '.', '*.lan', 'box.lan:80', 'http://box.lan', 'box lan', 'box.lan.', '[::1]'];
  const rows: [name: string, call: (value: any) => unknown, typeErrors: unknown[], rangeErrors?: unknown[]][] = [
    ['options', (value) => new WebApiServer(value), [null, 5]],
    ['systemStatus', (value) => construct({ systemStatus: value }), [null, ACTIVE]],
    ['host', (value) => construct({ host: value }), [127, null], HOSTS],
    ['port', (value) => construct({ port: value }), ['80', null], [NaN, -1, 1.5, 65_536]],
    ['maxQueueSize', (value) => construct({ maxQueueSize: value }), ['16', null], [...COUNTS, 1001]],
    ['autoReport', (value) => construct({ autoReport: value }), [0, null]],
    ['maxConnections', (value) => construct({ maxConnections: value }), ['16', null], COUNTS],
    ['socketPath', (value) => construct({ socketPath: value }), [5], ['', ...PATHS]], // null: no socket
    ['log', (value) => construct({ log: value }), [1, null, true, {}], ['', '/', 'logs/', 'a\0b']],
    ['allowedHosts', (value) => construct({ allowedHosts: [value] }), [5, null], NAMES],
    ['cause', (value) => construct({ cause: value }), [5, null]],
    ['since', (value) => construct({ cause: { since: value } }), [5, null], ['', 'noon']],
    ['until', (value) => construct({ cause: { until: value } }), [5, true], ['', 'noon']],
    ['by and reason', (value) => construct({ cause: { by: value } }), [5, null]],
    ['by and reason', (value) => server.post('pause', { reason: value }), [5, null]],
    ['command', (value) => server.post(value), ['stop', '', null, ['pause']]],
    ['message', (value) => server.ask(value), [7, null], ['', ' \n ', '\x07', 'x'.repeat(1001)]],
    ['parameters', (value) => server.ask('?', { parameters: value }), ['yes', () => {}], [[]]],
    ['answer.a.type', (value) => server.ask('?', { parameters: { a: { type: value } } }), [], [5]],
    ['signal', (value) => server.ask('?', { signal: value }), [{}, null]],
    ['timeout', (value) => server.ask('?', { timeout: value }), ['1', null], [NaN, 0]],
    ['timeout', (value) => server.nextCommandSync({ timeout: value }), ['1', null], [NaN, -1]],
    ['host', (value) => connect(value), [127, null], HOSTS],
    ['port', (value) => connect('localhost', value), ['80', null], [NaN, 0, 65_536]],
    ['timeout', (value) => connect('localhost', 80, { timeout: value }), ['1', null], TIMEOUTS],
    ['connect', (value) => connect('localhost', 80, { connect: value }), [null, 'ssh']],
    ['endpoint', (value) => client.request(value), [5, null], ['', 'Say', '../say', 'say?by=x', 'é', 'x'.repeat(33)]],
    ['arguments', (value) => client.request('say', { arguments: value }), [0, '', null, 'text=a', true]],
    ['by', (value) => client.request('pause', { by: value }), [5, null]],
    ['reason', (value) => client.request('pause', { reason: value }), [5, null]],
    ['id', (value) => client.request('answer', { id: value }), [5, null]],
    ['wait', (value) => client.request('pause', { wait: value }), ['1', null], [0, 1.5, 301]],
    ['status', (value) => client.waitFor(value), ['paused', null]],
    ['onStatus', (value) => client.waitFor(PAUSED, { onStatus: value }), [5, null]],
    ['step', (value) => launchWith({ step: value }), [null, 'x']],
    ['webApiAddress', (value) => launchWith({}, { webApiAddress: value }), ['localhost:80', ['localhost']]],
    ['maxQueueSize', (value) => launchWith({}, { maxQueueSize: value }), ['16', null], COUNTS],
    ['startPaused', (value) => launchWith({}, { startPaused: value, webApiAddress: ['localhost', 0] }), ['yes', null]],
  ];
  it('causes a TypeError or a RangeError that names it and shows the value', async () => {
    for (const [name, call, typeErrors, rangeErrors = []] of rows) {
      for (const value of typeErrors) await assertThrows(() => call(value), TypeError, name, `got ${inspect(value)}`);
      for (const value of rangeErrors) await assertThrows(() => call(value), RangeError, name, `got ${inspect(value)}`);
    }
  });

  it('causes a TypeError if it is an unknown option, or one of two that exclude each other', async () => {
    for (const [call, message] of [
      [() => construct({ prot: 1 }), 'WebApiServer has no option prot; it has systemStatus, describe, '],
      [() => server.ask('?', { timeOut: 1 } as object), 'ask has no option timeOut; it has parameters, timeout'],
      [() => connect('a', 1, { timeOut: 1 }), 'WebApiClient has no option timeOut; it has timeout, token, socketPath'],
      [() => client.request('pause', { wiat: 1 } as object), 'request has no option wiat; it has wait, '],
      [() => client.waitFor(PAUSED, { timeOut: 1 } as object), 'waitFor has no option timeOut; it has timeout, '],
      [() => construct({ cause: { who: 1 } }), 'cause has no option who; it has by, reason, since'],
      [() => launchWith({}, { webApiPort: 1 }), 'launch has no option webApiPort; it has webApiAddress, '],
      [() => launchWith({}, { startPaused: true }), 'startPaused, socketPath and log need a server'],
      [() => launchWith({}, { socketPath: 's' }), 'startPaused, socketPath and log need a server'],
      [() => launchWith({}, { socketPath: null, log: 'l' }), 'startPaused, socketPath and log need a server'],
      [() => connect('a', 1, { socketPath: 's' }), 'socketPath replaces host and port: give one or the other'],
    ] as const) await assertThrows(call, TypeError, message);
  });

  it('does not appear in the message if it is a token', async () => {
    for (const [token, errorClass, got] of [
      [123_456_789, TypeError, 'a value of type number'], ['secret-of-15-ch', RangeError, '15'],
      ['secret'.padEnd(1025, 'x'), RangeError, '1025'], ['secret with spaces', RangeError, 'other characters'],
    ] as const) {
      const message = `token must be a string of 16 to 1024 visible ASCII characters, got ${got}`;
      await assert.rejects(async () => construct({ token }), { name: errorClass.name, message });
      await assert.rejects(async () => connect('a', 1, { token }), { name: errorClass.name, message });
    }
  });
});
