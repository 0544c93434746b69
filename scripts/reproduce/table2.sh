#!/usr/bin/env bash
# Table 2 of Kim et al. 2024 (and Table 6): range, mean and sigma of the encoder's embeddings in the experiments of
# Table 1, for each initialisation, compared with the positions' sigma. Nothing is trained.
#
#   OUTPUT=reproduced SST2=GLUE/SST-2 VECTORS_DE=german.vec VECTORS_EN=glove.840B.300d.txt BERT=DIR \
#     bash scripts/reproduce/table2.sh
#
# OUTPUT: that of table1.sh, whose data and learned vectors are then taken over. SST2, MNLI, MULTI30K, IWSLT17, BERT, T5,
# MBERT, MT5, VECTORS_DE, VECTORS_EN, EXPERIMENTS, TOKENS, DIM: as for table1.sh.
#
# Writes OUTPUT/table2.md and, for each experiment, OUTPUT/<experiment>/stats.json, by embinit stats.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder for data and results}"
list=$REPO/scripts/reproduce/experiments.txt
for name in ${EXPERIMENTS:-}; do grep -q "^$name " "$list" || die "EXPERIMENTS: $name is none of those in $list"; done
mkdir -p "$OUTPUT" || die "OUTPUT=$OUTPUT: cannot be made; choose another folder"
: >"$OUTPUT/table2.md.part"

while read -r name data embeddings scripts task _ <&3; do
  [[ -z ${EXPERIMENTS:-} || " $EXPERIMENTS " == *" $name "* ]] || continue
  folder=$OUTPUT/$name/data tokens=${TOKENS:-moses} hf="" corpus=$scripts
  if [[ $embeddings == - ]]; then
    source=${VECTORS_DE:-$OUTPUT/$name/vectors.de.${DIM:-300}.txt}
  else
    source=${!embeddings:-}
  fi
  [[ $data == MULTI30K || -n ${!data:-} ]] || { echo "left out: $name (set $data)" >&2 && continue; }
  [[ -e $source ]] || {
    echo "left out: $name (no embeddings: set ${embeddings/#-/VECTORS_DE}, or have table1.sh learn some)" >&2
    continue
  }
  [[ $name == *.words ]] || hf=$source tokens=huggingface
  [[ $scripts == sst2 ]] || corpus=${name%.*} folder+=/$task
  DATA=${!data:-} OUTPUT=$folder TASK=$task DIRECTION=$task HF=$hf TOKENS=$tokens \
    bash "$REPO/scripts/$corpus/prepare.sh" >&2
  dictionary=$folder/bin/dict.de.txt
  [[ -f $dictionary ]] || dictionary=$folder/bin/input0/dict.txt
  embinit stats --json --vectors "$source" --dict "$dictionary" >"$OUTPUT/$name/stats.json.part"
  mv "$OUTPUT/$name/stats.json.part" "$OUTPUT/$name/stats.json"
  printf '## %s\n\n%s\n\n' "$name" "$(embinit stats --vectors "$source" --dict "$dictionary" | sed 's/^/    /')" |
    tee -a "$OUTPUT/table2.md.part"
done 3< <(grep -v '^#' "$list")
[[ -s $OUTPUT/table2.md.part ]] || die "nothing to describe: see the messages above"
mv "$OUTPUT/table2.md.part" "$OUTPUT/table2.md"
