#!/usr/bin/env bash
# SST-2 or MNLI with the embedding layer of a real language model, or with word vectors: initialisations x seeds, then a
# table and curves.
#
#   DATA=SST-2 OUTPUT=runs/sst2 HF=MODEL_DIRECTORY bash scripts/sst2/run.sh --max-epoch 5
#   DATA=MNLI OUTPUT=runs/mnli TASK=MNLI VECTORS=glove.840B.300d.txt bash scripts/sst2/run.sh --max-epoch 9
#
# DATA, TASK, HF: as in prepare.sh. VECTORS: where the vectors come from (default: HF). OUTPUT: data, runs and results
# go here. INITS: values of --embed-init, and none for fairseq's own; default "xavier pretrained pretrained_xavier
# shuffled xavier_pretrained". SEEDS: default "1 2". JOBS: runs at a time (embinit grid). LABELS: as in train.sh.
# Further arguments go to fairseq-train.
#
# Can be stopped and started again: finished runs are kept, interrupted ones continue. With a higher --max-epoch all go
# on. Results: OUTPUT/results.md, results.json, curves.png.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder ${TASK:-SST-2} of GLUE, with train.tsv}" "${OUTPUT:?set it to a folder for the results}"
VECTORS=${VECTORS:-${HF:-}}
[[ -n $VECTORS ]] || die "set HF to a Hugging Face folder, or VECTORS to word vectors"

OUTPUT=$OUTPUT/data bash "$REPO/scripts/sst2/prepare.sh"
for seed in ${SEEDS:-1 2}; do
  for init in ${INITS:-xavier pretrained pretrained_xavier shuffled xavier_pretrained}; do
    embeddings=(--embed-init "$init" --embed-init-path "encoder=$VECTORS")
    [[ $init != none ]] || embeddings=()
    printf '%s: ' "$init.seed$seed"
    printf '%q ' env DATA="$OUTPUT/data" RUN="$OUTPUT/runs/$init.seed$seed" \
      bash "$REPO/scripts/sst2/train.sh" "${embeddings[@]}" --seed "$seed" "$@"
    echo
  done
done | embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"}
embinit compare "$OUTPUT/runs" --output "$OUTPUT"
