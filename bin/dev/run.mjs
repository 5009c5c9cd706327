// Builds a development tool, bin/dev/NAME.ts, and runs it: node bin/dev/run.mjs NAME [ARGUMENT …]

import { buildSync } from 'esbuild';

const [name, ...words] = process.argv.slice(2);
const file = `.dev/${name}.js`;
buildSync({
  entryPoints: [`bin/dev/${name}.ts`], outfile: file, bundle: true, packages: 'external', platform: 'node', format: 'esm',
  target: 'node20', conditions: ['bundle'], loader: { '.py': 'text' }, sourcemap: 'inline', logLevel: 'warning',
});
process.argv.splice(1, 2, file);
process.setSourceMapsEnabled(true);
await import(new URL(`../../${file}`, import.meta.url).href);
