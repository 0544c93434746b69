#!/usr/bin/env bash
# Pre-training with and without untied positions, on text that this script makes itself (README.md): the curves of
# validation loss, and a picture of what the heads make of positions.
#
# Usage: [VENV=DIR] bash examples/mlm_with_tupe/run.sh [options]
#   --output DIR     default: runs/mlm_with_tupe
#   --models NAME .. of bert_a bert_r bert_ad tupe_a_tie_cls tupe_a tupe_r; default: bert_a tupe_a tupe_r
#   --updates N      default 1500
#   --seed N         default 1
#   --jobs N         trainings at a time, one thread each; default: one per core
#
# Can be stopped and started again: what is finished is not repeated.
# shellcheck source=../../scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
# shellcheck source=../../scripts/grid.sh
source "$REPO/scripts/grid.sh"

output=runs/mlm_with_tupe models=() updates=1500 seed=1 jobs=""
read_options "output models... updates seed jobs" "$@"
whole_numbers 1 updates jobs
whole_numbers 0 seed
[[ ${#models[@]} -gt 0 ]] || models=(bert_a tupe_a tupe_r)
output=$(absolute "$output")

# options_of NAME: what wikibooks/run.sh is told of a model.
options_of() {
  case $1 in
    bert_a | bert_r | bert_ad) echo "$1=$1_tiny --embedding-normalize" ;;
    tupe_a_tie_cls) echo "$1=tupe_tiny --embedding-normalize --tupe-tie-cls" ;;
    tupe_a) echo "$1=tupe_tiny --embedding-normalize" ;;
    tupe_r) echo "$1=tupe_tiny --embedding-normalize --rel-pos" ;;
    *) die "--models $1: not known; choose of bert_a bert_r bert_ad tupe_a_tie_cls tupe_a tupe_r" ;;
  esac
}
described=()
for model in "${models[@]}"; do described+=("$(options_of "$model")"); done
output_folder --output "$output"
remember_settings "$output/settings" "seed=$seed" # which the text is made of
use_environment
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
jobs=${jobs:-$(cores)}

make_text() {
  PYTHONPATH=$REPO/scripts:$REPO python -m toy.corpus --seed "$seed" --train 10 --test 10 --monolingual 40000 --output "$1" \
    >/dev/null
}
# Documents of twenty sentences: one blank line behind each.
make_documents() { awk '{ print } NR % 20 == 0 { print "" }' "$output/toy/mono.en" >"$1"; }

draw() {
  embinit plot positions --checkpoint "$output/runs/$1.seed$seed/checkpoints/checkpoint_best.pt" --softmax --length 64 \
    --output "$output/$1.png" # it writes the whole file or none
}

step "text" "$output/toy" -- make_text
step "documents" "$output/text.txt" -- make_documents
bash "$REPO/scripts/wikibooks/prepare.sh" --input "$output/text.txt" --output "$output/data" --jobs "$jobs" \
  --duplicates none --frequent-types 1 --bpe-merges 1000 --vocabulary 2000 --valid-every 20
bash "$REPO/scripts/wikibooks/run.sh" --data "$output/data" --output "$output" --models "${described[@]}" \
  --seeds "$seed" --updates "$updates" --jobs "$jobs" \
  -- --tokens 64 --batch 16 --device-batch 16 --lr 1e-3 --save-every 100 -- --encoder-layers 2 --encoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256
for model in "${models[@]}"; do
  case $model in
    tupe* | bert_r) draw "$model" ;;
  esac
done
echo "Table: $output/results.md, curves: $output/curves.png"
