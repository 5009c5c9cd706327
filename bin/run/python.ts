// The text of control.py, when control-run runs from its sources. The build replaces this module with control.py
// itself: see `imports` in package.json.

import { readFileSync } from 'node:fs';

const pythonModule: string = readFileSync(new URL('control.py', import.meta.url), 'utf8');
export default pythonModule;
