#!/usr/bin/env bash
# Make the toy German-English corpus from its grammar (no download) and binarise it for fairseq.
#
#   OUT=runs/toy bash scripts/toy/prepare.sh
#
# OUT: gets OUT/text (train, valid and test text, and a larger text of each language alone) and OUT/bin.
# SEED=1, TRAIN=4000, TEST=1000, MONOLINGUAL=40000 (sentences; the last one per language). The same call goes on with what is
# missing; other values need another folder.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUT:?set it to the folder to make}"
SEED=${SEED:-1} TRAIN=${TRAIN:-4000} TEST=${TEST:-1000} MONOLINGUAL=${MONOLINGUAL:-40000}
settings "$OUT" SEED="$SEED" TRAIN="$TRAIN" TEST="$TEST" MONOLINGUAL="$MONOLINGUAL"

[[ -e $OUT/text ]] || {
  rm -rf "$OUT/text.part"
  PYTHONPATH=$REPO/scripts:$REPO python -m toy.corpus --seed "$SEED" --train "$TRAIN" --test "$TEST" \
    --monolingual "$MONOLINGUAL" --output "$OUT/text.part" >/dev/null
  mv "$OUT/text.part" "$OUT/text"
}
[[ -e $OUT/bin ]] || {
  rm -rf "$OUT/bin.part"
  fairseq-preprocess --source-lang de --target-lang en --destdir "$OUT/bin.part" --workers 1 --trainpref "$OUT/text/train" \
    --validpref "$OUT/text/valid" --testpref "$OUT/text/test" >"$OUT/preprocess.log" 2>&1 ||
    die "fairseq-preprocess failed; see $OUT/preprocess.log"
  mv "$OUT/bin.part" "$OUT/bin"
}
