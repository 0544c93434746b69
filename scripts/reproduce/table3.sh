#!/usr/bin/env bash
# Table 3 of Kim et al. 2024: Multi30k, German to English, with word vectors. {xavier, pretrained, pretrained_xavier} x
# {embeddings trained, frozen} x {with, without positions} x seeds, then one table.
#
#   OUTPUT=reproduced3 VECTORS_DE=german.vec VECTORS_EN=glove.840B.300d.txt bash scripts/reproduce/table3.sh
#   OUTPUT=runs/table3 MULTI30K=multi30k SEEDS=1 bash scripts/reproduce/table3.sh --max-epoch 3
#
# OUTPUT                  data, runs and results (results.md, results.json, curves.png) go here
# MULTI30K                a copy of the data set, see scripts/multi30k/prepare.sh; without it the files are downloaded
# VECTORS_DE, VECTORS_EN  without them: learned from the training text
# TOKENS                  moses (default) or spacy, as in the paper. DIM: of the vectors, default 300
# INITS, SEEDS            default: "xavier pretrained pretrained_xavier", "1 2 3". JOBS: see embinit grid
#
# Further arguments go to fairseq-train. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder for data, runs and results}"
steps=$REPO/scripts/multi30k data=$OUTPUT/data DIM=${DIM:-300} INITS=${INITS:-xavier pretrained pretrained_xavier}

DATA=${MULTI30K:-} OUTPUT=$data DIRECTION=de-en bash "$steps/prepare.sh"
for lang in de en; do
  given=VECTORS_${lang^^} file=$OUTPUT/vectors.$lang.$DIM.txt
  [[ -z ${!given:-} || -e ${!given} ]] || die "$given=${!given}: no such file"
  [[ -n ${!given:-} || -e $file ]] ||
    python "$REPO/scripts/train_vectors.py" --text "$data/text/train.$lang" --dim "$DIM" --output "$file"
done
paths=("encoder=${VECTORS_DE:-$OUTPUT/vectors.de.$DIM.txt}" "decoder=${VECTORS_EN:-$OUTPUT/vectors.en.$DIM.txt}")

# Seeds outermost: after the first seed the table is complete, if without deviations.
for seed in ${SEEDS:-1 2 3}; do
  for init in $INITS; do
    for positions in no yes; do
      for trained in no yes; do
        name=$init.trained_$trained.positions_$positions.seed$seed options="--embed-init $init --seed $seed"
        [[ $trained == yes ]] || options+=" --embed-init-freeze encoder decoder"
        [[ $positions == yes ]] || options+=" --no-token-positional-embeddings"
        places="DATA=${data@Q} RUN=${OUTPUT@Q}/runs/$name"
        labels="LABELS='trained=$trained positions=$positions'"
        echo "$name: $places DIM=$DIM $labels bash ${steps@Q}/train.sh $options" \
          "--embed-init-path ${paths[*]@Q} ${*@Q} && $places bash ${steps@Q}/generate.sh"
      done
    done
  done
done | embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"}
baseline="positions yes, trained yes"
[[ $INITS != *" "* ]] || baseline="${INITS%% *}, $baseline"
embinit compare "$OUTPUT/runs" --baseline "$baseline" --output "$OUTPUT"
