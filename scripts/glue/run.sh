#!/usr/bin/env bash
# GLUE as in Ke et al. 2021: tasks x pre-trained models x learning rates x seeds, then one table.
#
# Usage: DATA=DIR [VENV=DIR] bash scripts/glue/run.sh --output DIR --checkpoints NAME=FILE ... [options] [-- OPTIONS]
#   --output DIR                 data, runs and results go here
#   --checkpoints NAME=FILE ...  pre-trained models; NAME=scratch:FILE is the same architecture with random weights
#   --dict FILE                  dict.txt of their pre-training
#   --codes FILE | --hf DIR      how their text was cut into symbols, see prepare.sh; otherwise words stay as they are
#   --tasks TASK ...             default: those of the eight that DATA has
#   --rates RATE ...             peak learning rates, default: 2e-5 3e-5 4e-5 5e-5
#   --seeds N ...                default: 1 2 3 4 5
#   --epochs N                   default: 5 for MNLI, QNLI and QQP, else 10
#   --batch N                    default 32
#   --jobs N                     runs at a time, default: one per core (CPU) or per GPU
#   --keep-checkpoints           keep the checkpoints of finished runs: the best and the last, 12 bytes a parameter each
# Everything after -- goes to fairseq-train.
#
# Without a GPU, for models of a few million parameters (docs/glue.md says how long it takes), with one --output:
#   ... --tasks CoLA RTE MRPC --rates 1e-4 3e-4 --seeds 1 2 --epochs 5
#   ... --tasks SST-2 --rates 1e-4 3e-4 --seeds 1 2 --epochs 1
#
# Can be stopped and started again: finished runs are kept, interrupted ones continue. The table holds, for each model
# and task, the median over seeds at the best rate. Results: DIR/results.md, results.json.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=../grid.sh
source "$REPO/scripts/grid.sh"

HERE=$REPO/scripts/glue
output="" checkpoints=() dict="" codes="" hf="" tasks=() rates=() seeds=() epochs="" batch="" jobs="" keep_checkpoints=""
extra=()
read_options "output checkpoints... dict codes hf tasks... rates... seeds... epochs batch jobs keep-checkpoints? --" "$@"

[[ -n $output && ${#checkpoints[@]} -gt 0 ]] || die "--output and --checkpoints are needed; see $(basename "$0") --help"
[[ -n ${DATA:-} ]] || die "DATA is not set: set it to the folder with GLUE's tasks (CoLA, RTE, ...); see --help"
[[ ${#rates[@]} -gt 0 ]] || rates=(2e-5 3e-5 4e-5 5e-5)
[[ ${#seeds[@]} -gt 0 ]] || seeds=(1 2 3 4 5)
whole_numbers 0 seeds
whole_numbers 1 epochs batch jobs
for rate in "${rates[@]}"; do number --rates "$rate" 'n > 0' "above 0"; done
output=$(absolute "$output")
preparing=(${dict:+--dict "$dict"} ${codes:+--codes "$codes"} ${hf:+--hf "$hf"})
training=(${epochs:+--epochs "$epochs"} ${batch:+--batch "$batch"} ${keep_checkpoints:+--keep-checkpoints})
use_environment
# glue MODULE ARGUMENT...: one of the Python programs beside this script.
glue() { PYTHONPATH=$REPO/scripts python -m "glue.$1" "${@:2}"; }
read -ra known <<<"$(glue tasks names)"
for task in ${tasks[@]+"${tasks[@]}"}; do
  one_of --tasks "$task" "${known[@]}"
  [[ -d $DATA/$task ]] || die "--tasks $task: DATA=$DATA has no folder of this name"
done
if [[ ${#tasks[@]} -eq 0 ]]; then
  for task in "${known[@]}"; do [[ ! -d $DATA/$task ]] || tasks+=("$task"); done
  [[ ${#tasks[@]} -gt 0 ]] || die "DATA=$DATA has none of GLUE's folders (CoLA, RTE, ...)"
fi
declare -A file_of=()
names=()
for pair in "${checkpoints[@]}"; do
  name=${pair%%=*} file=${pair#*=}
  [[ $pair == *=* && $name =~ ^[A-Za-z0-9_.+-]+$ ]] ||
    die "--checkpoints $pair: NAME=FILE is needed, the name of letters, digits and _ . + -"
  [[ -z ${file_of[$name]:-} ]] || die "--checkpoints: the name $name occurs twice"
  [[ -f ${file#scratch:} ]] || die "--checkpoints $pair: no such file"
  file_of[$name]=$file
  names+=("$name")
done

one_run() {
  local seed=$1 task=$2 name=$3 lr=$4 file=${file_of[$3]}
  local source=(--checkpoint "${file#scratch:}")
  [[ $file != scratch:* ]] || source+=(--from-scratch)
  bash "$HERE/train.sh" --data "$output/data/$task" --output "$output/runs/$task.$name.$lr.$seed" --name "$name" \
    --lr "$lr" --seed "$seed" "${source[@]}" ${training[@]+"${training[@]}"} -- ${extra[@]+"${extra[@]}"}
}

# Seed by seed: a grid that was stopped has all rates with equally many seeds.
list_runs() {
  local seed task name lr
  for seed in "${seeds[@]}"; do
    for task in "${tasks[@]}"; do
      for name in "${names[@]}"; do
        for lr in "${rates[@]}"; do echo "$seed $task $name $lr"; done
      done
    done
  done
}

output_folder --output "$output"
jobs=${jobs:-$(default_jobs)}
for task in "${tasks[@]}"; do
  bash "$HERE/prepare.sh" --task "$task" --output "$output/data/$task" ${preparing[@]+"${preparing[@]}"}
done
say "$(counted ${#tasks[@]} task) x $(counted ${#names[@]} model) x $(counted ${#rates[@]} rate)" \
  "x $(counted ${#seeds[@]} seed), $(at_a_time "$jobs")"
run_grid "$jobs" "$output/logs" one_run < <(list_runs)
glue table --runs "$output/runs" --output "$output"
