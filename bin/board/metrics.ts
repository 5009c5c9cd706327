// What Prometheus reads of the board: its text format, version 0.0.4.

import { SystemStatus } from '../../control.ts';
import { NO_ANSWER, UNKNOWN } from '../shared/replies.ts';
import { numbersIn } from './system.ts';
import type { BoardSystem } from './system.ts';

export const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

const MAX_NAMES = 50; // of the detail of a system
const STATUSES = [...Object.values(SystemStatus).map(({ statusName }) => statusName), NO_ANSWER, UNKNOWN];
const DOWN = [SystemStatus.OFFLINE.statusName, NO_ANSWER, UNKNOWN];

type System = Pick<BoardSystem, 'id' | 'title' | 'state' | 'counts'>;
type Line = [labels: Record<string, string>, value: number];

/** The metrics of all systems. Every line differs from all others: a duplicate would fail the whole scrape. */
export function formatMetrics(systems: readonly System[]): string {
  const labelled = labelsOf(systems);
  const metric = (type: string, name: string, help: string, linesOf: (system: System) => Line[]): string => {
    const lines = labelled.flatMap(([label, system]) => linesOf(system).map(([labels, value]) => {
      const pairs = Object.entries({ system: label, ...labels }).map(([key, text]) => `${key}="${escape(text)}"`);
      return `${name}{${pairs.join(',')}} ${value}\n`;
    }));
    return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.join('')}`;
  };
  return [
    metric('gauge', 'control_up', 'Whether the system responds with its status.', (system) => {
      return [[{}, Number(isUp(system))]];
    }),
    metric('gauge', 'control_status', 'Whether the system has this status: 1 for the current one.', (system) => {
      return STATUSES.map((status) => [{ status }, Number(status === statusOf(system))]);
    }),
    metric('counter', 'control_commands_total', 'Commands of all clients since the board follows.', ({ counts }) => {
      return [...counts].flatMap(([command, { done, failed }]): Line[] => {
        return [[{ command, state: 'done' }, done], [{ command, state: 'failed' }, failed]];
      });
    }),
    metric('gauge', 'control_detail', 'A number in the detail of a system that responds.', (system) => {
      const numbers = isUp(system) ? numbersIn(system.state.detail) : [];
      const unique = new Map(numbers.map(([name, value]) => [encodable(name), value]));
      return [...unique].slice(0, MAX_NAMES).map(([name, value]) => [{ name }, value]);
    }),
  ].join('');
}

/** The state of a system that does not respond has the status before. */
function statusOf({ state: { status, unansweredSince } }: System): string {
  const known = STATUSES.includes(status) ? status : UNKNOWN;
  return unansweredSince === null || DOWN.includes(known) ? known : NO_ANSWER;
}

function isUp(system: System): boolean {
  return !DOWN.includes(statusOf(system));
}

/** Each system with its name or, if others have the same, its title. */
function labelsOf(systems: readonly System[]): [label: string, system: System][] {
  const taken = new Set<string>();
  return systems.map((system) => {
    const { name } = system.state;
    const isShared = systems.some((other) => other !== system && other.state.name === name);
    let label = encodable(isShared ? system.title : name);
    while (taken.has(label)) label += `-${system.id}`; // a system may take any name, also a title
    taken.add(label);
    return [label, system];
  });
}

/** As it arrives: half of a surrogate pair is U+FFFD in UTF-8, so two of them are the same. */
function encodable(text: string): string {
  return Buffer.from(text).toString();
}

function escape(text: string): string {
  return text.replaceAll(/[\\"]/g, '\\$&').replaceAll('\n', '\\n');
}
