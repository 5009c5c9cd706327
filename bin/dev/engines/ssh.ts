// ssh to this machine, by several names: an sshd with keys and configurations of its own.

import { failsWith, obeys, prints, reaches } from './engine.ts';
import type { Engine, Step } from './engine.ts';

const SOCKET = '$PWD/far.sock';

function via(name: string, command: string): Step {
  return { name: `--via ${name}`, expect: reaches(command, SOCKET) };
}

export const ssh: Engine = {
  packages: 'openssh-server openssh-client',
  programs: ['sshd', 'ssh', 'ssh-keygen'],
  functions: `
    export PATH=$PWD/bin:$PATH
    client() { control-client --socket far.sock "$@"; }
    begin() { ready; }
    far() { # below sshd, not the tools on the near side
      local pid
      for pid in $(pgrep --full 'node --import data:|control-client dial$'); do
        tr '\\0' '\\n' </proc/$pid/environ 2>/dev/null | grep --quiet --line-regexp "FAR=$PWD" && echo $pid
      done || true
    }`,
  prepare: `
    for name in host user dial other; do ssh-keygen -q -t ed25519 -N '' -f $name; done
    { cat user.pub; echo 'restrict,command="control-client dial"' "$(cat dial.pub)"; } >authorized
    echo "[127.0.0.1]:$PORT,[127.0.0.2]:$PORT $(cat host.pub)" >known
    echo "[127.0.0.1]:$PORT $(cat other.pub)" >changed
    cat >sshd_config <<END
ListenAddress 127.0.0.1:$PORT
ListenAddress 127.0.0.2:$PORT
HostKey $PWD/host
AuthorizedKeysFile $PWD/authorized
PidFile $PWD/sshd.pid
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
Match LocalAddress 127.0.0.2
SetEnv PATH=/usr/sbin FAR=$PWD
Match LocalAddress 127.0.0.1
SetEnv PATH=$PATH FAR=$PWD
END
    cat >ssh_config <<END
Host dial
IdentityFile $PWD/dial
Host refused
IdentityFile $PWD/other
Host changed
UserKnownHostsFile $PWD/changed
Host without-node
HostName 127.0.0.2
Host master
ControlMaster auto
ControlPath $PWD/%C
ControlPersist 60
Host gpu1 master changed without-node
IdentityFile $PWD/user
Host *
HostName 127.0.0.1
Port $PORT
User root
IdentitiesOnly yes
UserKnownHostsFile $PWD/known
BatchMode yes
ExitOnForwardFailure yes
END
    mkdir bin
    echo "#!/bin/sh
      echo >>$PWD/attempts
      exec '$(command -v ssh)' -F '$PWD/ssh_config' \\"\\$@\\"" >bin/ssh
    chmod +x bin/ssh`,
  daemons: [
    'mkdir -p /run/sshd; exec "$(command -v sshd)" -D -f sshd_config', // it requires that folder
    'exec node "$TRAINER" --socket far.sock --states-dir states',
    `until ssh gpu1 true && [ -e far.sock ]; do sleep 0.2; done
      exec ssh -N -L "./near.sock:$PWD/far.sock" -L "$PORT2:$PWD/far.sock" gpu1`,
  ],
  start: 'until [ -e near.sock ]; do sleep 0.2; done',
  states: 'states',
  steps: [
    { name: 'ssh gpu1 control-client', expect: obeys('ssh gpu1 control-client --socket "$PWD/far.sock"') },
    { name: 'through a forwarded socket', expect: obeys('control-client --socket near.sock') },
    { name: 'through a forwarded port', expect: obeys('control-client --port "$PORT2"') },
    via('gpu1', 'gpu1'),
    via('with restrict,command="control-client dial"', 'dial'),
    {
      name: 'no shell with restrict,command="control-client dial"',
      do: 'ssh dial touch written </dev/null >/dev/null; ls written 2>&1 || true',
      expect: prints(/^ls: .*No such file/),
    },
    via('with ControlMaster', 'master'),
    {
      name: 'its master serves on',
      do: 'ssh -O check master 2>&1; ssh -O exit master',
      expect: prints(/^Master running/),
    },
    via('with PATH=/DIR:$PATH', 'ssh without-node PATH=$(dirname "$(command -v node)"):\\\\$PATH'),
    failsWith('without-node', 'ssh ended with exit code 127: '),
    failsWith('ssh -tt gpu1', 'there is a terminal in between: remove the option -t'),
    failsWith('refused', 'cannot be reached: root@127.0.0.1: Permission denied'),
    failsWith('changed', 'cannot be reached: Host key verification failed.'),
    ...['refused', 'changed'].map((host): Step => ({
      name: `no other attempt: ${host}`,
      do: `rm attempts; timeout 10 control-board --listen localhost:0 --via ${host} >/dev/null || true
        wc -l <attempts`,
      expect: prints(/^1$/),
    })),
    {
      name: 'other attempts: nothing listens',
      do: `rm attempts
        timeout 10 control-board --listen localhost:0 --via 'ssh -p 1 gpu1' >/dev/null || true; wc -l <attempts`,
      expect: prints(/^[2-9]$/),
    },
    {
      name: 'after the end of the program',
      do: `ssh gpu1 control-client shutdown --wait --socket "$PWD/far.sock"
        ssh gpu1 control-client status --socket "$PWD/far.sock" || echo $?
        control-client status --socket near.sock 2>&1 || echo $?
        control-client status --socket "$PWD/far.sock" --via gpu1 || echo $?`,
      expect: prints(/offline, 3, .*no answer.*, 5, gpu1.*offline.*, 3$/),
    },
  ],
};
