// The name that control-run derives from a command line.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { programName } from '../../../run/name.ts';

const LINES: readonly [line: string[], name: string][] = [
  [['./train'], 'train'], [['/opt/bin/solver', '--case', '1'], 'solver'], [['7z', 'a', 'x.7z', 'data'], '7z'],
  [['python3', '-u', 'train.py', '--epochs', '90'], 'train.py'], [['python', '../src/train.py', 'old.py'], 'train.py'],
  [['nice', '-n', '5', 'python3', 'train.py'], 'train.py'], [['java', '-jar', 'lib/app.jar'], 'app.jar'],
  [['python', '-m', 'pkg.train'], 'python'], [['node', '.'], 'node'], [['ls', '.py'], 'ls'],
  [['sh', '-c', 'cd /data && exec python3 train.py > log'], 'train.py'], [['sh', '-c', 'A="x y"; ./solver'], 'sh'],
  [['sh', '-c', 'exec "./my run.sh"'], 'run.sh'], [['/opt/my tool/run it'], 'run it'],
  [[], 'command'], [[''], 'command'], [['/'], 'command'], [['', ''], 'command'],
];

describe('programName()', () => {
  it('returns the name of the first script, or else of the command; never an empty text', () => {
    assert.deepEqual(LINES.map(([line]) => [line, programName(line)]), LINES);
  });
});
