#!/usr/bin/env bash
# Train one classifier on data made by prepare.sh, with the settings of Li et al. 2020, section 4.1, and test it.
#
#   DATA=data/mr RUN=runs/glove50+glove300.softmax.1 bash scripts/textcls/train.sh --arch duo_classifier \
#     --encoder-dim-s 50 --encoder-dim-p 300 --embed-init pretrained \
#     --embed-init-path encoder=glove.6B.50d.txt encoder_p=glove.6B.300d.txt
#
# DATA: prepare.sh's folder. RUN: the folder of this run (embinit run). SEED: of the validation texts and of the
# training (1). LABELS: labels for tables, model=glove50+glove300 attention=softmax. KEEP: not empty: keep the
# checkpoint. Further arguments go to fairseq-train, after the options below, so that they can replace them.
# A finished run is left alone, a stopped one starts again. Writes RUN/train.log (a line every 50
# updates), RUN/test.log, RUN/result.json with accuracy, macro-F1 and F1 of each class, RUN/confusion.png.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}"
seed=${SEED:-1} best=$RUN/checkpoints/checkpoint_best.pt
[[ -f $DATA/corpus/labels.txt && -d $DATA/seeds/$seed/bin ]] ||
  die "DATA=$DATA: no seeds/$seed/bin in it; run prepare.sh with OUTPUT=$DATA SEEDS=$seed first"

mapfile -t labels < <(grep -v -e ^data= -e sha256 "$DATA/settings")
task=("$DATA/seeds/$seed/bin" --user-dir "$PLUGIN" --task sentence_prediction --criterion sentence_prediction_metrics
  --num-classes "$(wc -l <"$DATA/corpus/labels.txt")" --batch-size 128 --num-workers 0 --log-format json "${DEVICE[@]}")
longest=$(awk 'NF > n { n = NF } END { print n + 1 }' "$DATA"/corpus/*.input0) # with </s>

# No last checkpoint: it would not hold how long --patience has waited, and a continued training would end later.
# without a last checkpoint, which would be as large as the vectors, a stopped training begins again
[[ -f "$RUN"/result.json ]] || rm -rf "$RUN"
# shellcheck disable=SC2086 # LABELS is a list of words
embinit run "$RUN" --label "${labels[@]}" ${LABELS:-} -- fairseq-train "${task[@]}" \
  --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-9 --lr 1e-3 --lr-scheduler fixed \
  --max-positions "$longest" --required-batch-size-multiple 1 --max-epoch 200 --patience 10 --log-interval 50 \
  --no-epoch-checkpoints --no-last-checkpoints --no-save-optimizer-state "$@" --seed "$seed"

if [[ -f $best ]]; then # it is removed when it has been tested: both embedding matrices are in it
  fairseq-validate "${task[@]}" --path "$best" --valid-subset test \
    --glue-metrics accuracy confusion >"$RUN/test.log" 2>&1 ||
    die "the test of $best failed; see $RUN/test.log"
fi
python "$REPO/scripts/textcls/scores.py" "$RUN" --labels "$DATA/corpus/labels.txt"
[[ -n ${KEEP:-} ]] || rm -f "$best"
