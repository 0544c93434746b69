#!/usr/bin/env bash
# Train a classifier (3 layers, from scratch) on prepared data of SST-2 or MNLI with the settings of Kim et al. 2024.
#
#   DATA=data/sst2 RUN=runs/pretrained.seed1 bash scripts/sst2/train.sh \
#     --embed-init pretrained --embed-init-path encoder=MODEL_DIRECTORY --seed 1
#
# DATA: prepare.sh's folder, which also says which task it is. RUN: the folder of this run; the same call continues it
# (embinit run), and with a higher --max-epoch a finished one. LABELS: further labels for embinit compare, such as
# "experiment=sst2.bert". Further arguments go to fairseq-train, after the options below, so that they can replace them.
#
# Writes RUN/checkpoints/checkpoint_{best,last}.pt (best: highest validation accuracy) and RUN/result.json (best
# validation accuracy and its epoch). Of MNLI the matched set decides; scores.mismatched is the accuracy on the other set
# at that epoch, and the highest one with its epoch.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}"
[[ -d $DATA/bin && -f $DATA/settings ]] || die "DATA=$DATA: not prepared (no folder bin in it); run prepare.sh first"
task=$(sed -n 's/^task=//p' "$DATA/settings") dim=$(sed -n 's/^dim=//p' "$DATA/settings")
read -ra options <"$DATA/corpus/options"

# --no-shuffle: batches are formed of neighbours in the text, which prepare.sh has sorted by length; their order is
# still shuffled in every epoch. --shorten-method: pairs of more than 512 tokens are shortened.
# shellcheck disable=SC2086 # LABELS is a list of words
embinit run "$RUN" --label "task=$task" ${LABELS:-} -- fairseq-train "$DATA/bin" --user-dir "$PLUGIN" \
  --task sentence_prediction "${options[@]}" --separator-token 2 --shorten-method truncate --no-shuffle \
  --arch embinit_classifier --encoder-layers 3 --encoder-embed-dim "$dim" --dropout 0.1 \
  --criterion sentence_prediction --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric \
  --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-9 --lr 1e-4 --lr-scheduler fixed \
  --batch-size 128 --required-batch-size-multiple 1 --max-epoch 10 --num-workers 0 \
  --no-epoch-checkpoints --log-format json --log-interval 100 "${DEVICE[@]}" "$@"
[[ ! -f $DATA/corpus/valid1.label ]] || python "$REPO/scripts/glue/mismatched.py" "$RUN"
