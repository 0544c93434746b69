#!/usr/bin/env bash
# Shared by the grids (scripts/*/run.sh): to be sourced after common.sh.

# cores: how many this process may use.
cores() { getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1; }

# default_jobs: one per GPU, or one per core. On a CPU several runs with one thread each need less time in all than one
# run with all cores.
default_jobs() { if has_gpu; then echo "$EMBINIT_GPUS"; else cores; fi; }

# run_grid JOBS LOGS COMMAND < LIST: "COMMAND WORD..." for each line of words, JOBS at a time, output to LOGS/<words>.log.
# Each run gets its share of the cores, and a GPU of its own where there are several. A failed run does not stop the
# others; the grid fails at the end and names it. COMMAND is a function; it is run in a process of its own.
# When the grid is stopped (Ctrl-C, kill), its runs are stopped as well.
run_grid() {
  local jobs=$1 logs=$2 command=$3 slot line name device visible running=0 failed=()
  declare -gA slot_of=() name_of=() # global: the trap needs them when the function has gone
  local free=()
  mkdir -p "$logs"
  find_gpus
  set -m # job control gives every run a process group of its own: stop_runs reaches all its processes
  trap stop_runs EXIT
  IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
  for ((slot = 0; slot < jobs; slot++)); do free+=("$slot"); done
  OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(cores) + jobs - 1) / jobs))}
  export OMP_NUM_THREADS
  while read -r line; do
    if [[ $running -eq $jobs ]]; then collect; fi
    slot=${free[0]} free=("${free[@]:1}") name=${line// /.}
    say "start: $line"
    (
      set -euo pipefail
      device=$((slot % (EMBINIT_GPUS > 0 ? EMBINIT_GPUS : 1)))
      [[ $EMBINIT_GPUS -lt 2 ]] || export CUDA_VISIBLE_DEVICES=${visible[$device]:-$device} EMBINIT_GPUS=1
      # shellcheck disable=SC2086 # the line is a list of words
      "$command" $line
    ) >>"$logs/$name.log" 2>&1 </dev/null &
    slot_of[$!]=$slot name_of[$!]=$name running=$((running + 1))
  done
  while [[ $running -gt 0 ]]; do collect; done
  trap - EXIT
  set +m
  [[ ${#failed[@]} -eq 0 ]] || die "$(counted ${#failed[@]} run) failed (${failed[*]}): see $logs/<run>.log; \
start again to continue"
}

# stop_runs: what is left when the grid ends early. Uses run_grid's variables.
stop_runs() {
  local pid
  [[ ${#slot_of[@]} -eq 0 ]] || say "stopped, and with it: ${name_of[*]}; start again to continue"
  for pid in "${!slot_of[@]}"; do kill -- "-$pid" 2>/dev/null || true; done
}

# collect: wait for one of run_grid's runs to end, and note how. Uses run_grid's variables.
collect() {
  local pid status
  while :; do
    for pid in "${!slot_of[@]}"; do
      if ! kill -0 "$pid" 2>/dev/null; then
        status=0
        wait "$pid" || status=$?
        if [[ $status -eq 0 ]]; then say "done: ${name_of[$pid]}"; else
          say "FAILED: ${name_of[$pid]} ($(tail -n 1 "$logs/${name_of[$pid]}.log"))"
          failed+=("${name_of[$pid]}")
        fi
        free+=("${slot_of[$pid]}")
        unset "slot_of[$pid]" "name_of[$pid]"
        running=$((running - 1))
        return 0
      fi
    done
    sleep 1
  done
}
