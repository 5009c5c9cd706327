// Builds a development tool, bin/dev/NAME.ts, and runs it: node bin/dev/run.mjs NAME [ARGUMENT …]

import { buildSync } from 'esbuild';
import { readdirSync } from 'node:fs';

const name = process.argv[2] ?? '';
const names = readdirSync('bin/dev').filter((file) => file.endsWith('.ts')).map((file) => file.slice(0, -3));
if (!names.includes(name)) {
  console.error(`usage: node bin/dev/run.mjs NAME [ARGUMENT …], where NAME is ${names.join(', ')}`);
  process.exit(2);
}

const file = `.dev/${name}.js`;
buildSync({
  entryPoints: [`bin/dev/${name}.ts`], outfile: file, bundle: true, packages: 'external', platform: 'node',
  format: 'esm', target: 'node20', conditions: ['bundle'], loader: { '.py': 'text' }, sourcemap: 'inline',
  logLevel: 'warning',
});
process.argv.splice(1, 2, file);
process.setSourceMapsEnabled(true);
await import(new URL(`../../${file}`, import.meta.url).href);
