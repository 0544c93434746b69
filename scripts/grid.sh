#!/usr/bin/env bash
# Shared by the grids (scripts/*/run.sh): to be sourced after common.sh, by the script whose arguments these are.
#
# On the login node of a SLURM cluster (sbatch is there, and this is no job yet) a grid without --jobs becomes one array
# job; what its tasks need is said by sbatch's own environment variables: SBATCH_PARTITION, SBATCH_ACCOUNT,
# SBATCH_TIMELIMIT, SBATCH_GPUS=1, SBATCH_MEM_PER_CPU, ... Stopping the script does not stop the array (scancel does).

# What a task of the array calls: the script once more, which then does one line of the grid's list.
GRID_COMMAND=(bash "$(absolute "${BASH_SOURCE[1]:-$0}")" "$@")

# cores: how many this process may use.
cores() { getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1; }

# default_jobs: "slurm", see above, or one per GPU, or one per core. On a CPU several runs with one thread each need less
# time in all than one run with all cores.
default_jobs() {
  if [[ -z ${SLURM_JOB_ID:-} ]] && command -v sbatch >/dev/null; then
    echo slurm
  elif has_gpu; then
    echo "$EMBINIT_GPUS"
  else
    cores
  fi
}

# at_a_time JOBS: in words.
at_a_time() { if [[ $1 == slurm ]]; then echo "in a SLURM array"; else echo "$1 at a time"; fi; }

# run_grid JOBS LOGS COMMAND < LIST: "COMMAND WORD..." for each line of words, JOBS at a time, output to LOGS/<words>.log.
# Each run gets its share of the cores, and a GPU of its own where there are several. A failed run does not stop the
# others; the grid fails at the end and names it. COMMAND is a function; it is run in a process of its own.
# When the grid is stopped (Ctrl-C, kill), its runs are stopped as well. JOBS "slurm": one array job, a task a line.
run_grid() {
  local jobs=$1 logs=$2 command=$3 slot line name device visible running=0 failed=()
  mkdir -p "$logs"
  [[ -z ${EMBINIT_ARRAY:-} ]] || array_task "$logs" "$command"
  if [[ $jobs == slurm ]]; then
    submit_array "$logs"
    return
  fi
  declare -gA slot_of=() name_of=() # global: the trap needs them when the function has gone
  local free=()
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
      trap - EXIT # `step` would take stop_runs for this run's own trap: a run that is done would stop the others
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
  none_failed "$logs" ${failed[@]+"${failed[@]}"}
}

# none_failed LOGS RUN...: the end of a grid in which these runs failed.
none_failed() {
  local logs=$1
  shift
  [[ $# -eq 0 ]] || die "$(counted $# run) failed ($*): see $logs/<run>.log; start again to continue"
}

# submit_array LOGS < LIST: one array job, and wait for its end.
submit_array() {
  local logs=$1 list=$1/array.list number failed=()
  rm -rf "$list.failed"
  mkdir "$list.failed"
  cat >"$list"
  number=$(wc -l <"$list")
  say "submitting an array of $(counted "$((number))" task); this waits for its end"
  # The nodes' GPUs are not those of this machine. --wait fails if a task does; so may the cluster.
  if ! env -u EMBINIT_GPUS EMBINIT_ARRAY="$list" sbatch --wait --job-name="embinit" --array="1-$((number))" --export=ALL \
    --output="$logs/slurm-%A_%a.log" --wrap="exec$(printf ' %q' "${GRID_COMMAND[@]}")" >&2; then
    mapfile -t failed < <(ls "$list.failed")
    none_failed "$logs" ${failed[@]+"${failed[@]}"}
    die "the array did not come to its end: see $logs/slurm-*.log; start again to continue"
  fi
}

# array_task LOGS COMMAND: in a task of the array, the line that is its own; ends the script.
array_task() {
  local logs=$1 command=$2 line name list=$EMBINIT_ARRAY
  unset EMBINIT_ARRAY
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
  line=$(sed -n "${SLURM_ARRAY_TASK_ID:-0}{p;q}" "$list" 2>/dev/null || true) name=${line// /.}
  [[ -n $line ]] || die "SLURM_ARRAY_TASK_ID ${SLURM_ARRAY_TASK_ID:-not set}: $list has no such line; start the script itself"
  touch "$list.failed/$name"
  (
    set -euo pipefail
    # shellcheck disable=SC2086 # the line is a list of words
    "$command" $line
  ) >>"$logs/$name.log" 2>&1 </dev/null
  rm "$list.failed/$name"
  say "done: $line"
  exit 0
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
