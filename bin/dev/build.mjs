// Builds dist/: the module, its types and the tools. Each file is replaced at once, so programs that start meanwhile,
// as those of a test run do, get the old one or the new one.

import { build } from 'esbuild';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';

process.chdir(join(import.meta.dirname, '../..'));
mkdirSync('dist', { recursive: true });
const folder = mkdtempSync('dist/.');
try {
  execFileSync(process.execPath, [
    'node_modules/typescript/bin/tsc', '--ignoreConfig', 'control.ts', '--outDir', folder, '--declaration',
    '--target', 'es2022', '--module', 'nodenext', '--types', 'node', '--strict',
  ], { stdio: 'inherit' });
  await build({
    entryPoints: ['bin/*.ts'], outdir: join(folder, 'bin'), bundle: true, platform: 'node', format: 'esm',
    target: 'node20', conditions: ['bundle'], loader: { '.html': 'text', '.py': 'text' }, logLevel: 'warning',
  });
  for (const path of readdirSync(folder, { recursive: true }).filter((name) => /\.(js|ts)$/.test(name))) {
    mkdirSync(dirname(join('dist', path)), { recursive: true });
    renameSync(join(folder, path), join('dist', path));
  }
} catch (error) {
  if (!Number.isInteger(error.status) && !Array.isArray(error.errors)) throw error; // tsc and esbuild print theirs
  process.exitCode = error.status ?? 1;
} finally {
  rmSync(folder, { recursive: true });
}
