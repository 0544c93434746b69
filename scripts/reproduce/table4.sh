#!/usr/bin/env bash
# Table 4 of Kim et al. 2024: word analogies on English vectors for the words of Multi30k, after each of the paper's
# transformations (scaled, positions added, Xavier's sigma). Nothing is trained.
#
#   OUTPUT=reproduced4 VECTORS_EN=glove.840B.300d.txt QUESTIONS=questions-words.txt bash scripts/reproduce/table4.sh
#
# OUTPUT      data and results (table4.txt, table4.json) go here
# VECTORS_EN  English vectors, any format of embinit analogy. QUESTIONS: questions-words.txt of word2vec
# MULTI30K    a copy of the data set, see scripts/multi30k/prepare.sh; without it the files are downloaded
#
# Further arguments go to embinit analogy: --repeats 1, --seed 4 for other draws of positions.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder for data and results}" "${VECTORS_EN:?set it to English vectors}"
: "${QUESTIONS:?set it to questions-words.txt of word2vec}"

DATA=${MULTI30K:-} OUTPUT=$OUTPUT/data bash "$REPO/scripts/multi30k/prepare.sh"
# 5,893: the paper's number of words
command=(embinit analogy --vectors "$VECTORS_EN" --questions "$QUESTIONS" --vocabulary "$OUTPUT/data/text/train.en"
  --top 5893 --xavier-rows 5893 --table4 "$@")
json=$("${command[@]}" --json)
text=$("${command[@]}")
echo "$json" >"$OUTPUT/table4.json"
echo "$text" | tee "$OUTPUT/table4.txt"
