// systemd as PID 1 of a container, which has no network.

import {
  commandsOf, continues, isConfined, obeys, pausesAll, pauseStep, prints, ROOT_PATH, saves, savesAndContinues,
  staysPaused, TASKS,
} from './engine.ts';
import type { Engine } from './engine.ts';

const [installProgram, installUnit, pause] = commandsOf('trainer.service');
const CLIENT = 'runuser -u trainer -- control-client';
const STOP = 'systemctl stop trainer; systemctl show --property Result,ExecMainStatus trainer';
const IS_BOOTED = 'until [ "$(systemctl is-system-running)" = running ]; do sleep 0.2; done';

export const systemd: Engine = {
  packages: 'systemd-container mmdebstrap',
  programs: ['systemd-nspawn', 'mmdebstrap', 'nsenter'],
  needsRoot: true,
  functions: `
    machine() { # runs a command in the container
      nsenter --all --target "$(pgrep --parent "$(cat pid)")" env -i PATH=${ROOT_PATH} bash -ec "cd /root; $1"
    }
    systemctl() { machine "systemctl $*"; }
    clients() { machine "${CLIENT} $* --dir /run/trainer"; }
    client() { machine "${CLIENT} $* --socket /run/trainer/trainer.sock"; }
    begin() { # [KEY=VALUE]: a setting of the unit
      systemctl stop trainer urgent "'trainer@*'" 2>/dev/null || true
      systemctl reset-failed
      rm -rf root/var/lib/trainer
      mkdir -p root/etc/systemd/system/trainer.service.d
      printf '[Service]\\n%s\\n' "$1" >root/etc/systemd/system/trainer.service.d/step.conf
      systemctl daemon-reload
      systemctl start trainer
    }`,
  prepare: `
    cp --archive --reflink=auto "$ROOT" root
    cp "$TARBALL" root/package.tgz
    chroot root npm install --silent --global --offline /package.tgz
    mkdir root/root/recipe
    cp "$TRAINER" root/root/recipe/trainer.mjs
    cp "$RECIPES/trainer.service" root/root/recipe`,
  daemons: [`
    code=133 # a reboot
    while [ $code = 133 ]; do
      systemd-nspawn --quiet --register=no --keep-unit --private-network --boot --directory="$PWD/root" &
      echo $! >pid
      code=0; wait $! || code=$?
    done`],
  start: `
    ${IS_BOOTED}
    machine 'cd recipe; ${installProgram}'
    machine 'cd recipe; ${installUnit}'`,
  states: 'root/var/lib/trainer/trainer',
  steps: [
    { name: 'pause, save-state, resume', expect: obeys() },
    pauseStep(`machine '${pause}'`),
    // After the command of ExecStop=, SIGTERM may meet a trainer that has saved and is about to exit with 0.
    { name: 'systemctl stop', do: STOP, expect: saves(/Result=success.*Status=(0|15)/) },
    { name: 'the same by SIGTERM alone', begin: 'begin ExecStop=', do: STOP, expect: saves(/Result=success.*Status=0/) },
    {
      name: 'systemctl reload saves',
      do: 'ready; systemctl reload trainer; ls root/var/lib/trainer/trainer',
      expect: prints(/^\S+\.json$/),
    },
    {
      name: 'end of RuntimeMaxSec=3',
      begin: 'begin RuntimeMaxSec=3',
      do: 'until [ "$(systemctl show --value --property NRestarts trainer)" = 1 ]; do sleep 0.2; done',
      expect: savesAndContinues(),
    },
    {
      name: 'preemption by Conflicts=',
      do: `machine 'systemd-run --unit=urgent -p Conflicts=trainer.service -p After=trainer.service sleep infinity' 2>&1
        until systemctl is-active urgent; do sleep 0.2; done`,
      expect: saves(/active$/),
    },
    { name: 'kill -9', do: 'systemctl kill --signal=KILL trainer', expect: continues() },
    { // while the container shuts down, nothing enters it: a stopped nsenter would stay so
      name: 'reboot while paused',
      do: `init="$(pgrep --parent "$(cat pid)")"
        systemctl reboot || true; while kill -0 "$init" 2>/dev/null; do sleep 0.2; done; ${IS_BOOTED}`,
      expect: staysPaused(),
    },
    {
      name: 'privileges',
      do: `machine 'cat /proc/$(systemctl show --value --property MainPID trainer)/status'`,
      expect: isConfined(),
    },
    { name: 'log', do: "ready; machine 'ls /var/lib/trainer/control'", expect: prints(/^control-demo@\S+\.jsonl$/) },
    {
      name: 'folders it can write',
      do: `machine 'for folder in /etc /home /srv/trainer /tmp /run/trainer /var/lib/trainer; do
          nsenter --mount --target $(systemctl show --value --property MainPID trainer) \\
            sh -c "echo >$folder/written" 2>/dev/null && echo $folder
        done'`,
      expect: prints(/^\/tmp, \/run\/trainer, \/var\/lib\/trainer$/),
    },
    {
      name: `${TASKS} instances`,
      begin: `begin; systemctl stop trainer
        machine 'cp /etc/systemd/system/trainer.service /etc/systemd/system/trainer@.service'
        systemctl daemon-reload; systemctl start trainer@{1..${TASKS}}`,
      expect: pausesAll('clients'),
    },
  ],
  stop: 'kill "$(cat pid)"; while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.2; done',
};
