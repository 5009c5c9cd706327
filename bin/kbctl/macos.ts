// The macos backend: a script for osascript, which every Mac includes.

import { flagsOf, startHelper } from './helper.ts';
import { BackendError, type Binding, type Listener, type ListenerEvents, type Modifier } from './keys.ts';

const FLAGS: Readonly<Record<Modifier, number>> = { shift: 1 << 17, ctrl: 1 << 18, alt: 1 << 19, super: 1 << 20 };

const PERMISSION =
  'the terminal application lacks a permission: add it in System Settings > Privacy & Security > Accessibility ' +
  '(or Input Monitoring) and restart it';

/**
 * Uses two sources, because either may miss keys: AppKit's monitor for events of other applications, and the state of
 * the keys, polled 50 times a second. If both report a combination within 250 ms, it is one press.
 *
 * Writes `ready A I S` (permission for Accessibility, permission for Input Monitoring, secure input is on: 1, 0, or -1
 * for unknown), `hit N` for combination N, and `note TEXT`. Its argument is a JSON array of { code, flags }.
 */
export const SCRIPT = `
ObjC.import('Cocoa');
ObjC.import('ApplicationServices');
ObjC.import('unistd');

function run(argv) {
  const ALL_FLAGS = 0x1e0000, KEY_DOWN = 1 << 10, ACCESSORY = 1, SAME_PRESS_MS = 250, POLL_S = 0.02;
  const combinations = JSON.parse(argv[0]);
  const hitAt = combinations.map(() => 0);
  const wasDown = combinations.map(() => true);
  const output = $.NSFileHandle.fileHandleWithStandardOutput; // console.log writes to stderr
  const say = (text) => output.writeData($(text + '\\n').dataUsingEncoding($.NSUTF8StringEncoding));
  const ask = (name) => {
    try {
      ObjC.bindFunction(name, ['bool', []]);
      return $[name]() ? 1 : 0;
    } catch (error) {
      return -1;
    }
  };
  const hit = (index) => {
    const now = Date.now();
    if (now - hitAt[index] > SAME_PRESS_MS) say('hit ' + index);
    hitAt[index] = now;
  };
  const onKeyDown = (event) => {
    const flags = Number(event.modifierFlags) & ALL_FLAGS, code = Number(event.keyCode);
    if (event.isARepeat) return;
    combinations.forEach((one, index) => { if (one.code === code && one.flags === flags) hit(index); });
  };
  const kept = [onKeyDown]; // an unreferenced block would be garbage-collected
  try {
    $.NSApplication.sharedApplication.setActivationPolicy(ACCESSORY); // no icon in the Dock
    kept.push($.NSEvent.addGlobalMonitorForEventsMatchingMaskHandler(KEY_DOWN, onKeyDown));
  } catch (error) {
    say('note ' + error);
  }
  const states = ['AXIsProcessTrusted', 'CGPreflightListenEventAccess', 'IsSecureEventInputEnabled'].map(ask);
  say('ready ' + states.join(' '));
  const parent = $.getppid();
  while ($.getppid() === parent) {
    const flags = Number($.CGEventSourceFlagsState(0)) & ALL_FLAGS;
    combinations.forEach((one, index) => {
      const isDown = Boolean($.CGEventSourceKeyState(0, one.code));
      if (isDown && !wasDown[index] && flags === one.flags) hit(index);
      wasDown[index] = isDown;
    });
    const began = Date.now();
    $.NSRunLoop.currentRunLoop.runUntilDate($.NSDate.dateWithTimeIntervalSinceNow(POLL_S)); // lets the monitor run
    if (Date.now() - began < 500 * POLL_S) $.NSThread.sleepForTimeInterval(POLL_S); // the run loop returned at once
  }
}
`;

export function macosCommand(bindings: readonly Binding[]): [file: string, ...args: string[]] {
  const combinations = bindings.map(({ combination: { key, modifiers } }) => {
    return { code: key.mac, flags: flagsOf(modifiers, FLAGS) };
  });
  return ['osascript', '-l', 'JavaScript', '-e', SCRIPT, JSON.stringify(combinations)];
}

export async function listenMacos(
  bindings: readonly Binding[],
  events: ListenerEvents,
  quitting: AbortSignal,
): Promise<Listener> {
  const close = await startHelper({
    command: macosCommand(bindings),
    bindings,
    events,
    handlers: {
      note: (...text) => events.onNotice(text.join(' ')),
      ready: (accessibility, inputMonitoring, secureInput) => {
        if (accessibility === '0' && inputMonitoring !== '1') throw new BackendError(PERMISSION);
        if (secureInput === '1') events.onNotice('secure input is on: macOS hides all keys until it is off');
      },
    },
    quitting,
  });
  return { source: 'macOS key events', bindings, close };
}
