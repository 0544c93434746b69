#!/usr/bin/env bash
# Train a translation model on prepared IWSLT 2017 data with the settings of Kim et al. 2024: those of Multi30k in
# batches of 128 sentences (112 with mT5: --batch-size 112).
#
#   DATA=data/iwslt17 RUN=runs/glove bash scripts/iwslt17/train.sh --embed-init pretrained_xavier \
#     --embed-init-path encoder=german.300d.txt decoder=glove.840B.300d.txt --seed 1
#
# DATA, RUN, DIM, HEADS, LABELS and what stands behind the script's name: as for scripts/multi30k/train.sh.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to what prepare.sh made}" "${RUN:?set it to the folder of the run}"
[[ -d $DATA/source && -d $DATA/bin ]] || die "DATA=$DATA: no folders source and bin in it; run iwslt17/prepare.sh first"
bash "$REPO/scripts/multi30k/train.sh" --batch-size 128 "$@"
