#!/usr/bin/env bash
# A model of words, trained on Multi30k, is moved to the dictionaries of BPE by each method of embinit transfer-vocab and
# tuned for an epoch; compared with training from the start, and with random rows.
#
#   DATA=multi30k OUTPUT=runs/transfer bash scripts/multi30k/transfer.sh
#   OUTPUT=runs/transfer BPE_SIZE=4000 METHODS="focus random" SEEDS="1 2 3" bash scripts/multi30k/transfer.sh
#
# OUTPUT     data, the model of words (old), vectors, models, runs, results.md, results.json and curves.png go here
# METHODS    default: all there are; omp=K for another --sparsity; random is the control: every word is drawn
# SEEDS      of the draws and of the tuning, default: 1
# EPOCHS=20  of the model of words, and of one that is trained on BPE from the start (whole)
# TUNE=1     epochs of the moved models, and of one that is trained anew for as long (anew)
# JOBS       trainings at a time, default: one per GPU, else one per core (embinit grid)
# DATA, DIRECTION, BPE_SIZE, MIN_COUNT: as for prepare.sh. DIM, HEADS: as for train.sh
#
# Further arguments go to every fairseq-train. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder for data, models, runs and results}"
METHODS=${METHODS:-$(python -c 'from embinit_fairseq.init.methods import TRANSFER; print(*TRANSFER)')}
steps=$REPO/scripts/multi30k words=$OUTPUT/data/words bpe=$OUTPUT/data/bpe EPOCHS=${EPOCHS:-20} TUNE=${TUNE:-1}
direction=${DIRECTION:-de-en}

OUTPUT=$words TOKENS=moses bash "$steps/prepare.sh"
OUTPUT=$bpe TOKENS=subword_nmt bash "$steps/prepare.sh"
DATA=$words RUN=$OUTPUT/old bash "$steps/train.sh" --seed 1 --max-epoch "$EPOCHS" "$@"
for lang in de en; do # of pieces, as in FOCUS
  [[ -e $OUTPUT/vectors.$lang.txt ]] || python "$REPO/scripts/train_vectors.py" --dim 100 \
    --text "$bpe/text/train.$lang" --output "$OUTPUT/vectors.$lang.txt"
done

# The encoder's dictionary first, then, of that model, the decoder's.
for seed in ${SEEDS:-1}; do
  for method in $METHODS; do
    model=$OUTPUT/models/$method.seed$seed from=$OUTPUT/old/checkpoints/checkpoint_best.pt dictionaries=$words/bin
    for side in encoder:"${direction%-*}" decoder:"${direction#*-}"; do
      lang=${side#*:} to=$model/${side%:*} more=()
      [[ $method != focus && $method != omp* ]] || more=(--vectors "$OUTPUT/vectors.$lang.txt")
      [[ $method != *=* ]] || more+=(--sparsity "${method#*=}")
      [[ -d $to ]] || embinit transfer-vocab --checkpoint "$from" --dict "$dictionaries/dict.$lang.txt" \
        --side "${side%:*}" --new-dict "$bpe/bin/dict.$lang.txt" --method "${method%%=*}" "${more[@]}" \
        --seed "$seed" --output "$to"
      from=$to/model.pt dictionaries=$to
    done
  done
done

for seed in ${SEEDS:-1}; do
  for method in $METHODS anew whole; do
    run=$OUTPUT/runs/$method.seed$seed epochs=$TUNE tuned=(--finetune-from-model "$OUTPUT/models/$method.seed$seed/decoder/model.pt")
    [[ $method != whole ]] || epochs=$EPOCHS
    [[ $method != anew && $method != whole ]] || tuned=()
    places="DATA=${bpe@Q} RUN=${run@Q}"
    echo "$method.seed$seed: $places LABELS=method=$method DIM=${DIM:-300}${HEADS:+ HEADS=$HEADS} bash ${steps@Q}/train.sh" \
      "--seed $seed --max-epoch $epochs ${tuned[*]@Q} ${*@Q} && $places bash ${steps@Q}/generate.sh"
  done
done | embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"}
embinit compare "$OUTPUT/runs" --by method --output "$OUTPUT"
