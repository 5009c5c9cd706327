// The text of ranks.py, when control-run runs from its sources: see python.ts.

import { readFileSync } from 'node:fs';

const ranksModule: string = readFileSync(new URL('ranks.py', import.meta.url), 'utf8');
export default ranksModule;
