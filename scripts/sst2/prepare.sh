#!/usr/bin/env bash
# Prepare SST-2 (GLUE: 67,349 training and 872 validation phrases, negative or positive) or MNLI (392,702 pairs of
# sentences, 9,815 matched and 9,832 mismatched ones for validation: contradiction, neutral, entailment) for fairseq.
#
#   DATA=SST-2 OUTPUT=data/sst2 HF=MODEL_DIRECTORY bash scripts/sst2/prepare.sh
#   DATA=MNLI OUTPUT=data/mnli TASK=MNLI bash scripts/sst2/prepare.sh
#
# DATA: the folder SST-2 or MNLI of GLUE with train.tsv and dev.tsv (MNLI: dev_matched.tsv and dev_mismatched.tsv), each
# of which may be a .gz, to be had from gluebenchmark.com. TASK: SST-2 (default) or MNLI. HF: tokenise with the tokenizer
# of this Hugging Face folder, whose embeddings can then start the model; without it the words of SST-2 are used as they
# are, and MNLI is tokenised by spaCy and lower-cased (WORDS=words or spacy). MIN_COUNT: symbols that the training text has
# fewer times become <unk> (default 2). The labels of the test sets are not public: as in Kim et al. 2024 the accuracy
# on the validation sets is reported.
#
# Makes OUTPUT/bin/{input0,label}, for MNLI also input1 (one dictionary for both) and the second validation set, valid1.
# The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
# shellcheck source=../glue/columns.sh
source "$REPO/scripts/glue/columns.sh"
TASK=${TASK:-SST-2} HF=${HF:-} MIN_COUNT=${MIN_COUNT:-2}
: "${DATA:?set it to the folder $TASK of GLUE, with train.tsv}" "${OUTPUT:?set it to a folder for the data}"
[[ -z $HF || -f $HF/config.json ]] || die "HF=$HF: no Hugging Face folder (it has no config.json)"
words=spacy
[[ $TASK != SST-2 ]] || words=words # it comes in words; MNLI is plain text
kind=${HF:+huggingface} kind=${kind:-${WORDS:-$words}}
[[ $kind != spacy || -e $OUTPUT/text ]] || python -c "import spacy" 2>/dev/null ||
  die "the words of $TASK need spaCy: install it (pip install spacy), or take the tokenizer of a model (HF=DIR)"

# The columns of the files, and the options of fairseq-train that belong to the task.
[[ -e $OUTPUT/corpus ]] || python "$REPO/scripts/glue/glue_tasks.py" extract "$TASK" "$DATA" "$OUTPUT/corpus"
dim=300
[[ -z $HF ]] || dim=$(hidden_size "$HF")
settings "$OUTPUT" "task=$TASK" "tokens=$kind" "hf=$HF" "dim=$dim" "min_count=$MIN_COUNT"

# Tokens. Training examples come the shortest first: fairseq's task forms batches of neighbours, and without that two
# thirds of a batch would be padding. train.sh shuffles the batches, as for translation.
if [[ ! -e $OUTPUT/text ]]; then
  rm -rf "$OUTPUT/text.part" && mkdir "$OUTPUT/text.part"
  files=("$OUTPUT"/corpus/*.input?)
  python "$REPO/scripts/tokens.py" encode --kind "$kind" --model "$HF" --input "${files[@]}" \
    --output "${files[@]/#"$OUTPUT/corpus"/"$OUTPUT/text.part"}"
  cp "$OUTPUT"/corpus/*.label "$OUTPUT/text.part"
  paste "$OUTPUT/text.part"/train.{label,input?} |
    awk -F '\t' -v OFS='\t' '{ print split($2, tokens, " ") + split($3, tokens, " "), $0 }' |
    LC_ALL=C sort -s -n -k 1,1 >"$OUTPUT/text.part/sorted"
  column=2
  for file in "$OUTPUT/text.part"/train.{label,input?}; do
    cut -f $column "$OUTPUT/text.part/sorted" >"$file" && column=$((column + 1))
  done
  rm "$OUTPUT/text.part/sorted" && mv "$OUTPUT/text.part" "$OUTPUT/text"
fi

if [[ ! -e $OUTPUT/bin ]]; then
  dictionary "$OUTPUT/text" "$MIN_COUNT"
  binarise --kind "$kind" "$HF" "$OUTPUT/dict/dict.txt" "$OUTPUT"/text/train.*
  rm -r "$OUTPUT/dict"
fi
echo "ready: $OUTPUT/bin ($(wc -l <"$OUTPUT/bin/input0/dict.txt") symbols, D = $dim)"
