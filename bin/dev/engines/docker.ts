// A Docker daemon that leaves the network of this machine as it is.

import {
  commandsOf, continues, failsWith, isConfined, obeys, pausesAll, pauseStep, prints, reaches, readRecipe, ROOT_PATH,
  saves, staysPaused, TASKS,
} from './engine.ts';
import type { Engine } from './engine.ts';

const [build, run = '', pause] = commandsOf('Dockerfile');
const [up, pauseService, stopService] = commandsOf('compose.yaml')
  .map((command) => command.replace('docker compose', 'docker-compose').replace('exec', 'exec -T')); // as Debian has it
const HEALTH = "docker inspect --format '{{.State.Health.Status}} {{.RestartCount}}' trainer";

/** Imports the root file system under the name of the Dockerfile's base image, which is therefore not downloaded. */
export function importBaseImage(program: 'docker' | 'podman'): string {
  const name = /^FROM (\S+)$/m.exec(readRecipe('Dockerfile'))?.[1];
  return `tar -C "$ROOT" -c . | ${program} import --change 'ENV PATH=${ROOT_PATH}' - ${name}`;
}

export const docker: Engine = {
  packages: 'docker.io docker-compose mmdebstrap',
  programs: ['dockerd', 'docker', 'docker-compose', 'mmdebstrap'],
  needsRoot: true,
  functions: `
    export DOCKER_HOST=unix://$PWD/docker.sock DOCKER_CONFIG=$PWD/config
    client() { docker exec trainer control-client "$@"; }
    far() { docker top trainer -o pid,args | grep 'node --import data:' || true; }
    clear() { docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes; }
    begin() { # [OPTION…] of docker run
      clear
      docker volume rm --force states control
      ${run.replace('docker run', 'docker run "$@"')}
    }`,
  prepare: `
    mkdir trainer
    cp "$RECIPES/Dockerfile" "$RECIPES/compose.yaml" "$TARBALL" trainer
    cp "$TRAINER" trainer/trainer.mjs`,
  daemons: [`
    exec dockerd --data-root "$PWD/data" --exec-root "$PWD/exec" --pidfile "$PWD/pid" --host "$DOCKER_HOST" \\
      --bridge=none --iptables=false --ip-forward=false`],
  start: `
    until docker version; do sleep 0.2; done
    ${importBaseImage('docker')}
    cd trainer; ${build}`,
  states: 'data/volumes/states/_data/trainer',
  steps: [
    { name: 'pause, save-state, resume', expect: obeys() },
    pauseStep(pause),
    { name: '--via docker exec -i', expect: reaches('docker exec -i trainer', '/run/control/trainer.sock') },
    failsWith('docker exec trainer', 'docker ended with exit code 0; it must pass standard input on'),
    failsWith('docker exec -it trainer', 'docker ended with exit code 1: there is a terminal in between: remove'),
    failsWith('docker exec -i -e PATH=/ trainer', 'docker ended with exit code 12'),
    failsWith('docker exec -i missing', 'docker ended with exit code 1: Error response from daemon: No such container'),
    { name: 'docker stop', do: 'docker stop trainer', expect: saves() },
    { name: 'docker restart while paused', do: 'docker restart trainer', expect: staysPaused() },
    {
      name: 'kill -9, with the restart policy of compose.yaml',
      begin: 'begin --restart on-failure',
      do: 'pkill -KILL --parent "$(docker inspect --format {{.State.Pid}} trainer)"',
      expect: continues(),
    },
    {
      name: 'health checks while paused',
      begin: 'begin --health-interval 0.5s',
      do: `ready; client pause --wait >/dev/null
        sleep 5; ${HEALTH}; client status
        docker inspect --format '{{range .State.Health.Log}}{{.ExitCode}}{{end}}' trainer`,
      expect: prints(/^healthy 0, paused, 0{3,}$/),
    },
    { name: 'log', do: 'ready; docker exec trainer ls /states/control', expect: prints(/^control-demo@\S+\.jsonl$/) },
    { name: 'privileges', do: "docker exec trainer sh -c 'cat /proc/$(pidof node)/status'", expect: isConfined() },
    {
      name: 'docker compose: up, pause, stop',
      begin: 'clear',
      do: `cd trainer
        ${up} >/dev/null; until ${pauseService}; do sleep 0.2; done
        docker-compose exec -T trainer sh -c 'cat /proc/$(pidof node)/status' | grep NoNewPrivs
        ${stopService}; ls "$(docker volume inspect --format {{.Mountpoint}} trainer_states)/trainer"
        docker-compose down --volumes`,
      expect: prints(/^paused.*, NoNewPrivs:\t1, \S+\.json$/),
    },
    {
      name: `${TASKS} containers that share a volume`,
      begin: `clear
        for n in {1..${TASKS}}; do
          ${run.replace('--name trainer', '--name trainer-$n --env CONTROL_SOCKET=/run/control/$n.sock')} \\
            --socket /run/control/$n.sock --states-dir /states/$n
        done`,
      // The client needs more than the 65th part of the processors that it would get.
      expect: pausesAll('docker run --rm --cpu-shares 65536 -v control:/run/control --entrypoint control-client trainer'
        + ' --dir /run/control'),
    },
  ],
  stop: 'clear; rm -rf config',
};
