// The x11 backend: speaks the X11 protocol over the socket of the display. XGrabKey gets the combinations, whatever
// window has the focus, and keeps them from it, unless another client has grabbed them.

import { readFileSync } from 'node:fs';
import { connect, type NetConnectOpts, type Socket } from 'node:net';
import { homedir, hostname } from 'node:os';
import { join } from 'node:path';
import { type Action, BackendError, type Binding, type Listener, type ListenerEvents, type Modifier } from './keys.ts';

const START_MS = 5000;
const LAYOUT_MS = 100; // layout changes are reported in bursts

// ───── The listener ──────────────────────────────────────────────────────────────────────────────────────────────

const EVDEV_OFFSET = 8; // X11 key code = evdev code + 8
const [ANY_KEY, ANY_MODIFIER, ASYNC] = [0, 0x8000, 1];
const BAD_ACCESS = 10;

/** @param startMs Time limit for the X server to respond. */
export async function listenX11(
  bindings: readonly Binding[],
  events: ListenerEvents,
  quitting: AbortSignal,
  startMs: number = START_MS,
): Promise<Listener> {
  const name = process.env['DISPLAY'] ?? '';
  if (name === '') throw new BackendError('DISPLAY is not set');
  const listener = new X11Listener(parseDisplay(name), bindings, events, quitting, startMs);
  await listener.start(quitting);
  return listener;
}

class X11Listener implements Listener {
  readonly source: string;
  readonly #all: readonly Binding[];
  readonly #taken = new Set<Binding>(); // by other applications
  readonly #events: ListenerEvents;
  readonly #noticed = new Set<Binding>(); // bindings whose problem has been reported
  readonly #actions = new Map<string, Action>(); // for core events, by key code and state
  readonly #connection: Connection;
  #roots: number[] = [];
  #released = ''; // code and time of the latest release in a core event
  #layoutTimer: NodeJS.Timeout | undefined;

  constructor(
    display: Display,
    bindings: readonly Binding[],
    events: ListenerEvents,
    quitting: AbortSignal,
    startMs: number,
  ) {
    this.source = `X11 display ${display.name}`;
    this.#all = bindings;
    this.#events = events;
    this.#connection = new Connection(display, quitting, startMs, (event) => this.#onEvent(event));
  }

  get bindings(): readonly Binding[] {
    return this.#all.filter((binding) => !this.#taken.has(binding));
  }

  async start(quitting: AbortSignal): Promise<void> {
    try {
      await this.#connection.open();
      this.#roots = readRoots(this.#connection.setup);
      await this.#readLayout();
      if (this.bindings.length === 0) throw new BackendError('other applications have grabbed all combinations');
    } catch (error) {
      this.close();
      throw error instanceof BackendError ? error : new BackendError(`${this.source}: ${(error as Error).message}`);
    }
    this.#connection.disableTimeout();
    this.#connection.onEnd = (reason) => {
      clearTimeout(this.#layoutTimer);
      if (!quitting.aborted) this.#events.onEnd(reason);
    };
  }

  close(): void {
    clearTimeout(this.#layoutTimer);
    this.#connection.close();
  }

  /** Reads the layout and grabs the key codes of the bindings. */
  async #readLayout(): Promise<void> {
    const { setup } = this.#connection;
    const [firstCode, lastCode] = [setup[34] as number, setup[35] as number];
    const [mapping, bitRows] = await Promise.all([
      this.#connection.request(REQUEST.GET_KEYBOARD_MAPPING, Buffer.from([firstCode, lastCode - firstCode + 1, 0, 0])),
      this.#connection.request(REQUEST.GET_MODIFIER_MAPPING),
    ]);
    const keymap = new Keymap(firstCode, mapping[1] as number, mapping.subarray(32), bitRows.subarray(32));
    this.#actions.clear();
    this.#taken.clear();
    const grabs: Promise<unknown>[] = this.#roots.map((root) => {
      return this.#connection.request(REQUEST.UNGRAB_KEY, words(root, ANY_MODIFIER), ANY_KEY);
    });
    for (const binding of this.#all) {
      const { key, modifiers, name } = binding.combination;
      const codes = keymap.codesOf(key.keysym);
      if (codes.length === 0) codes.push(key.evdev + EVDEV_OFFSET); // not in this layout: as on a US keyboard
      const states = keymap.statesOf(modifiers);
      if (states.length === 0) this.#notice(binding, `the keyboard layout lacks a modifier of ${name}`);
      for (const code of codes) {
        for (const state of states) {
          this.#actions.set(`${code} ${state}`, binding.action);
          grabs.push(...this.#grab(binding, code, state));
        }
      }
    }
    await Promise.all([...grabs, this.#connection.request(REQUEST.GET_INPUT_FOCUS)]); // whose reply confirms the grabs
  }

  #grab(binding: Binding, code: number, state: number): Promise<void>[] {
    return this.#roots.map(async (root) => {
      const body = Buffer.concat([words(root), Buffer.from([state, 0, code, ASYNC, ASYNC, 0, 0, 0])]);
      try {
        await this.#connection.request(REQUEST.GRAB_KEY, body);
      } catch (error) {
        if ((error as Error).cause !== BAD_ACCESS) return;
        this.#taken.add(binding);
        this.#notice(binding, `another application has grabbed ${binding.combination.name}, which does nothing here`);
      }
    });
  }

  #notice(binding: Binding, problem: string): void {
    if (this.#noticed.has(binding)) return;
    this.#noticed.add(binding);
    this.#events.onNotice(`${problem}; set ${binding.option} to another combination`);
  }

  #onEvent(event: Buffer): void {
    const type = (event[0] as number) & 0x7f;
    if (type === MESSAGE.KEY_PRESS) {
      this.#onCorePress(event[1] as number, event.readUInt32LE(4), event.readUInt16LE(28) & 0xff);
    } else if (type === MESSAGE.KEY_RELEASE) {
      this.#released = `${event[1]} ${event.readUInt32LE(4)}`;
    } else if (type === MESSAGE.MAPPING_NOTIFY) {
      clearTimeout(this.#layoutTimer);
      const onError = (): void => {}; // onEnd reports that the connection has ended
      this.#layoutTimer = setTimeout(() => this.#readLayout().catch(onError), LAYOUT_MS);
    }
  }

  /** On auto-repeat, the release and the press have the same server time. */
  #onCorePress(code: number, time: number, state: number): void {
    const action = this.#released === `${code} ${time}` ? undefined : this.#actions.get(`${code} ${state}`);
    if (action !== undefined) this.#events.onPress(action);
  }
}

/** Returns the root window of each screen. */
export function readRoots(setup: Buffer): number[] {
  const [vendorLength, screens, formats] = [setup.readUInt16LE(24), setup[28] as number, setup[29] as number];
  const roots: number[] = [];
  let at = 40 + vendorLength + (-vendorLength & 3) + 8 * formats;
  while (roots.length < screens) {
    roots.push(setup.readUInt32LE(at));
    let depths = setup[at + 39] as number;
    at += 40;
    for (; depths > 0; depths -= 1) at += 8 + 24 * setup.readUInt16LE(at + 2); // skip the visuals of each depth
  }
  return roots;
}

// ───── The layout: the meaning of key codes ──────────────────────────────────────────────────────────────────────

const [SHIFT_BIT, CONTROL_BIT] = [0, 2]; // in the state of a key; the layout defines the other bits
const ALT_KEYSYMS = [0xffe9, 0xffea];
const SUPER_KEYSYMS = [0xffeb, 0xffec];

class Keymap {
  readonly #rows = new Map<number, number[]>(); // keysyms by key code: plain and shifted, for each group
  readonly #columns: number;
  readonly #masks = new Map<Modifier, number>();
  #ignoredMask = 0; // CapsLock, NumLock, AltGr: may be on or off

  /**
   * @param keysyms One row of `columns` keysyms per key code.
   * @param bitRows Eight rows of key codes, one per bit of the state, padded with 0.
   */
  constructor(firstCode: number, columns: number, keysyms: Buffer, bitRows: Buffer) {
    this.#columns = columns;
    for (let at = 0; at < keysyms.length; at += 4 * columns) {
      const row = Array.from({ length: columns }, (_, column) => keysyms.readUInt32LE(at + 4 * column));
      this.#rows.set(firstCode + this.#rows.size, row);
    }
    for (let bit = 0; bit < 8; bit += 1) {
      const codes = [...bitRows.subarray((bit * bitRows.length) / 8, ((bit + 1) * bitRows.length) / 8)].filter(Boolean);
      const modifier = this.#nameBit(bit, codes);
      if (modifier === undefined) {
        if (codes.length > 0) this.#ignoredMask |= 1 << bit;
        continue;
      }
      this.#masks.set(modifier, (this.#masks.get(modifier) ?? 0) | (1 << bit));
    }
  }

  /** Returns the codes of the keys with the keysym, from the first column that contains it. */
  codesOf(keysym: number): number[] {
    for (let column = 0; column < this.#columns; column += 1) {
      const found = [...this.#rows].filter(([, row]) => row[column] === keysym);
      if (found.length > 0) return found.map(([code]) => code);
    }
    return [];
  }

  /** Returns all states with exactly these modifiers; none if the layout lacks one of them. */
  statesOf(modifiers: ReadonlySet<Modifier>): number[] {
    const masks = [...modifiers].map((modifier) => this.#masks.get(modifier) ?? 0);
    if (masks.includes(0)) return [];
    const wanted = masks.reduce((state, mask) => state | mask, 0);
    return Array.from({ length: 256 }, (_, state) => state).filter((state) => (state & ~this.#ignoredMask) === wanted);
  }

  #nameBit(bit: number, codes: readonly number[]): Modifier | undefined {
    if (bit === SHIFT_BIT) return 'shift';
    if (bit === CONTROL_BIT) return 'ctrl';
    const keysyms = codes.flatMap((code) => this.#rows.get(code) ?? []);
    if (keysyms.some((keysym) => ALT_KEYSYMS.includes(keysym))) return 'alt';
    return keysyms.some((keysym) => SUPER_KEYSYMS.includes(keysym)) ? 'super' : undefined;
  }
}

// ───── The connection ────────────────────────────────────────────────────────────────────────────────────────────
//
//   request      opcode, 1 byte of data, length (16 bits, in units of 4 bytes), body
//   error (0)    32 bytes; sequence number of the request at byte 2
//   reply (1)    32 bytes + 4 × the 32 bits at byte 4; sequence number of the request at byte 2
//   event        32 bytes: KeyPress (2), KeyRelease (3), MappingNotify (34)

const MESSAGE = { ERROR: 0, REPLY: 1, KEY_PRESS: 2, KEY_RELEASE: 3, MAPPING_NOTIFY: 34 } as const;
const REQUEST = {
  GRAB_KEY: 33, UNGRAB_KEY: 34, GET_INPUT_FOCUS: 43, GET_KEYBOARD_MAPPING: 101, GET_MODIFIER_MAPPING: 119,
} as const;
const NOTHING = Buffer.alloc(0);

/** A request that may not have been processed yet. */
interface Pending {
  sequenceNumber: number;
  resolve(reply: Buffer): void;
  reject(error: Error): void;
}

export class Connection {
  readonly #name: string;
  readonly #socket: Socket;
  readonly #onEvent: (event: Buffer) => void;
  readonly #pending: Pending[] = []; // oldest first
  #input = NOTHING;
  #requests = 0;
  /** The server's description of itself, once it has accepted the connection. */
  setup: Buffer = NOTHING;
  /** Called when the connection ends, unless by close(). */
  onEnd: (reason: string) => void = () => {};

  constructor(display: Display, quitting: AbortSignal, startMs: number, onEvent: (event: Buffer) => void) {
    this.#onEvent = onEvent;
    const { name, target } = display;
    this.#name = name;
    this.#socket = connect({ ...target, signal: quitting });
    this.#socket.setTimeout(startMs, () => this.#end(`the X server at ${name} does not respond`));
    this.#socket.on('connect', () => this.#greet(readCookie(display)));
    this.#socket.on('data', (chunk: Buffer) => this.#onData(chunk));
    this.#socket.on('error', ({ message }) => {
      const isOpen = this.setup.length > 0;
      this.#end(`${isOpen ? `lost the X server at ${name}` : `no X server at DISPLAY ${name}`}: ${message}`);
    });
    this.#socket.on('close', () => this.#end(`the X server at ${name} closed the connection`));
  }

  /** Resolves when the server has accepted the connection. */
  async open(): Promise<void> {
    await this.#response(0); // to the greeting
  }

  /**
   * Sends a request and resolves with its reply; if it has none, with nothing at the reply to a later request.
   * Rejects on an error, whose cause is the code of the X server.
   */
  request(opcode: number, body: Buffer = NOTHING, data: number = 0): Promise<Buffer> {
    const head = Buffer.from([opcode, data, 0, 0]);
    head.writeUInt16LE(1 + body.length / 4, 2);
    this.#socket.write(Buffer.concat([head, body]));
    this.#requests += 1;
    return this.#response(this.#requests & 0xffff);
  }

  /** Ends the time limit for the start. */
  disableTimeout(): void {
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

  #response(sequenceNumber: number): Promise<Buffer> {
    return new Promise((resolve, reject) => this.#pending.push({ sequenceNumber, resolve, reject }));
  }

  #onData(chunk: Buffer): void {
    this.#input = Buffer.concat([this.#input, chunk]);
    if (this.setup.length === 0) this.#readSetup();
    if (this.setup.length > 0) this.#readMessages();
  }

  #readSetup(): void {
    const input = this.#input;
    const length = input.length < 8 ? Infinity : 8 + 4 * input.readUInt16LE(6);
    if (input.length < length) return;
    if (input[0] !== 1) {
      const reason = input.toString('latin1', 8, 8 + (input[1] as number)).trim();
      const remedy = /authori[sz]ation|cookie/i.test(reason) ? '; XAUTHORITY must name the file with its cookie' : '';
      return this.#end(`the X server at ${this.#name} refused the connection: ${reason}${remedy}`);
    }
    this.setup = input.subarray(0, length);
    this.#input = input.subarray(length);
    this.#pending.shift()?.resolve(this.setup);
  }

  #readMessages(): void {
    for (;;) {
      if (this.#input.length < 32) return;
      const type = (this.#input[0] as number) & 0x7f;
      const more = type === MESSAGE.REPLY ? 4 * this.#input.readUInt32LE(4) : 0;
      if (this.#input.length < 32 + more) return;
      const message = this.#input.subarray(0, 32 + more);
      this.#input = this.#input.subarray(32 + more);
      if (type === MESSAGE.REPLY || type === MESSAGE.ERROR) this.#onResponse(message, type);
      else this.#onEvent(message);
    }
  }

  /** The server processes requests in order: those before the one with this response are done. */
  #onResponse(message: Buffer, type: number): void {
    const index = this.#pending.findIndex(({ sequenceNumber }) => sequenceNumber === message.readUInt16LE(2));
    const [current, ...earlier] = this.#pending.splice(0, index + 1).reverse();
    for (const { resolve } of earlier) resolve(NOTHING);
    if (type === MESSAGE.REPLY) current?.resolve(message);
    else current?.reject(new Error(`X error ${message[1]} for request ${message[10]}`, { cause: message[1] }));
  }

  #end(reason: string): void {
    this.close();
    for (const { reject } of this.#pending.splice(0)) reject(new BackendError(reason));
    this.onEnd(reason);
  }
}

function pad(data: Buffer): Buffer {
  return Buffer.concat([data, Buffer.alloc(-data.length & 3)]);
}

export function words(...values: number[]): Buffer {
  const buffer = Buffer.alloc(4 * values.length);
  values.forEach((value, index) => buffer.writeUInt32LE(value, 4 * index));
  return buffer;
}

// ───── The display and its cookie ────────────────────────────────────────────────────────────────────────────────

export interface Display {
  name: string;
  number: string;
  target: NetConnectOpts;
}

/** Parses `:0`, `unix:0`, `host:10.0`. */
export function parseDisplay(name: string): Display {
  const [, host, unix, number] = /^([^:/]*)(\/unix)?:(\d+)(?:\.\d+)?$/.exec(name) ?? [];
  if (host === undefined || number === undefined) {
    throw new BackendError(`DISPLAY must be a display such as :0 or host:0, got '${name}'`);
  }
  if (host === '' || host === 'unix' || unix !== undefined) {
    return { name, number, target: { path: `/tmp/.X11-unix/X${number}` } };
  }
  const port = 6000 + Number(number);
  if (port > 65535) throw new BackendError(`DISPLAY must have a number from 0 to 59535 after the host, got '${name}'`);
  return { name, number, target: { host, port } };
}

/**
 * Returns the MIT-MAGIC-COOKIE-1 for a display from the file of xauth(1), in this order: for this host, for any host,
 * any other; empty if there is none. Each record is a family and four counted fields, all big-endian.
 */
function readCookie(display: Display): Buffer {
  const [ANY_HOST, THIS_HOST] = [0xffff, 256]; // FamilyWild, FamilyLocal
  let best: { rank: number; cookie: Buffer } = { rank: 0, cookie: NOTHING };
  try {
    const data = readFileSync(process.env['XAUTHORITY'] || join(homedir(), '.Xauthority'));
    let at = 0;
    const readField = (): Buffer => {
      const end = at + 2 + data.readUInt16BE(at);
      if (end > data.length) throw new RangeError('the file is truncated');
      const field = data.subarray(at + 2, end);
      at = end;
      return field;
    };
    while (at < data.length) {
      const family = data.readUInt16BE(at);
      at += 2;
      const [address, number, protocol, cookie] = [`${readField()}`, `${readField()}`, `${readField()}`, readField()];
      if (protocol !== 'MIT-MAGIC-COOKIE-1' || (number !== '' && number !== display.number)) continue;
      const rank = family === ANY_HOST ? 2 : family === THIS_HOST && address === hostname() ? 3 : 1;
      if (rank > best.rank) best = { rank, cookie };
    }
  } catch {
    // there is no file, or its last record is incomplete: use those before it
  }
  return best.cookie;
}
