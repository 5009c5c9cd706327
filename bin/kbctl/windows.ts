// The windows backend: a C# class for powershell.exe, which every Windows includes. The focused window does not receive
// the registered combinations.

import { win32 } from 'node:path';
import { flagsOf, startHelper } from './helper.ts';
import { BackendError, type Binding, type Listener, type ListenerEvents, type Modifier } from './keys.ts';

const FLAGS: Readonly<Record<Modifier, number>> = { alt: 1, ctrl: 2, shift: 4, super: 8 };
const ERROR_HOTKEY_ALREADY_REGISTERED = '1409';

/**
 * Its arguments are the ID of its parent, with which it exits, and `flags,key` for each combination, separated by
 * semicolons. It writes `ok N` or `failed N ERROR` for combination N, then `ready`, then `hit N` for each press.
 */
export const SOURCE = `
using System;
using System.Diagnostics;
using System.Runtime.InteropServices;
using System.Threading;

public static class Hotkeys {
  const uint MOD_NOREPEAT = 0x4000;
  const uint WM_HOTKEY = 0x0312;

  [StructLayout(LayoutKind.Sequential)]
  struct Message {
    public IntPtr window; public uint type; public IntPtr wParam; public IntPtr lParam; public uint time;
    public int x; public int y; public uint reserved;
  }

  [DllImport("user32.dll", SetLastError = true)]
  static extern bool RegisterHotKey(IntPtr window, int id, uint modifiers, uint key);

  [DllImport("user32.dll")]
  static extern int GetMessage(out Message message, IntPtr window, uint first, uint last);

  static void Say(string text) { Console.Out.Write(text + "\\n"); Console.Out.Flush(); }

  static void EndWith(int process) {
    try {
      Process parent = Process.GetProcessById(process);
      while (!parent.HasExited) Thread.Sleep(1000);
    } catch (Exception) { }
    Environment.Exit(0);
  }

  public static void Listen(int process, string combinations) {
    Thread guard = new Thread(delegate () { EndWith(process); });
    guard.IsBackground = true;
    guard.Start();
    string[] list = combinations.Split(';');
    for (int i = 0; i < list.Length; i++) {
      string[] parts = list[i].Split(',');
      bool isOurs = RegisterHotKey(IntPtr.Zero, i + 1, uint.Parse(parts[0]) | MOD_NOREPEAT, uint.Parse(parts[1]));
      Say(isOurs ? "ok " + i : "failed " + i + " " + Marshal.GetLastWin32Error());
    }
    Say("ready");
    Message message;
    while (GetMessage(out message, IntPtr.Zero, 0, 0) > 0)
      if (message.type == WM_HOTKEY) Say("hit " + (message.wParam.ToInt64() - 1));
  }
}
`;

/** Contains no double quotes, which would need double escaping; PowerShell replaces the backticks with them. */
export function windowsCommand(bindings: readonly Binding[], processId: number): [file: string, ...args: string[]] {
  const folder = process.env['SystemRoot'];
  const file = folder === undefined ? '' : win32.join(folder, 'System32\\WindowsPowerShell\\v1.0\\');
  const source = SOURCE.trim().replace(/\s*\n\s*/g, ' ').replaceAll("'", "''").replaceAll('"', '`');
  const combinations = bindings.map(({ combination: { key, modifiers } }) => {
    return `${flagsOf(modifiers, FLAGS)},${key.windows}`;
  });
  const script =
    `$ErrorActionPreference='Stop'; ` +
    `Add-Type -TypeDefinition ('${source}'.Replace([string][char]96,[string][char]34)); ` +
    `[Hotkeys]::Listen(${processId},'${combinations.join(';')}')`;
  const options = ['-NoLogo', '-NoProfile', '-NonInteractive', '-InputFormat', 'None', '-ExecutionPolicy', 'Bypass'];
  return [`${file}powershell.exe`, ...options, '-Command', script];
}

export async function listenWindows(
  bindings: readonly Binding[],
  events: ListenerEvents,
  quitting: AbortSignal,
): Promise<Listener> {
  const failures = new Map<Binding, string>();
  const close = await startHelper({
    command: windowsCommand(bindings, process.pid),
    bindings,
    events,
    handlers: {
      failed: (index, error) => {
        const binding = bindings[Number(index)] as Binding;
        const isTaken = error === ERROR_HOTKEY_ALREADY_REGISTERED;
        const reason = isTaken ? 'another application uses it' : `Windows rejected it (error ${error})`;
        const { combination, option } = binding;
        failures.set(binding, `${combination.name} does not work, ${reason}; set ${option} to another combination`);
      },
      ready: () => {
        const notices = [...failures.values()];
        if (notices.length === bindings.length) throw new BackendError(notices.join('; '));
        for (const notice of notices) events.onNotice(notice);
      },
    },
    explain: (errors) => {
      if (!/language mode|CannotDefineNewType/i.test(errors)) return null;
      return 'a policy of this machine (Constrained Language Mode) forbids Add-Type in PowerShell';
    },
    quitting,
  });
  const working = bindings.filter((binding) => !failures.has(binding));
  return { source: 'Windows hotkeys', bindings: working, close };
}
