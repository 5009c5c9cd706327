// The tables of list --watch and top, which draw whole lines, on a pseudo-terminal.

import { pseudoTerminal } from '../console/helpers.ts';
import { until } from '../../helpers.ts';
import { openSession } from './systems.ts';
import type { Terminal } from '../console/helpers.ts';
import type { Session, Web } from './systems.ts';
import type { TestContext } from 'node:test';

export interface Screen extends Terminal {
  /** The lines on the screen, without colors and trailing spaces. */
  lines(): string[];
  /** Resolves when a line matches. */
  showsLine(pattern: RegExp): Promise<void>;
}

export interface Table extends Session {
  /** Starts a fake web API with the given info, as process 7. */
  show(name: string, info?: object | (() => object)): Promise<Web>;
  /** Starts control-client on a terminal of 100 columns and 30 lines, with this session. */
  open(args: string): Promise<Screen>;
}

export function openTable(t: TestContext): Table {
  const session = openSession(t);
  const show: Table['show'] = (name, info = {}) => session.serve(`${name}-7`, () => {
    return { name, pid: 7, status: 'active', ...typeof info === 'function' ? info() : info };
  });
  const open: Table['open'] = async (args) => {
    const command = `${process.execPath} dist/bin/client.js ${args}`;
    return screenOf(await pseudoTerminal(t, command, /NAME/, { ...session.env, CONTROL_BY: 'ana' }));
  };
  return { ...session, show, open };
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
