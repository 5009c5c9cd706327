// The page, if the program runs from its sources. The build puts page.html itself in the place of this module: see
// `imports` in package.json.

import { readFileSync } from 'node:fs';

const page: string = readFileSync(new URL('page.html', import.meta.url), 'utf8');
export default page;
