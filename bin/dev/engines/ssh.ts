// ssh to this machine, by the name gpu1: an sshd with keys and configurations of its own.

import { obeys, prints } from './engine.ts';
import type { Engine } from './engine.ts';

export const ssh: Engine = {
  packages: 'openssh-server openssh-client',
  programs: ['sshd', 'ssh', 'ssh-keygen'],
  functions: `
    ssh() { command ssh -F "$PWD/ssh_config" "$@"; }
    client() { control-client --socket far.sock "$@"; }
    begin() { ready; }`,
  prepare: `
    for name in host user; do ssh-keygen -q -t ed25519 -N '' -f $name; done
    echo "[127.0.0.1]:$PORT $(cat host.pub)" >known
    cat >sshd_config <<END
ListenAddress 127.0.0.1:$PORT
HostKey $PWD/host
AuthorizedKeysFile $PWD/user.pub
PidFile $PWD/sshd.pid
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
SetEnv PATH=$PATH
END
    cat >ssh_config <<END
Host gpu1
HostName 127.0.0.1
Port $PORT
User root
IdentityFile $PWD/user
IdentitiesOnly yes
UserKnownHostsFile $PWD/known
BatchMode yes
ExitOnForwardFailure yes
END`,
  daemons: [
    'mkdir -p /run/sshd; exec "$(command -v sshd)" -D -f sshd_config', // it requires that folder
    'exec node "$TRAINER" --socket far.sock --states-dir states',
    `until ssh gpu1 true && [ -e far.sock ]; do sleep 0.2; done
      exec ssh -F ssh_config -N -L "./near.sock:$PWD/far.sock" -L "$PORT2:$PWD/far.sock" gpu1`,
  ],
  start: 'until [ -e near.sock ]; do sleep 0.2; done',
  states: 'states',
  steps: [
    { name: 'ssh gpu1 control-client', expect: obeys('ssh gpu1 control-client --socket "$PWD/far.sock"') },
    { name: 'through a forwarded socket', expect: obeys('control-client --socket near.sock') },
    { name: 'through a forwarded port', expect: obeys('control-client --port "$PORT2"') },
    {
      name: 'after the end of the program',
      do: `ssh gpu1 control-client shutdown --wait --socket "$PWD/far.sock"
        ssh gpu1 control-client status --socket "$PWD/far.sock" || echo $?
        control-client status --socket near.sock 2>&1 || echo $?`,
      expect: prints(/offline, 3, .*no answer.*, 5$/),
    },
  ],
};
