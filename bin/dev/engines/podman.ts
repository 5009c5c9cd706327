// podman, which runs the pod of trainer.yaml. It ignores preStop, the grace period and runAsNonRoot.

import {
  commandsOf, continues, failsWith, isConfined, obeys, prints, reaches, readRecipe, saves, savesAndContinues,
} from './engine.ts';
import { importBaseImage } from './docker.ts';
import type { Engine } from './engine.ts';

const [build = ''] = commandsOf('Dockerfile');
const recipe = readRecipe('trainer.yaml');
const [, template = ''] = recipe.split('\n  template:\n'); // podman 4 has no Job
const pod = `apiVersion: v1\nkind: Pod\nmetadata: { name: trainer }\n${template.replaceAll(/^ {4}/gm, '')}`;
const [, preStop = ''] = /preStop: \{ exec: \{ command: \[(.*?)\]/.exec(recipe) ?? [];
const STOP = "podman pod stop trainer; podman inspect --format 'exit code {{.State.ExitCode}}' trainer-trainer";

// kubectl exec -i POD -- COMMAND, as the kubelet runs it: the end of kubectl is not passed on, so the command keeps its
// input, and a connection without a byte for some time is cut.
const KUBECTL = `#!/bin/bash
pod=$3
shift 4
pipes=$(mktemp --directory pipes-XXXXXX)
mkfifo "$pipes/in" "$pipes/out"
setsid podman exec -i "$pod-$pod" "$@" <>"$pipes/in" 1<>"$pipes/out" 2>/dev/null &
exec 3<&0
relay() { while IFS= read -r -t 15 line; do printf '%s\\n' "$line"; done; kill $$; }
relay <&3 >"$pipes/in" &
exec <&- 3<&-
trap 'kill $!; exit' TERM # not the command
relay <"$pipes/out"
`;

export const podman: Engine = {
  packages: 'podman runc catatonit mmdebstrap',
  programs: ['podman', 'runc', 'catatonit', 'mmdebstrap'],
  needsRoot: true,
  functions: `
    export HOME=$PWD CONTAINERS_CONF=$PWD/containers.conf PATH=$PWD/bin:$PATH
    far() { podman top trainer-trainer args | grep 'node --import data:' || true; }
    client() { podman exec trainer-trainer control-client "$@"; }
    play() { podman play kube --network none pod.yaml; }
    begin() { podman pod rm --force --all; podman volume rm --force states; play; }`,
  // The default limits of podman may exceed those of this machine.
  prepare: `
    mkdir -p .config/containers trainer bin
    podman=$(type -P podman)
    cat >bin/podman <<END
#!/bin/sh
exec $podman --root $PWD/root --runroot $PWD/runroot --tmpdir $PWD/tmp --volumepath $PWD/volumes "\\$@"
END
    cat >bin/kubectl <<'END'
${KUBECTL}END
    chmod +x bin/*
    echo '{ "default": [{ "type": "insecureAcceptAnything" }] }' >.config/containers/policy.json
    cat >containers.conf <<'END'
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
END
    cat >pod.yaml <<'END'
${pod}END
    cp "$RECIPES/Dockerfile" "$TARBALL" trainer
    cp "$TRAINER" trainer/trainer.mjs`,
  start: `
    ${importBaseImage('podman')}
    ${build.replace('docker build', 'podman build --isolation chroot').replace(/\.$/, 'trainer')}`,
  states: 'volumes/states/_data',
  steps: [
    { name: 'pause, save-state, resume', expect: obeys() },
    {
      name: '--via podman exec -i',
      expect: reaches('podman exec -i trainer-trainer', '/run/control/trainer.sock'),
    },
    {
      name: '--via kubectl exec -i, with a stand-in for kubectl',
      expect: reaches('kubectl exec -i trainer --', '/run/control/trainer.sock', 65_000),
    },
    failsWith('podman exec trainer-trainer', 'podman ended with exit code 0; it must pass standard input on'),
    failsWith('podman exec -it trainer-trainer', 'there is a terminal in between: remove the option -t'),
    failsWith('podman exec -i --env PATH=/ trainer-trainer', 'podman ended with exit code 127: Error: runc: '),
    failsWith('podman exec -i missing', 'podman ended with exit code 125: Error: no container with name or ID'),
    { name: 'the end of a pod', do: STOP, expect: saves(/exit code 143/) },
    {
      name: 'preStop, by hand',
      do: `podman exec trainer-trainer ${preStop.replaceAll(',', '')}`,
      expect: saves(/\.json$/),
    },
    {
      name: 'another pod after the end of one',
      do: 'podman pod stop trainer; podman pod rm trainer; play',
      expect: savesAndContinues(),
    },
    {
      name: 'kill -9',
      do: 'pkill -KILL --parent "$(podman inspect --format {{.State.Pid}} trainer-trainer)"',
      expect: continues(),
    },
    {
      name: 'liveness probes while paused, by hand',
      do: `ready; client pause --wait >/dev/null
        for probe in 1 2 3; do podman healthcheck run trainer-trainer; done
        podman inspect --format '{{.State.Health.Status}} {{.RestartCount}}' trainer-trainer; client status`,
      expect: prints(/^healthy 0, paused$/),
    },
    { name: 'log', do: 'ready; ls volumes/states/_data/control', expect: prints(/^control-demo@\S+\.jsonl$/) },
    {
      name: 'privileges',
      do: "podman exec trainer-trainer sh -c 'cat /proc/$(pidof node)/status'",
      expect: isConfined(),
    },
  ],
  stop: `
    podman pod rm --force --all
    grep -o " $PWD/[^ ]*" /proc/self/mounts | tac | xargs --no-run-if-empty umount`,
};
