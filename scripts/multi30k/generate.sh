#!/usr/bin/env bash
# Translate the test set (test_2016_flickr) with the checkpoint of the lowest validation loss, and score it.
#
#   DATA=data/de-en RUN=runs/xavier bash scripts/multi30k/generate.sh
#   DATA=data/de-en RUN=runs/xavier SUBSET=valid bash scripts/multi30k/generate.sh --beam 10
#
# DATA, RUN: as for train.sh. SUBSET: test (default) or valid. Further arguments go to
# fairseq-generate. The scores go to RUN/result.json, by embinit score:
#   bleu            on detokenised text against the raw reference, both lower-cased (the models' vocabulary is)
#   bleu_tokenized  on lower-cased tokens as they are; comparable with papers that report tokenised BLEU only
#   chrf            on the same text as bleu
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}"
[[ -f $DATA/settings ]] || die "DATA=$DATA: not made by prepare.sh"
[[ -f $RUN/checkpoints/checkpoint_best.pt ]] || die "RUN=$RUN: no checkpoints/checkpoint_best.pt; run train.sh first"
SUBSET=${SUBSET:-test}
log=$RUN/$SUBSET.generate.log
setting() { sed -n "s/^$1=//p" "$DATA/settings"; }
target=$(setting DIRECTION) target=${target#*-}
case $(setting TOKENS) in
  subword_nmt) steps=(bpe moses) ;;
  sentencepiece) steps=("sentencepiece=$DATA/spm.model") ;;
  huggingface) steps=("huggingface=$(setting HF)") ;;
  *) steps=("$(setting TOKENS)") ;;
esac

fairseq-generate "$DATA/bin" --user-dir "$PLUGIN" --task translation --gen-subset "$SUBSET" \
  --path "$RUN/checkpoints/checkpoint_best.pt" --beam 5 --batch-size 128 --num-workers 0 "${DEVICE[@]}" "$@" \
  >"$log" 2>&1 || die "fairseq-generate failed; the end of $log: $(tail -n 1 "$log")"
embinit score "$RUN" --subset "$SUBSET" --ref "$DATA/corpus/raw/$SUBSET.$target" \
  --tokenized "$DATA/corpus/tok/$SUBSET.$target" --lowercase --lang "$target" --detokenize "${steps[@]}"
