// The main paths of control-board, without a browser. board/ has the rest.

import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { VERSION } from '../../../control.ts';
import { getInfo, launchSystem, makeFolder, runProgram } from '../helpers.ts';
import { lacks } from '../needs.ts';
import { LIMIT } from '../wait.ts';
import { newsOf, NOWHERE, startBoard, untilSystem } from './board/helpers.ts';

describe('control-board', LIMIT, () => {
  it('prints its address with a key, without which the page stays empty; --key-file keeps it', async (t) => {
    const path = join(makeFolder(t), 'key');
    const targets = [NOWHERE, NOWHERE, '127.0.0.1:10'];
    const { running, url, port, key, get } = await startBoard(t, targets, ['--key-file', path]);
    assert.equal(running.output(), `2 systems · ${url}#${key}   (open it; the part after # is the key)\n`);
    assert.equal(url, `http://localhost:${port}/`);
    assert.equal(Buffer.from(key, 'base64url').length, 16);
    assert.equal(readFileSync(path, 'utf8'), `${key}\n`);
    if (lacks('Unix') === false) assert.equal(statSync(path).mode & 0o777, 0o600, 'for its user alone');
    const page = await fetch(url);
    assert.equal(page.headers.get('content-type'), 'text/html; charset=utf-8');
    assert.equal(await page.text(), readFileSync('bin/board/page.html', 'utf8'));
    for (const [authorization, status] of [['', 401], [`Bearer ${key}x`, 401], [`Bearer ${key}`, 200]] as const) {
      const response = await get('/api/systems', { Authorization: authorization });
      assert.equal(response.status, status, authorization);
      assert.equal((await response.text()).includes(NOWHERE), status === 200);
    }

    const listen = ['--listen', `localhost:${port}`];
    const { code, stdout, stderr } = await runProgram(t, 'board', [...listen, NOWHERE]);
    assert.deepEqual([code, stdout], [1, '']); // on a busy machine, it cannot tell what listens there
    assert.match(stderr, /^\S+ cannot listen on localhost:\d+: the port is in use( by another control-board)?; /);
    const earlier = await newsOf({ running, url, port, key, get, post: get });
    running.child.kill('SIGKILL');
    await running.ended;
    const second = await startBoard(t, targets, [...listen, '--key-file', path]);
    assert.equal(second.key, key);
    const later = await newsOf(second, earlier.version, 30);
    assert.equal(later.systems.length, 2);
    assert.ok(later.version > earlier.version);
    assert.notEqual(later.startedAt, earlier.startedAt, 'the page loads itself again');
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
    const [{ text, isReported } = {}] = failed.sent;
    assert.deepEqual([text, isReported], ['not paused: onPaused failed: GPU busy', true]);
    await untilSystem(board, ({ sent: [latest], commands: all }) => latest?.state === 'failed' && all.length === 0);
    const { commands } = await getInfo(address.port);
    assert.deepEqual([commands[0]?.by, commands[0]?.reason], ['ana@phone', 'why not?']);

    isBroken = false;
    await board.post('/api/systems/0/save-state');
    const saved = await untilSystem(board, ({ sent: [latest], saved: line, commands }) => {
      return latest?.state === 'done' && /^saved states\/1\.json \d+ s ago by ana@phone$/.test(line) && !commands[1];
    });
    assert.match(saved.sent[0]?.text ?? '', /^saved states\/1\.json \(\d+\.\d s\)$/);
    assert.equal(saved.sent.length, 1, 'only the latest of those that are done');
    await board.post('/api/systems/pause?reason=lunch'); // to all systems
    const paused = await untilSystem(board, ({ status, cause }) => status === 'paused' && cause !== '');
    assert.equal(paused.cause, ' by ana@phone: lunch');
    await board.post('/api/systems/0/shutdown');
    await finished;
    const ended = await untilSystem(board, ({ status, sent }) => { // the pause may still be before it
      return status === 'offline' && sent.at(-1)?.state === 'done';
    });
    assert.match(ended.sent.at(-1)?.text ?? '', /^offline/);
  });

  it('refuses a wrong option or variable in one line, and prints its help and its version', async (t) => {
    const [refused, help, version] = await Promise.all([
      runProgram(t, 'board', [], '', { CONTROL_SOCKET: '/nowhere/' }), runProgram(t, 'board', ['--help']),
      runProgram(t, 'board', ['--version']),
    ]);
    const line = "CONTROL_SOCKET must be the path of a socket, not of a folder, got '/nowhere/'";
    assert.deepEqual(refused, { code: 2, stdout: '', stderr: `control-board: ${line}\n` });
    assert.deepEqual(version, { code: 0, stdout: `${VERSION}\n`, stderr: '' });
    assert.deepEqual([help.code, help.stderr], [0, '']);
    for (const words of [
      '--listen HOST:PORT', '--allow-host NAME', '--key-file PATH', '--targets FILE', '--dir DIR', 'CONTROL_TOKEN',
    ]) {
      assert.ok(help.stdout.includes(words), words);
    }
    assert.ok(help.stdout.split('\n').every((text) => text.length <= 120));
  });
});
