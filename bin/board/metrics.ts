// GET /metrics: the systems in Prometheus's text format, version 0.0.4.

import { SystemStatus } from '../../control.ts';
import { NO_ANSWER, UNKNOWN } from '../shared/client.ts';
import { DOWN } from '../shared/system.ts';
import { type BoardSystem, numbersIn } from './system.ts';

export const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

const MAX_NUMBERS = 50; // in the detail of a system
const STATUSES = [...Object.values(SystemStatus).map(({ statusName }) => statusName), NO_ANSWER, UNKNOWN];

type System = Pick<BoardSystem, 'id' | 'title' | 'status' | 'state' | 'target'>;
type Line = [labels: Record<string, string>, value: number];

/** The metrics of all systems. Each line is unique: a duplicate would make the whole scrape fail. */
export function formatMetrics(systems: readonly System[]): string {
  const labelled = labelsOf(systems);
  const metric = (name: string, help: string, linesOf: (system: System) => Line[]): string => {
    const lines = labelled.flatMap(([label, system]) => linesOf(system).map(([labels, value]) => {
      const { label: machine } = system.target.client.machine;
      const all = { system: label, ...machine && { machine }, ...labels };
      const pairs = Object.entries(all).map(([key, text]) => `${key}="${escape(text)}"`);
      return `${name}{${pairs.join(',')}} ${value}\n`;
    }));
    return `# HELP ${name} ${help}\n# TYPE ${name} gauge\n${lines.join('')}`;
  };
  return [
    metric('control_up', 'Whether the system responds with its status.', (system) => {
      return [[{}, Number(isUp(system))]];
    }),
    metric('control_status', 'Whether the system has this status: 1 for the current one.', (system) => {
      return STATUSES.map((status) => [{ status }, Number(status === statusOf(system))]);
    }),
    metric('control_asks', 'Open questions: each waits for an answer.', ({ state }) => {
      return [[{}, state.asks.length]];
    }),
    metric('control_detail', 'A number in the detail of a system that responds.', (system) => {
      const numbers = isUp(system) ? numbersIn(system.state.fields) : [];
      const unique = new Map(numbers.map(([name, value]) => [encodable(name), value]));
      return [...unique].slice(0, MAX_NUMBERS).map(([name, value]) => [{ name }, value]);
    }),
  ].join('');
}

function statusOf({ status }: System): string {
  return STATUSES.includes(status) ? status : UNKNOWN;
}

function isUp(system: System): boolean {
  return !DOWN.includes(statusOf(system));
}

/** Labels each system with its name, or its title if other systems have the same name. */
function labelsOf(systems: readonly System[]): [label: string, system: System][] {
  const taken = new Set<string>();
  return systems.map((system) => {
    const { name } = system.state;
    const isShared = systems.some((other) => other !== system && other.state.name === name);
    let label = encodable(isShared ? system.title : name);
    while (taken.has(label)) label += `-${system.id}`; // a system may use the title of another as its name
    taken.add(label);
    return [label, system];
  });
}

/** The text after encoding: UTF-8 turns every lone surrogate into U+FFFD, so different names can become equal. */
function encodable(text: string): string {
  return Buffer.from(text).toString();
}

function escape(text: string): string {
  return text.replaceAll(/[\\"]/g, '\\$&').replaceAll('\n', '\\n');
}
