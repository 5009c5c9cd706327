// The name of a program, unless --name gives one.

import { basename } from 'node:path';

const SCRIPT = /[^/]\.([cm]?[jt]sx?|py|rb|pl|php|R|jl|lua|sh|jar)$/;

/**
 * Returns the base name of the first word that looks like a script, also in shell code, or else of the command:
 * `train.py` for `nice -n 5 python3 -u train.py`. Never empty.
 */
export function programName(line: readonly string[]): string {
  const words = line.join(' ').split(/[\s;&|()<>'"=]+/);
  return basename(words.find((word) => SCRIPT.test(word)) ?? line[0] ?? '') || 'command';
}
