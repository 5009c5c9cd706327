// The Python module, if the program runs from its sources. The build puts control.py itself in the place of this
// module: see `imports` in package.json.

import { readFileSync } from 'node:fs';

const pythonModule: string = readFileSync(new URL('control.py', import.meta.url), 'utf8');
export default pythonModule;
