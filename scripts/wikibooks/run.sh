#!/usr/bin/env bash
# Pre-training of several models on the same text: models x seeds, then a table of validation losses and their curves.
#
#   DATA=data/wikibooks OUTPUT=runs/compare SEEDS="1 2" bash scripts/wikibooks/run.sh
#
# DATA: prepare.sh's folder. OUTPUT: runs, results.md, results.json and curves.png go here. Further variables:
#   MODELS="..."   of the six that Ke et al. 2021 compare, which is the default: bert_a bert_r bert_ad (BERT-A^d)
#                  tupe_a_tie_cls (TUPE-A with [CLS] tied) tupe_a tupe_r, with --embedding-normalize as in the authors' code;
#                  and bert_rel, relative positions and no others; later ones: bert_rope, bert_alibi, bert_nope (no
#                  positions), tupe_a_rope and tupe_r_rope (rotary in addition to untied ones)
#   SIZE=base      base, large, or tiny (4 layers, width 256, sequences of 128)
#   SEEDS=1 JOBS=  trainings at a time, default: one per GPU or core (embinit grid)
# and the variables of train.sh (UPDATES, BATCH, ...), to which further arguments go. Another model is a
# call of train.sh with RUN=OUTPUT/runs/NAME LABELS=model=NAME. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
# shellcheck source=../parts.sh
source "$REPO/scripts/parts.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${OUTPUT:?set it to the folder for runs and results}" "${SIZE:=base}"
data_parts "$DATA"
[[ $SIZE =~ ^(base|large|tiny)$ ]] || die "SIZE=$SIZE: choose base, large or tiny"
integers UPDATES BATCH DEVICE_BATCH DEVICES SAVE_EVERY
declare -A options=(
  [bert_a]="--arch bert_a_$SIZE"
  [bert_r]="--arch bert_r_$SIZE"
  [bert_rel]="--arch bert_rel_$SIZE"
  [bert_ad]="--arch bert_ad_$SIZE"
  [bert_rope]="--arch bert_rope_$SIZE"
  [bert_alibi]="--arch bert_alibi_$SIZE"
  [bert_nope]="--arch bert_nope_$SIZE"
  [tupe_a_rope]="--arch tupe_$SIZE --rotary"
  [tupe_r_rope]="--arch tupe_$SIZE --rotary --rel-pos"
  [tupe_a_tie_cls]="--arch tupe_$SIZE --tupe-tie-cls"
  [tupe_a]="--arch tupe_$SIZE"
  [tupe_r]="--arch tupe_$SIZE --rel-pos")
[[ $SIZE != tiny ]] || set -- --tokens-per-sample 128 "$@" # all that its positions allow

# a command holds all that it depends on, so that embinit grid notices a change
variables=(DATA="$DATA")
for name in UPDATES BATCH DEVICE_BATCH DEVICES SAVE_EVERY PRECISION LAUNCH; do
  [[ -z ${!name+set} ]] || variables+=("$name=${!name}")
done
given="" lines=""
[[ $# -eq 0 ]] || printf -v given ' %q' "$@"
for seed in ${SEEDS:-1}; do # outermost: after the first seed the table is complete, if without deviations
  for model in ${MODELS:-bert_a bert_r bert_ad tupe_a_tie_cls tupe_a tupe_r}; do
    [[ -n ${options[$model]:-} ]] || die "MODELS: $model is not known; choose of ${!options[*]}"
    printf -v line ' %q' "${variables[@]}" RUN="$OUTPUT/runs/$model.seed$seed" LABELS="model=$model" \
      bash "$REPO/scripts/wikibooks/train.sh" --seed "$seed" --embedding-normalize
    lines+="$model.seed$seed: env$line ${options[$model]}$given"$'\n'
  done
done
embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"} <<<"$lines"
embinit compare "$OUTPUT/runs" --output "$OUTPUT" --x updates
