// The screen of list --watch and top, which draw whole lines, on a pseudo-terminal.

import { pseudoTerminal } from '../console/helpers.ts';
import { until } from '../../helpers.ts';
import type { Terminal } from '../console/helpers.ts';
import type { TestContext } from 'node:test';

export interface Screen extends Terminal {
  /** The lines on the screen, without colors and trailing spaces. */
  lines(): string[];
  /** Resolves when a line matches. */
  showsLine(pattern: RegExp): Promise<void>;
}

/** Starts control-client on a terminal of 100 columns and 30 lines, with a session folder. */
export async function screen(t: TestContext, args: string, session: string, ready: RegExp): Promise<Screen> {
  const command = `${process.execPath} dist/bin/client.js ${args}`;
  return screenOf(await pseudoTerminal(t, command, ready, { XDG_RUNTIME_DIR: session, CONTROL_BY: 'ana' }));
}

export function screenOf(terminal: Terminal): Screen {
  const lines = (): string[] => linesIn(terminal.output());
  const showsLine = (pattern: RegExp): Promise<void> => {
    return until(() => lines().some((line) => pattern.test(line)), () => `no ${pattern} in:\n${lines().join('\n')}`);
  };
  return { ...terminal, lines, showsLine };
}

function linesIn(output: string): string[] {
  const lines: string[] = Array.from({ length: 30 }, () => '');
  for (const [, number, text = ''] of output.matchAll(/\x1b\[(\d+)H\x1b\[2K((?:[^\x1b]|\x1b\[\d+m)*)/g)) {
    lines[Number(number) - 1] = text.replaceAll(/\x1b\[\d+m/g, '').trimEnd();
  }
  return lines;
}
