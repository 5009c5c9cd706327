// Node's spec reporter, without what does not match a pattern, and after its summary a line about what was skipped and
// how to get what is missing.

import { Readable } from 'node:stream';
import { spec } from 'node:test/reporters';
import type { TestEvent } from 'node:test/reporters';

type Passed = Extract<TestEvent, { type: 'test:pass' }>;

const INSTALL = 'apt-get install ';
const NO_MATCH = 'test name does not match pattern';

let count = 0;
const remedies: Set<string> = new Set();
const packages: Set<string> = new Set();

export default async function* report(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  yield* Readable.from(noteSkipped(onlyMatching(events))).pipe(new spec()) as AsyncIterable<string>;
  if (count === 0) return;
  const missing = packages.size > 0 ? [INSTALL + [...packages].sort().join(' ')] : [];
  yield `\n${count} skipped: ${[...missing, ...remedies].join('; ')}\n`;
  if (packages.size > 0 && process.env['CI'] !== undefined) process.exitCode = 1;
}

/** Drops the tests that do not match `--test-name-pattern`, and suites without any other. */
async function* onlyMatching(events: AsyncIterable<TestEvent>): AsyncGenerator<TestEvent> {
  const started: TestEvent[] = []; // of which nothing has been reported
  for await (const event of events) {
    const isResult = event.type === 'test:pass' || event.type === 'test:fail';
    if (event.type === 'test:start') started.push(event);
    else if (event.type === 'test:pass' && isUnmatched(event, started.at(-1))) started.pop();
    else {
      if (isResult) yield* started.splice(0);
      yield event;
    }
  }
}

/** A suite that is skipped is empty, too, but not unmatched. */
function isUnmatched({ data: { details, name, nesting, skip } }: Passed, start: TestEvent | undefined): boolean {
  if (skip !== undefined) return skip === NO_MATCH;
  if (details.type !== 'suite' || start?.type !== 'test:start') return false;
  return start.data.name === name && start.data.nesting === nesting;
}

async function* noteSkipped(events: AsyncIterable<TestEvent>): AsyncGenerator<TestEvent> {
  for await (const event of events) {
    yield event;
    if (event.type !== 'test:pass' || typeof event.data.skip !== 'string') continue;
    count += 1;
    for (const remedy of event.data.skip.split('; ')) {
      if (remedy.startsWith(INSTALL)) remedy.slice(INSTALL.length).split(' ').forEach((name) => packages.add(name));
      else remedies.add(remedy);
    }
  }
}
