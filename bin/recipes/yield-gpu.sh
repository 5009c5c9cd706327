#!/bin/sh
# yield-gpu.sh pauses all systems of this user while another user computes on a GPU of this machine, and resumes them a
# minute later. Required on the PATH: ps, control-client and nvidia-smi, which does not list processes in containers.
#
#   nohup ./yield-gpu.sh >yield-gpu.log 2>&1 &
#
# It does not resume what a person has paused, nor pause again what a person has resumed. It does not pause systems that
# start later. A paused program keeps its GPU memory, unless release-gpu.sh releases it.

export CONTROL_BY=yield-gpu # a separate sender, so that it resumes only its own pauses
at_least=500                # MiB: ignores the idle notebook of a colleague
me=$(ps -o user= -p $$)

# Prints the first process of another user, if any. Fails if the driver does not respond.
find_other() {
  apps=$(nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits) || return
  echo "$apps" | while IFS=', ' read -r pid memory; do
    [ "$pid" ] || break # no process
    user=$(ps -o user= -p "$pid")
    if [ -z "$user" ] || [ "$user" = "$me" ]; then continue; fi # it has ended, or is ours
    if [ "$memory" -lt "$at_least" ] 2>/dev/null; then continue; fi # it may be [N/A]
    echo "$user computes on the GPU (process $pid, $memory MiB)"
    break
  done
}

resume() { control-client resume --all --mine; }

paused=
trap 'if [ "$paused" ]; then resume; fi' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
while sleep 10; do
  other=$(find_other) || continue
  if [ "$other" ]; then
    before=$paused paused=all idle=0 # set before the pause, which TERM may interrupt
    [ "$before" = all ] || control-client pause --all --wait --reason "$other"
  elif [ "$paused" ] && [ $((idle += 1)) -ge 6 ]; then
    paused=some
    resume
    case $? in 4 | 5) ;; *) paused= ;; esac # retry if one did not respond in time
  fi
done
