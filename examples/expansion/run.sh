#!/usr/bin/env bash
# Fifty new words for a small language model, on text that this script makes itself (README.md).
#
# Usage: [VENV=DIR] bash examples/expansion/run.sh [options]
#   --output DIR   default: runs/expansion
#   --seed N       of the text, the trainings and the draws, default 1
#   --jobs N       trainings at a time, default: one per core (CPU) or per GPU
#
# One language model, five expansions, six trainings. Can be stopped and started again: what is finished is not repeated.
# shellcheck source=../../scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"

output=runs/expansion seed=1 jobs=""
read_options "output seed jobs" "$@"
whole_numbers 0 seed
whole_numbers 1 jobs
output=$(absolute "$output")
output_folder --output "$output"
use_environment
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# make_text DIR: English sentences, train.txt and valid.txt.
make_text() {
  PYTHONPATH=$REPO/scripts:$REPO python -m toy.corpus --seed "$seed" --train 100 --monolingual 30000 --output "$1" >/dev/null
  mv "$1/mono.en" "$1/train.txt"
  mv "$1/valid.en" "$1/valid.txt"
}

remember_settings "$output/settings" "seed=$seed"
step "text" "$output/text" -- make_text
DATA=$output/text bash "$REPO/scripts/expansion/run.sh" --output "$output" --seeds "$seed" ${jobs:+--jobs "$jobs"} \
  --bpe-size 200 --words 50 --valid-lines 300 --amp --lm-updates 800 --dim 64 --ffn 256 --updates 200 -- --lr 5e-4
