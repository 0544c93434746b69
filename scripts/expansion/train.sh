#!/usr/bin/env bash
# Train the language model that receives new words later: a small `transformer_lm` on old pieces.
#
#   DATA=data/expansion RUN=runs/lm bash scripts/expansion/train.sh
#
# DATA: prepare.sh's folder. RUN: the folder of this run; the same call continues it (embinit run). Further arguments go to
# fairseq-train, after the options below, so that they can replace them. Further variables:
#   UPDATES=3000      the learning rate falls to 0 over so many, after a warm-up of one in twenty
#   LAYERS=2 DIM=128 HEADS=4 FFN=512   of the model; the matrices of input and output are one
#   PRECISION=        --amp: half precision where PyTorch's autocast has it (bfloat16 on a CPU); validation is in single one
#
# Each paragraph is a sample of its own. RUN/architecture tells adapt.sh the options of the model.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}" "${UPDATES:=3000}"
: "${LAYERS:=2}" "${DIM:=128}" "${HEADS:=4}" "${FFN:=512}"
[[ -d $DATA/bin && -f $DATA/words.txt ]] || die "DATA=$DATA: no bin and words.txt in it; set it to the OUTPUT of prepare.sh"
[[ $UPDATES =~ ^[1-9][0-9]*$ ]] || die "UPDATES=$UPDATES: set it to a whole number from 1"
every=$(((UPDATES + 9) / 10))
model=(--arch transformer_lm --share-decoder-input-output-embed --decoder-normalize-before
  --decoder-embed-dim "$DIM" --decoder-input-dim "$DIM" --decoder-output-dim "$DIM" --decoder-ffn-embed-dim "$FFN"
  --decoder-layers "$LAYERS" --decoder-attention-heads "$HEADS")

# shellcheck disable=SC2086 # PRECISION may be empty
embinit run "$RUN" --label task=language_modeling -- \
  fairseq-train "$DATA/bin" --user-dir "$REPO/scripts/expansion/word_loss" --task language_modeling \
  --sample-break-mode eos --tokens-per-sample 1024 "${model[@]}" --dropout 0.1 \
  --criterion word_loss --new-words "$DATA/words.txt" \
  --optimizer adam --adam-betas "(0.9, 0.98)" --weight-decay 0.01 --clip-norm 1.0 \
  --lr 2e-3 --lr-scheduler polynomial_decay --warmup-updates "$((UPDATES / 20))" --total-num-update "$UPDATES" \
  --max-update "$UPDATES" --max-tokens 2048 --validate-interval-updates "$every" --save-interval-updates "$every" \
  --keep-interval-updates 1 --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000 \
  --num-workers 0 --log-format json --log-interval 20 ${PRECISION:-} "${DEVICE[@]}" "$@"
echo "${model[*]}" >"$RUN/architecture"
