// The mends that a small edit undoes. To add one, add its bug to bugs.txt.

/** What undoes the mend of a bug. */
export interface Mend {
  /** How the text of its row begins. */
  bug: string;
  /** A text that a file has exactly once, and what brings the bug back in its place. */
  edits: readonly (readonly [path: string, present: string, earlier: string])[];
  /** Whether the test then never ends. */
  hangs?: true;
}

export const MENDS: readonly Mend[] = [
  {
    bug: 'If a program was killed between an answer',
    edits: [['control.ts', 'key === undefined ? undefined : findAnswer(', 'true ? undefined : findAnswer(']],
  },
  {
    bug: 'A target such as',
    hangs: true,
    edits: [['bin/shared/names.ts', 'const isStray = isPath && ', 'const isStray = isPath && false && ']],
  },
  {
    bug: 'Without a target, a command',
    edits: [['bin/shared/folder.ts', 'return user !== null && user !== -1', 'return user !== user']],
  },
  {
    bug: 'Another user could let a server that starts',
    edits: [
      ['control.ts', "if (user !== undefined && uid !== user) throw", 'if (false) throw'],
      [
        'control.ts', 'return rmdirSync(lock); // its process was killed',
        "return process.getBuiltinModule('node:fs').rmSync(lock, { recursive: true });",
      ],
    ],
  },
  {
    bug: 'The same when a log was renamed',
    edits: [[
      'control.ts', 'return rmdirSync(lock); // its process was killed',
      "return process.getBuiltinModule('node:fs').rmSync(lock, { recursive: true });",
    ]],
  },
  {
    bug: 'After a logout had removed the folder',
    hangs: true,
    edits: [['control.ts', ', listening.keepSocket]) setInterval', ']) setInterval']],
  },
  {
    bug: 'If the clock was set while the server thread',
    edits: [['control.ts', 'const origin = bun ?? deno ?', 'const origin = true ?']],
  },
  {
    bug: 'After a restart, the 16th hold',
    edits: [['control.ts', 'by = holds.some((one) => one.by === SOMEBODY) ? undefined : SOMEBODY', 'by = SOMEBODY']],
  },
  {
    bug: 'A status that the program changed by itself',
    edits: [['control.ts', 'this.#lookAnew(); // so that', '// so that']],
  },
  {
    bug: '`control-client answer --yes` without an id',
    edits: [['bin/client/answer.ts', "only !== undefined && id === '' && isSure &&", 'false &&']],
  },
  {
    bug: 'With `--via`, `pause`, `shutdown`',
    edits: [['bin/shared/cli.ts', '{}, 2 ** 30);', '{}, 2 ** 30).unref();']],
  },
  {
    bug: 'A paused program that somebody else continued',
    edits: [
      ['bin/run/operator.ts', 'if (!processes.areStopped()) await', 'if (false) await'],
      ['bin/run/supervisor.ts', "way === 'pause' ? await this.#operator.stopAgain() : {}", '{}'],
    ],
  },
  {
    bug: 'A program under `strace` stood still',
    hangs: true,
    edits: [
      ['bin/run/processes.ts', "state.startsWith('T') && !this", '/^t/i.test(state) && !this'],
      ['bin/run/processes.ts', '(elapsed > TRACED_MS ? /^t/i : /^T/)', '/^t/i'],
    ],
  },
  {
    bug: 'A `shutdown` ended a program that had closed',
    edits: [['bin/run/operator.ts', 'return this.#program.end === null ? await this.saveLast() : {};', 'return {};']],
  },
  {
    bug: 'SIGQUIT, as from `docker stop`',
    edits: [['bin/run/signals.ts', ".on('SIGQUIT', offer)", '']],
  },
  {
    bug: '`pkill -9 -f control-run` also killed',
    edits: [['bin/run/keeper.ts', '`keeper-${process.pid}`', '`control-run-keeper-${process.pid}`']],
  },
  {
    bug: 'A `pause --for` never ended',
    edits: [['control.ts', 'link.endHolds, ', '']],
  },
  {
    bug: 'With several `--via`, the error',
    edits: [['bin/shared/client.ts', 'if (isWithheld)', 'if (false)']],
  },
  {
    bug: 'The board showed a save that was refused',
    edits: [['bin/shared/describe.ts', 'isOfRun && /^no way', 'false && /^no way']],
  },
  {
    bug: '`watch` and `info` showed the end',
    edits: [['bin/shared/describe.ts', "if (ended && ended === textOf(entry, 'reason'))", 'if (false)']],
  },
  {
    bug: 'Two servers could serve at one Unix socket',
    edits: [['control.ts', 'underLock(path, data.user, found.ino, () => {', '[0].forEach(() => {']],
  },
  {
    bug: 'Own commands that filled the queue',
    edits: [['control.ts', 'if (queue.isFull(lane))', "if (queue.isFull('client') || queue.isFull('own'))"]],
  },
  {
    bug: 'Own commands that waited at a shutdown',
    edits: [['control.ts', "command === 'shutdown' && isDone ? this.#queue.count('own') : 0", '0']],
  },
  {
    bug: 'A second `pause` put',
    edits: [[
      'control.ts', 'if (holds.length < 15)',
      'if (holds.length > 0) return holds.map((one) => ({ ...one, reason }));\n  if (holds.length < 15)',
    ]],
  },
  {
    bug: 'A `pause` whose sender had given up',
    edits: [['bin/client/send.ts', 'const isExpiring = wait && timeout !== undefined', 'const isExpiring = false']],
  },
  {
    bug: 'With 16 waiting commands',
    edits: [['control.ts', 'blocking.includes(one) || index', 'index']],
  },
  {
    bug: 'After the clock was set',
    edits: [
      ['control.ts', 'openedAt] = times[4 * slot + endedAt] = readClock();', 'openedAt] = Date.now();'],
      ['control.ts', 'else times[4 * slot + endedAt] = readClock();', 'else times[4 * slot + endedAt] = Date.now();'],
    ],
  },
  {
    bug: '`shutdown --wait` said `not shut down`',
    edits: [['bin/shared/system.ts', "status === OFFLINE || moment === 'ending'", 'false']],
  },
  {
    bug: 'A status that a command had led to',
    edits: [['control.ts', '    this.#publish(); // while the previous command', '    // while the previous command']],
  },
  {
    bug: 'control-run with a cgroup reported',
    hangs: true,
    edits: [
      [
        'bin/run/processes.ts', '(startedAt >= main.startedAt || inside.has(pid))',
        '(this.#cgroup === null ? startedAt >= main.startedAt : inside.has(pid))',
      ],
      ['bin/run/processes.ts', 'if (!members.has(main.pid) && !main.hasEnded()) members.set', 'if (false) members.set'],
    ],
  },
  {
    bug: 'Clients sent the token to another user',
    edits: [[
      'control.ts', "('node:path');\n  statSync(path);",
      "('node:path');\n  if (statSync(path, { throwIfNoEntry: false }) === undefined) return;",
    ]],
  },
  {
    bug: 'Another user could make a server of root',
    edits: [[
      'control.ts', "['/', absolute.split('/')];",
      "[process.getBuiltinModule('node:fs').realpathSync(absolute), ['.']];",
    ]],
  },
  {
    bug: 'A mistyped name',
    edits: [['bin/shared/names.ts', 'if (!isName ||', 'if (!isName || absence === undefined ||']],
  },
  {
    bug: 'While a command waited, a program that never yields',
    hangs: true,
    edits: [['control.ts', '!hasNext || readClock() - this.#foundAt > 250', '!hasNext']],
  },
  {
    bug: '`Age` and `heardAt` left out',
    edits: [
      ['control.ts', 'let isPlanned = false;', 'let isPlanned = false; let ticks = 0; setInterval(() => (ticks += 1), 250);'],
      ['control.ts', '[heard, heardAt] = [count, performance.now()]', '[heard, heardAt, ticks] = [count, performance.now(), 0]'],
      ['control.ts', 'return heardAt;', 'return performance.now() - 250 * ticks;'],
    ],
  },
  {
    bug: 'systemd-tmpfiles deleted',
    edits: [['control.ts', "process.platform === 'linux' ? 0o1600 : 0o600", '0o600']],
  },
  {
    bug: 'control-run dropped or replaced',
    hangs: true,
    edits: [['bin/run/supervisor.ts', 'return { ...this.#detail, run };', 'return { ...this.#detail, ...run };']],
  },
  {
    bug: 'The predecessor of `release-gpu.sh` believed',
    edits: [[
      'bin/recipes/release-gpu.sh',
      'act checkpoint locked; failed=$(those_not_in checkpointed); fi', 'act checkpoint locked; fi',
    ]],
  },
  {
    bug: 'A `--state` that could not be written',
    hangs: true,
    edits: [['bin/run/state.ts', 'this.#retryTimer = setTimeout(() => this.keep(holds), RETRY_MS).unref();', '']],
  },
  {
    bug: 'On Windows, `shutdown` ended only',
    edits: [['bin/run/options.ts', "if (process.platform === 'win32') throw", 'if (false) throw']],
  },
  {
    bug: 'On Windows, `save-state`',
    edits: [['bin/run/options.ts', "if (process.platform === 'win32') throw", 'if (false) throw']],
  },
  {
    bug: 'On macOS, `save-state`',
    hangs: true,
    edits: [['bin/run/processes.ts', 'if (processes.every(({ pid }) => pid === this.#main.pid)) return', 'return']],
  },
  {
    bug: 'The board locked everybody out',
    edits: [['bin/board/server.ts', "this.#oldest('without key') ?? this.#oldest('idle') ?? socket", 'socket']],
  },
  {
    bug: 'The board showed a crash',
    edits: [['bin/shared/view.ts', 'end !== null && isCrash(end);', 'false;']],
  },
  {
    bug: 'The console missed a change',
    hangs: true,
    edits: [['bin/console/session.ts', 'if (!this.#isReading && !isFirst) return;', 'if (!this.#isReading) return;']],
  },
  {
    bug: '`list` and `--all` removed the socket',
    edits: [['bin/shared/folder.ts', ' && Date.now() - mtimeMs > YOUNG_MS', '']],
  },
  {
    bug: 'An error of a Python program',
    edits: [['bin/run/control.py', '(to_text(error) or repr(error))[:1000]', 'to_text(error) or repr(error)']],
  },
  {
    bug: 'A `--save-command` that hung',
    hangs: true,
    edits: [['bin/run/operator.ts', "request === 'shutdown' ? 'signal' : 'command'", "'signal'"]],
  },
  {
    bug: 'A command that was done was reported as failed',
    edits: [['control.ts', "[isDone ? 'valueOmitted' : 'error']", 'error']],
  },
  {
    bug: 'A host name that does not exist',
    edits: [['control.ts', "&& /^(ECONNREFUSED|ENOENT)$/.test(reply.code ?? '')", '']],
  },
  {
    bug: 'Without free file descriptors',
    edits: [['bin/shared/client.ts', "['EMFILE', 'unknown']", "['EMFILE', 'offline']"]],
  },
  {
    bug: 'After `kill -9` of control-run',
    hangs: true,
    edits: [['bin/run/keeper.ts', 'while read -r line; do known=$line; done\n', 'exit\n']],
  },
  {
    bug: 'A detail that was too long',
    hangs: true,
    edits: [['bin/run/channel.ts', '(isRecord(detail) && fits(detail))) &&', 'isRecord(detail)) &&']],
  },
  {
    bug: 'An object that throws',
    edits: [['control.ts', "return 'an error that cannot be described';", 'throw error;']],
  },
  {
    bug: 'A second `shutdown` ended',
    edits: [['control.ts', 'endSignal === null && isServed)', 'endSignal === null && isServed && before !== PAUSED)']],
  },
  {
    bug: 'A save changed who had paused',
    edits: [['control.ts', 'const isBack = this.#running !== undefined &&', 'const isBack = code === -1 &&']],
  },
  {
    bug: 'Whoever followed `/api/info` by its tag',
    hangs: true,
    edits: [
      ['control.ts', 'const tag = link.infoTag(); // first', 'const info = link.info();'],
      ['control.ts', "prepare(200, link.info(), 'ETag', tag)", "prepare(200, info, 'ETag', link.infoTag())"],
    ],
  },
  {
    bug: 'A program that exits at a `shutdown`',
    edits: [['control.ts', "if (command === 'shutdown' && isResponding)", 'if (false)']],
  },
  {
    bug: '64 silent connections',
    edits: [['control.ts', 'idleSince < one.idleSince ? other : one', 'idleSince < one.idleSince ? one : other']],
  },
  {
    bug: 'Processes that a tool started',
    edits: [['bin/shared/client.ts', "delete process.env['CONTROL_TOKEN'];", '']],
  },
  {
    bug: 'A server could clear the terminal',
    edits: [['bin/shared/text.ts', "return text.replaceAll(CONTROLS, ' ');", 'return text;']],
  },
  {
    bug: 'A checkpoint from the future',
    edits: [['bin/demo/search.ts', 'Math.max(Date.now(), last + 1 || 0)', 'Date.now()']],
  },
];
