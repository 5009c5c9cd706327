// The text of ranks.py, when control-run runs from its sources. The build replaces this module with ranks.py itself: see
// `imports` in package.json.

import { readFileSync } from 'node:fs';

const ranksModule: string = readFileSync(new URL('ranks.py', import.meta.url), 'utf8');
export default ranksModule;
