// The evdev backend: reads the keyboards at /dev/input/event* on Linux: on the console, under X11 and under Wayland.
// The focused window also receives the keys. Key codes are positions on a US keyboard, whatever the layout.

import { closeSync, constants, type FSWatcher, openSync, readFileSync, readSync, watch } from 'node:fs';
import { BackendError, type Binding, type Listener, type ListenerEvents, type Modifier } from './keys.ts';

// Devices are polled: blocking reads would occupy libuv's threads and keep the process alive.
const POLL_MS = 25;
const PLUGGED_MS = 500; // until udev has set the permissions of a new device

const MODIFIERS_BY_CODE: ReadonlyMap<number, Modifier> = new Map([
  [42, 'shift'], [54, 'shift'], [29, 'ctrl'], [97, 'ctrl'], [56, 'alt'], [100, 'alt'], [125, 'super'], [126, 'super'],
]);

// ───── The listener ──────────────────────────────────────────────────────────────────────────────────────────────

/** @param findPaths Returns the paths of the connected keyboards. */
export async function listenEvdev(
  bindings: readonly Binding[],
  events: ListenerEvents,
  findPaths: () => string[] = () => findKeyboards(readFileSync('/proc/bus/input/devices', 'utf8')),
): Promise<Listener> {
  return new EvdevListener(bindings, events, findPaths);
}

class EvdevListener implements Listener {
  readonly bindings: readonly Binding[];
  readonly #events: ListenerEvents;
  readonly #findPaths: () => string[];
  readonly #devices = new Map<string, Device>();
  readonly #unreadable = new Map<string, string>(); // error codes by path
  readonly #pollTimer: NodeJS.Timeout;
  #plugTimer: NodeJS.Timeout | undefined;
  #watcher: FSWatcher | undefined;

  constructor(bindings: readonly Binding[], events: ListenerEvents, findPaths: () => string[]) {
    this.bindings = bindings;
    this.#events = events;
    this.#findPaths = findPaths;
    try {
      this.#openNew();
    } catch (error) {
      throw new BackendError(`cannot list the keyboards: ${(error as Error).message}`);
    }
    if (this.#devices.size === 0) throw new BackendError(this.#describeUnreadable() || 'no keyboard found');
    if (this.#unreadable.size > 0) this.#events.onNotice(this.#describeUnreadable());
    this.#pollTimer = setInterval(() => this.#poll(), POLL_MS);
    try {
      this.#watcher = watch('/dev/input', () => {
        clearTimeout(this.#plugTimer);
        this.#plugTimer = setTimeout(() => this.#noticeNew(), PLUGGED_MS);
      });
    } catch {
      // keyboards connected later are ignored
    }
  }

  get source(): string {
    return `the keyboards ${[...this.#devices.keys()].join(', ')}`;
  }

  close(): void {
    clearInterval(this.#pollTimer);
    clearTimeout(this.#plugTimer);
    this.#watcher?.close();
    for (const device of this.#devices.values()) device.close();
  }

  #openNew(): string[] {
    const paths = this.#findPaths().filter((path) => !this.#devices.has(path));
    this.#unreadable.clear();
    for (const path of paths) {
      try {
        this.#devices.set(path, new Device(path));
      } catch (error) {
        this.#unreadable.set(path, (error as NodeJS.ErrnoException).code ?? String(error));
      }
    }
    return paths.filter((path) => this.#devices.has(path));
  }

  #noticeNew(): void {
    const before = this.#describeUnreadable();
    try {
      for (const path of this.#openNew()) this.#events.onNotice(`new keyboard ${path}`);
    } catch {
      return; // the open keyboards still work
    }
    const unreadable = this.#describeUnreadable();
    if (unreadable !== '' && unreadable !== before) this.#events.onNotice(unreadable);
  }

  #describeUnreadable(): string {
    if (this.#unreadable.size === 0) return '';
    const list = [...this.#unreadable].map(([path, code]) => `${path} (${code})`).join(', ');
    const isForbidden = [...this.#unreadable.values()].includes('EACCES');
    const remedy = isForbidden ? ": run 'sudo usermod -aG input $USER' and log in again" : '';
    return `cannot read ${list}${remedy}`;
  }

  #poll(): void {
    const input: InputEvent[] = [];
    for (const device of this.#devices.values()) {
      try {
        input.push(...device.read());
      } catch (error) {
        this.#drop(device, error as NodeJS.ErrnoException);
      }
    }
    input.sort((a, b) => a.microseconds - b.microseconds); // modifiers and keys may be on different keyboards
    for (const event of input) this.#onEvent(event);
  }

  #drop(device: Device, { code }: NodeJS.ErrnoException): void {
    device.close();
    this.#devices.delete(device.path);
    const rest = this.#devices.size === 0 ? '; waiting for another keyboard' : '';
    this.#events.onNotice(`keyboard ${device.path} was disconnected (${code})${rest}`);
  }

  #onEvent({ device, type, code, value }: InputEvent): void {
    if (type === EV_SYN && code === SYN_DROPPED) {
      device.isBehind = true;
      device.held.clear();
    } else if (type === EV_SYN && code === SYN_REPORT) {
      device.isBehind = false;
    } else if (type === EV_KEY && !device.isBehind) {
      if (value === VALUE.UP) device.held.delete(code);
      if (value === VALUE.DOWN) this.#press(code, device);
    }
  }

  /** Reports a combination if exactly its modifiers are held on all keyboards together. */
  #press(code: number, device: Device): void {
    if (device.held.has(code)) return; // auto-repeat
    device.held.add(code);
    const codes = [...this.#devices.values()].flatMap(({ held }) => [...held]);
    const modifiers = new Set(codes.flatMap((one) => MODIFIERS_BY_CODE.get(one) ?? []));
    const pressed = this.bindings.find(({ combination: { key, modifiers: wanted } }) => {
      return key.evdev === code && wanted.size === modifiers.size && [...wanted].every((one) => modifiers.has(one));
    });
    if (pressed !== undefined) this.#events.onPress(pressed.action);
  }
}

// ───── Devices ───────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Returns the paths of the keyboards among the input devices. A keyboard has the handler `kbd` and the bit of KEY_P in
 * `B: KEY`. That bit field consists of words as long as a C long, the least significant one last.
 *
 * @param devices The text of /proc/bus/input/devices: one paragraph per device.
 */
export function findKeyboards(devices: string): string[] {
  return devices.split('\n\n').flatMap((device) => {
    const handlers = /^H: Handlers=(.*)$/m.exec(device)?.[1]?.trim().split(/\s+/) ?? [];
    const word = /^B: KEY=.*?(\w+)$/m.exec(device.trimEnd())?.[1] ?? '0';
    const hasLetters = ((BigInt(`0x${word}`) >> BigInt(KEY_P)) & 1n) === 1n;
    if (!handlers.includes('kbd') || !hasLetters) return [];
    return handlers.filter((handler) => /^event\d+$/.test(handler)).map((handler) => `/dev/input/${handler}`);
  });
}

class Device {
  readonly path: string;
  /** The codes of the keys that are held. */
  readonly held: Set<number> = new Set();
  readonly #file: number;
  readonly #buffer: Buffer = Buffer.alloc(64 * EVENT_BYTES);
  #length = 0; // bytes of an incomplete event
  isBehind = false; // events were lost: those before the next report are invalid

  constructor(path: string) {
    this.path = path;
    this.#file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  }

  /** Returns the events since the last read. Throws if the device was disconnected. */
  read(): InputEvent[] {
    const events: InputEvent[] = [];
    for (;;) {
      const bytes = this.#readSome();
      if (bytes === 0) return events;
      const end = this.#length + bytes;
      let at = 0;
      for (; at + EVENT_BYTES <= end; at += EVENT_BYTES) events.push(readEvent(this, this.#buffer.subarray(at)));
      this.#buffer.copy(this.#buffer, 0, at, end);
      this.#length = end - at;
    }
  }

  close(): void {
    closeSync(this.#file);
  }

  #readSome(): number {
    try {
      return readSync(this.#file, this.#buffer, this.#length, this.#buffer.length - this.#length, null);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return 0; // no new events
      throw error;
    }
  }
}

// ───── Events: struct input_event of linux/input.h ───────────────────────────────────────────────────────────────
//
//   seconds, microseconds (a long each) │ type u16 │ code u16 │ value i32

const LONG_BYTES = ['arm', 'ia32'].includes(process.arch) ? 4 : 8;
const EVENT_BYTES = 2 * LONG_BYTES + 8;
const EV_SYN = 0;
const EV_KEY = 1;
const SYN_REPORT = 0;
const SYN_DROPPED = 3;
const VALUE = { UP: 0, DOWN: 1 } as const; // 2 is auto-repeat
const KEY_P = 25;

interface InputEvent {
  device: Device;
  microseconds: number;
  type: number;
  code: number;
  value: number;
}

function readEvent(device: Device, data: Buffer): InputEvent {
  const readLong = (at: number): number => (LONG_BYTES === 4 ? data.readUInt32LE(at) : Number(data.readBigInt64LE(at)));
  const typeAt = 2 * LONG_BYTES;
  return {
    device,
    microseconds: readLong(0) * 1e6 + readLong(LONG_BYTES),
    type: data.readUInt16LE(typeAt),
    code: data.readUInt16LE(typeAt + 2),
    value: data.readInt32LE(typeAt + 4),
  };
}
