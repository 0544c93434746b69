#!/usr/bin/env bash
# Table 3 of Kim et al. 2024: Multi30k, German to English, with word vectors. {xavier, pretrained, pretrained_xavier} x
# {embeddings trained, frozen} x {with, without positions} x seeds, then one table.
#
# Usage: [MULTI30K=DIR] [VENV=DIR] bash scripts/reproduce/table3.sh --output DIR [options] [-- OPTIONS]
#   --output DIR           data, vectors, runs and results go here
#   --glove LANG=PATH ...  word vectors, de=PATH and en=PATH; default: learned from the training text
#   --tokens KIND          moses (default) or spacy, as in the paper
#   --dim D                of the vectors, default 300
#   --inits STRATEGY ...   default: xavier pretrained pretrained_xavier
#   --seeds N ...          default: 1 2 3
#   --epochs N             default 20
#   --jobs N               runs at a time, default: one per core (CPU) or per GPU; on a SLURM cluster an array (grid.sh)
#   --reduced              another default: seed 1, 5 epochs
# OPTIONS are options of scripts/multi30k/train.sh; they may end in "-- OPTIONS" for fairseq-train.
#
# MULTI30K: a copy of the data set, see scripts/multi30k/prepare.sh; without it the files are downloaded.
#
# Can be stopped and started again: finished runs are kept, interrupted ones continue. Results: DIR/results.md,
# results.json, curves.png by embinit compare.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=../grid.sh
source "$REPO/scripts/grid.sh"

MULTI30K_SCRIPTS=$REPO/scripts/multi30k
output="" glove=() tokens=moses dim=300 inits=() seeds=() epochs="" jobs="" reduced="" extra=()
read_options "output glove... tokens dim inits... seeds... epochs jobs reduced? --" "$@"

[[ -n $output ]] || die "--output is needed; see $(basename "$0") --help"
whole_numbers 0 seeds
whole_numbers 1 epochs jobs dim
one_of --tokens "$tokens" moses spacy
for entry in ${glove[@]+"${glove[@]}"}; do
  [[ $entry == de=* || $entry == en=* ]] || die "--glove $entry: give de=PATH or en=PATH"
  [[ -e ${entry#*=} ]] || die "--glove $entry: no such file"
done
[[ ${#inits[@]} -gt 0 ]] || inits=(xavier pretrained pretrained_xavier)
for init in "${inits[@]}"; do known_init --inits "$init"; done
[[ ${#seeds[@]} -gt 0 ]] || read -ra seeds <<<"$([[ -n $reduced ]] && echo 1 || echo 1 2 3)"
epochs=${epochs:-$([[ -n $reduced ]] && echo 5 || echo 20)}
output=$(absolute "$output")
data=$output/data
use_environment
output_folder --output "$output"
jobs=${jobs:-$(default_jobs)}

declare -A vectors=([de]=$output/vectors/de.txt [en]=$output/vectors/en.txt)
for entry in ${glove[@]+"${glove[@]}"}; do vectors[${entry%%=*}]=$(absolute "${entry#*=}"); done
learn_vectors() { python "$REPO/scripts/train_vectors.py" --text "$data/text/train.$1" --dim "$dim" --output "$2"; }

# one_run SEED INIT TRAINED POSITIONS
one_run() {
  local seed=$1 init=$2 trained=$3 positions=$4 own=() word between=(--)
  local run=$output/runs/$2.trained_$3.positions_$4.seed$1
  local options=(--data "$data" --output "$run" --init "$init" --seed "$seed" --epochs "$epochs" --dim "$dim"
    --label "trained=$trained" "positions=$positions")
  ! needs_vectors "$init" || options+=(--vectors "encoder=${vectors[de]}" "decoder=${vectors[en]}")
  options+=(${extra[@]+"${extra[@]}"})
  for word in "${options[@]}"; do [[ $word != -- ]] || between=(); done
  [[ $trained == yes ]] || own+=(--embed-init-freeze encoder decoder)
  [[ $positions == yes ]] || own+=(--no-token-positional-embeddings)
  bash "$MULTI30K_SCRIPTS/train.sh" "${options[@]}" ${between[@]+"${between[@]}"} ${own[@]+"${own[@]}"}
  grep -q '"bleu": {' "$run/result.json" ||
    bash "$MULTI30K_SCRIPTS/generate.sh" --data "$data" --run "$run"
}

# Seeds outermost, so that after the first seed the table is complete, if without deviations.
list_runs() {
  local seed init trained positions
  for seed in "${seeds[@]}"; do
    for init in "${inits[@]}"; do
      for positions in no yes; do
        for trained in no yes; do echo "$seed $init $trained $positions"; done
      done
    done
  done
}

DATA=${MULTI30K:-} bash "$MULTI30K_SCRIPTS/prepare.sh" --tokens "$tokens" --output "$data"
for init in "${inits[@]}"; do
  needs_vectors "$init" || continue
  for lang in de en; do
    [[ ${vectors[$lang]} != "$output/vectors/"* ]] || step "vectors from the training text: $lang" "${vectors[$lang]}" -- \
      learn_vectors "$lang"
  done
done
say "$(counted ${#inits[@]} initialisation) x trained or frozen x with or without positions x" \
  "$(counted ${#seeds[@]} seed), $(at_a_time "$jobs")"
run_grid "$jobs" "$output/logs" one_run < <(list_runs)
baseline="positions yes, trained yes"
[[ ${#inits[@]} -eq 1 ]] || baseline="${inits[0]}, $baseline"
embinit compare "$output/runs" --baseline "$baseline" --output "$output"
