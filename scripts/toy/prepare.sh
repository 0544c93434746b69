#!/usr/bin/env bash
# Make the toy German-English corpus from its grammar (no download) and binarise it for fairseq.
#
#   OUTPUT=runs/toy bash scripts/toy/prepare.sh
#
# Makes OUTPUT/text (train, valid and test text, and a larger text of each language alone) and OUTPUT/bin. SEED=1,
# TRAIN=4000, TEST=1000, MONOLINGUAL=40000 (sentences; the last one per language). The same call continues a stopped one;
# other values need another folder.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder to make}"
out=$OUTPUT SEED=${SEED:-1} TRAIN=${TRAIN:-4000} TEST=${TEST:-1000} MONOLINGUAL=${MONOLINGUAL:-40000}
settings "$out" SEED="$SEED" TRAIN="$TRAIN" TEST="$TEST" MONOLINGUAL="$MONOLINGUAL"

[[ -e $out/text ]] || {
  rm -rf "$out/text.part"
  PYTHONPATH=$REPO/scripts:$REPO python -m toy.corpus --seed "$SEED" --train "$TRAIN" --test "$TEST" \
    --monolingual "$MONOLINGUAL" --output "$out/text.part"
  mv "$out/text.part" "$out/text"
}
[[ -e $out/bin ]] || {
  rm -rf "$out/bin.part"
  fairseq-preprocess --source-lang de --target-lang en --destdir "$out/bin.part" --workers 1 \
    --trainpref "$out/text/train" --validpref "$out/text/valid" --testpref "$out/text/test" \
    >"$out/preprocess.log" 2>&1 ||
    die "fairseq-preprocess failed; see $out/preprocess.log"
  python "$REPO/scripts/tokens.py" record --kind words --folder "$out/bin.part" --made-by scripts/toy/prepare.sh \
    --dict dict.de.txt dict.en.txt --langs de en --raw "$out"/text/valid.{de,en} --prepared "$out"/text/valid.{de,en}
  mv "$out/bin.part" "$out/bin"
}
