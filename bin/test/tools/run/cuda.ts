// A stand-in for NVIDIA's cuda-checkpoint, with the states that NVIDIA documents.

import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { makeFolder } from '../../helpers.ts';
import { readLines, tryRead } from './helpers.ts';
import type { TestContext } from 'node:test';

/**
 * Beside it are the calls (`calls`), the state of each process that uses CUDA (`PID.state`), and shell scripts
 * for single actions (`PID.ACTION`). As in the driver, a thread of the process does the work, unless it is stopped.
 */
const CUDA_CHECKPOINT = `#!/bin/sh
folder=\${0%/*} timeout=
while [ $# -gt 0 ]; do
  case $1 in
    --get-state) action=get-state ;;
    --action) action=$2; shift ;;
    --pid) pid=$2; shift ;;
    --timeout) timeout=" $2"; shift ;;
    *) echo "unrecognized option '$1'" >&2; exit 1 ;;
  esac
  shift
done
echo "$action $pid$timeout" >> "$folder/calls"
fail() {
  case $action in
    get-state) echo "Error getting process state for process ID $pid: \\"$1\\"" ;;
    *) echo "Could not $action on process ID $pid: \\"$1\\"" ;;
  esac >&2
  exit 1
}
become() { echo "$1" > "$folder/$pid.state"; }
while grep -q '^State:.[Tt]' "/proc/$pid/status"; do sleep 0.05; done 2> /dev/null
state=$(cat "$folder/$pid.state" 2> /dev/null) || fail 'initialization error'
if [ -e "$folder/$pid.$action" ]; then . "$folder/$pid.$action"; fi
[ -e "/proc/$pid/status" ] || fail 'invalid argument'
case $action:$state in
  get-state:*) echo "$state" ;;
  lock:running) become locked ;;
  checkpoint:locked) become checkpointed ;;
  restore:checkpointed) become locked ;;
  unlock:locked) become running ;;
  *) fail 'the operation cannot be performed in the present state' ;;
esac
`;

export type Action = 'get-state' | 'lock' | 'checkpoint' | 'restore' | 'unlock';

export class Cuda {
  /** To be put before the PATH. */
  readonly folder: string;
  /** A shell that has loaded the driver, as its memory map shows. */
  readonly shell: string;
  #seen = 0; // of the calls

  constructor(t: Pick<TestContext, 'after'>) {
    const folder = makeFolder(t);
    this.folder = join(folder, 'bin');
    this.shell = join(folder, 'libcuda.so.1');
    mkdirSync(this.folder);
    writeFileSync(join(this.folder, 'cuda-checkpoint'), CUDA_CHECKPOINT, { mode: 0o755 });
    copyFileSync('/bin/sh', this.shell);
  }

  get path(): string {
    return `${this.folder}${delimiter}${process.env['PATH']}`;
  }

  /** A script that makes its shell a process that uses CUDA. */
  get start(): string {
    return `echo cuda00001400006 > /proc/$$/comm; echo running > ${this.folder}/$$.state`;
  }

  stateOf(pid: number): string {
    return tryRead(join(this.folder, `${pid}.state`)).trim();
  }

  setState(pid: number, state: string): void {
    writeFileSync(join(this.folder, `${pid}.state`), `${state}\n`);
  }

  /** Sets what happens before an action: `fail TEXT` and `become STATE` are at hand. Nothing by default. */
  on(pid: number, action: Action, script: string): void {
    writeFileSync(join(this.folder, `${pid}.${action}`), script);
  }

  /** Returns the calls that do something since it was last asked: those at once in the order of the ids. */
  calls(): string[] {
    const all = readLines(join(this.folder, 'calls')).filter((call) => !call.startsWith('get-state'));
    const calls = all.slice(this.#seen);
    this.#seen = all.length;
    const groups: string[][] = [];
    for (const call of calls) {
      const [action] = call.split(' ');
      if (groups.at(-1)?.[0]?.split(' ')[0] === action) groups.at(-1)?.push(call);
      else groups.push([call]);
    }
    return groups.flatMap((group) => group.sort((one, other) => pidOf(one) - pidOf(other)));
  }
}

function pidOf(call: string): number {
  return Number(call.split(' ')[1]);
}
