#!/usr/bin/env bash
# Text classification as in Li et al. 2020 (Duo): couples of embeddings and baselines x seeds, then their table.
#
#   DATA=mr.tsv OUTPUT=runs/mr MIN_COUNT=1 STOP_WORDS=none OWN_VECTORS=own100=100 bash scripts/textcls/run.sh \
#     --vectors glove50=glove.6B.50d.txt glove300=glove.6B.300d.txt
#
# DATA: the TSV file. OUTPUT: data, runs and results go here. SEEDS, MIN_COUNT, STOP_WORDS, CLEAN, NAME: see prepare.sh.
# PROTOCOLS: textgcn (default), inductive, or both. OWN_VECTORS: NAME=DIMENSION ..., learned from the training texts by
# scripts/train_vectors.py. JOBS: trainings at a time (one per GPU or core). Further arguments go to
# scripts/textcls/list_trainings.py: --vectors, --models, --attentions, --epochs, --patience, and after -- options of
# fairseq-train. The same call continues a stopped one, also with more seeds, models or vectors. Results:
# OUTPUT/results.md, OUTPUT/results.json.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to a TSV file with the columns split, label, text}" "${OUTPUT:?set it to the folder for everything}"
here=$REPO/scripts/textcls
export SEEDS=${SEEDS:-1 2 3 4 5 6 7 8 9 10}
read -ra seeds <<<"$SEEDS"

for protocol in ${PROTOCOLS:-textgcn}; do
  data=$OUTPUT/data/$protocol own=()
  PROTOCOL=$protocol OUTPUT=$data bash "$here/prepare.sh"
  for pair in ${OWN_VECTORS:-}; do
    file=$OUTPUT/vectors/$protocol/${pair%=*}.${pair#*=}.txt # with the dimension: another one is another file
    mkdir -p "${file%/*}"
    [[ -f $file ]] || python "$REPO/scripts/train_vectors.py" --text "$data/corpus/train.input0" --dim "${pair#*=}" \
      --output "$file"
    own+=("${pair%=*}=$file")
  done
  python "$here/list_trainings.py" --data "$data" --runs "$OUTPUT/runs/$protocol" --seeds "${seeds[@]}" \
    ${own[@]+--vectors "${own[@]}"} "$@" >"$OUTPUT/$protocol.list"
  embinit grid "$OUTPUT/$protocol.list" --logs "$OUTPUT/logs/$protocol" ${JOBS:+--jobs "$JOBS"}
done
python "$REPO/scripts/tables.py" textcls "$OUTPUT/runs" --output "$OUTPUT"
