#!/usr/bin/env bash
# Prepare SST-2 (GLUE: 67,349 training and 872 validation phrases, negative or positive) or MNLI (392,702 pairs of
# sentences, 9,815 matched and 9,832 mismatched ones for validation: contradiction, neutral, entailment) for fairseq.
#
# Usage: DATA=DIR [VENV=DIR] bash scripts/sst2/prepare.sh [options], for MNLI scripts/mnli/prepare.sh
#   --task NAME     SST-2 (default) or MNLI (default of scripts/mnli)
#   --hf DIR        tokenise with the tokenizer of this Hugging Face folder; its embeddings can then start the model.
#                   Without it the words of SST-2 are used as they are; those of MNLI are spaCy's, lower-cased.
#   --min-count N   symbols that the training text has fewer times become <unk> (default 2)
#   --output DIR    default: data/sst2 or data/mnli
#
# DATA is the folder SST-2 or MNLI of GLUE with train.tsv and dev.tsv (MNLI: dev_matched.tsv and dev_mismatched.tsv),
# each of which may be a .gz, to be had from gluebenchmark.com. The labels of the test sets are not public: as in Kim et
# al. 2024 the accuracy on the validation sets is reported.
#
# Makes DIR/bin/{input0,label}, for MNLI also input1 (one dictionary for both) and the second validation set, valid1.
# Can be stopped and started again: finished steps are not repeated.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

task=SST-2 hf="" min_count=2 output=""
read_options "task hf min-count output" "$@"

one_of --task "$task" SST-2 MNLI
[[ -n ${DATA:-} ]] || die "DATA is not set: set it to GLUE's folder $task with train.tsv; see --help"
hf=${hf:+$(absolute "$hf")}
[[ -z $hf || -d $hf ]] || die "--hf $hf: no such folder"
[[ -d $DATA ]] || die "DATA=$DATA: no such folder; set it to GLUE's folder $task"
whole_numbers 1 min-count
name=${task,,}
output=$(absolute "${output:-data/${name/-/}}")
use_environment
output_folder --output "$output"

# glue MODULE ARGUMENT...: one of the Python programs of scripts/glue, which know the layout of the files.
glue() { PYTHONPATH=$REPO/scripts python -m "glue.$1" "${@:2}"; }
inputs=$(glue tasks show --task "$task" inputs)
read -ra labels <<<"$(glue tasks show --task "$task" labels)"
read -ra sets <<<"train:train $(glue tasks show --task "$task" dev)" # fairseq's name : GLUE's file

# extract FILE COLUMN... LABEL: sentences and labels of a file.
extract() {
  [[ -f $DATA/$1.tsv || -f $DATA/$1.tsv.gz ]] ||
    die "DATA=$DATA has neither $1.tsv nor $1.tsv.gz: set DATA to GLUE's folder $task"
  glue tasks extract --task "$task" --source "$DATA/$1.tsv" "${@:2}"
}

tokenise() {
  local kind=words
  [[ $task == SST-2 ]] || kind=spacy # plain text; SST-2 comes in words
  [[ -z $hf ]] || kind=huggingface
  [[ $kind != spacy ]] || python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("spacy") is None)' ||
    die "the words of $task need spaCy: install it (pip install spacy), or take the tokenizer of a model (--hf DIR)"
  python "$REPO/scripts/tokens.py" encode --kind "$kind" --model "$hf" --input "${columns[@]}" --output "$@"
}

# by_length FILE...: all labels and tokens, training examples the shortest first, equally long ones in the data set's
# (random) order. fairseq's task forms batches of neighbours: shuffled, two thirds of a batch would be padding. train.sh
# shuffles the batches, as for translation.
by_length() {
  local first=$((inputs + 1)) at
  paste "${unsorted[@]:0:first}" |
    awk -F '\t' -v OFS='\t' '{ print split($2, tokens, " ") + split($3, tokens, " "), $0 }' |
    LC_ALL=C sort -s -n -k 1,1 |
    awk -F '\t' 'BEGIN { for (at = 1; at < ARGC; at++) file[at] = ARGV[at]; end = ARGC; ARGC = 1 }
      { for (at = 1; at < end; at++) print $(at + 1) > file[at] }' "${@:1:first}"
  for ((at = first; at < $#; at++)); do cp "${unsorted[at]}" "${@:at+1:1}"; done
}

binarise() {
  glue binarise --text "$output/by_length" --labels "$output/by_length" --sets "${sets[@]%:*}" --inputs "$inputs" \
    --classes "${labels[@]}" --min-count "$min_count" "$1" >"$output/preprocess.log" 2>&1 ||
    die "binarising failed; see $output/preprocess.log"
}

dim=300
[[ ! -f $hf/config.json ]] || dim=$(hf_dim "$hf")
settings=("hf=$hf" "dim=$dim" "min_count=$min_count")
[[ $task == SST-2 ]] || settings+=("task=$task") # train.sh takes SST-2 for granted
remember_settings "$output/settings" "${settings[@]}"

columns=() texts=() unsorted=() sorted=()
for pair in "${sets[@]}"; do
  split=${pair%:*} sentences=() tokens=()
  for ((at = 0; at < inputs; at++)); do
    sentences+=("$output/corpus/$split.input$at") tokens+=("$output/text/$split.input$at")
  done
  step "${pair#*:}" "${sentences[@]}" "$output/corpus/$split.label" -- extract "${pair#*:}"
  columns+=("${sentences[@]}") texts+=("${tokens[@]}")
  unsorted+=("$output/corpus/$split.label" "${tokens[@]}")
  sorted+=("$output/by_length/$split.label" "${tokens[@]/#"$output/text"/"$output/by_length"}")
done
step "tokens" "${texts[@]}" -- tokenise
step "sorting by length" "${sorted[@]}" -- by_length
step "binarising" "$output/bin" -- binarise
say "ready: $output/bin ($(wc -l <"$output/bin/input0/dict.txt") symbols, D = $dim)"
