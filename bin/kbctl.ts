#!/usr/bin/env node
// control-kbctl: pauses and resumes a running system by key combinations, whatever program has the focus.

import { once } from 'node:events';
import { resolve } from 'node:path';
import { listenEvdev } from './kbctl/evdev.ts';
import { parseBindings } from './kbctl/keys.ts';
import { CannotListen, chooseBackends, isWayland } from './kbctl/listener.ts';
import { listenMacos } from './kbctl/macos.ts';
import { listenTerminal } from './kbctl/terminal.ts';
import { listenWindows } from './kbctl/windows.ts';
import { listenX11 } from './kbctl/x11.ts';
import { follow, TARGETS } from './shared/follow.ts';
import { ADDRESS_OPTIONS, clientFor, EXIT, parseOptions, run } from './shared/options.ts';
import type { ControlCommand, SystemStatus, WebApiClient, WebApiReply } from '../control.ts';
import type { Binding } from './kbctl/keys.ts';
import type { Backend, Choice, Listen, Listener, ListenerEvents } from './kbctl/listener.ts';

const PROGRAM = 'control-kbctl';

const HELP = `
Usage: control-kbctl [options]

Pauses and resumes a running system by key combinations that work whatever program has the focus.

  --host HOST        host name or address of the system (default localhost)
  --port PORT        port of its web API (default 8391)
  --socket PATH      Unix socket of its web API, in place of host and port
  --pause-key KEYS   combination that pauses (default alt+shift+p; Alt is Option on a Mac)
  --resume-key KEYS  combination that resumes (default alt+shift+r)
  --quit-key KEYS    combination that ends control-kbctl (default alt+shift+q on Windows, elsewhere none)
  --backend NAME     what listens: x11, evdev, terminal, macos or windows (default: the best that works)
  -h, --help         show this
  --version          show the version

KEYS is one key with ctrl, alt, shift or super (the key with the logo; cmd, win) before it: ctrl+alt+f9. Function keys
need none. The keys are a to z, 0 to 9, f1 to f24, space, enter, tab, esc, backspace, delete, insert, home, end, pageup,
pagedown, up, down, left, right, pause, printscreen, scrolllock and - = , . / ; ' \` [ ] \\

If the system wants a token, CONTROL_TOKEN in the environment holds it.

Exit codes: 0 ended by the user, or nobody reads its output; 1 nothing can listen, or not any more; 2 wrong usage.
`;

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  'pause-key': { type: 'string' },
  'resume-key': { type: 'string' },
  'quit-key': { type: 'string' },
  backend: { type: 'string' },
} as const;

const FOLLOW_MS = 30_000;
const LEAVE_MS = 1000; // for what has been pressed and not been sent

// ───── Listening ─────────────────────────────────────────────────────────────────────────────────────────────────

const LISTENERS: Readonly<Record<Backend, Listen>> = {
  x11: listenX11,
  evdev: (bindings, events) => listenEvdev(bindings, events), // it starts at once, and takes other devices in tests
  terminal: listenTerminal,
  macos: listenMacos,
  windows: listenWindows,
};

/** Starts the first listener that can listen, and tells why those before it cannot. */
async function listen(
  { backends, why }: Choice,
  bindings: readonly Binding[],
  events: ListenerEvents,
  leaving: AbortSignal,
): Promise<{ listener: Listener; backend: Backend; why: string }> {
  const failed: Backend[] = [];
  for (const backend of backends) {
    try {
      const listener = await LISTENERS[backend](bindings, events, leaving);
      return { listener, backend, why: failed.length === 0 ? why : `${failed.join(' and ')} cannot listen` };
    } catch (error) {
      if (!(error instanceof CannotListen) || leaving.aborted) throw error;
      const reason = `${backend}: ${error.message}`;
      if (backends.length === 1) throw new CannotListen(reason);
      events.onNotice(reason);
      failed.push(backend);
    }
  }
  throw new CannotListen('nothing can listen to the keyboard');
}

// ───── Sending ───────────────────────────────────────────────────────────────────────────────────────────────────

/** Sends a command for each press, in their order, and prints a line with what came of it. */
class Sender {
  readonly #client: WebApiClient;
  readonly #givingUp = new AbortController();
  #sent: Promise<unknown> = Promise.resolve(); // when all that was pressed has been answered
  #told: Promise<void>; // when all that came of it has been printed
  #newer = new AbortController(); // aborted at the next press: then what comes of the last is not waited for
  #openLine = '';

  /** @param introduced Resolves when lines may be printed. */
  constructor(client: WebApiClient, introduced: Promise<void>) {
    this.#client = client;
    this.#told = introduced;
  }

  press(command: ControlCommand): void {
    const pressedAt = performance.now();
    this.#newer.abort();
    this.#newer = new AbortController();
    const { signal: newer } = this.#newer;
    const reply = this.#sent.then(() => {
      return this.#givingUp.signal.aborted ? null : this.#client.request(command, this.#givingUp.signal);
    });
    this.#sent = reply;
    this.#told = this.#told.then(async () => {
      this.#openLine = `${command} … `;
      process.stdout.write(this.#openLine);
      process.stdout.write(`${await this.#outcome(command, await reply, pressedAt, newer)}\n`);
      this.#openLine = '';
    });
  }

  /** Prints a line of its own, even while that of a press is not complete. */
  interrupt(text: string): void {
    if (this.#openLine !== '') process.stdout.write('\n');
    console.error(`${PROGRAM}: ${text}`);
    process.stdout.write(this.#openLine);
  }

  /** Goes on in a new line. */
  breakLine(): void {
    process.stdout.write(`\n${this.#openLine}`);
  }

  /** Resolves when all that was pressed has been sent, or given up after a second. */
  async end(): Promise<void> {
    this.#newer.abort();
    const timer = setTimeout(() => this.#givingUp.abort(), LEAVE_MS);
    await this.#told;
    clearTimeout(timer);
    this.#client.close();
  }

  async #outcome(
    command: ControlCommand,
    reply: WebApiReply | null,
    pressedAt: number,
    newer: AbortSignal,
  ): Promise<string> {
    if (reply === null) return 'not sent';
    if (!reply.ok && reply.answered) return `refused: ${reply.error.charAt(0).toLowerCase()}${reply.error.slice(1)}`;
    if (!reply.ok && this.#givingUp.signal.aborted) return 'given up without an answer; it may still take effect';
    if (!reply.ok) return `offline: ${reply.error.replace('http://', '')}`;
    const target = TARGETS[command] as SystemStatus;
    const { reached, summary } = await follow(this.#client, target, { timeoutMs: FOLLOW_MS, signal: newer });
    if (reached) return `${target.statusName} after ${((performance.now() - pressedAt) / 1000).toFixed(2)} s`;
    return newer.aborted ? 'accepted; not waited for' : summary;
  }
}

// ───── What the user is told ─────────────────────────────────────────────────────────────────────────────────────

const DOES = { pause: 'pauses', resume: 'resumes', quit: 'quits' } as const;

function introduce({ source, bindings }: Listener, why: string): void {
  console.log(`listening to ${source}, because ${why}`);
  const width = Math.max(...bindings.map(({ combination }) => combination.name.length));
  for (const { action, combination } of bindings) console.log(`  ${combination.name.padEnd(width)}  ${DOES[action]}`);
}

/** Under Wayland, all listeners but evdev hear only of what is typed into some windows. */
function describeWayland(backend: Backend | null, { baseUrl }: WebApiClient): string {
  const [, socketPath] = /^unix:(.*)$/.exec(baseUrl) ?? [];
  const where = socketPath === undefined ? baseUrl : `--unix-socket '${resolve(socketPath)}' http://localhost`;
  const token = process.env['CONTROL_TOKEN'] ? ` -H 'Authorization: Bearer …'` : '';
  const limit = backend === 'x11' ? 'under Wayland, X11 sees keys only while an X11 window has the focus; ' : '';
  const command = `curl${token} -X POST ${where}/api/pause`;
  return `${limit}what needs no permission: bind ${command} (and …/resume) to keys in the settings of your desktop`;
}

async function tellStatus(client: WebApiClient, leaving: AbortSignal): Promise<void> {
  const reply = await client.request('status', leaving);
  if (leaving.aborted) return;
  if (reply.ok || reply.answered) console.log(`${client.baseUrl}: ${reply.ok ? reply.value : reply.error}`);
  else console.log(`${reply.error}; each press tries again`);
  console.log('Ctrl-C leaves');
}

// ───── Start and end ─────────────────────────────────────────────────────────────────────────────────────────────

void run(PROGRAM, async () => {
  const parsed = parseOptions(OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const bindings = parseBindings(parsed.values);
  const choice = chooseBackends(parsed.values.backend);
  const client = clientFor(parsed.values);

  const leaving = new AbortController();
  let allowLines!: () => void;
  const sender = new Sender(client, new Promise((allow) => (allowLines = allow)));
  let failure: string | null = null;
  const events: ListenerEvents = {
    onPress: (action) => {
      if (action === 'quit') leaving.abort();
      else if (!leaving.signal.aborted) sender.press(action);
    },
    onNotice: (text) => sender.interrupt(text),
    onEnd: (reason) => {
      failure ??= reason;
      leaving.abort();
    },
  };
  const tellOfWayland = (backend: Backend | null): void => {
    if (isWayland() && backend !== 'evdev') events.onNotice(describeWayland(backend, client));
  };
  const left = once(leaving.signal, 'abort');
  process.on('SIGTERM', () => leaving.abort());
  process.on('SIGINT', () => {
    if (process.stdout.isTTY && !leaving.signal.aborted) sender.breakLine(); // after the ^C
    leaving.abort();
  });
  process.stdout.once('error', () => leaving.abort()); // whoever read it is gone

  const started = await listen(choice, bindings, events, leaving.signal).catch((error: unknown) => {
    if (leaving.signal.aborted) return null;
    tellOfWayland(null);
    throw error;
  });
  if (started !== null) {
    const { listener, backend, why } = started;
    introduce(listener, why);
    tellOfWayland(backend);
    await tellStatus(client, leaving.signal);
    allowLines();
    await left;
    listener.close();
    await sender.end();
  }
  if (failure !== null) throw new Error(failure);
  console.log('left; the system is unaffected');
  return EXIT.DONE;
});
