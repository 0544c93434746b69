#!/usr/bin/env bash
# Translate newstest2014 with the mean of a run's last checkpoints, and score it.
#
#   DATA=data/wmt14_en_de RUN=runs/duo bash scripts/wmt14/generate.sh
#
# DATA, RUN, PAIR: as for train.sh. AVERAGE=5: mean of so many last checkpoints (Vaswani et al. take 20 for big models); 0: no
# mean, but the checkpoint of the lowest validation loss. Further arguments go to fairseq-generate, after the
# options below. The scores go to RUN/test.scores.json and RUN/result.json, all of them case-sensitive:
#   bleu, chrf                     sacrebleu's on detokenised text against the raw reference: the figures to report
#   bleu_tokenized                 on Moses tokens
#   bleu_tokenized_compound_split  the same with hyphens as tokens of their own, as Vaswani et al. count for en-de
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
# shellcheck source=../parts.sh
source "$REPO/scripts/parts.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}" "${AVERAGE:=5}"
PAIR=${PAIR:-$(sed -n 's/^pair=//p' "$DATA/settings" 2>/dev/null || true)} PAIR=${PAIR:-en-de}
source=${PAIR%-*} target=${PAIR#*-} checkpoint=$RUN/checkpoints/checkpoint_best.pt log=$RUN/test.generate.log
data_parts "$DATA"
[[ -f ${BIN%%:*}/test.$PAIR.$source.idx ]] || die "DATA=$DATA: no data of $PAIR in its folder bin; set PAIR, or run prepare.sh first"
[[ -f $checkpoint ]] || die "RUN=$RUN: no checkpoints/checkpoint_best.pt; run train.sh first"
steps=(bpe spacy) # Moses' rules, for words without escapes
[[ ! -f $DATA/spm.model ]] || steps=("sentencepiece=$DATA/spm.model")

if [[ $AVERAGE != 0 ]]; then
  checkpoint=$RUN/averaged.$AVERAGE.pt
  embinit average "$RUN" --last "$AVERAGE" --by updates --output "$checkpoint" --force
fi
fairseq-generate "${BIN%%:*}" --user-dir "$PLUGIN" --task translation --gen-subset test --source-lang "$source" \
  --target-lang "$target" --path "$checkpoint" --beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 50 --max-tokens 12000 \
  --num-workers 0 "${DEVICE[@]}" "$@" >"$log" 2>&1 || die "fairseq-generate failed; see $log"
embinit score "$RUN" --ref "$DATA/test.$target" --lang "$target" --detokenize "${steps[@]}"
PYTHONPATH=$REPO/scripts:$REPO python -m wmt14.tokenized_bleu "$RUN" --lang "$target"
