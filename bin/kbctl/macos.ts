// Key combinations on macOS, whatever program has the focus: a script that osascript runs, which every Mac has.

import { flagsOf, startHelper } from './helper.ts';
import { CannotListen } from './listener.ts';
import type { Binding, Modifier } from './keys.ts';
import type { Listener, ListenerEvents } from './listener.ts';

const FLAGS: Readonly<Record<Modifier, number>> = { shift: 1 << 17, ctrl: 1 << 18, alt: 1 << 19, super: 1 << 20 };

const PERMISSION =
  'the terminal application may not see keys: turn it on in System Settings > Privacy & Security > Accessibility ' +
  '(or Input Monitoring), and restart it';

/**
 * Two ways at once, because either may be deaf: AppKit's monitor for events of other programs, and the state of the
 * keys, 50 times a second. What both see within 250 ms is one press.
 *
 * Writes `ready A I S` (may it use Accessibility, Input Monitoring; is secure input on: 1, 0, or -1 for not known),
 * `hit N` for combination N, and `note TEXT`. Its argument is a JSON array of { code, flags }.
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
  const kept = [onKeyDown]; // a block that nothing refers to is collected
  try {
    $.NSApplication.sharedApplication.setActivationPolicy(ACCESSORY); // no icon in the Dock
    kept.push($.NSEvent.addGlobalMonitorForEventsMatchingMaskHandler(KEY_DOWN, onKeyDown));
  } catch (error) {
    say('note ' + error);
  }
  const answers = ['AXIsProcessTrusted', 'CGPreflightListenEventAccess', 'IsSecureEventInputEnabled'].map(ask);
  say('ready ' + answers.join(' '));
  const parent = $.getppid();
  while ($.getppid() === parent) {
    const flags = Number($.CGEventSourceFlagsState(0)) & ALL_FLAGS;
    combinations.forEach((one, index) => {
      const isDown = Boolean($.CGEventSourceKeyState(0, one.code));
      if (isDown && !wasDown[index] && flags === one.flags) hit(index);
      wasDown[index] = isDown;
    });
    const began = Date.now();
    $.NSRunLoop.currentRunLoop.runUntilDate($.NSDate.dateWithTimeIntervalSinceNow(POLL_S)); // the monitor needs it
    if (Date.now() - began < 500 * POLL_S) $.NSThread.sleepForTimeInterval(POLL_S); // it had nothing to wait for
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
  leaving: AbortSignal,
): Promise<Listener> {
  const close = await startHelper({
    command: macosCommand(bindings),
    bindings,
    events,
    lines: {
      note: (...text) => events.onNotice(text.join(' ')),
      ready: (accessibility, inputMonitoring, secureInput) => {
        if (accessibility === '0' && inputMonitoring !== '1') throw new CannotListen(PERMISSION);
        if (secureInput === '1') events.onNotice('secure input is on: until it is off, macOS shows no key to anyone');
      },
    },
    explain: () => null,
    leaving,
  });
  return { source: 'the keys of macOS (osascript)', bindings, close };
}
