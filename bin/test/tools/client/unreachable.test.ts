// control-client and a system that cannot be reached, does not respond or denies access: the causes, and for each
// command the exit code and the line.

import assert from 'node:assert/strict';
import { chownSync } from 'node:fs';
import { Duplex } from 'node:stream';
import { it, type TestContext } from 'node:test';
import { PrintableClient } from '../../../shared/client.ts';
import { observe } from '../../../shared/system.ts';
import { type Ended, freePort, makeSocketPath, NO_TOKEN, startServer, TOKEN } from '../../helpers.ts';
import { startUnreachable } from '../../host.ts';
import { leaveSocket } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { call } from './helpers.ts';
import { startFull, startOwnProcess, startSilent, startWeb } from './systems.ts';

const COMMANDS = [
  'status --timeout 3', 'info --timeout 3', 'pause', 'pause --wait --timeout 3', 'shutdown --wait --timeout 3',
  'resume --mine', 'pause --for 1 --timeout 3', 'run list', 'run --timeout 3',
  'wait offline --timeout 1.5', 'wait active --timeout 1.5', 'wait x=1 --timeout 1.5',
];

const OFFLINE = 'after N s: the system is offline';
const UNKNOWN = 'after N s: the system does not report its status';
const WAITS = [`4 not offline ${UNKNOWN}`, `4 not active ${UNKNOWN}`, `4 not x=1 ${UNKNOWN}`];
const UNSENT = ['resume not sent: ERROR', 'pause not sent: ERROR', 'list not sent: ERROR', 'ERROR'];

/** For each command: the exit code, what stdout shows in brackets, and what stderr shows. */
const OUTCOMES = {
  absent: [
    '3 [offline] ERROR', '3 ERROR', '3 ERROR', '3 not paused: ERROR', '0 [already offline]',
    ...UNSENT.map((text) => `3 ${text}`), '0 [offline]', `4 not active ${OFFLINE}`, `4 not x=1 ${OFFLINE}`,
  ],
  foreign: [
    '3 [offline] ERROR', '3 ERROR', '3 ERROR', '3 pause not sent: ERROR', '3 shutdown not sent: ERROR',
    ...UNSENT.map((text) => `3 ${text}`), '0 [offline]', `4 not active ${OFFLINE}`, `4 not x=1 ${OFFLINE}`,
  ],
  untrusted: [
    '3 [unknown] ERROR', '3 ERROR', '3 ERROR', '3 pause not sent: ERROR', '3 shutdown not sent: ERROR',
    ...UNSENT.map((text) => `3 ${text}`), ...WAITS,
  ],
  denied: [
    '1 ERROR', '1 ERROR', '1 ERROR', '1 pause not sent: ERROR', '1 shutdown not sent: ERROR',
    ...UNSENT.map((text) => `1 ${text}`), '1 ERROR', '1 ERROR', '1 ERROR',
  ],
  unconnected: [
    '5 [no answer] ERROR', '5 ERROR', '5 pause not sent: ERROR', '5 pause not sent: ERROR',
    '5 shutdown not sent: ERROR',
    ...UNSENT.map((text) => `5 ${text}`), ...WAITS,
  ],
  silent: [
    '5 [no answer] ERROR', '5 ERROR', '5 pause SENT', '5 pause not sent: ERROR', '5 shutdown not sent: ERROR',
    ...UNSENT.map((text) => `5 ${text}`), ...WAITS,
  ],
};

interface Unreachable {
  target: string;
  /** The error, without the address. */
  error: string | RegExp;
  /** The requests that it has received. */
  requests?: string[];
}

type Start = (t: TestContext) => Promise<Unreachable>;

/** With the address, unless the line begins with it. */
const NOTHING = /nothing listens( at \S+)?/;

const CAUSES: readonly [what: string, outcome: keyof typeof OUTCOMES, Start, needs?: 'Unix' | 'Linux' | 'root'][] = [
  ['nothing listens at the port', 'absent', async () => {
    return { target: `127.0.0.1:${await freePort()}`, error: NOTHING };
  }],
  ['there is no socket', 'absent', async (t) => {
    return { target: `unix:${makeSocketPath(t)}`, error: NOTHING };
  }, 'Unix'],
  ['the server of the socket has died', 'absent', async (t) => {
    const path = makeSocketPath(t);
    await leaveSocket(path);
    return { target: `unix:${path}`, error: NOTHING };
  }, 'Unix'],
  ['it is another web server', 'foreign', async (t) => {
    const { target } = await startWeb(t, () => ({}));
    return { target, error: 'is not a control server: it responded with status code 200' };
  }],
  ['the socket belongs to another user', 'untrusted', async (t) => {
    const path = `${makeSocketPath(t)}-ENOENT`;
    const { target, requests } = await startWeb(t, undefined, { socketPath: path });
    chownSync(path, 12345, 12345);
    const error = `'${path}' is not trusted, because it belongs to user 12345; nothing was sent`;
    return { target, error, requests };
  }, 'root'],
  ['the token is missing', 'denied', async (t) => {
    return { target: `127.0.0.1:${(await startServer(t, { token: TOKEN })).port}`, error: NO_TOKEN };
  }],
  ['the host does not exist', 'unconnected', async () => {
    const error = /there is no such host|no name server responds|(timeout after|no connection within) N s/;
    return { target: 'ENOENT.invalid:1', error };
  }],
  ['its connection queue is full', 'unconnected', async (t) => {
    const path = await startFull(t);
    return { target: `unix:${path}`, error: 'its queue of connections is full' };
  }, 'Linux'],
  ['the network drops packets', 'unconnected', async (t) => {
    return { target: `127.0.0.1:${await startUnreachable(t)}`, error: /(timeout after|no connection within) N s/ };
  }],
  ['it never responds', 'silent', async (t) => {
    return { target: await startSilent(t), error: 'has not responded within N s' };
  }],
  ['its process is stopped', 'silent', async (t) => {
    const { port, stop } = await startOwnProcess(t);
    await stop();
    return { target: `127.0.0.1:${port}`, error: 'has not responded within N s' };
  }, 'Linux'],
  ['it cuts the connection', 'silent', async (t) => {
    return { target: (await startWeb(t, () => null)).target, error: /has not responded \(.+\)/ };
  }],
];

it('control-client asks for the address of an unknown host every two seconds at most', LIMIT, async () => {
  const end = new AbortController();
  const times: number[] = [];
  const lookUp = (): Duplex => {
    if (times.push(performance.now()) === 2) end.abort();
    const error = Object.assign(new Error('getaddrinfo ENOTFOUND box'), { code: 'ENOTFOUND' });
    return new Duplex({ construct: (callback) => callback(error) }).on('error', () => {});
  };
  const client = new PrintableClient('box', 80, { connect: lookUp });
  for await (const { status } of observe(client, 'info', end.signal)) assert.equal(status, 'no answer');
  const [first = 0, second = 0] = times;
  assert.ok(second - first >= 1990, `${second - first} ms`);
});

for (const [what, outcome, start, needs] of CAUSES) {
  it(`control-client reports a system if ${what}`, { ...LIMIT, skip: needs && lacks(needs) }, async (t) => {
    const { target, error, requests = [] } = await start(t);
    const [host = '', port = ''] = target.split(/:(?=\d+$)/);
    const isSocket = target.startsWith('unix:');
    const address = isSocket ? ['--socket', target.slice('unix:'.length)] : ['--host', host, '--port', port];
    const title = isSocket || outcome === 'silent' ? target : `http://${target}`;
    const known = outcome === 'foreign' || outcome === 'silent' ? `${title} ` : `${title} does not respond: `;
    const shape = ({ code, stdout, stderr }: Ended, start: string): string => {
      const [shown, said] = [stdout, stderr.replace('control-client: ', '')].map((text) => {
        return text.trimEnd().replace(start, '').replaceAll(/\d+(\.\d+)? s\b/g, 'N s')
          .replace(/sent, but no response (within N s|\(.+\)): it may still take effect$/, 'SENT')
          .replace(error, 'ERROR');
      });
      return [code, shown && `[${shown}]`, said].filter((part) => part !== '').join(' ');
    };
    await Promise.all(COMMANDS.map(async (command, index) => {
      const words = command.split(' ');
      const expected = `${OUTCOMES[outcome][index]}`;
      const [alone, asTarget, asJson] = await Promise.all([
        call([...words, ...address]), call([...words, target]), call([...words, ...address, '--json']),
      ]);
      assert.equal(shape(alone, known), expected, command);
      const ofTarget = shape({ ...asTarget, stderr: asTarget.stderr.replace(`${target}: `, '') }, `${target}  `);
      assert.equal(ofTarget, expected.replace(/\[(.*)\] ERROR$/, '[$1: ERROR]'), command);
      const { error: reason = '' } = JSON.parse(asJson.stdout) as { error?: string };
      assert.ok(asJson.stderr.endsWith(reason && `${reason}\n`), asJson.stderr);
      assert.equal(asJson.code, alone.code, command);
    }));
    assert.deepEqual(requests, []);
  });
}
