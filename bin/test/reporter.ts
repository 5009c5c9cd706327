// Node's spec reporter, and after its summary one line about what was skipped and how to get what is missing.

import { Readable } from 'node:stream';
import { spec } from 'node:test/reporters';
import type { TestEvent } from 'node:test/reporters';

const INSTALL = 'apt-get install ';

let count = 0;
const remedies: Set<string> = new Set();
const packages: Set<string> = new Set();

export default async function* report(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  yield* Readable.from(noteSkipped(events)).pipe(new spec()) as AsyncIterable<string>;
  if (count === 0) return;
  const missing = packages.size > 0 ? [INSTALL + [...packages].sort().join(' ')] : [];
  yield `\n${count} skipped: ${[...missing, ...remedies].join('; ')}\n`;
  if (packages.size > 0 && process.env['CI'] !== undefined) process.exitCode = 1;
}

async function* noteSkipped(events: AsyncIterable<TestEvent>): AsyncGenerator<TestEvent> {
  for await (const event of events) {
    yield event;
    if (event.type !== 'test:pass' || typeof event.data.skip !== 'string') continue;
    if (event.data.skip === 'test name does not match pattern') continue;
    count += 1;
    for (const remedy of event.data.skip.split('; ')) {
      if (remedy.startsWith(INSTALL)) remedy.slice(INSTALL.length).split(' ').forEach((name) => packages.add(name));
      else remedies.add(remedy);
    }
  }
}
