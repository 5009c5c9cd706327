// Builds the tests and runs them: the specification and the main paths of the tools; with --all, every test; with
// words, only the files whose paths contain one of them: `npm test -- client/waits`. Options of `node --test` pass.

import { build } from 'esbuild';
import { spawnSync } from 'node:child_process';
import { readdirSync, rmSync } from 'node:fs';

const isTest = (path) => path.endsWith('.test.ts');
const isMain = (path) => /^tools\/[a-z]+\.test/.test(path);

const words = process.argv.slice(2);
const options = words.filter((word) => word.startsWith('--') && word !== '--all');
const names = words.filter((word) => !word.startsWith('--'));
const paths = readdirSync('bin/test', { recursive: true }).map((path) => path.replaceAll('\\', '/')).filter(isTest);

rmSync('.test', { recursive: true, force: true });
await build({
  entryPoints: [
    { in: 'control.test.ts', out: 'control.test' },
    ...['reporter.ts', ...paths].map((path) => ({ in: `bin/test/${path}`, out: path.replace('.ts', '') })),
  ],
  outdir: '.test', bundle: true, packages: 'external', platform: 'node', format: 'esm', target: 'node20',
  conditions: ['bundle'], loader: { '.py': 'text' }, sourcemap: 'inline', logLevel: 'warning',
});

const isChosen = (path) => {
  if (names.length > 0) return names.some((name) => path.includes(name));
  return words.includes('--all') || path === 'control.test.ts' || isMain(path);
};
const files = ['control.test.ts', ...paths].filter(isChosen).map((path) => `.test/${path.replace('.ts', '.js')}`);
const { status } = spawnSync(process.execPath, [
  '--enable-source-maps', '--test', '--test-concurrency=6', '--test-reporter=./.test/reporter.js', ...options, ...files,
], { stdio: 'inherit' });
process.exitCode = status ?? 1;
