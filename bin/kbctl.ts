#!/usr/bin/env node
// control-kbctl: pauses and resumes a system with keyboard shortcuts that work in every window. bin/kbctl/ parses the
// key combinations and has one backend for each way to receive keys.

import { once } from 'node:events';
import { listenEvdev } from './kbctl/evdev.ts';
import {
  type Backend, BackendError, type Binding, type Choice, chooseBackends, isWayland, type Listener, type ListenerEvents,
  parseBindings,
} from './kbctl/keys.ts';
import { listenMacos } from './kbctl/macos.ts';
import { listenTerminal, Terminal } from './kbctl/terminal.ts';
import { listenWindows } from './kbctl/windows.ts';
import { listenX11 } from './kbctl/x11.ts';
import { describeOptions, EXIT, paintStatus, parseOptions, run } from './shared/cli.ts';
import {
  ADDRESS_OPTIONS, BY, ENVIRONMENT_HELP, NO_ANSWER, type PrintableClient, type PrintableReply,
} from './shared/client.ts';
import { DIR_OPTION, ONE_TARGET_HELP } from './shared/folder.ts';
import { selectClient } from './shared/names.ts';
import { follow, GOALS, observe } from './shared/system.ts';
import { printable } from './shared/text.ts';
import { VIA_OPTION } from './shared/via.ts';
import type { ControlCommand } from '../control.ts';

const PROGRAM = 'control-kbctl';

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  dir: DIR_OPTION,
  via: VIA_OPTION,
  'pause-key': { type: 'string', value: 'KEYS', help: 'pauses (default alt+shift+p; on macOS, Alt is Option)' },
  'resume-key': { type: 'string', value: 'KEYS', help: 'resumes (default alt+shift+r)' },
  'quit-key': { type: 'string', value: 'KEYS', help: 'quits (default: alt+shift+q on Windows, none elsewhere)' },
  backend: { type: 'string', value: 'NAME', help: 'x11, evdev, terminal, macos or windows (default: the best)' },
} as const;

const HELP = `
Usage: control-kbctl [options] [TARGET]

Pauses and resumes a system with keyboard shortcuts that work in every window.

${ONE_TARGET_HELP}

${describeOptions(OPTIONS)}

KEYS is one or more modifiers and one key: ctrl+alt+f9. The modifiers are ctrl, alt, shift (not on its own) and super
(the logo key; also cmd, win). Function keys need no modifier. The keys are a to z, 0 to 9, f1 to f24, space, enter,
tab, esc, backspace, delete, insert, home, end, pageup, pagedown, up, down, left, right, pause, printscreen, scrolllock
and - = , . / ; ' \` [ ] \\

${ENVIRONMENT_HELP}

Exit codes: 0 quit by the user, or the output was closed; 1 no backend can listen, or the backend failed; 2 usage error.
`;

const FOLLOW_MS = 30_000;
const WAIT_S = 1; // time limit for the outcome in a response; the next press is sent after that response
const NO_ANSWER_MS = 1000; // time limit for the first status; after it, `no answer` is shown
const QUIT_MS = 2000; // time limit for pending requests when quitting

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP, 1);
  if (parsed === null) return EXIT.DONE;
  const bindings = parseBindings(parsed.values);
  const choice = chooseBackends(parsed.values.backend);
  const client = await selectClient(parsed.positionals[0], parsed.values);

  const quitting = new AbortController();
  let introduced!: () => void;
  const sender = new Sender(client, new Promise((resolve) => (introduced = resolve)));
  let failure: string | null = null;
  const events: ListenerEvents = {
    onPress: (action) => {
      if (action === 'quit') quitting.abort();
      else if (!quitting.signal.aborted) sender.press(action);
    },
    onNotice: (text) => sender.notice(text),
    onEnd: (reason) => {
      failure ??= reason;
      quitting.abort();
    },
  };
  const noticeWayland = (backend: Backend | null): void => {
    if (isWayland() && backend !== 'evdev') events.onNotice(describeWayland(backend));
  };
  const quit = once(quitting.signal, 'abort');
  const terminal = new Terminal(() => quitting.abort());
  for (const signal of ['SIGTERM', 'SIGHUP']) process.on(signal, () => quitting.abort());
  process.on('SIGINT', () => {
    if (process.stdout.isTTY && !terminal.isSilent && !quitting.signal.aborted) sender.breakLine(); // after the ^C
    quitting.abort();
  });
  process.stdout.once('error', () => quitting.abort()); // the reader of the output is gone

  terminal.silence();
  try {
    const started = await listen(choice, bindings, events, quitting.signal, terminal).catch((error: unknown) => {
      if (quitting.signal.aborted) return null;
      noticeWayland(null);
      throw error;
    });
    if (started !== null) {
      const { listener, backend, reason } = started;
      introduce(listener, backend, reason);
      noticeWayland(backend);
      void showStatus(client, quitting.signal, (line) => sender.print(line), introduced);
      await quit;
      introduced();
      listener.close();
      await sender.end();
    }
  } finally {
    terminal.close();
  }
  if (failure !== null) throw new Error(failure);
  console.log('quit; the system is unaffected');
  return EXIT.DONE;
}

// ───── Listening ─────────────────────────────────────────────────────────────────────────────────────────────────

/** Starts the first backend that can listen, and reports why those before it cannot. Quitting cancels the start. */
async function listen(
  { backends, reason }: Choice,
  bindings: readonly Binding[],
  events: ListenerEvents,
  quitting: AbortSignal,
  terminal: Terminal,
): Promise<{ listener: Listener; backend: Backend; reason: string }> {
  const listeners: Readonly<Record<Backend, () => Promise<Listener>>> = {
    x11: () => listenX11(bindings, events, quitting),
    evdev: () => listenEvdev(bindings, events),
    terminal: () => listenTerminal(terminal, bindings, events),
    macos: () => listenMacos(bindings, events, quitting),
    windows: () => listenWindows(bindings, events, quitting),
  };
  const failed: Backend[] = [];
  for (const backend of backends) {
    try {
      const listener = await listeners[backend]();
      return { listener, backend, reason: failed.length === 0 ? reason : `${failed.join(' and ')} cannot listen` };
    } catch (error) {
      if (!(error instanceof BackendError) || quitting.aborted) throw error;
      const message = `${backend}: ${error.message}`;
      if (backends.length === 1) throw new BackendError(message);
      events.onNotice(message);
      failed.push(backend);
    }
  }
  throw new BackendError('no backend can listen to the keyboard');
}

// ───── Sending ───────────────────────────────────────────────────────────────────────────────────────────────────

/** Sends one command per key press, in order, and prints one line with the outcome of each. */
class Sender {
  readonly #client: PrintableClient;
  readonly #introduced: Promise<void>;
  readonly #abandoned = new AbortController(); // aborted when the time limit for quitting expires
  #printed: Promise<void> = Promise.resolve(); // resolves when the latest outcome has been printed
  #superseded = new AbortController(); // aborted by the next press, which does not wait for this outcome
  #openLine = '';

  /** @param introduced Resolves when outcomes may be printed. */
  constructor(client: PrintableClient, introduced: Promise<void>) {
    this.#client = client;
    this.#introduced = introduced;
  }

  press(command: ControlCommand): void {
    const pressedAt = performance.now();
    this.#superseded.abort();
    this.#superseded = new AbortController();
    const { signal: superseded } = this.#superseded;
    this.#printed = this.#printed.then(async () => {
      const wait = superseded.aborted ? undefined : WAIT_S;
      const { signal } = this.#abandoned;
      const reply = signal.aborted ? null : this.#client.request(command, { wait, by: BY, signal });
      await this.#introduced;
      this.#openLine = `${command} … `;
      process.stdout.write(this.#openLine);
      process.stdout.write(`${await this.#outcome(command, await reply, pressedAt, superseded)}\n`);
      this.#openLine = '';
    });
  }

  /** Prints a separate line, even while the line of a press is incomplete. */
  print(line: string): void {
    process.stdout.write(`${this.#openLine === '' ? '' : '\n'}${line}\n${this.#openLine}`);
  }

  /** Prints a notice to stderr in the same way. */
  notice(text: string): void {
    if (this.#openLine !== '') process.stdout.write('\n');
    console.error(`${PROGRAM}: ${printable(text)}`); // it may quote a helper process or an X server
    process.stdout.write(this.#openLine);
  }

  /** Continues on a new line. */
  breakLine(): void {
    process.stdout.write(`\n${this.#openLine}`);
  }

  /** Resolves when every press has been sent, or abandoned at the time limit. */
  async end(): Promise<void> {
    this.#superseded.abort();
    const timer = setTimeout(() => this.#abandoned.abort(), QUIT_MS);
    await this.#printed;
    clearTimeout(timer);
  }

  async #outcome(
    command: ControlCommand,
    reply: PrintableReply | null,
    pressedAt: number,
    superseded: AbortSignal,
  ): Promise<string> {
    if (reply === null || (!reply.ok && reply.phase === 'connect' && this.#abandoned.signal.aborted)) return 'not sent';
    const options = { timeoutMs: FOLLOW_MS, reply, signal: superseded };
    const { outcome, error, summary, received } = await follow(this.#client, command, options);
    const seconds = ((performance.now() - pressedAt) / 1000).toFixed(2);
    if (outcome === 'done') return `${GOALS.get(command)} after ${seconds} s`;
    if (received.state === 'failed') return `failed: ${error}`;
    if (outcome === 'failed') return `refused: ${error.charAt(0).toLowerCase()}${error.slice(1)}`;
    if (outcome === 'offline') {
      return reply.ok || reply.fault === 'silent' ? summary : `offline: ${error.replace('http://', '')}`;
    }
    if (!reply.ok) return reply.error.replace(`${command} `, ''); // the line begins with it
    return superseded.aborted ? 'accepted, not confirmed' : summary;
  }
}

// ───── Output ────────────────────────────────────────────────────────────────────────────────────────────────────

function introduce({ source, bindings }: Listener, backend: Backend, reason: string): void {
  console.log(`listening to ${source} (backend ${backend}: ${reason})`);
  const width = Math.max(...bindings.map(({ combination }) => combination.name.length));
  for (const { action, combination } of bindings) console.log(`  ${combination.name.padEnd(width)}  ${action}`);
}

/** Under Wayland, only evdev receives keys regardless of the focus. */
function describeWayland(backend: Backend | null): string {
  const limit = backend === 'x11' ? 'under Wayland, X11 receives keys only while an X11 window has the focus; ' : '';
  return `${limit}alternative: in the settings of your desktop, bind keys to control-client pause and resume`;
}

/** Prints the first status, and then each time the system stops or resumes responding. */
async function showStatus(
  client: PrintableClient,
  quitting: AbortSignal,
  print: (line: string) => void,
  introduced: () => void,
): Promise<void> {
  let shown: string | null = null;
  const show = (state: string, line: string): void => {
    if (state !== shown) print(line);
    if (shown === null) print('press Ctrl-C to quit');
    shown = state;
    introduced();
  };
  const present = (): string => client.title ?? printable(client.baseUrl);
  let place = present();
  const lineOf = (text: string, status: string): string => `${place}: ${paintStatus(text, status)}`;
  const timer = setTimeout(() => show(NO_ANSWER, lineOf(NO_ANSWER, NO_ANSWER)), NO_ANSWER_MS);
  for await (const { status, reply } of observe(client, 'status', quitting)) {
    clearTimeout(timer);
    if (place !== present() && shown !== null) shown = ''; // another one runs here now
    place = present();
    if (reply.ok || reply.phase === 'answered') show('online', lineOf(reply.ok ? status : reply.error, status));
    else if (shown === null) show(status, `${paintStatus(reply.error, status)}; each key press tries again`);
    else show(status, lineOf(status, status));
  }
  clearTimeout(timer);
}

void run(PROGRAM, main);
