// Key combinations on Windows, whatever program has the focus: a C# class that powershell.exe runs, which every Windows
// has. Combinations that are registered do not reach the program that has the focus.

import { win32 } from 'node:path';
import { flagsOf, startHelper } from './helper.ts';
import { CannotListen } from './listener.ts';
import type { Binding, Modifier } from './keys.ts';
import type { Listener, ListenerEvents } from './listener.ts';

const FLAGS: Readonly<Record<Modifier, number>> = { alt: 1, ctrl: 2, shift: 4, super: 8 };
const ERROR_HOTKEY_ALREADY_REGISTERED = '1409';

/**
 * Takes the id of the process without which it ends, and `flags,key` for each combination, with semicolons between.
 * Writes `ok N` or `failed N ERROR` for combination N, then `ready`, then `hit N`.
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

/** There are no double quotes: they would have to be escaped twice, so PowerShell makes them of backticks. */
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
  leaving: AbortSignal,
): Promise<Listener> {
  const failures = new Map<Binding, string>();
  const close = await startHelper({
    command: windowsCommand(bindings, process.pid),
    bindings,
    events,
    lines: {
      failed: (index, error) => {
        const binding = bindings[Number(index)] as Binding;
        const isTaken = error === ERROR_HOTKEY_ALREADY_REGISTERED;
        const why = isTaken ? 'another program has taken it' : `Windows refuses it (error ${error})`;
        const { combination, option } = binding;
        failures.set(binding, `${combination.name} does not work, ${why}: ${option} takes another combination`);
      },
      ready: () => {
        const lines = [...failures.values()];
        if (lines.length === bindings.length) throw new CannotListen(lines.join('; '));
        for (const line of lines) events.onNotice(line);
      },
    },
    explain: (errors) => {
      if (!/language mode|CannotDefineNewType/i.test(errors)) return null;
      return 'PowerShell is in Constrained Language Mode, a policy of this machine that forbids Add-Type';
    },
    leaving,
  });
  const working = bindings.filter((binding) => !failures.has(binding));
  return { source: 'the hotkeys of Windows (powershell.exe)', bindings: working, close };
}
