// The page, when control-board runs from its sources. The build replaces this module with page.html: see `imports` in
// package.json.

import { readFileSync } from 'node:fs';

const page: string = readFileSync(new URL('page.html', import.meta.url), 'utf8');
export default page;
