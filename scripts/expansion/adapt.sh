#!/usr/bin/env bash
# Train a language model with new words on, and follow its perplexity per word.
#
#   DATA=data/expansion MODEL=runs/models/avg.seed1 RUN=runs/avg.seed1 bash scripts/expansion/adapt.sh --seed 1
#
# DATA: what prepare.sh made. MODEL: a folder that expand.sh made; models/none goes on with the old pieces. RUN: the folder
# of this run; the same call continues it (embinit run). What stands behind the script's name goes to fairseq-train, after
# the options below, so that it can replace them. Further variables:
#   UPDATES=500 EVERY=20   how long, and how often to validate
#   PRECISION=             --amp: half precision where PyTorch's autocast has it (bfloat16 on a CPU); not in validation
#
# The learning rate has no warm-up, and Adam begins anew. RUN/start.log has the validation before the first update, and
# RUN/expansion.json what expand-vocab has measured.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to what prepare.sh made}" "${MODEL:?set it to a folder that expand.sh made}"
: "${RUN:?set it to the folder of the run}" "${UPDATES:=500}" "${EVERY:=20}"
[[ -f $DATA/words.txt ]] || die "DATA=$DATA: no words.txt in it; set it to the OUTPUT of prepare.sh"
[[ -f $MODEL/model.pt && -d $MODEL/bin ]] || die "MODEL=$MODEL: no model.pt and bin in it; run expand.sh first"
method=$(basename "$MODEL")
settings "$RUN" "model=$(sha256sum <"$MODEL/model.pt")" "words=$(sha256sum <"$DATA/words.txt")"
read -ra architecture <"$MODEL/architecture"
task=("$MODEL/bin" --user-dir "$REPO/scripts/expansion/word_loss" --task language_modeling --sample-break-mode eos
  --tokens-per-sample 1024 --num-workers 0 --log-format json "${DEVICE[@]}")

if [[ ! -f $RUN/start.log ]]; then
  overrides=$(python -c 'import sys; print({"new_words": sys.argv[1]})' "$DATA/words.txt")
  fairseq-validate "${task[@]}" --path "$MODEL/model.pt" --max-tokens 4096 --required-batch-size-multiple 1 \
    --model-overrides "$overrides" >"$RUN/start.part" 2>&1 || die "fairseq-validate failed; see $RUN/start.part"
  mv "$RUN/start.part" "$RUN/start.log"
  [[ ! -f $MODEL/expansion.json ]] || cp "$MODEL/expansion.json" "$RUN"
fi
# shellcheck disable=SC2086 # PRECISION may be empty
embinit run "$RUN" --label task=language_modeling "method=${method%.seed*}" -- \
  fairseq-train "${task[@]}" "${architecture[@]}" --dropout 0.1 --criterion word_loss --new-words "$DATA/words.txt" \
  --finetune-from-model "$MODEL/model.pt" \
  --optimizer adam --adam-betas "(0.9, 0.98)" --clip-norm 1.0 --lr 2e-4 --lr-scheduler fixed \
  --max-update "$UPDATES" --max-tokens 1024 --max-tokens-valid 4096 --required-batch-size-multiple 1 \
  --validate-interval-updates "$EVERY" --save-interval-updates 100 --keep-interval-updates 1 \
  --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000 --log-interval 20 ${PRECISION:-} "$@"
