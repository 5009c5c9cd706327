// supervisord in the folder of the trainer.

import { commandsOf, continues, obeys, pausesAll, pauseStep, prints, saves, staysPaused, TASKS } from './engine.ts';
import type { Engine } from './engine.ts';

const [start, , pause, restart] = commandsOf('supervisord.conf');

export const supervisord: Engine = {
  packages: 'supervisor',
  programs: ['supervisord', 'supervisorctl'],
  functions: `
    client() {
      local target=$(control-client list --json --dir sockets | grep -o 'unix:[^"]*')
      control-client --socket "\${target#unix:}" "$@"
    }
    clear() {
      [ -e supervisord.pid ] || return 0
      local pid=$(cat supervisord.pid)
      supervisorctl --configuration supervisord.conf shutdown
      while grep -qs . /proc/$pid/cmdline; do sleep 0.1; done
    }
    begin() { # [EDIT [OWNER]]: a sed command for the recipe, and the owner of the folder
      clear
      rm -rf states sockets
      sed "$1" "$RECIPES/supervisord.conf" >supervisord.conf
      chown --recursive "\${2:-root}" .
      ${start}
    }`,
  prepare: 'cp "$TRAINER" trainer.mjs',
  states: 'states/0',
  steps: [
    { name: 'pause, save-state, resume', expect: obeys() },
    pauseStep(pause),
    {
      name: 'supervisorctl stop',
      do: 'supervisorctl --configuration supervisord.conf stop "trainer:*"; tail -n 1 supervisord.log',
      expect: saves(/exit status 0/),
    },
    { name: 'kill -9', do: 'pkill -KILL --parent "$(cat supervisord.pid)"', expect: continues() },
    { name: 'supervisorctl restart while paused', do: restart as string, expect: staysPaused() },
    {
      name: 'user=',
      begin: 'begin "s/^; user=trainer/user=nobody/" nobody',
      do: `until stat --format %U sockets/*.sock; do sleep 0.2; done
        until runuser -u nobody -- ${pause}; do sleep 0.2; done; ls control`,
      expect: prints(/^nobody, .*paused, control-demo@\S+\.jsonl$/),
    },
    {
      name: `numprocs=${TASKS}`,
      begin: `begin s/^numprocs=1/numprocs=${TASKS}/`,
      expect: pausesAll('control-client --dir sockets'),
    },
  ],
  stop: 'clear',
};
