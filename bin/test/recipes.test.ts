// The files in bin/recipes: their length, their syntax, and the options that they use. `npm run engines` runs them.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  chownSync, lstatSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, runProgram } from './helpers.ts';
import { lacks, PYTHON } from './needs.ts';
import type { TestContext } from 'node:test';

const FOLDER = 'bin/recipes';
const MAX_LINES = 46;
const MAX_COLUMNS = 120;

/** Each fails if a file has no such syntax. */
const YAML = `
import sys, yaml
class Loader(yaml.SafeLoader): pass
def construct(loader, node):
    keys = [key.value for key, value in node.value]
    assert len(keys) == len(set(keys)), f'a key appears twice: {keys}'
    return loader.construct_mapping(node, True)
Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct)
assert isinstance(yaml.load(open(sys.argv[1]), Loader), dict)
`;
const INI = `
import configparser, sys
configparser.RawConfigParser(inline_comment_prefixes=(' ;', '\\t;')).read_file(open(sys.argv[1]))
`;
const INSTRUCTION = /^(FROM|COPY|RUN|WORKDIR|USER|ENV|HEALTHCHECK|ENTRYPOINT|CMD) \S/;
const NOT_INSTALLED = /: Command \S+ is not executable: No such file or directory$/;

describe('The recipes', () => {
  it(`are six files of at most ${MAX_LINES} lines, none of them wide`, () => {
    const names = readdirSync(FOLDER).sort();
    assert.deepEqual(names, [
      'Dockerfile', 'compose.yaml', 'supervisord.conf', 'trainer.sbatch', 'trainer.service', 'trainer.yaml',
    ]);
    for (const name of names) {
      const lines = linesOf(name);
      assert.ok(lines.length <= MAX_LINES, `${name} has ${lines.length} lines`);
      assert.deepEqual(lines.filter((line) => line.length > MAX_COLUMNS || /\s$/.test(line)), [], name);
    }
  });

  it('use commands and options that the programs have', async (t) => {
    const [client, demo, run] = await Promise.all([helpOf(t, 'client'), helpOf(t, 'demo'), helpOf(t, 'run')]);
    let count = 0;
    for (const name of [...readdirSync(FOLDER), '../stops.md']) {
      const text = readFileSync(join(FOLDER, name), 'utf8')
        .replaceAll(/[[\]",']|\\\n/g, ' ')
        .replaceAll(/--entrypoint control-client \S+/g, 'control-client'); // of docker run
      for (const [call, word = ''] of text.matchAll(/control-client +(?!is on )([a-z][a-z-]*)[^\n#&;|)`]*/g)) {
        assert.ok(new RegExp(`^  (.*, )?${word}\\b`, 'm').test(client), `${name}: ${call}`);
        count += checkOptions(name, call, client);
      }
      for (const [call] of text.matchAll(/control-run ([^#\n]*? )??-- /g)) count += checkOptions(name, call, run);
      for (const [call] of text.matchAll(/node +trainer\.mjs[^\n&)]*/g)) count += checkOptions(name, call, demo);
    }
    assert.ok(count > 20, `${count} options`);
  });

  it('trainer.sbatch is a script of bash', { skip: lacks('bash') }, () => {
    check('bash', '-n', join(FOLDER, 'trainer.sbatch'));
  });

  it('trainer.sbatch refuses a folder that another user may have prepared', { skip: lacks('bash') }, (t) => {
    const root = makeFolder(t);
    const script = readFileSync(join(FOLDER, 'trainer.sbatch'), 'utf8').replaceAll('/tmp/', `${root}/`);
    writeFileSync(join(root, 'node'), '#!/bin/sh\necho started', { mode: 0o755 });
    const prepare: [jobId: number, how: (folder: string) => void, isStarted: boolean][] = [
      [1, () => {}, true],
      [2, (folder) => mkdirSync(folder, 0o700), true], // of an earlier run, or of another task
      [3, (folder) => symlinkSync(mkdtempSync(join(root, 'own-')), folder), false],
      [4, (folder) => mkdirSync(folder, 0o755), false],
      [5, (folder) => writeFileSync(folder, '', { mode: 0o700 }), false],
    ];
    if (process.geteuid?.() === 0) {
      prepare.push([6, (folder) => { mkdirSync(folder, 0o700); chownSync(folder, 65534, 65534); }, false]);
    }
    for (const [jobId, how, isStarted] of prepare) {
      const folder = join(root, `trainer-${jobId}`);
      how(folder);
      const env = { PATH: `${root}:${process.env['PATH']}`, SLURM_JOB_ID: `${jobId}` };
      const { status, stdout, stderr } = spawnSync('bash', ['--norc', '-c', script], { encoding: 'utf8', env });
      const rule = `must be a folder of user ${process.geteuid?.()} with mode 700, not a link`;
      const refused = [1, '', `trainer.sbatch: ${folder} ${rule}\n`];
      assert.deepEqual([status, stdout, stderr], isStarted ? [0, 'started\n', ''] : refused);
      if (isStarted) assert.equal(lstatSync(folder).mode & 0o7777, 0o700);
    }
  });

  it('trainer.service has no key that systemd does not know', { skip: lacks('systemd-analyze') }, () => {
    const { stderr } = spawnSync('systemd-analyze', ['verify', join(FOLDER, 'trainer.service')], { encoding: 'utf8' });
    const lines = stderr.split('\n').filter((line) => line !== '' && !NOT_INSTALLED.test(line));
    assert.deepEqual(lines, []); // its exit code is 0 for keys that it ignores
  });

  for (const name of ['compose.yaml', 'trainer.yaml']) {
    it(`${name} is YAML`, { skip: lacks('yaml') }, () => check(PYTHON, '-c', YAML, join(FOLDER, name)));
  }

  it('supervisord.conf has sections and keys', { skip: lacks('yaml') }, () => {
    check(PYTHON, '-c', INI, join(FOLDER, 'supervisord.conf'));
  });

  it('Dockerfile has instructions', () => {
    const lines = readFileSync(join(FOLDER, 'Dockerfile'), 'utf8').replaceAll('\\\n', ' ').split('\n');
    assert.deepEqual(lines.filter((line) => !/^(#.*)?$/.test(line) && !INSTRUCTION.test(line)), []);
  });
});

function linesOf(name: string): string[] {
  return readFileSync(join(FOLDER, name), 'utf8').trimEnd().split('\n');
}

async function helpOf(t: TestContext, program: 'client' | 'demo' | 'run'): Promise<string> {
  return (await runProgram(t, program, ['--help'])).stdout;
}

/** Returns how many options a call has. */
function checkOptions(name: string, call: string, help: string): number {
  const options = call.match(/(?<= )--[a-z-]+/g) ?? [];
  for (const option of options) assert.ok(new RegExp(`^  ${option}\\b`, 'm').test(help), `${name}: ${call}`);
  return options.length;
}

function check(program: string, ...args: string[]): void {
  const { status, stderr } = spawnSync(program, args, { encoding: 'utf8' });
  assert.equal(status, 0, stderr);
}
