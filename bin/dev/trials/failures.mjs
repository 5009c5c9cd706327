// A reporter: the failures of tests, each at once, although others that began before have not ended.

export default async function* report(events) {
  for await (const { type, data: { name, details } } of events) {
    if (type !== 'test:complete' || details.passed || details.type === 'suite') continue;
    yield `FAILED ${name}: ${details.error?.cause?.message ?? details.error?.message}`.replaceAll('\n', ' ') + '\n';
  }
}
