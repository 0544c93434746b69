#!/usr/bin/env bash
# Pre-training with and without untied positions, on text that this script makes itself (README.md): the curves of
# validation loss, and a figure of the heads' attention by position.
#
#   bash examples/mlm_with_tupe/run.sh
#
# Variables, with their defaults: OUTPUT=runs/mlm_with_tupe, MODELS="bert_a tupe_a tupe_r" (of bert_a bert_r bert_rel
# bert_ad tupe_a_tie_cls tupe_a tupe_r), UPDATES=1500, SEED=1, JOBS= (trainings at a time, one thread each; one per core).
# The same call continues a stopped one.
# shellcheck source=../../scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
: "${OUTPUT:=runs/mlm_with_tupe}" "${MODELS:=bert_a tupe_a tupe_r}" "${UPDATES:=1500}" "${SEED:=1}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
settings "$OUTPUT" "seed=$SEED" # which the text is made of

if [[ ! -f $OUTPUT/text.txt ]]; then # documents of twenty sentences: one empty line after each
  PYTHONPATH=$REPO/scripts:$REPO python -m toy.corpus --seed "$SEED" --train 10 --test 10 --monolingual 40000 \
    --output "$OUTPUT/toy"
  awk '{ print } NR % 20 == 0 { print "" }' "$OUTPUT/toy/mono.en" >"$OUTPUT/text.part"
  mv "$OUTPUT/text.part" "$OUTPUT/text.txt"
fi
env OUTPUT="$OUTPUT/data" DUPLICATES=none FREQUENT_TYPES=1 BPE_MERGES=1000 VOCABULARY=2000 VALID_EVERY=20 \
  bash "$REPO/scripts/wikibooks/prepare.sh" "$OUTPUT/text.txt"
env DATA="$OUTPUT/data" OUTPUT="$OUTPUT" MODELS="$MODELS" SIZE=tiny SEEDS="$SEED" UPDATES="$UPDATES" BATCH=16 SAVE_EVERY=100 \
  bash "$REPO/scripts/wikibooks/run.sh" --tokens-per-sample 64 --lr 1e-3 --encoder-layers 2 --encoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256
for model in $MODELS; do
  [[ $model =~ ^(tupe.*|bert_r|bert_rel|bert_alibi)$ ]] || continue # the others' positions are in the words
  embinit plot positions --checkpoint "$OUTPUT/runs/$model.seed$SEED/checkpoints/checkpoint_best.pt" --softmax --length 64 \
    --output "$OUTPUT/$model.png"
done
echo "Table: $OUTPUT/results.md, curves: $OUTPUT/curves.png"
