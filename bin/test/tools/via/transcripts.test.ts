// --via as people see it: each .txt in this folder is a transcript. `--via a=DIR/a` is a machine a with the systems of
// the folder a/, reached over a stand-in for ssh.

import { chmodSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { transcript } from '../../transcript.ts';
import { callVia } from './helpers.ts';
import type { Tool } from '../../transcript.ts';

const FOLDER = 'bin/test/tools/via';

/** The host is the folder of the systems there, or prints how ssh is called. */
const SSH = `#!/bin/sh
case "$*" in
  '-o BatchMode=yes -T -o RemoteCommand=none -- /'*) ;;
  *nonode*) echo 'bash: line 1: node: command not found' >&2; exit 127;;
  *) echo "\${*%% node *}" >&2; exit 255;;
esac
mkdir -m 700 -p "$7"
CONTROL_DIR=$7; export CONTROL_DIR
shift 7
exec "$@"
`;

const bin = mkdtempSync(join(tmpdir(), 'control-'));
writeFileSync(join(bin, 'ssh'), SSH);
chmodSync(join(bin, 'ssh'), 0o755);
process.on('exit', () => rmSync(bin, { recursive: true }));
process.env['PATH'] = `${bin}:${process.env['PATH']}`;

const tool: Tool = (args, env) => callVia([], args, env);

for (const name of readdirSync(FOLDER).filter((one) => one.endsWith('.txt'))) {
  transcript(`${FOLDER}/${name}`, 'control-client', tool);
}
