#!/usr/bin/env bash
# SST-2 or MNLI with the embedding layer of a real language model, or with word vectors: initialisations x seeds, then a
# table and curves.
#
# Usage: DATA=DIR [VENV=DIR] bash scripts/sst2/run.sh --output DIR --hf DIR [options] [-- OPTIONS OF train.sh],
# for MNLI scripts/mnli/run.sh
#   --task NAME            SST-2 (default) or MNLI (default of scripts/mnli)
#   --output DIR           data, runs and results go here
#   --hf DIR               Hugging Face folder: its tokenizer and its embeddings
#   --vectors PATH         instead: word vectors, for the words of the data set, see prepare.sh
#   --inits STRATEGY ...   default: xavier pretrained pretrained_xavier shuffled xavier_pretrained
#   --seeds N ...          default: 1 2
#   --epochs N             default 10
#   --jobs N               runs at a time, default: one per core (CPU) or per GPU
#
# Can be stopped and started again: finished runs are kept, interrupted ones continue. With a higher --epochs all go on.
# Results: DIR/results.md, results.json, curves.png.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=../grid.sh
source "$REPO/scripts/grid.sh"

HERE=$REPO/scripts/sst2
task=SST-2 output="" hf="" vectors="" inits=() seeds=() epochs=10 jobs="" extra=()
read_options "task output hf vectors inits... seeds... epochs jobs --" "$@"

one_of --task "$task" SST-2 MNLI
[[ -n $output && -n $hf$vectors ]] || die "--output and --hf (or --vectors) are needed; see $(basename "$0") --help"
[[ -z $hf || -z $vectors ]] || die "--hf $hf, --vectors $vectors: give one of them"
[[ -z $vectors || -e $vectors ]] || die "--vectors $vectors: no such file or folder"
[[ ${#inits[@]} -gt 0 ]] || inits=(xavier pretrained pretrained_xavier shuffled xavier_pretrained)
for init in "${inits[@]}"; do known_init --inits "$init"; done
[[ ${#seeds[@]} -gt 0 ]] || seeds=(1 2)
whole_numbers 0 seeds
whole_numbers 1 epochs jobs
[[ -n ${DATA:-} ]] || die "DATA is not set: set it to GLUE's folder $task with train.tsv; see --help"
[[ -z $hf || -d $hf ]] || die "--hf $hf: no such folder"
vectors=${vectors:+$(absolute "$vectors")}
output=$(absolute "$output")
use_environment
output_folder --output "$output"
jobs=${jobs:-$(default_jobs)}

one_run() {
  local seed=$1 init=$2 run=$output/runs/$2.seed$1
  bash "$HERE/train.sh" --data "$output/data" --output "$run" --init "$init" --seed "$seed" --epochs "$epochs" \
    ${vectors:+--vectors "$vectors"} ${extra[@]+"${extra[@]}"}
}

list_runs() {
  local seed init
  for seed in "${seeds[@]}"; do
    for init in "${inits[@]}"; do echo "$seed $init"; done
  done
}

bash "$HERE/prepare.sh" --task "$task" ${hf:+--hf "$hf"} --output "$output/data"
say "$(counted ${#inits[@]} initialisation) x $(counted ${#seeds[@]} seed), $(at_a_time "$jobs")"
run_grid "$jobs" "$output/logs" one_run < <(list_runs)
embinit compare "$output/runs" --output "$output"
