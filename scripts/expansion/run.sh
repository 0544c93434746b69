#!/usr/bin/env bash
# Hewitt's experiment of adaptation (2021): a language model receives 100 frequent words that its sub-words split, by several
# methods; how does its perplexity per word develop when it is trained on? Then tables and curves.
#
#   DATA=wikitext-2 OUTPUT=runs/expansion SEEDS="1 2 3" PRECISION=--amp bash scripts/expansion/run.sh
#
# DATA: the text, see prepare.sh. OUTPUT: data, the language model, expanded models, runs, results.md, results.json and
# curves.png. Further arguments go to the fairseq-train of adapt.sh. Further variables:
#   METHODS="..."   of `embinit expand-vocab --method`, METHOD=C for another --noise-scale; default: all that need no vectors.
#                   The old model, which continues with the old subwords (none), is always among the runs
#   VECTORS=        vectors of old and new subwords, for METHODS="focus omp"
#   LM_DATA=        the language model's text, where DATA is a new domain
#   LM=             a language model of the same pieces that is there (train.sh, shift.py); default: one is trained
#   EQUAL_TEXT=     1: none, whose text has more subwords, has as many more updates, so that all read the same text
#   SEEDS=1 JOBS=   runs at a time, default: one per GPU or core (embinit grid)
#   LM_UPDATES=3000 LM_SEED=1 of the language model
# and BPE_SIZE, WORDS, VALID_LINES of prepare.sh; LAYERS, DIM, HEADS, FFN and PRECISION of train.sh; UPDATES and EVERY of
# adapt.sh. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to a folder with train.txt and valid.txt}" "${OUTPUT:?set it to the folder for everything}" "${SEEDS:=1}"
methods=$(python -c 'from embinit_fairseq.init.methods import EXPANSION; print(*EXPANSION)')
METHODS=${METHODS:-$(python -c 'from embinit_fairseq.init.methods import EXPANSION, METHODS
print(*(name for name in EXPANSION if not METHODS[name].needs_vectors))')}
for method in $METHODS; do
  [[ " $methods " == *" ${method%%=*} "* ]] || die "METHODS: ${method%%=*} is not known; choose of $methods"
done
here=$REPO/scripts/expansion data=$OUTPUT/data models=$OUTPUT/models

env OUTPUT="$data" bash "$here/prepare.sh"
if [[ -z ${LM:-} ]]; then
  LM=$OUTPUT/lm
  env DATA="$data" RUN="$LM" UPDATES="${LM_UPDATES:-3000}" bash "$here/train.sh" ${LM_SEED:+--seed "$LM_SEED"}
fi
env DATA="$data" LM="$LM" OUTPUT="$models" METHODS="$METHODS" SEEDS="$SEEDS" VECTORS="${VECTORS:-}" \
  bash "$here/expand.sh"
subwords() { awk '{ n += NF + 1 } END { print n }' "$data/text/$1/train"; } # and line ends
of_none=${UPDATES:=500}
[[ -z ${EQUAL_TEXT:-} ]] || of_none=$(awk -v n="$UPDATES" -v old="$(subwords old)" -v new="$(subwords new)" \
  'BEGIN { printf "%.0f", n * old / new }')
given="" lines=""
[[ $# -eq 0 ]] || printf -v given ' %q' "$@"
for seed in $SEEDS; do # outermost: after the first seed the tables are complete, if without deviations
  for method in none $METHODS; do
    model=$models/$method.seed$seed updates=$UPDATES
    [[ $method != none ]] || model="" updates=$of_none
    printf -v line ' %q' DATA="$data" LM="$LM" MODEL="$model" RUN="$OUTPUT/runs/$method.seed$seed" UPDATES="$updates" \
      EVERY="${EVERY:-20}" PRECISION="${PRECISION:-}" bash "$here/adapt.sh" --seed "$seed"
    lines+="$method.seed$seed: env$line$given"$'\n'
  done
done
embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"} <<<"$lines"
python "$REPO/scripts/tables.py" expansion "$OUTPUT/runs" --output "$OUTPUT"
