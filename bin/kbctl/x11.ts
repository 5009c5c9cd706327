// Key combinations on X11, whatever window has the focus. Speaks the X11 protocol over the display's socket.
//
//   XInput2 raw key events   tell what goes down and up, by key code, whatever has the focus or another client's grab
//   XGrabKey                 keeps the combination from the program that has the focus, if nobody else has grabbed it
//
// The key that activates a grab of ours comes twice: as a raw event, and as a core KeyPress whose state also knows of
// modifiers that are locked or latched. Until that key is released, all others come as core events only.

import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { homedir, hostname } from 'node:os';
import { join } from 'node:path';
import { HeldKeys } from './keys.ts';
import { CannotListen } from './listener.ts';
import type { Action, Binding, Modifier } from './keys.ts';
import type { Listener, ListenerEvents } from './listener.ts';
import type { NetConnectOpts, Socket } from 'node:net';

const START_MS = 5000; // for the server to let us in
const LAYOUT_MS = 100; // news of the layout come in bursts

// ───── The display and its cookie ────────────────────────────────────────────────────────────────────────────────

interface Display {
  name: string;
  number: string;
  target: NetConnectOpts;
}

/** Reads `:0`, `unix:0`, `host:10.0`. */
function parseDisplay(name: string): Display {
  const [, host, unix, number] = /^([^:/]*)(\/unix)?:(\d+)(?:\.\d+)?$/.exec(name) ?? [];
  if (host === undefined || number === undefined) {
    throw new CannotListen(`DISPLAY must be like :0 or host:0, got '${name}'`);
  }
  if (host === '' || host === 'unix' || unix !== undefined) {
    return { name, number, target: { path: `/tmp/.X11-unix/X${number}` } };
  }
  const port = 6000 + Number(number);
  if (port > 65535) throw new CannotListen(`DISPLAY must have a number up to 59535 after the host, got '${name}'`);
  return { name, number, target: { host, port } };
}

/**
 * The MIT-MAGIC-COOKIE-1 for a display, from the file of xauth(1): records of a family and four counted fields, all
 * big-endian. One for this host goes before one for any host, and that before others; empty if there is none.
 */
function readCookie(display: Display): Buffer {
  const [ANY_HOST, THIS_HOST] = [0xffff, 256]; // FamilyWild, FamilyLocal
  let data: Buffer;
  try {
    data = readFileSync(process.env['XAUTHORITY'] || join(homedir(), '.Xauthority'));
  } catch {
    return Buffer.alloc(0);
  }
  let at = 0;
  const readField = (): Buffer => {
    const end = at + 2 + data.readUInt16BE(at);
    if (end > data.length) throw new RangeError('the file is cut');
    const field = data.subarray(at + 2, end);
    at = end;
    return field;
  };
  let best: { rank: number; cookie: Buffer } = { rank: 0, cookie: Buffer.alloc(0) };
  try {
    while (at < data.length) {
      const family = data.readUInt16BE(at);
      at += 2;
      const [address, number, protocol, cookie] = [`${readField()}`, `${readField()}`, `${readField()}`, readField()];
      if (protocol !== 'MIT-MAGIC-COOKIE-1' || (number !== '' && number !== display.number)) continue;
      const rank = family === ANY_HOST ? 2 : family === THIS_HOST && address === hostname() ? 3 : 1;
      if (rank > best.rank) best = { rank, cookie };
    }
  } catch {
    // in the middle of a record: what was read before counts
  }
  return best.cookie;
}

// ───── The connection ────────────────────────────────────────────────────────────────────────────────────────────
//
//   request   opcode, 1 byte of data, length (16 bits, in units of 4 bytes), body
//   answer    0 = error, 1 = reply; byte 2 = number of the request; 32 bytes, replies 4 × (32 bits at byte 4) more
//   event     2 = KeyPress, 3 = KeyRelease, 34 = MappingNotify, 35 = of an extension, as long as a reply says

const MESSAGE = { ERROR: 0, REPLY: 1, KEY_PRESS: 2, KEY_RELEASE: 3, MAPPING_NOTIFY: 34, GENERIC: 35 } as const;
const REQUEST = {
  GRAB_KEY: 33, UNGRAB_KEY: 34, QUERY_KEYMAP: 44, QUERY_EXTENSION: 98, GET_KEYBOARD_MAPPING: 101,
  GET_MODIFIER_MAPPING: 119,
} as const;
const NOTHING = Buffer.alloc(0);

/** A request that is not known to be done. */
interface Pending {
  number: number;
  resolve(reply: Buffer): void;
  reject(error: Error): void;
}

class Connection {
  readonly #socket: Socket;
  readonly #onEvent: (event: Buffer) => void;
  readonly #pending: Pending[] = []; // the oldest first
  #input = NOTHING;
  #requests = 0;
  /** What the server says of itself at the start. */
  setup: Buffer = NOTHING;

  private constructor(socket: Socket, onEvent: (event: Buffer) => void) {
    this.#socket = socket;
    this.#onEvent = onEvent;
  }

  /** Resolves when the server has let us in. From then on `onClose` is called when the connection ends. */
  static open(
    display: Display,
    leaving: AbortSignal,
    onEvent: (event: Buffer) => void,
    onClose: (why: string) => void,
  ): Promise<Connection> {
    const socket = connect({ ...display.target, signal: leaving });
    const connection = new Connection(socket, onEvent);
    return new Promise((resolve, reject) => {
      let [isOpen, isOver] = [false, false];
      const end = (why: string): void => {
        if (isOver) return;
        isOver = true;
        socket.destroy();
        for (const pending of connection.#pending.splice(0)) pending.reject(new CannotListen(why));
        if (isOpen) onClose(why);
        else reject(new CannotListen(why));
      };
      const onError = ({ message }: Error): void => {
        const why = isOpen ? `the X server at ${display.name} is gone` : `no X server at DISPLAY ${display.name}`;
        end(`${why}: ${message}`);
      };
      const onData = (chunk: Buffer): void => {
        connection.#input = Buffer.concat([connection.#input, chunk]);
        if (!isOpen) {
          const refusal = connection.#readSetup();
          if (refusal !== null) return end(`the X server at ${display.name} refuses: ${refusal}`);
          if (connection.setup.length === 0) return;
          isOpen = true;
          resolve(connection);
        }
        connection.#readMessages();
      };
      socket.setTimeout(START_MS, () => end(`the X server at ${display.name} does not answer`));
      socket.on('connect', () => connection.#greet(readCookie(display)));
      socket.on('data', onData).on('error', onError);
      socket.on('close', () => end(`the X server at ${display.name} has ended the connection`));
    });
  }

  /**
   * Sends a request, and resolves with its reply.
   *
   * @param onReply Gets the reply before the events that come after it are handled.
   */
  ask(opcode: number, body: Buffer = NOTHING, data: number = 0, onReply?: (reply: Buffer) => void): Promise<Buffer> {
    const head = Buffer.from([opcode, data, 0, 0]);
    head.writeUInt16LE(1 + body.length / 4, 2);
    this.#socket.write(Buffer.concat([head, body]));
    this.#requests += 1;
    return new Promise((done, reject) => {
      const resolve = (reply: Buffer): void => {
        onReply?.(reply);
        done(reply);
      };
      this.#pending.push({ number: this.#requests & 0xffff, resolve, reject });
    });
  }

  /** Sends a request without a reply: resolves when a later one is answered, rejects if the server refuses it. */
  async send(opcode: number, body: Buffer, data: number = 0): Promise<void> {
    await this.ask(opcode, body, data);
  }

  /** From now on the server may be silent for as long as it likes. */
  allowSilence(): void {
    this.#socket.setTimeout(0);
  }

  close(): void {
    this.#socket.removeAllListeners('close');
    this.#socket.destroy();
  }

  #greet(cookie: Buffer): void {
    const name = Buffer.from(cookie.length > 0 ? 'MIT-MAGIC-COOKIE-1' : '');
    const head = Buffer.from([0x6c, 0, 11, 0, 0, 0, name.length, 0, cookie.length, 0, 0, 0]); // little-endian, 11.0
    this.#socket.write(Buffer.concat([head, pad(name), pad(cookie)]));
  }

  /** Sets `setup` once it is all there. Returns why the server does not let us in, or null. */
  #readSetup(): string | null {
    const input = this.#input;
    const length = input.length < 8 ? Infinity : 8 + 4 * input.readUInt16LE(6);
    if (input.length < length) return null;
    if (input[0] !== 1) {
      const why = input.toString('latin1', 8, 8 + (input[1] as number)).trim();
      return /authori[sz]ation|cookie/i.test(why) ? `${why}; XAUTHORITY must name the file with its cookie` : why;
    }
    this.setup = input.subarray(0, length);
    this.#input = input.subarray(length);
    return null;
  }

  #readMessages(): void {
    for (;;) {
      if (this.#input.length < 32) return;
      const type = (this.#input[0] as number) & 0x7f;
      const more = type === MESSAGE.REPLY || type === MESSAGE.GENERIC ? 4 * this.#input.readUInt32LE(4) : 0;
      if (this.#input.length < 32 + more) return;
      const message = this.#input.subarray(0, 32 + more);
      this.#input = this.#input.subarray(32 + more);
      if (type === MESSAGE.REPLY || type === MESSAGE.ERROR) this.#onAnswer(message, type);
      else this.#onEvent(message);
    }
  }

  /** The server does one request after the other: those before the one that is answered are done. */
  #onAnswer(message: Buffer, type: number): void {
    const index = this.#pending.findIndex(({ number }) => number === message.readUInt16LE(2));
    const [answered, ...done] = this.#pending.splice(0, index + 1).reverse();
    for (const { resolve } of done) resolve(NOTHING);
    if (type === MESSAGE.REPLY) answered?.resolve(message);
    else answered?.reject(new XError(message[1] as number, message[10] as number));
  }
}

class XError extends Error {
  readonly code: number;

  constructor(code: number, opcode: number) {
    super(`X error ${code} for request ${opcode}`);
    this.code = code;
  }
}

function pad(data: Buffer): Buffer {
  return Buffer.concat([data, Buffer.alloc(-data.length & 3)]);
}

function words(...values: number[]): Buffer {
  const buffer = Buffer.alloc(4 * values.length);
  values.forEach((value, index) => buffer.writeUInt32LE(value, 4 * index));
  return buffer;
}

// ───── The layout: which key codes mean what ─────────────────────────────────────────────────────────────────────

const [SHIFT_BIT, CONTROL_BIT] = [0, 2]; // of the state of a key; what the others mean, the layout says
const ALT_KEYSYMS = [0xffe9, 0xffea];
const SUPER_KEYSYMS = [0xffeb, 0xffec];

class Keymap {
  readonly modifiers = new Map<number, Modifier>(); // by key code
  readonly #codes: readonly number[];
  readonly #columns: number;
  readonly #keysyms: Buffer;
  readonly #masks = new Map<Modifier, number>();
  #othersMask = 0; // CapsLock, NumLock, AltGr: they may be on or off

  /**
   * @param keysyms As many for each key code as there are columns: plain and shifted, for each group.
   * @param bitRows Key codes, as many for each bit of the state; 0 is none.
   */
  constructor(firstCode: number, columns: number, keysyms: Buffer, bitRows: Buffer) {
    this.#codes = Array.from({ length: keysyms.length / 4 / columns }, (_, index) => firstCode + index);
    this.#columns = columns;
    this.#keysyms = keysyms;
    for (let bit = 0; bit < 8; bit += 1) {
      const codes = [...bitRows.subarray((bit * bitRows.length) / 8, ((bit + 1) * bitRows.length) / 8)].filter(Boolean);
      const modifier = this.#nameBit(bit, codes);
      if (modifier === undefined) {
        if (codes.length > 0) this.#othersMask |= 1 << bit;
        continue;
      }
      this.#masks.set(modifier, (this.#masks.get(modifier) ?? 0) | (1 << bit));
      for (const code of codes) this.modifiers.set(code, modifier);
    }
  }

  /** The keys that have the keysym, in the first column where any has it. */
  codesOf(keysym: number): number[] {
    for (let column = 0; column < this.#columns; column += 1) {
      const codes = this.#codes.filter((code) => this.#keysymAt(code, column) === keysym);
      if (codes.length > 0) return codes;
    }
    return [];
  }

  /** The states in which a key comes with these modifiers and no others; none if the layout lacks one of them. */
  statesOf(modifiers: ReadonlySet<Modifier>): number[] {
    const masks = [...modifiers].map((modifier) => this.#masks.get(modifier) ?? 0);
    if (masks.includes(0)) return [];
    const wanted = masks.reduce((state, mask) => state | mask, 0);
    return Array.from({ length: 256 }, (_, state) => state).filter((state) => (state & ~this.#othersMask) === wanted);
  }

  #nameBit(bit: number, codes: readonly number[]): Modifier | undefined {
    if (bit === SHIFT_BIT) return 'shift';
    if (bit === CONTROL_BIT) return 'ctrl';
    const columns = Array.from({ length: this.#columns }, (_, column) => column);
    const keysyms = codes.flatMap((code) => columns.map((column) => this.#keysymAt(code, column)));
    if (keysyms.some((keysym) => ALT_KEYSYMS.includes(keysym))) return 'alt';
    return keysyms.some((keysym) => SUPER_KEYSYMS.includes(keysym)) ? 'super' : undefined;
  }

  #keysymAt(code: number, column: number): number {
    const row = code - (this.#codes[0] as number);
    return this.#keysyms.readUInt32LE(4 * (row * this.#columns + column));
  }
}

// ───── The listener ──────────────────────────────────────────────────────────────────────────────────────────────

const EVDEV_OFFSET = 8; // from Linux's code of a key to that of X11
const [ANY_KEY, ANY_MODIFIER, ASYNC] = [0, 0x8000, 1];
const BAD_ACCESS = 10;
const XI = {
  SELECT_EVENTS: 46, QUERY_VERSION: 47, ALL_MASTER_DEVICES: 1, RAW_KEY_PRESS: 13, RAW_KEY_RELEASE: 14,
} as const;

export async function listenX11(
  bindings: readonly Binding[],
  events: ListenerEvents,
  leaving: AbortSignal,
): Promise<Listener> {
  const name = process.env['DISPLAY'] ?? '';
  if (name === '') throw new CannotListen('DISPLAY is not set: there is no X server to listen to');
  const listener = new X11Listener(parseDisplay(name), bindings, events);
  await listener.start(leaving);
  return listener;
}

class X11Listener implements Listener {
  readonly source: string;
  readonly bindings: readonly Binding[];
  readonly #display: Display;
  readonly #events: ListenerEvents;
  readonly #keys = new HeldKeys({ modifiers: new Map(), bindings: [] });
  readonly #noticed = new Set<Binding>(); // those with a difficulty that the user has been told of
  readonly #actions = new Map<string, Action>(); // of core events, by key code and state
  #connection!: Connection;
  #roots: number[] = [];
  #xinput = 0; // the opcode of its requests
  #acted: number | null = null; // the key that is down and has had its effect
  #released: { code: number; time: number } | null = null; // the last one that came up in a core event
  #layoutTimer: NodeJS.Timeout | undefined;

  constructor(display: Display, bindings: readonly Binding[], events: ListenerEvents) {
    this.source = `X11 display ${display.name}`;
    this.#display = display;
    this.bindings = bindings;
    this.#events = events;
  }

  async start(leaving: AbortSignal): Promise<void> {
    let hasStarted = false;
    const onClose = (why: string): void => {
      clearTimeout(this.#layoutTimer);
      if (hasStarted && !leaving.aborted) this.#events.onEnd(why);
    };
    const onEvent = (event: Buffer): void => this.#onEvent(event);
    this.#connection = await Connection.open(this.#display, leaving, onEvent, onClose);
    try {
      this.#roots = readRoots(this.#connection.setup);
      this.#xinput = await this.#findXInput();
      await this.#readLayout();
      await this.#selectRawKeys();
    } catch (error) {
      this.close();
      throw error instanceof CannotListen ? error : new CannotListen(`${this.source}: ${(error as Error).message}`);
    }
    this.#connection.allowSilence();
    hasStarted = true;
  }

  close(): void {
    clearTimeout(this.#layoutTimer);
    this.#connection.close();
  }

  async #findXInput(): Promise<number> {
    const name = Buffer.from('XInputExtension');
    const body = Buffer.concat([Buffer.from([name.length, 0, 0, 0]), pad(name)]);
    const extension = await this.#connection.ask(REQUEST.QUERY_EXTENSION, body);
    const [isPresent, opcode] = [extension[8] === 1, extension[9] as number];
    const version = isPresent ? await this.#connection.ask(opcode, Buffer.from([2, 0, 2, 0]), XI.QUERY_VERSION) : null;
    if (version === null || version.readUInt16LE(8) < 2) throw new CannotListen(`${this.source} has no XInput 2`);
    return opcode;
  }

  async #selectRawKeys(): Promise<void> {
    const mask = (1 << XI.RAW_KEY_PRESS) | (1 << XI.RAW_KEY_RELEASE);
    const body = words(this.#roots[0] as number, 1, XI.ALL_MASTER_DEVICES | (1 << 16), mask); // one mask of one word
    const selected = this.#connection.send(this.#xinput, body, XI.SELECT_EVENTS);
    await Promise.all([selected, this.#readHeld()]);
  }

  /** Learns which key codes to look for, and grabs them. */
  async #readLayout(): Promise<void> {
    const { setup } = this.#connection;
    const [firstCode, lastCode] = [setup[34] as number, setup[35] as number];
    const [mapping, bitRows] = await Promise.all([
      this.#connection.ask(REQUEST.GET_KEYBOARD_MAPPING, Buffer.from([firstCode, lastCode - firstCode + 1, 0, 0])),
      this.#connection.ask(REQUEST.GET_MODIFIER_MAPPING),
    ]);
    const keymap = new Keymap(firstCode, mapping[1] as number, mapping.subarray(32), bitRows.subarray(32));
    const bindings: [code: number, Binding][] = [];
    this.#actions.clear();
    const grabs = this.#roots.map((root) => {
      return this.#connection.send(REQUEST.UNGRAB_KEY, words(root, ANY_MODIFIER), ANY_KEY);
    });
    for (const binding of this.bindings) {
      const { key, modifiers, name } = binding.combination;
      const codes = keymap.codesOf(key.keysym);
      if (codes.length === 0) codes.push(key.evdev + EVDEV_OFFSET); // no Latin letters: where a US keyboard has it
      const states = keymap.statesOf(modifiers);
      if (states.length === 0) this.#notice(binding, `the layout lacks a modifier of ${name}`);
      for (const code of codes) {
        bindings.push([code, binding]);
        for (const state of states) {
          this.#actions.set(`${code} ${state}`, binding.action);
          grabs.push(...this.#grab(binding, code, state));
        }
      }
    }
    this.#keys.layout = { modifiers: keymap.modifiers, bindings };
    await Promise.all([...grabs, this.#readHeld()]);
  }

  #grab(binding: Binding, code: number, state: number): Promise<void>[] {
    return this.#roots.map(async (root) => {
      const body = Buffer.concat([words(root), Buffer.from([state, 0, code, ASYNC, ASYNC, 0, 0, 0])]);
      try {
        await this.#connection.send(REQUEST.GRAB_KEY, body);
      } catch (error) {
        if (!(error instanceof XError) || error.code !== BAD_ACCESS) return;
        const { name } = binding.combination;
        this.#notice(binding, `another program uses ${name}, too: it works here, but that program may react as well`);
      }
    });
  }

  #notice(binding: Binding, difficulty: string): void {
    if (this.#noticed.has(binding)) return;
    this.#noticed.add(binding);
    this.#events.onNotice(`${difficulty}; ${binding.option} takes another combination`);
  }

  /** Learns what is down already. */
  async #readHeld(): Promise<void> {
    await this.#connection.ask(REQUEST.QUERY_KEYMAP, NOTHING, 0, (reply) => {
      const codes = Array.from({ length: 256 }, (_, code) => code);
      this.#keys.reset(codes.filter((code) => (reply[8 + (code >> 3)] as number) & (1 << (code & 7))));
    });
  }

  #onEvent(event: Buffer): void {
    const type = (event[0] as number) & 0x7f;
    if (type === MESSAGE.KEY_PRESS) {
      this.#onCorePress(event[1] as number, event.readUInt32LE(4), event.readUInt16LE(28) & 0xff);
    } else if (type === MESSAGE.KEY_RELEASE) {
      this.#onRelease(event[1] as number, event.readUInt32LE(4));
    } else if (type === MESSAGE.GENERIC && event[1] === this.#xinput) {
      const code = event.readUInt32LE(16);
      if (event.readUInt16LE(8) === XI.RAW_KEY_PRESS) this.#act(code, this.#keys.press(code));
      else this.#onRelease(code, null);
    } else if (type === MESSAGE.MAPPING_NOTIFY) {
      clearTimeout(this.#layoutTimer);
      const onError = (): void => {}; // the connection has ended, of which onClose tells
      this.#layoutTimer = setTimeout(() => this.#readLayout().catch(onError), LAYOUT_MS);
    }
  }

  /** A key that repeats comes up and goes down again at one time of the server; raw events do not repeat. */
  #onCorePress(code: number, time: number, state: number): void {
    const isRepeat = this.#released?.code === code && this.#released.time === time;
    this.#keys.press(code);
    if (!isRepeat && this.#acted !== code) this.#act(code, this.#actions.get(`${code} ${state}`) ?? null);
  }

  #onRelease(code: number, coreTime: number | null): void {
    const isOurs = this.#keys.release(code);
    this.#released = isOurs && coreTime !== null ? { code, time: coreTime } : null;
    if (this.#acted === code) this.#acted = null;
  }

  #act(code: number, action: Action | null): void {
    if (action === null) return;
    this.#acted = code;
    this.#events.onPress(action);
  }
}

/** The root window of each screen, from what the server says of itself at the start. */
function readRoots(setup: Buffer): number[] {
  const [vendorLength, screens, formats] = [setup.readUInt16LE(24), setup[28] as number, setup[29] as number];
  const roots: number[] = [];
  let at = 40 + vendorLength + (-vendorLength & 3) + 8 * formats;
  while (roots.length < screens) {
    roots.push(setup.readUInt32LE(at));
    let depths = setup[at + 39] as number;
    at += 40;
    for (; depths > 0; depths -= 1) at += 8 + 24 * setup.readUInt16LE(at + 2); // each with its visuals
  }
  return roots;
}
