#!/usr/bin/env bash
# Fine-tune a pre-trained model on a prepared task of GLUE, with the settings of Ke et al. 2021 (table 2).
#
#   DATA=data/RTE RUN=runs/RTE.tupe_r CHECKPOINT=tupe_r.pt bash scripts/glue/train.sh --lr 2e-5 --seed 1
#
# DATA: prepare.sh's folder. RUN: the folder of this run; the same call continues it (embinit run). CHECKPOINT: the
# pre-trained model, whose architecture and options are read from the file. SCRATCH=1: the same architecture with random
# weights. ARCH: another architecture; without CHECKPOINT it is trained from scratch. MODEL: name of the model in
# tables (default: the architecture). LABELS: further labels for embinit compare, such as "lr=2e-5". Further arguments go to
# fairseq-train, after the options below, so that they can replace them.
#
# Writes RUN/result.json, whose best epoch is that by GLUE's metric of the task (Matthews' correlation for CoLA,
# Pearson's for STS-B, accuracy otherwise), and RUN/checkpoints/checkpoint_{best,last}.pt.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}"
CHECKPOINT=${CHECKPOINT:-} SCRATCH=${SCRATCH:-} ARCH=${ARCH:-}
[[ -d $DATA/bin && -f $DATA/settings ]] || die "DATA=$DATA: not prepared (no folder bin in it); run prepare.sh first"
[[ -n $CHECKPOINT$ARCH ]] || die "set CHECKPOINT to a pre-trained model (or ARCH, to train from scratch)"
[[ -z $CHECKPOINT || -f $CHECKPOINT ]] || die "CHECKPOINT=$CHECKPOINT: no such file"

# The number of updates of the pre-training, and the options that build the model of the checkpoint again.
model=(0 --arch "$ARCH")
if [[ -n $CHECKPOINT ]]; then
  words=$(python "$REPO/scripts/glue/model_options.py" "$CHECKPOINT" --dict "$DATA/bin/input0/dict.txt" \
    ${ARCH:+--arch "$ARCH"})
  mapfile -t model <<<"$words"
fi
updates=${model[0]} start=(--finetune-from-model "$CHECKPOINT")
[[ -n $CHECKPOINT && -z $SCRATCH ]] || updates=0 start=()
settings "$RUN" "updates=$updates" # another file may have got the checkpoint's name

task=$(sed -n 's/^task=//p' "$DATA/settings")
read -ra options < <(paste -d ' ' "$DATA/corpus/options" "$DATA/corpus/finetuning")
options+=(--batch-size 32 --update-freq 1 "$@")

# chosen FLAG: the value of the last FLAG of the options.
chosen() {
  local at value=
  for at in "${!options[@]}"; do
    [[ ${options[at]} != "$1" ]] || value=${options[at + 1]:-}
    [[ ${options[at]} != "$1="* ]] || value=${options[at]#*=}
  done
  [[ $value =~ ^[1-9][0-9]*$ ]] || die "$1 ${value:-is missing}: give a positive number, which the schedule needs"
  echo "$value"
}
# The learning rate rises in the first 6 % of the updates and falls linearly to 0 (Ke et al. 2021, Table 2).
batch=$(chosen --batch-size) frequency=$(chosen --update-freq) epochs=$(chosen --max-epoch)
examples=$(wc -l <"$DATA/corpus/train.label")
batches=$(((examples + batch - 1) / batch))
total=$((epochs * ((batches + frequency - 1) / frequency)))
warmup=$((total * 6 / 100))
# --finetune-from-model: the checkpoint's weights for a new run, without its optimizer, schedule and position in the data;
# an interrupted run continues from its own checkpoint_last.pt.
# shellcheck disable=SC2086 # LABELS is a list of words
embinit run "$RUN" --label "task=$task" "model=${MODEL:-${model[2]}}" "updates=$updates" \
  "constant=$(<"$DATA/corpus/constant")" ${LABELS:-} -- fairseq-train "$DATA/bin" --user-dir "$PLUGIN" --task sentence_prediction \
  --init-token 0 --separator-token 2 --shorten-method truncate "${model[@]:1}" "${start[@]}" \
  --criterion sentence_prediction_metrics --optimizer adam --adam-betas "(0.9, 0.999)" --adam-eps 1e-6 \
  --weight-decay 0.01 --clip-norm 1.0 --lr 3e-5 --lr-scheduler polynomial_decay --total-num-update "$total" \
  --warmup-updates "$((warmup > 0 ? warmup : 1))" --required-batch-size-multiple 1 --num-workers 0 \
  --no-epoch-checkpoints --log-format json --log-interval 100 "${DEVICE[@]}" "${options[@]}"
[[ ! -f $DATA/corpus/valid1.label ]] || python "$REPO/scripts/glue/mismatched.py" "$RUN"
