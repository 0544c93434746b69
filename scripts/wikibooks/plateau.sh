#!/usr/bin/env bash
# Do word vectors free models that do not begin to learn (docs/results/mlm.md), and is it their content? Three masked
# language models x {fairseq's own numbers, vectors learned from the same text, the same vectors shuffled}, all of one sigma.
#
#   DATA=data/wikibooks OUTPUT=runs/plateau SEEDS="1 2" bash scripts/wikibooks/plateau.sh
#
# DATA     prepare.sh's folder, with its folder work
# OUTPUT   vectors, runs and the results (results.md, results.json, curves.png) go here
# INITS    default: "own vectors shuffled". MODELS: default: "bert_a bert_ad tupe_a". SEEDS=1
# UPDATES=3600   of a training whose learning rate falls to 0 over SCHEDULE=6000, so that it is that of docs/results/mlm.md
# JOBS     trainings at a time, see embinit grid
#
# Further arguments go to fairseq-train. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${OUTPUT:?set it to the folder for runs and results}"
: "${UPDATES:=3600}" "${SCHEDULE:=6000}" "${SEEDS:=1}"
integers UPDATES SCHEDULE
[[ -d $DATA/work/encoded ]] || die "DATA=$DATA: no work/encoded in it; set it to the OUTPUT of prepare.sh"
mkdir -p "$OUTPUT"
if [[ ! -f $OUTPUT/vectors.txt ]]; then
  cat "$DATA"/work/encoded/*/train.txt >"$OUTPUT/text"
  python "$REPO/scripts/train_vectors.py" --text "$OUTPUT/text" --dim 128 --output "$OUTPUT/vectors.txt"
fi
std=(--embed-init-std 0.02) paths=(--embed-init-path "encoder=$OUTPUT/vectors.txt") # 0.02: BERT's own sigma
declare -A models=([bert_a]=bert_a_tiny [bert_ad]=bert_ad_tiny [tupe_a]=tupe_tiny)
declare -A inits=([own]="" [vectors]="--embed-init pretrained_xavier ${paths[*]@Q} ${std[*]}"
  [shuffled]="--embed-init shuffled ${paths[*]@Q} ${std[*]}")

for seed in $SEEDS; do
  for model in ${MODELS:-bert_a bert_ad tupe_a}; do
    for init in ${INITS:-own vectors shuffled}; do
      [[ -n ${models[$model]:-} && -n ${inits[$init]+set} ]] ||
        die "MODELS, INITS: $model, $init: choose of ${!models[*]} and of ${!inits[*]}"
      echo "$model.$init.seed$seed: env DATA=${DATA@Q} RUN=${OUTPUT@Q}/runs/$model.$init.seed$seed" \
        "LABELS='model=$model vectors=$init' UPDATES=$SCHEDULE BATCH=8 SAVE_EVERY=200 PRECISION=" \
        "bash ${REPO@Q}/scripts/wikibooks/train.sh --seed $seed --embedding-normalize --arch ${models[$model]}" \
        "--tokens-per-sample 128 --encoder-layers 2 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512 --lr 1e-3" \
        "--warmup-updates 600 --max-update $UPDATES ${inits[$init]} ${*@Q}"
    done
  done
done | embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"}
embinit compare "$OUTPUT/runs" --by model vectors --output "$OUTPUT" --x updates
