#!/bin/sh
# release-gpu.sh moves the GPU memory of all processes of a program to host memory during a pause, and back:
#
#   control-run --grace 15m --pause-command './release-gpu.sh release 2>&1' \
#     --resume-command './release-gpu.sh restore 2>&1' -- python3 train.py
#
# Required on the PATH: cuda-checkpoint (https://github.com/NVIDIA/cuda-checkpoint), usually as root. --grace is the
# time for a copy once another command waits: a program whose copy is interrupted is lost. All processes are locked
# before the first is checkpointed, because those that share work, as with NCCL, can be locked only together. Whether an
# action has worked is asked: the exit code of cuda-checkpoint does not say it.

fail() { echo "$@"; exit 1; }

command -v cuda-checkpoint >/dev/null || fail 'cuda-checkpoint is not on the PATH'
mark=$(tr '\0' '\n' <"/proc/$CONTROL_PID/environ" | grep '^CONTROL_RUN=') || fail 'the program is not under control-run'
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT

# The processes of the program that use CUDA: they have threads of the driver.
pids=$(for file in $(grep -lsF "$mark" /proc/[0-9]*/environ); do
  pid=${file#/proc/} pid=${pid%/environ}
  if cat "/proc/$pid/task/"*/comm 2>/dev/null | grep -q '^cuda'; then echo "$pid"; fi
done)

state_of() { cuda-checkpoint --get-state --pid "$1" </dev/null 2>&1 | tail -n 1; }
those_in() { for pid in $pids; do if [ "$(state_of "$pid")" = "$1" ]; then echo "$pid"; fi; done; }
those_not_in() {
  for pid in $pids; do
    grep -qsF "$mark" "/proc/$pid/environ" || continue # it has ended
    state=$(state_of "$pid")
    [ "$state" = "$1" ] || [ "$state" = "$2" ] || echo "process $pid is $state;"
  done
}

# Performs an action on all processes in a state, at once.
act() {
  for pid in $(those_in "$2"); do cuda-checkpoint --action "$1" --pid "$pid" $3 </dev/null >>"$output" 2>&1 & done
  wait
}

restore() {
  act restore checkpointed
  act unlock locked
  blocked=$(those_not_in running)
  [ -z "$blocked" ] || fail 'the GPU cannot be restored:' $blocked $(tail -n 1 "$output")
}

case $1 in
  restore) restore ;;
  release)
    act unlock locked # what a failed release has left
    failed=$(those_not_in running checkpointed)
    [ -z "$failed" ] || fail 'the GPU cannot be released:' $failed
    pids=$(those_in running) # another tool has checkpointed the others
    act lock running '--timeout 10000' # for what the GPU has begun
    failed=$(those_not_in locked)
    if [ -z "$failed" ]; then act checkpoint locked; failed=$(those_not_in checkpointed); fi
    cause=$(tail -n 1 "$output")
    [ -z "$failed" ] || { restore; fail 'the GPU cannot be released:' $failed $cause; } ;;
  *) echo "the argument must be release or restore, got '$1'"; exit 2 ;;
esac
