#!/usr/bin/env bash
# Hewitt's experiment of adaptation (2021): a language model gets 100 frequent words that its sub-words split, by several
# methods; how does its perplexity per word develop when it is trained on? Then tables and curves.
#
# Usage: DATA=DIR [VENV=DIR] bash scripts/expansion/run.sh --output DIR [options] [-- OPTIONS OF adapt.sh]
#   --output DIR       data, the language model, expanded models, runs and results go here
#   --methods M ...    default: none avg gaussian zeros normal subword (none: the old model goes on with the old pieces)
#   --seeds N ...      default: 1 2 3
#   --jobs N           runs at a time, default: one per core (CPU) or per GPU
#   --amp              half precision in training, see train.sh
#   --bpe-size N, --words N, --valid-lines N: see prepare.sh
#   --lm-updates N, --layers N, --dim D, --heads N, --ffn N: of the language model, see train.sh
#   --updates N, --every N: of the adaptation, see adapt.sh; default 500, 20
# What the language model needs besides: run train.sh --output DIR/lm first, with options as here.
#
# Can be stopped and started again: finished runs are kept, interrupted ones continue. Results: DIR/results.md,
# results.json, curves.png. The table so far, while the grid is running:
#   PYTHONPATH=scripts python -m expansion.table --runs DIR/runs --output DIR
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=../grid.sh
source "$REPO/scripts/grid.sh"

HERE=$REPO/scripts/expansion
output="" methods=() seeds=() jobs="" amp="" bpe_size="" words="" valid_lines="" lm_updates="" layers="" dim=""
heads="" ffn="" updates=500 every=20 extra=()
read_options "output methods... seeds... jobs amp? bpe-size words valid-lines lm-updates layers dim heads ffn updates \
every --" "$@"

[[ -n $output ]] || die "--output is needed; see $(basename "$0") --help"
[[ ${#methods[@]} -gt 0 ]] || methods=(none avg gaussian zeros normal subword)
expanded=()
for method in "${methods[@]}"; do
  one_of --methods "$method" none avg gaussian zeros normal subword
  [[ $method == none ]] || expanded+=("$method")
done
[[ ${#expanded[@]} -gt 0 ]] || die "--methods none: there is nothing to compare; name at least one other"
[[ ${#seeds[@]} -gt 0 ]] || seeds=(1 2 3)
whole_numbers 0 seeds
whole_numbers 1 jobs bpe-size words valid-lines lm-updates layers dim heads ffn updates every
[[ -n ${DATA:-} ]] || die "DATA is not set: set it to a folder with train.txt and valid.txt; see prepare.sh --help"
output=$(absolute "$output")
use_environment
output_folder --output "$output"
jobs=${jobs:-$(default_jobs)}

one_run() {
  bash "$HERE/adapt.sh" --data "$output/data" --models "$output/models" --output "$output/runs/$2.seed$1" --method "$2" \
    --seed "$1" --updates "$updates" --every "$every" ${amp:+--amp} ${extra[@]+"${extra[@]}"}
}

# Seeds outermost, so that after the first seed the table is complete, if without deviations.
list_runs() {
  local seed method
  for seed in "${seeds[@]}"; do
    for method in "${methods[@]}"; do echo "$seed $method"; done
  done
}

bash "$HERE/prepare.sh" --output "$output/data" ${bpe_size:+--bpe-size "$bpe_size"} ${words:+--words "$words"} \
  ${valid_lines:+--valid-lines "$valid_lines"}
bash "$HERE/train.sh" --data "$output/data" --output "$output/lm" ${amp:+--amp} \
  ${lm_updates:+--updates "$lm_updates"} ${layers:+--layers "$layers"} ${dim:+--dim "$dim"} ${heads:+--heads "$heads"} \
  ${ffn:+--ffn "$ffn"}
bash "$HERE/expand.sh" --data "$output/data" --lm "$output/lm" --output "$output/models" --methods "${expanded[@]}" \
  --seeds "${seeds[@]}"
say "$(counted ${#methods[@]} method) x $(counted ${#seeds[@]} seed), $jobs at a time"
run_grid "$jobs" "$output/logs" one_run < <(list_runs)
PYTHONPATH=$REPO/scripts python -m expansion.table --runs "$output/runs" --output "$output"
