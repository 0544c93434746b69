#!/usr/bin/env bash
# GLUE as in Ke et al. 2021: tasks x pre-trained models x learning rates x seeds, then one table.
#
#   DATA=GLUE OUTPUT=runs/glue DICT=pretraining/bin/dict.txt CODES=pretraining/bpe.codes \
#     bash scripts/glue/run.sh bert_a=bert_a.pt tupe_r=tupe_r.pt random=scratch:tupe_r.pt --max-epoch 3
#
# DATA, DICT, CODES, HF: as in prepare.sh. OUTPUT: data, runs and results go here. NAME=FILE ...: pre-trained models;
# NAME=scratch:FILE is the same architecture with random weights. Further arguments go to fairseq-train.
# TASKS: default all of DATA; RATES: peak learning rates, default "2e-5 3e-5 4e-5 5e-5"; SEEDS: default
# "1 2 3 4 5". JOBS: runs at a time (embinit grid). KEEP=1: keep the checkpoints of finished runs, 24 bytes a parameter.
#
# Can be stopped and started again, also with more of everything: finished runs are kept, interrupted ones continue. The
# table holds, for each model and task, the median over seeds at the best rate: OUTPUT/results.md, results.json.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder with the tasks of GLUE (CoLA, RTE, ...)}" "${OUTPUT:?set it to a folder for the results}"
HERE=$REPO/scripts/glue
models=()
while [[ ${1:-} =~ ^[A-Za-z0-9_.+-]+=. && $1 != -* ]]; do
  [[ -f ${1#*=} || -f ${1#*=scratch:} ]] || die "$1: no such file"
  models+=("$1") && shift
done
[[ ${#models[@]} -gt 0 ]] || die "name pre-trained models: NAME=FILE ..., NAME of letters, digits and _ . + -"
TASKS=${TASKS:-$(python "$HERE/glue_tasks.py" names "$DATA")}

for task in $TASKS; do
  TASK=$task OUTPUT=$OUTPUT/data/$task bash "$HERE/prepare.sh"
done
# Seed by seed: a grid that was stopped has all rates with equally many seeds.
for seed in ${SEEDS:-1 2 3 4 5}; do for task in $TASKS; do for model in "${models[@]}"; do
  for rate in ${RATES:-2e-5 3e-5 4e-5 5e-5}; do
    name=${model%%=*} file=${model#*=} run=$OUTPUT/runs/$task.${model%%=*}.$rate.$seed scratch=""
    [[ $file != scratch:* ]] || scratch=1
    printf '%s: ' "$task.$name.$rate.$seed"
    printf '%q ' env DATA="$OUTPUT/data/$task" RUN="$run" CHECKPOINT="${file#scratch:}" SCRATCH=$scratch MODEL="$name" \
      LABELS="lr=$rate" bash "$HERE/train.sh" --lr "$rate" --seed "$seed" "$@"
    [[ -n ${KEEP:-} ]] || printf '&& rm -rf %q' "$run/checkpoints"
    echo
  done
done; done; done | embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"}
python "$REPO/scripts/tables.py" glue "$OUTPUT/runs" --output "$OUTPUT"
