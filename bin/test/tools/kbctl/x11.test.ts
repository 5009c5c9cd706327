// The x11 backend, on X servers without a screen; a client of these tests is their keyboard and the focused window.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { type Action, BackendError, type Listener, parseBindings } from '../../../kbctl/keys.ts';
import { Connection, listenX11, parseDisplay, readRoots, words } from '../../../kbctl/x11.ts';
import { makeFolder, startForeign, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { collectReports, type Reports, startQuick } from './helpers.ts';

const MAGIC = 'MIT-MAGIC-COOKIE-1';
const [ANY_HOST, THIS_HOST] = [0xffff, 256]; // FamilyWild, FamilyLocal
const REMEDY = 'XAUTHORITY must name the file with its cookie';

/** A test or a suite. */
interface Owner {
  after(end: () => unknown): void;
}

describe('the x11 backend', { ...LIMIT, skip: lacks('Xvfb', 'setxkbmap') }, () => {
  const ends: (() => unknown)[] = [];
  let display: Display; // of all tests: starting one is slow
  before(async () => {
    display = await startDisplay({ after: (end) => ends.push(end) });
  });
  after(async () => {
    for (const end of ends.reverse()) await end();
  });

  const presses: [what: string, keys: string, count: number][] = [
    ['alt, shift, p', 'alt+shift+p', 1],
    ['modifiers released first', '+alt +shift +p -alt -shift -p', 1],
    ['modifiers on the right', 'altR+shiftR+p', 1],
    ['held while the X server repeats it', '+alt +shift +p hold -p -shift -alt', 1],
    ['twice while the modifiers are held', '+alt +shift p p -shift -alt', 2],
    ['fifty times', 'alt+shift+p '.repeat(50), 50],
    ['p before the modifiers, and repeated', '+p +alt +shift hold -shift -alt -p', 0],
    ['with NumLock and CapsLock', 'numLock capsLock alt+shift+p numLock capsLock', 1],
    ['without alt', 'shift+p', 0],
    ['with super', 'super+alt+shift+p', 0],
    ['another letter', 'alt+shift+o', 0],
  ];
  it('reports each press of exactly the combination once', async (t) => {
    const { user } = display;
    const { arrived, notices, source } = await listen(t, display);
    assert.equal(source, `X11 display ${display.name}`);
    for (const [what, keys, count] of presses) {
      await user.press(keys);
      assert.deepEqual(await arrived(), Array(count).fill('pause'), what);
    }
    assert.deepEqual(notices, []);
  });

  const others: [pauseKey: string, keys: string, not: string][] = [
    ['ctrl+F9', 'ctrl+F9', 'F9'],
    ['Super+Space', 'super+space', 'shift+super+space'],
    ['ctrl+shift+1', 'ctrl+shift+one', 'ctrl+one'],
    ['<cmd>+<pause>', 'super+pause', 'pause'],
  ];
  it('reports the combination of --pause-key', async (t) => {
    for (const [pauseKey, keys, not] of others) {
      const { arrived, close } = await listen(t, display, { 'pause-key': pauseKey, 'resume-key': 'alt+F9' });
      await display.user.press(`${not} ${keys} alt+shift+p ${not}`);
      assert.deepEqual(await arrived('alt+F9'), ['pause'], pauseKey);
      close();
    }
  });

  it('reports a press with modifiers that were held before', async (t) => {
    await display.user.press('+alt +shift');
    const { arrived } = await listen(t, display);
    await display.user.press('p -shift -alt');
    assert.deepEqual(await arrived(), ['pause']);
  });

  it('recognizes locked modifiers that are not held', async (t) => {
    const { user } = display;
    const { arrived } = await listen(t, display);
    await user.typed();
    await user.lockModifiers(1 | 8); // Shift and Alt
    await user.press('p');
    await user.lockModifiers(0);
    assert.deepEqual(await user.typed(), []);
    assert.deepEqual(await arrived(), ['pause']);
  });

  it('keeps only the combinations from the focused window, until it closes', async (t) => {
    const { user } = display;
    const { actions, close } = await listen(t, display);
    await user.typed();
    await user.press('w alt+shift+p alt+shift+r numLock+capsLock alt+shift+p numLock+capsLock alt+shift+o ctrl+p');
    assert.deepEqual(await user.typed(), ['w', 'o', 'p']);
    await until(() => actions.length === 3);
    assert.deepEqual(actions, ['pause', 'resume', 'pause']);
    close();
    await until(async () => {
      await user.press('alt+shift+p');
      return (await user.typed()).length === 1;
    });
    assert.equal(actions.length, 3);
  });

  it('leaves a combination to another client that has grabbed it, and reports that', async (t) => {
    const [first, second] = [await listen(t, display), await listen(t, display, { 'resume-key': 'ctrl+F9' })];
    const { user } = display;
    await user.press('+alt +shift +p hold -p -shift -alt alt+shift+p ctrl+F9');
    await until(() => second.actions.length === 1);
    assert.deepEqual([await first.arrived(), second.actions], [['pause', 'pause'], ['resume']]);
    assert.deepEqual([first, second].map(({ bindings }) => bindings.map(({ action }) => action)), [
      ['pause', 'resume'], ['resume'],
    ]);
    await assert.rejects(listen(t, display, { 'resume-key': 'alt+shift+r' }), {
      message: 'other applications have grabbed all combinations',
    });
    assert.deepEqual([first.notices, second.notices], [[], [
      'another application has grabbed Alt+Shift+P, which does nothing here; set --pause-key to another combination',
    ]]);
  });

  it('fails when the X server ends', async (t) => {
    const other = await startDisplay(t);
    const { failures } = await listen(t, other);
    await other.end();
    await until(() => failures.length > 0);
    assert.match(failures.join(), /^(lost )?the X server at :\d+(: .*| closed the connection)$/);
  });

  it('reports why it cannot listen', async (t) => {
    const wrongCookie = join(makeFolder(t), 'auth');
    writeFileSync(wrongCookie, formatCookie(randomBytes(16)));
    const refusal = new RegExp(`^the X server at :\\d+ refused the connection: .+; ${REMEDY}$`);
    const unusable: [env: NodeJS.ProcessEnv, message: RegExp | string][] = [
      [{ XAUTHORITY: '/nonexistent' }, refusal],
      [{ XAUTHORITY: wrongCookie }, refusal],
      [{ DISPLAY: undefined }, 'DISPLAY is not set'],
      [{ DISPLAY: 'here' }, "DISPLAY must be a display such as :0 or host:0, got 'here'"],
      [{ DISPLAY: ':59999' }, 'no X server at DISPLAY :59999: connect ENOENT /tmp/.X11-unix/X59999'],
    ];
    for (const [env, message] of unusable) {
      await assert.rejects(listen(t, { env: { ...display.env, ...env } }), { constructor: BackendError, message });
    }
  });

  it('is used by control-kbctl, which prints no typed keys and warns under Wayland', async (t) => {
    const { user, env } = display;
    const { port } = await startQuick(t);
    const args = ['--port', `${port}`, '--backend', 'x11', '--quit-key', 'ctrl+F9'];
    const { shows, ended } = startProgram(t, 'kbctl', args, { ...env, WAYLAND_DISPLAY: 'wayland-0' });
    await shows(/^press Ctrl-C to quit$/m);
    await user.press('w o alt+shift+p');
    await shows(/^pause … paused/m);
    await user.press('ctrl+F9');
    const { code, stdout, stderr } = await ended;
    const limit = 'under Wayland, X11 receives keys only while an X11 window has the focus';
    const alternative = 'alternative: in the settings of your desktop, bind keys to control-client pause and resume';
    assert.deepEqual([code, stderr], [0, `control-kbctl: ${limit}; ${alternative}\n`]);
    assert.match(stdout, /^listening to X11 display :\d+ \(backend x11: set by --backend\)\n[^]*^  Ctrl\+F9 +quit\n/m);
    const lines = stdout.split('\n').filter((line) => line !== '' && !/^(listening|  |http|press )/.test(line));
    assert.deepEqual(lines.map((line) => line.replace(/\d\.\d\d s/, 'N s')), [
      'pause … paused after N s', 'quit; the system is unaffected',
    ]);
  });

  it('reports each press once where other keys are Alt', async (t) => {
    await display.setLayout('us', 'altwin:swap_alt_win');
    const { arrived } = await listen(t, display);
    await display.user.press('super+shift+p');
    assert.deepEqual(await arrived('super+shift+r'), ['pause']);
  });

  it('follows changes of the layout', async (t) => {
    const { user, setLayout } = display;
    const { actions } = await listen(t, display, { 'resume-key': 'F9' });
    for (const [layout, key, old] of [['dvorak', 'r', 'p'], ['ru', 'p', 'r']] as const) {
      await setLayout(layout);
      let seen = '';
      const follows = async (): Promise<boolean> => { // no key is grabbed for a moment after each of several changes
        actions.splice(0);
        await user.typed();
        await user.press(`alt+shift+${key} alt+shift+${old} F9`);
        const typed = await user.typed();
        await until(() => actions.includes('resume'), undefined, 1000).catch(() => {});
        seen = `typed ${typed}, ${actions}`;
        return seen === `typed ${old}, pause,resume`;
      };
      await until(follows, () => `${layout}: ${seen}`);
    }
  });
});

describe('the x11 backend over TCP', { ...LIMIT, skip: lacks('Unix') }, () => {
  const denied = 'Authorization required, but no authorization protocol specified\n';
  const refusal = Buffer.from(`\0${String.fromCharCode(denied.length)}\x0b\0\0\0\x10\0${denied}`);
  const failures: [what: string, response: Buffer | null, line: string][] = [
    ['no response', null, 'does not respond'],
    ['cookie required', refusal, `refused the connection: ${denied.trim()}; ${REMEDY}`],
    ['connection closed during the response', refusal.subarray(0, -1), 'closed the connection'],
  ];
  it('reports why the X server does not accept it', async (t) => {
    for (const [what, response, line] of failures) {
      const { port } = await startForeign(t, async (socket) => {
        if (response === null) return;
        socket.write(response.subarray(0, 5));
        await sleep(20); // the response arrives in pieces
        socket.end(response.subarray(5));
      });
      const DISPLAY = `127.0.0.1:${port - 6000}`;
      const startMs = response === null ? 100 : undefined;
      const starting = listen(t, { env: { DISPLAY, XAUTHORITY: '/dev/null' } }, {}, startMs);
      await assert.rejects(starting, new BackendError(`the X server at ${DISPLAY} ${line}`), what);
    }
    const refused = /^no X server at DISPLAY 127.0.0.1:59000: connect ECONNREFUSED 127.0.0.1:65000$/;
    await assert.rejects(listen(t, { env: { DISPLAY: '127.0.0.1:59000' } }), { message: refused });
  });
});

// ───── The backend ───────────────────────────────────────────────────────────────────────────────────────────────

type Values = Parameters<typeof parseBindings>[0];

interface Listening extends Listener, Reports {
  /** Presses the key that resumes, and resolves with the actions before: all earlier presses are among them. */
  arrived(resume?: string): Promise<Action[]>;
}

/** Starts the backend in this process. */
async function listen(
  t: Owner,
  { env, user }: Pick<Display, 'env'> & Partial<Display>,
  values: Values = {},
  startMs?: number,
): Promise<Listening> {
  const { events, ...reports } = collectReports();
  const all = parseBindings(values, 'linux');
  const listener = await withEnvironment(env, () => listenX11(all, events, new AbortController().signal, startMs));
  const { source, bindings } = listener;
  const close = (): void => listener.close();
  t.after(close);
  const arrived = async (resume = 'alt+shift+r'): Promise<Action[]> => {
    await user?.press(resume);
    await until(() => reports.actions.at(-1) === 'resume');
    return reports.actions.splice(0).slice(0, -1);
  };
  return { source, bindings, ...reports, arrived, close };
}

// ───── Displays ──────────────────────────────────────────────────────────────────────────────────────────────────

interface Display {
  name: string; // :7
  env: NodeJS.ProcessEnv;
  /** A client with a window that has the focus. */
  user: XClient;
  /** Sets the layout, and only this option. */
  setLayout(layout: string, option?: string): Promise<void>;
  /** Ends the X server. */
  end(): Promise<void>;
}

/** Starts an X server that requires a cookie, the only right one in a file of many. */
async function startDisplay(t: Owner): Promise<Display> {
  const [folder, cookie] = [makeFolder(t), randomBytes(16)];
  const [serverFile, file] = [join(folder, 'server'), join(folder, 'auth')];
  writeFileSync(serverFile, formatCookie(cookie), { mode: 0o600 });
  // Without -noreset, the server drops connections that open while its last client disconnects.
  const args = ['-displayfd', '1', '-screen', '0', '640x480x24', '-nolisten', 'tcp', '-noreset', '-auth', serverFile];
  const server = spawn('Xvfb', args, { stdio: ['ignore', 'pipe', 'ignore'] });
  const exited = once(server, 'exit');
  const end = async (): Promise<void> => {
    server.kill(); // it removes its socket
    await exited;
  };
  t.after(end);
  const failed = exited.then(([code]) => assert.fail(`Xvfb exited with code ${code}`));
  failed.catch(() => {});
  const name = `:${String(await Promise.race([once(server.stdout, 'data'), failed])).trim()}`;
  const number = name.slice(1);
  const wrong = (...rest: [family: number, address: string, number: string, protocol?: string]): Buffer => {
    return formatCookie(randomBytes(16), ...rest);
  };
  writeFileSync(file, Buffer.concat([
    wrong(ANY_HOST, '', number), wrong(THIS_HOST, `not-${hostname()}`, number),
    wrong(THIS_HOST, hostname(), `${number}0`), wrong(THIS_HOST, hostname(), number, 'XDM-AUTHORIZATION-1'),
    formatCookie(cookie, THIS_HOST, hostname(), number), wrong(ANY_HOST, '', number),
    wrong(THIS_HOST, hostname(), number).subarray(0, -1), // somebody still writes it
  ]));
  const env = { DISPLAY: name, XAUTHORITY: file, WAYLAND_DISPLAY: undefined };
  const user = await XClient.connect(t, env);
  await user.takeFocus();
  const setLayout = async (layout: string, option: string = ''): Promise<void> => {
    const words = ['-layout', layout, '-option', '', '-option', option]; // an empty one removes all others
    await promisify(execFile)('setxkbmap', words, { env: { ...process.env, ...env, XAUTHORITY: serverFile } });
  };
  return { name, env, user, setLayout, end };
}

/** Sets variables of this process until a function is done; undefined removes one. */
async function withEnvironment<Value>(variables: NodeJS.ProcessEnv, act: () => Promise<Value>): Promise<Value> {
  const before = Object.keys(variables).map((name): [string, string | undefined] => [name, process.env[name]]);
  const set = ([name, value]: [string, string | undefined]): void => {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  };
  Object.entries(variables).forEach(set);
  try {
    return await act();
  } finally {
    before.forEach(set);
  }
}

/** A record of a file of xauth(1), by default for any host (FamilyWild) and display. */
function formatCookie(cookie: string | Buffer, family = ANY_HOST, address = '', number = '', protocol = MAGIC): Buffer {
  const fields = [address, number, protocol, cookie].map((field) => {
    return Buffer.concat([Buffer.from([0, field.length]), Buffer.from(field)]);
  });
  return Buffer.concat([Buffer.from([family >> 8, family & 0xff]), ...fields]);
}

// ───── The keyboard, and the focused window ──────────────────────────────────────────────────────────────────────

const MODIFIER_CODES: Readonly<Record<string, number>> = {
  alt: 64, altR: 108, shift: 50, shiftR: 62, ctrl: 37, super: 133, numLock: 77, capsLock: 66,
};

/** Of a US keyboard. */
const CODES: Readonly<Record<string, number>> = {
  ...MODIFIER_CODES, p: 33, r: 27, o: 32, w: 25, one: 10, space: 65, pause: 127, F9: 75,
};

const HOLD_MS = 900; // after 660 ms, the X server repeats a key

/** An X11 client that types, and receives what is typed. */
class XClient {
  readonly #connection: Connection;
  #window = 0;
  #root = 0;
  #test = 0; // major opcode of XTEST
  #typed: number[] = []; // key codes

  /** @param env With the display and its cookie. */
  static async connect(t: Owner, env: NodeJS.ProcessEnv): Promise<XClient> {
    return withEnvironment(env, async () => {
      const client = new XClient(env['DISPLAY'] as string);
      t.after(() => client.#connection.close());
      await client.#connection.open();
      const { setup } = client.#connection;
      client.#window = setup.readUInt32LE(12); // the first of its IDs
      [client.#root = 0] = readRoots(setup);
      client.#test = await client.#findExtension('XTEST');
      return client;
    });
  }

  private constructor(name: string) {
    const onEvent = (event: Buffer): void => {
      if (event[0] === 2) this.#typed.push(event[1] as number); // KeyPress
    };
    this.#connection = new Connection(parseDisplay(name), new AbortController().signal, 0, onEvent);
  }

  /**
   * Presses keys: `alt+shift+p`, or `+alt` and `-alt` for a key that goes down or up. A number is a key code. `hold`
   * waits until the X server repeats what is held.
   */
  async press(keys: string): Promise<void> {
    for (const word of keys.trim().split(' ')) {
      if (word === 'hold') await sleep(HOLD_MS);
      else if (/^[+-]/.test(word)) this.#fakeKey(word.slice(1), word.startsWith('+'));
      else {
        const names = word.split('+');
        for (const name of names) this.#fakeKey(name, true);
        for (const name of names.reverse()) this.#fakeKey(name, false);
      }
      await this.#sync();
      await sleep(2); // a press in the millisecond of the release is a repetition to X11
    }
  }

  /** Opens a window that receives what is typed. */
  async takeFocus(): Promise<void> {
    const [SIZE, INPUT_OUTPUT, EVENT_MASK, KEY_PRESS] = [9 | (9 << 16), 1 << 16, 0x800, 1];
    void this.#ask(1, [this.#window, this.#root, 0, SIZE, INPUT_OUTPUT, 0, EVENT_MASK, KEY_PRESS]); // CreateWindow
    void this.#ask(8, [this.#window]); // MapWindow
    void this.#ask(42, [this.#window, 0]); // SetInputFocus
    await this.#sync();
  }

  /** Returns what has been typed into the window since the last call, without modifiers. */
  async typed(): Promise<string[]> {
    await this.#sync();
    const codes = this.#typed.splice(0).filter((code) => !Object.values(MODIFIER_CODES).includes(code));
    return codes.map((code) => Object.keys(CODES).find((name) => CODES[name] === code) ?? `${code}`);
  }

  /** Locks exactly these modifiers, without a key press. */
  async lockModifiers(bits: number): Promise<void> {
    const keyboard = await this.#findExtension('XKEYBOARD');
    await this.#ask(keyboard, [1]); // UseExtension of version 1.0
    void this.#ask(keyboard, [0x100 | (0xff << 16) | (bits << 24), 0, 0], 5); // LatchLockState of the core keyboard
    await this.#sync();
  }

  #fakeKey(name: string, isDown: boolean): void {
    const code = CODES[name] ?? Number(name);
    void this.#ask(this.#test, [(isDown ? 2 : 3) | (code << 8), 0, 0, 0, 0, 0, 0, 0], 2); // FakeInput
  }

  /** Resolves when the server has processed all requests. */
  async #sync(): Promise<void> {
    await this.#ask(43); // GetInputFocus
  }

  async #findExtension(name: string): Promise<number> {
    const padded = Buffer.from(name.padEnd(4 * Math.ceil(name.length / 4), '\0'));
    return (await this.#ask(98, [name.length, padded]))[9] as number; // QueryExtension
  }

  /** Sends a request and returns its reply. */
  #ask(opcode: number, body: readonly (number | Buffer)[] = [], data: number = 0): Promise<Buffer> {
    const parts = body.map((one) => (typeof one === 'number' ? words(one >>> 0) : one));
    return this.#connection.request(opcode, Buffer.concat(parts), data);
  }
}
