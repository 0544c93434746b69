#!/usr/bin/env bash
# Kim's grid (2024) on Multi30k: directions x architectures x initialisations x seeds, then a table and curves.
#
#   OUTPUT=runs/multi30k VECTORS_EN=glove.6B.300d.txt bash scripts/multi30k/run.sh
#   OUTPUT=runs/untied ARCHS="transformer tupe_transformer" SEEDS="1 2 3" bash scripts/multi30k/run.sh --max-epoch 8
#
# OUTPUT      data, vectors, runs, logs and the results (results.md, results.json, curves.png) go here
# DIRECTIONS  default: "de-en en-de"
# ARCHS       default: transformer
# INITS       strategies of --embed-init, default: "xavier pretrained pretrained_xavier shuffled"
# SEEDS       default: "1 2"
# VECTORS_DE, VECTORS_EN
#             vectors of a language; without them: HF, else learned from the training text (scripts/train_vectors.py)
# JOBS        trainings at a time, default: one per GPU, else one per core; on a cluster see embinit grid --help
# CORPUS      multi30k (default) or another folder of scripts/ with the same files of other German and English text (iwslt17)
# DATA, TOKENS, HF and the like: as for prepare.sh. DIM, HEADS: as for train.sh
#
# Further arguments go to fairseq-train. The same call continues a stopped one, and with a
# higher --max-epoch all trainings go on. The table so far, while the grid is running: embinit compare OUTPUT/runs
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder for data, runs and results}"
steps=$REPO/scripts/multi30k prepare=$REPO/scripts/${CORPUS:-multi30k}/prepare.sh DIM=${DIM:-300}
[[ -f $prepare ]] || die "CORPUS=$CORPUS: no folder of scripts/ with prepare.sh"
DIRECTIONS=${DIRECTIONS:-de-en en-de} INITS=${INITS:-xavier pretrained pretrained_xavier shuffled}

vectors() { # LANG: the file
  local given=VECTORS_${1^^}
  echo "${!given:-${HF:-$OUTPUT/vectors.$1.$DIM.txt}}"
}
for given in VECTORS_DE VECTORS_EN; do
  [[ -z ${!given:-} || -e ${!given} ]] || die "$given=${!given}: no such file"
done
for direction in $DIRECTIONS; do OUTPUT=$OUTPUT/data/$direction DIRECTION=$direction bash "$prepare"; done
for lang in de en; do
  file=$(vectors $lang)
  [[ -e $file ]] || python "$REPO/scripts/train_vectors.py" --dim "$DIM" --output "$file" \
    --text "$OUTPUT/data/${DIRECTIONS%% *}/text/train.$lang"
done

# Seeds outermost: after the first seed the table is complete, if without deviations.
for seed in ${SEEDS:-1 2}; do
  for direction in $DIRECTIONS; do
    for arch in ${ARCHS:-transformer}; do
      for init in $INITS; do
        run=$OUTPUT/runs/$direction.$arch.$init.seed$seed
        places="DATA=${OUTPUT@Q}/data/$direction RUN=${run@Q}"
        paths=("encoder=$(vectors "${direction%-*}")" "decoder=$(vectors "${direction#*-}")")
        echo "$direction.$arch.$init.seed$seed: $places DIM=$DIM${HEADS:+ HEADS=$HEADS} bash ${steps@Q}/train.sh" \
          "--arch $arch --seed $seed --embed-init $init --embed-init-path ${paths[*]@Q} ${*@Q}" \
          "&& $places bash ${steps@Q}/generate.sh"
      done
    done
  done
done | embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"}
embinit compare "$OUTPUT/runs" --output "$OUTPUT"
