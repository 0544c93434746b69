#!/usr/bin/env bash
# Table 1 of Kim et al. 2024 (and its Figure 1, right): accuracy on SST-2 and MNLI, BLEU on Multi30k and IWSLT 2017 from
# German to English, for each way of starting the embeddings, over seeds. The twelve experiments come from
# experiments.txt; without their data or embeddings they are left out by name.
#
#   OUTPUT=reproduced SST2=GLUE/SST-2 MNLI=GLUE/MNLI IWSLT17=iwslt17 VECTORS_DE=german.vec VECTORS_EN=glove.300d.txt \
#     BERT=DIR T5=DIR MBERT=DIR MT5=DIR bash scripts/reproduce/table1.sh
#   OUTPUT=reproduced EXPERIMENTS=multi30k.words SEEDS=1 EPOCHS=8 bash scripts/reproduce/table1.sh
#
# OUTPUT                   data, runs and results (results.md, results.json, curves.png) go here
# SST2, MNLI               GLUE's folders SST-2 and MNLI. IWSLT17: see scripts/iwslt17/prepare.sh. MULTI30K: a copy of
#                          the data set, see scripts/multi30k/prepare.sh; without it the files are downloaded
# VECTORS_DE, VECTORS_EN   word vectors; without them translation takes some that are learned from the training text
# BERT, T5, MBERT, MT5     Hugging Face folders: tokenizer and embeddings
# EXPERIMENTS, SEEDS, EPOCHS, INITS, JOBS
#                          default: all for which everything is there, and what the paper has
# TOKENS, DIM              of the words in translation: moses (default) or spacy, as in the paper; default 300
#
# Further arguments go to fairseq-train. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder for data, runs and results}"
list=$REPO/scripts/reproduce/experiments.txt
for name in ${EXPERIMENTS:-}; do grep -q "^$name " "$list" || die "EXPERIMENTS: $name is none of those in $list"; done

folders=()
while read -r name data embeddings scripts task seeds epochs batch <&3; do
  [[ -z ${EXPERIMENTS:-} || " $EXPERIMENTS " == *" $name "* ]] || continue
  missing=""
  [[ $data == MULTI30K || -n ${!data:-} ]] || missing+=" $data"
  [[ $embeddings == - || -n ${!embeddings:-} ]] || missing+=" $embeddings"
  [[ -z $missing || -z ${EXPERIMENTS:-} ]] || die "EXPERIMENTS: $name needs$missing; set them to folders or files"
  [[ -z $missing ]] || { echo "left out: $name (set$missing)" >&2 && continue; }

  inits="xavier pretrained pretrained_xavier" options=(--max-epoch "${EPOCHS:-$epochs}" --batch-size "$batch" "$@")
  own=(HF="" TOKENS="${TOKENS:-moses}" DIM="${DIM:-300}" VECTORS="${VECTORS_EN:-}")
  if [[ $name != *.words ]]; then
    folder=${!embeddings} inits+=" shuffled"
    [[ -f $folder/config.json ]] || die "$embeddings=$folder: no Hugging Face folder (it has no config.json)"
    dim=$(hidden_size "$folder")
    own=(HF="$folder" TOKENS=huggingface DIM="$dim" VECTORS="" VECTORS_DE="" VECTORS_EN="")
  elif [[ $scripts == sst2 ]]; then
    options=(--encoder-embed-dim "${DIM:-300}" "${options[@]}")
  fi
  env DATA="${!data:-}" CORPUS="${name%.*}" TASK="$task" DIRECTIONS="$task" OUTPUT="$OUTPUT/$name" "${own[@]}" \
    INITS="${INITS:-$inits}" SEEDS="${SEEDS:-$(seq -s ' ' "$seeds")}" LABELS="experiment=$name" \
    bash "$REPO/scripts/$scripts/run.sh" "${options[@]}"
  folders+=("$OUTPUT/$name")
done 3< <(grep -v '^#' "$list")
embinit compare "${folders[@]}" --output "$OUTPUT"
