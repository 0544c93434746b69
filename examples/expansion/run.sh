#!/usr/bin/env bash
# Fifty new words for a small language model, on text that this script makes itself (README.md).
#
#   bash examples/expansion/run.sh
#
# Variables, with their defaults: OUTPUT=runs/expansion, SEED=1 (of the text, the trainings and the draws), JOBS=
# (trainings at a time; one per GPU or core). The same call continues a stopped one.
# shellcheck source=../../scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
: "${OUTPUT:=runs/expansion}" "${SEED:=1}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
settings "$OUTPUT" "seed=$SEED"

text=$OUTPUT/text
if [[ ! -f $text/train.txt ]]; then
  PYTHONPATH=$REPO/scripts:$REPO python -m toy.corpus --seed "$SEED" --train 100 --monolingual 30000 --output "$text"
  mv "$text/valid.en" "$text/valid.txt"
  mv "$text/mono.en" "$text/train.txt"
fi
env DATA="$text" OUTPUT="$OUTPUT" SEEDS="$SEED" PRECISION=--amp BPE_SIZE=200 WORDS=50 VALID_LINES=300 \
  LM_UPDATES=800 DIM=64 FFN=256 UPDATES=200 bash "$REPO/scripts/expansion/run.sh" --lr 5e-4
