#!/usr/bin/env bash
# Translation with one and with two embeddings of every word, on toy data that this script makes itself (README.md).
#
#   bash examples/duo/run.sh
#   OUTPUT=runs/duo_ladder LADDER=1 bash examples/duo/run.sh
#
# OUTPUT: default runs/duo. SEED: of the data and of the trainings, default 1. JOBS: trainings at a time, default 2.
# LADDER=1: three more trainings, with one switch of Duo after the other (Table 5 of Li et al. 2020). Further arguments go to
# fairseq-train: --max-epoch 10. The same call continues a stopped one.
# shellcheck source=../../scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
OUTPUT=${OUTPUT:-runs/duo} SEED=${SEED:-1}

OUTPUT=$OUTPUT SEED=$SEED bash "$REPO/scripts/toy/prepare.sh"
# Neighbours in a window of one show the use of a word, neighbours in a window of eight its topic.
for window in 1 8; do
  for lang in de en; do
    [[ -e $OUTPUT/vectors.$window.$lang.txt ]] || python "$REPO/scripts/train_vectors.py" --dim 96 --window $window \
      --min-count 5 --text "$OUTPUT/text/mono.$lang" --output "$OUTPUT/vectors.$window.$lang.txt"
  done
done

out=${OUTPUT@Q} more="--seed $SEED ${*@Q}"
near="encoder=$out/vectors.1.de.txt decoder=$out/vectors.1.en.txt"
far="encoder=$out/vectors.8.de.txt decoder=$out/vectors.8.en.txt"
second_near="encoder_p=$out/vectors.1.de.txt decoder_p=$out/vectors.1.en.txt"
second_far="encoder_p=$out/vectors.8.de.txt decoder_p=$out/vectors.8.en.txt"
model() { # ARCH.VECTORS OPTION...: a line of the list
  local labels="LABELS='arch=${1%.*} init=${1#*.}'"
  echo "$1: DATA=$out RUN=$out/runs/$1 $labels bash ${REPO@Q}/scripts/toy/train.sh ${*:2} $more"
}
{
  model transformer.near --arch transformer --embed-init pretrained_xavier --embed-init-path "$near"
  model transformer.far --arch transformer --embed-init pretrained_xavier --embed-init-path "$far"
  duo="--arch duo_transformer --embed-init pretrained_xavier --embed-init-path $near"
  model duo.near_near "$duo $second_near"
  model duo.near_far "$duo $second_far"
  if [[ -n ${LADDER:-} ]]; then
    model duo_meta.near_far "$duo $second_far --duo-share-weights off --duo-norm off --duo-fusion off"
    model duo_shared.near_far "$duo $second_far --duo-norm off --duo-fusion off"
    model duo_norm.near_far "$duo $second_far --duo-fusion off"
  fi
} | embinit grid - --logs "$OUTPUT/logs" --jobs "${JOBS:-2}"
embinit compare "$OUTPUT/runs" --output "$OUTPUT"
