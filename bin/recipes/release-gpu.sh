#!/bin/sh
# release-gpu.sh moves the GPU memory of all processes of a program to host memory during a pause, and back:
#
#   control-run --pause-command './release-gpu.sh release 2>&1' \
#     --resume-command './release-gpu.sh restore 2>&1' -- python3 train.py
#
# Required on the PATH: ps and cuda-checkpoint (https://github.com/NVIDIA/cuda-checkpoint), usually as root. All are
# locked before the first is checkpointed, because processes that share work, as with NCCL, can be locked only together.
# Whether an action has worked is asked: the exit code of cuda-checkpoint does not say it.

# Prints the processes of the program in a state: running, locked or checkpointed. Those without CUDA have none.
find_in() {
  ps -e -o pid=,ppid= | awk -v root="$CONTROL_PID" '{ parent[$1] = $2 } END { for (pid in parent) {
    for (up = pid; up != root && up in parent;) up = parent[up]
    if (up == root) print pid
  } }' | sort -n | while read -r pid; do
    grep -qs libcuda.so "/proc/$pid/maps" || continue
    state=$(cuda-checkpoint --get-state --pid "$pid" 2>/dev/null)
    if [ "$state" = "$1" ]; then echo "$pid"; fi
  done
}

# Performs an action on all processes in a state, at once.
act() {
  for pid in $(find_in "$2"); do cuda-checkpoint --action "$1" --pid "$pid" $3 & done
  wait
}

restore() {
  act restore checkpointed
  act unlock locked
  blocked=$(find_in checkpointed; find_in locked)
  if [ "$blocked" ]; then echo "the GPU cannot be restored: process" $blocked; exit 1; fi # a later resume continues
}

case $1 in
  restore) restore ;;
  release)
    act lock running '--timeout 10000' # for what the GPU has begun
    failed=$(find_in running)
    if [ -z "$failed" ]; then act checkpoint locked; failed=$(find_in locked); fi
    if [ "$failed" ]; then restore; echo "the GPU cannot be released: process" $failed; exit 1; fi ;;
  *) echo "the argument must be release or restore, got '$1'"; exit 2 ;;
esac
