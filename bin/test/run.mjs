// Builds the tests and runs them: the specification and the main paths of the tools; with --all, every test; with
// words, only the files whose paths contain one of them: `npm test -- client/waits`. Options go to `node --test`, with
// their values after `=`.

import { build } from 'esbuild';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';

const isTest = (path) => path.endsWith('.test.ts');
const isMain = (path) => /^tools\/(board|client|console|demo|kbctl|mcp|run)\.test/.test(path);

const words = process.argv.slice(2);
const options = words.filter((word) => word.startsWith('--') && word !== '--all');
const names = words.filter((word) => !word.startsWith('--'));
const paths = readdirSync('bin/test', { recursive: true }).map((path) => path.replaceAll('\\', '/')).filter(isTest);
const isChosen = (path) => {
  if (names.length > 0) return names.some((name) => path.includes(name.replace('bin/test/', '')));
  return words.includes('--all') || path === 'control.test.ts' || isMain(path);
};
const chosen = ['control.test.ts', ...paths].filter(isChosen);
if (chosen.length === 0) { // without a file, `node --test` would run all it finds
  console.error(`no path of a test file contains ${names.join(' or ')}`);
  process.exit(2);
}

// A test that hangs leaves something behind, such as a timer. The file then fails instead of never ending. So it does if
// a test ends the process, and with it the others.
const END = `
import { after as afterAllTests } from 'node:test';
let haveEnded = false;
const onEnd = () => {
  haveEnded = true;
  setTimeout(() => {
    console.error('the file does not end');
    process.exit(1);
  }, 10_000).unref();
};
if (!import.meta.url.endsWith('/reporter.js')) {
  afterAllTests(onEnd);
  process.on('exit', () => haveEnded || (process.exitCode = 1));
}
`;

mkdirSync('.test', { recursive: true });
const folder = mkdtempSync('.test/'); // of this run: another one may be in progress
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
process.on('SIGINT', () => {}); // the tests end, and then this program
await build({
  entryPoints: ['reporter.ts', ...chosen].map((path) => {
    return { in: path === 'control.test.ts' ? path : `bin/test/${path}`, out: path.replace('.ts', '') };
  }),
  outdir: folder, bundle: true, packages: 'external', platform: 'node', format: 'esm', target: 'node20',
  conditions: ['bundle'], loader: { '.py': 'text' }, sourcemap: 'inline', logLevel: 'warning',
  footer: { js: END },
});

const files = chosen.map((path) => `${folder}/${path.replace('.ts', '.js')}`);
const concurrency = Math.min(6, availableParallelism() + 1); // with more, tests are slower and exceed their time limits
const { status } = spawnSync(process.execPath, [
  '--enable-source-maps', '--test', `--test-concurrency=${concurrency}`,
  `--test-reporter=./${folder}/reporter.js`, ...options, ...files,
], { stdio: 'inherit' });
process.exitCode = status ?? 1;
