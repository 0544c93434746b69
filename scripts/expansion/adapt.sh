#!/usr/bin/env bash
# Continue the training of a language model with new words, and follow its perplexity per word.
#
#   DATA=data/expansion LM=runs/lm MODEL=runs/models/avg.seed1 RUN=runs/avg.seed1 bash scripts/expansion/adapt.sh --seed 1
#
# DATA: prepare.sh's folder. LM: train.sh's folder. MODEL: a folder that expand.sh made; without it, LM is trained with
# the old pieces. RUN: the folder of this run; the same call continues it (embinit run). Further arguments go to
# fairseq-train, after the options below, so that they can replace them. Further variables:
#   UPDATES=500 EVERY=20   number of updates, and how often to validate
#   PRECISION=             --amp: half precision where PyTorch's autocast has it (bfloat16 on a CPU); not in validation
#
# The learning rate has no warm-up, and Adam starts again. RUN/start.log has the validation before the first update, and
# RUN/expansion.json the measurements of expand-vocab.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${LM:?set it to the folder of train.sh}" "${RUN:?set it to the folder of the run}"
: "${MODEL:=}" "${UPDATES:=500}" "${EVERY:=20}"
[[ -f $DATA/words.txt ]] || die "DATA=$DATA: no words.txt in it; set it to the OUTPUT of prepare.sh"
[[ -f $LM/architecture ]] || die "LM=$LM: not trained to the end; run train.sh with RUN=$LM first"
method=none bin=$DATA/bin checkpoint=$LM/checkpoints/checkpoint_last.pt
[[ ! -d $DATA/bin.old ]] || bin=$DATA/bin.old # of a new domain
if [[ -n $MODEL ]]; then
  method=$(basename "$MODEL") bin=$(dirname "$MODEL")/bin checkpoint=$MODEL/model.pt
  [[ -f $checkpoint && -d $bin ]] || die "MODEL=$MODEL: no model.pt in it, or no bin next to it; run expand.sh first"
fi
settings "$RUN" "model=$(sha256sum <"$checkpoint")" "words=$(sha256sum <"$DATA/words.txt")"
read -ra architecture <"$LM/architecture"
task=("$bin" --user-dir "$REPO/scripts/expansion/word_loss" --task language_modeling --sample-break-mode eos
  --tokens-per-sample 1024 --num-workers 0 --log-format json "${DEVICE[@]}")

if [[ ! -f $RUN/start.log ]]; then
  overrides=$(python -c 'import sys; print({"new_words": sys.argv[1]})' "$DATA/words.txt")
  fairseq-validate "${task[@]}" --path "$checkpoint" --max-tokens 4096 --required-batch-size-multiple 1 \
    --model-overrides "$overrides" >"$RUN/start.part" 2>&1 || die "fairseq-validate failed; see $RUN/start.part"
  mv "$RUN/start.part" "$RUN/start.log"
  [[ -z $MODEL ]] || cp "$MODEL/expansion.json" "$RUN"
fi
# shellcheck disable=SC2086 # PRECISION may be empty
embinit run "$RUN" --label task=language_modeling "method=${method%.seed*}" -- \
  fairseq-train "${task[@]}" "${architecture[@]}" --dropout 0.1 --criterion word_loss --new-words "$DATA/words.txt" \
  --finetune-from-model "$checkpoint" \
  --optimizer adam --adam-betas "(0.9, 0.98)" --clip-norm 1.0 --lr 2e-4 --lr-scheduler fixed \
  --max-update "$UPDATES" --max-tokens 1024 --max-tokens-valid 4096 --required-batch-size-multiple 1 \
  --validate-interval-updates "$EVERY" --save-interval-updates 100 --keep-interval-updates 1 \
  --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000 --log-interval 20 ${PRECISION:-} "$@"
