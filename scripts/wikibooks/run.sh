#!/usr/bin/env bash
# Pre-training of several models on the same text: models x seeds, then a table of validation losses and their curves.
#
# Usage: [VENV=DIR] bash scripts/wikibooks/run.sh --data DIR --output DIR [options] [-- OPTIONS OF train.sh]
#   --data DIR          what prepare.sh made
#   --output DIR        runs and results go here
#   --models MODEL ...  architectures, or "NAME=ARCH OPTIONS" where one needs options of its own; default: the six that
#                       Ke et al. 2021 compare, BERT-A, BERT-R, BERT-A^d, TUPE-A with [CLS] tied, TUPE-A and TUPE-R, with
#                       --embedding-normalize as in the authors' code
#   --size SIZE         of these six: base (default), large, or tiny (4 layers, width 256, sequences of 128)
#   --seeds N ...       default: 1
#   --updates N         default 1000000
#   --jobs N            runs at a time, default: one per core (CPU) or per GPU
# OPTIONS OF train.sh may end in "-- OPTIONS" for fairseq-train.
#
# Can be stopped and started again: finished runs are kept, interrupted ones continue. Results: DIR/results.md,
# results.json, curves.png. The table so far, while the grid is running:
#   PYTHONPATH=scripts python -m wikibooks.mlm_table --runs DIR/runs --output DIR
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=../grid.sh
source "$REPO/scripts/grid.sh"

HERE=$REPO/scripts/wikibooks
data="" output="" models=() size=base seeds=() updates=1000000 jobs="" extra=()
read_options "data output models... size seeds... updates jobs --" "$@"

[[ -n $data && -n $output ]] || die "--data and --output are needed; see $(basename "$0") --help"
[[ -d $data/bin ]] || die "--data $data: no folder bin in it; run prepare.sh --output $data first"
one_of --size "$size" base large tiny
[[ $size == base || ${#models[@]} -eq 0 ]] || die "--size $size is that of the default models; leave it or --models out"
[[ $size != tiny ]] || extra=(--tokens 128 ${extra[@]+"${extra[@]}"}) # all that its positions allow
[[ ${#models[@]} -gt 0 ]] || models=(
  "bert_a=bert_a_$size --embedding-normalize"
  "bert_r=bert_r_$size --embedding-normalize"
  "bert_ad=bert_ad_$size --embedding-normalize"
  "tupe_a_tie_cls=tupe_$size --embedding-normalize --tupe-tie-cls"
  "tupe_a=tupe_$size --embedding-normalize"
  "tupe_r=tupe_$size --embedding-normalize --rel-pos")
[[ ${#seeds[@]} -gt 0 ]] || seeds=(1)
whole_numbers 0 seeds
whole_numbers 1 updates jobs
data=$(absolute "$data") output=$(absolute "$output")

declare -A model_of=()
names=()
for model in "${models[@]}"; do
  [[ $model == *=* ]] || model="$model=$model"
  name=${model%%=*}
  [[ $name =~ ^[A-Za-z0-9_.+-]+$ ]] || die "--models $model: a name consists of letters, digits and _ . + -"
  [[ -z ${model_of[$name]:-} ]] || die "--models: the name $name occurs twice"
  model_of[$name]=${model#*=}
  names+=("$name")
done

use_environment
output_folder --output "$output"
# Every run would refuse other options than it began with, one by one. As train.sh does, what has saved nothing yet may be
# started again with repaired ones; runs of before there was this file are left to train.sh.
remember_grid() {
  local file=$output/runs/settings saved
  [[ -z ${EMBINIT_ARRAY:-} ]] || return 0 # a task of what was checked
  mkdir -p "$output/runs"
  saved=$(find "$output/runs" -maxdepth 3 \( -name result.json -o -name "*.pt" \) -print -quit)
  if [[ -z $saved ]]; then rm -f "$file"; elif [[ ! -f $file ]]; then return 0; fi
  remember_settings "$file" "data=$data" "updates=$updates" \
    "options=$(python "$REPO/scripts/run_result.py" fixed -- ${extra[@]+"${extra[@]}"})"
}
remember_grid
jobs=${jobs:-$(default_jobs)}

one_run() {
  local seed=$1 name=$2 own options=() between=(--)
  read -ra own <<<"${model_of[$2]}"
  options=(--data "$data" --output "$output/runs/$name.seed$seed" --name "$name" --arch "${own[0]}" --seed "$seed"
    --updates "$updates" ${extra[@]+"${extra[@]}"})
  for word in "${options[@]}"; do [[ $word != -- ]] || between=(); done
  bash "$HERE/train.sh" "${options[@]}" ${between[@]+"${between[@]}"} "${own[@]:1}"
}

# Seeds outermost, so that after the first seed the table is complete, if without deviations.
list_runs() {
  local seed name
  for seed in "${seeds[@]}"; do
    for name in "${names[@]}"; do echo "$seed $name"; done
  done
}

say "$(counted ${#names[@]} model) x $(counted ${#seeds[@]} seed), $(at_a_time "$jobs")"
run_grid "$jobs" "$output/logs" one_run < <(list_runs)
PYTHONPATH=$REPO/scripts python -m wikibooks.mlm_table --runs "$output/runs" --output "$output"
