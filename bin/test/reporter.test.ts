// The reporter of the tests: what is missing on a machine must not be missing in its report.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import report from './reporter.ts';
import type { TestEvent } from 'node:test/reporters';

describe('The reporter of the tests', () => {
  it('names what was skipped, a suite, too, but prints nothing of what does not match a pattern', async (t) => {
    const { exitCode } = process;
    t.after(() => (process.exitCode = exitCode));
    const skipped = (name: string, skip: string | undefined, type: 'suite' | 'test'): TestEvent[] => {
      const data = { name, nesting: 0, testNumber: 1, details: { duration_ms: 1, type }, ...(skip && { skip }) };
      return [{ type: 'test:start', data }, { type: 'test:pass', data }] as unknown as TestEvent[];
    };
    async function* events(): AsyncGenerator<TestEvent> {
      yield* skipped('a terminal', 'apt-get install tmux', 'suite');
      yield* skipped('a key', 'apt-get install xvfb', 'test');
      yield* skipped('another', 'test name does not match pattern', 'test');
      yield* skipped('an empty suite', undefined, 'suite');
    }
    let text = '';
    for await (const chunk of report(events())) text += chunk;
    assert.match(text, /a terminal[^]*a key[^]*\n2 skipped: apt-get install tmux xvfb\n$/);
    assert.doesNotMatch(text, /another|empty/);
  });
});
