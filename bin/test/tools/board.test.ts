// The main paths of control-board, without a browser. board/ has the rest.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync, statSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { VERSION } from '../../../control.ts';
import { LIMIT } from '../wait.ts';
import { newsOf, NOWHERE, startBoard, untilSystem } from './board/helpers.ts';
import { freePort, getInfo, launchSystem, makeFolder, runProgram, startServer } from '../helpers.ts';
import { lacks } from '../needs.ts';
import type { AddressInfo } from 'node:net';

describe('control-board', LIMIT, () => {
  it('prints its address with a random key, without which the page stays empty', async (t) => {
    const { running, url, port, key } = await startBoard(t, [NOWHERE, NOWHERE, '127.0.0.1:10']);
    assert.equal(running.output(), `2 systems · ${url}#${key}   (open it; the part after # is the key)\n`);
    assert.equal(url, `http://localhost:${port}/`);
    assert.equal(Buffer.from(key, 'base64url').length, 16);
    const page = await fetch(url);
    assert.equal(page.headers.get('content-type'), 'text/html; charset=utf-8');
    assert.equal(await page.text(), readFileSync('bin/board/page.html', 'utf8'));
    for (const [authorization, status] of [['', 401], [`Bearer ${key}x`, 401], [`Bearer ${key}`, 200]] as const) {
      const response = await fetch(`${url}api/systems`, { headers: { authorization } });
      assert.equal(response.status, status, authorization);
      assert.equal((await response.text()).includes(NOWHERE), status === 200);
    }
  });

  it('shows a system, sends it commands with author and reason, and shows their outcomes', async (t) => {
    let isBroken = true;
    const { address, finished } = await launchSystem(t, {
      describe: () => ({ epoch: 7 }),
      saveState: () => 'states/1.json',
      onPaused() {
        if (isBroken) throw new Error('GPU busy');
      },
    }, { name: 'trainer' });
    t.mock.method(process, 'emitWarning', () => {}); // for the failing pause
    const board = await startBoard(t, [`127.0.0.1:${address.port}`], [], { CONTROL_BY: 'ana@phone' });
    const shown = await untilSystem(board, ({ name, fields }) => name === 'trainer' && fields.length > 0);
    assert.equal(shown.status, 'active');
    assert.deepEqual(shown.fields.map(({ name, value }) => [name, value]), [['epoch', 7]]);
    assert.match(shown.process, new RegExp(`^process ${process.pid} on `));

    const response = await board.post('/api/systems/0/pause?reason=why%20not%3F&by=eve');
    assert.deepEqual([response.status, await response.json()], [202, { result: 'sent', id: 1 }]);
    const failed = await untilSystem(board, ({ sent: [latest] }) => latest?.state === 'failed');
    assert.equal(failed.sent[0]?.text, 'not paused: onPaused failed: GPU busy');
    const { commands } = await getInfo(address.port);
    assert.deepEqual([commands[0]?.by, commands[0]?.reason], ['ana@phone', 'why not?']);

    isBroken = false;
    await board.post('/api/systems/0/save-state');
    const saved = await untilSystem(board, ({ sent: [latest], commands: [listed] }) => {
      return latest?.state === 'done' && / done in .*: states\/1\.json, \d+ s ago$/.test(listed?.text ?? '');
    });
    assert.match(saved.sent[0]?.text ?? '', /^saved states\/1\.json \(\d+\.\d s\)$/);
    assert.equal(saved.sent.length, 1, 'only the latest of those that are done');
    await board.post('/api/systems/pause?reason=lunch'); // to all systems
    const paused = await untilSystem(board, ({ status, cause }) => status === 'paused' && cause !== '');
    assert.equal(paused.cause, ' by ana@phone: lunch');
    await board.post('/api/systems/0/shutdown');
    await finished;
    const ended = await untilSystem(board, ({ status, sent: [latest] }) => {
      return status === 'offline' && latest?.state === 'done';
    });
    assert.match(ended.sent[0]?.text ?? '', /^offline/);
  });

  it('keeps the key in --key-file, and its versions increase across a restart', async (t) => {
    const { port } = await startServer(t);
    const path = join(makeFolder(t), 'key');
    const options = ['--listen', `127.0.0.1:${await freePort()}`, '--key-file', path];
    const first = await startBoard(t, [`127.0.0.1:${port}`], options);
    assert.equal(readFileSync(path, 'utf8'), `${first.key}\n`);
    if (lacks('Unix') === false) assert.equal(statSync(path).mode & 0o777, 0o600, 'for its user alone');
    const earlier = await newsOf(first);
    first.running.child.kill('SIGKILL');
    await first.running.ended;
    const second = await startBoard(t, [`127.0.0.1:${port}`], options);
    assert.equal(second.key, first.key);
    const later = await newsOf(second, earlier.version, 30);
    assert.equal(later.systems.length, 1);
    assert.ok(later.version > earlier.version);
    assert.notEqual(later.startedAt, earlier.startedAt, 'the page loads itself again');
  });

  it('exits with 1 and one line when the port is in use', async (t) => {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => server.close());
    const { port } = server.address() as AddressInfo;
    const { code, stdout, stderr } = await runProgram(t, 'board', ['--listen', `localhost:${port}`, NOWHERE]);
    assert.deepEqual([code, stdout], [1, '']);
    const line = `cannot listen on localhost:${port}: the port is in use; --listen localhost:0 picks a free one`;
    assert.equal(stderr, `control-board: ${line}\n`);
  });

  it('exits with 2 and one line when an option or a variable is invalid', async (t) => {
    for (const [line, args, env] of [
      ["--listen must be HOST or HOST:PORT, such as localhost:9000, got '9000'", ['--listen', '9000'], {}],
      ["the host of --listen ' [2J:80' must be a host name or an IP address, got '\\x1B[2J:80'",
        ['--listen', '\x1b[2J:80'], {}],
      ["CONTROL_SOCKET must be the path of a socket, not of a folder, got '/nowhere/'", [], {
        CONTROL_SOCKET: '/nowhere/',
      }],
    ] as const) {
      const ended = await runProgram(t, 'board', args, '', env);
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-board: ${line}\n` });
    }
  });

  it('prints all options with --help, and its version with --version', async (t) => {
    const help = await runProgram(t, 'board', ['--help']);
    assert.deepEqual([help.code, help.stderr], [0, '']);
    for (const words of [
      '--listen HOST:PORT', '--allow-host NAME', '--key-file PATH', '--targets FILE', '--dir DIR', 'CONTROL_TOKEN',
    ]) {
      assert.ok(help.stdout.includes(words), words);
    }
    assert.ok(help.stdout.split('\n').every((text) => text.length <= 120));
    assert.deepEqual(await runProgram(t, 'board', ['--version']), { code: 0, stdout: `${VERSION}\n`, stderr: '' });
  });
});
