#!/usr/bin/env bash
# Train a small translation model on the toy corpus, translate the test text with the best checkpoint, and score it.
#
#   DATA=runs/toy RUN=runs/toy/runs/xavier bash scripts/toy/train.sh --embed-init xavier --seed 1
#
# DATA: prepare.sh's folder. RUN: the folder of this run; the same call continues it. LABELS: further labels for
# embinit compare, such as "init=mine". Further arguments go to fairseq-train, after the options
# below, so that they can replace them. No GPU is used, and the toy's text is its tokens: nothing is to be put together.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}"
[[ -d $DATA/bin ]] || die "DATA=$DATA: no folder bin in it; run prepare.sh first"
# One thread: fastest for a model of this size, and the same numbers whatever the number of cores.
export OMP_NUM_THREADS=1

# shellcheck disable=SC2086 # LABELS is a list of words
embinit run "$RUN" --label direction=de-en ${LABELS:-} -- \
  fairseq-train "$DATA/bin" --user-dir "$PLUGIN" --task translation --arch transformer_iwslt_de_en \
  --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 96 --decoder-embed-dim 96 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 --encoder-attention-heads 4 --decoder-attention-heads 4 \
  --dropout 0.1 --criterion cross_entropy --max-tokens 800 --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 \
  --lr-scheduler inverse_sqrt --warmup-updates 200 --max-epoch 20 --num-workers 0 --cpu --no-epoch-checkpoints \
  --log-format json --log-interval 100 "$@"
fairseq-generate "$DATA/bin" --user-dir "$PLUGIN" --path "$RUN/checkpoints/checkpoint_best.pt" --beam 5 \
  --max-tokens 4000 --num-workers 0 --cpu >"$RUN/test.generate.log" 2>&1 ||
  die "fairseq-generate failed; the end of $RUN/test.generate.log: $(tail -n 1 "$RUN/test.generate.log")"
embinit score "$RUN" --ref "$DATA/text/test.en" --confidence
