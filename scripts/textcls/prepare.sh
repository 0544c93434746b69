#!/usr/bin/env bash
# Prepare a data set of text classification for fairseq.
#
# Usage: DATA=FILE [VENV=DIR] bash scripts/textcls/prepare.sh [options]
#   --protocol NAME    textgcn (default): words are counted over train and test texts, as Yao et al. 2019 do (Text GCN);
#                      inductive: over the train texts only, all others become <unk>
#   --min-count N      rarer words are removed (textgcn) or become <unk> (inductive), default 5; MR keeps all: 1
#   --stop-words LIST  words to remove: spacy (default, spaCy's English ones), none (MR), or a file with words
#   --no-clean         the texts are tokens separated by blanks: do not apply Kim's clean_str and lower case
#   --seeds N ...      each draws its own tenth of the training texts for validation, default: 1 2 ... 10
#   --name NAME        what the data set is called in tables (default: the name of the file)
#   --output DIR       default: data/textcls/NAME/PROTOCOL
#
# DATA is a file of lines split <tab> label <tab> text, with these three words as its first line; split is train or test.
# It may be a .gz; a quotation mark is a character like others. scripts/textcls/from_textgcn.py makes it of a checkout of
# Text GCN.
#
# Makes DIR/corpus, DIR/seeds/N/bin. Can be stopped and started again, and called again with more seeds.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

protocol=textgcn min_count=5 stop_words=spacy no_clean="" seeds=() name="" output=""
read_options "protocol min-count stop-words no-clean? seeds... name output" "$@"

[[ -n ${DATA:-} ]] || die "DATA is not set: set it to a TSV file with the columns split, label, text; see --help"
[[ -f $DATA ]] || die "DATA=$DATA: no such file"
one_of --protocol "$protocol" textgcn inductive
whole_numbers 1 min-count
whole_numbers 0 seeds
[[ ${#seeds[@]} -gt 0 ]] || seeds=(1 2 3 4 5 6 7 8 9 10)
if [[ -z $name ]]; then
  name=$(basename "$DATA" .gz)
  name=${name%.*}
fi
output=$(absolute "${output:-data/textcls/$name/$protocol}")
if [[ $stop_words != spacy && $stop_words != none ]]; then
  [[ -f $stop_words ]] || die "--stop-words $stop_words: no such file; give spacy, none, or a file with words"
  stop_words=$(absolute "$stop_words")
fi
clean=kim
[[ -z $no_clean ]] || clean=no
use_environment
output_folder --output "$output"

# textcls MODULE ARGUMENT...: one of the Python programs beside this script.
textcls() { PYTHONPATH=$REPO/scripts:$REPO python -m "textcls.$1" "${@:2}"; }

# stop_words_hash: a line of the settings, if the words are a file's. What was made before there was this line has none.
stop_words_hash() {
  local before hash
  [[ $stop_words == /* ]] || return 0
  hash=$(sha256_of "$stop_words")
  if [[ -f $output/settings ]] && grep -qxF "stop_words=$stop_words" "$output/settings"; then
    before=$(setting "$output" stop_words_sha256)
    [[ -n $before ]] || return 0
    [[ $before == "$hash" ]] || die "--stop-words $stop_words: the file is not the one that $output was made with: \
choose another --output, or remove that folder"
  fi
  echo "stop_words_sha256=$hash"
}

binarise() {
  textcls binarise --corpus "$output/corpus" --protocol "$protocol" --min-count "$min_count" --seeds "${seeds[@]}" \
    --output "$output/seeds" >>"$output/preprocess.log" || die "binarising failed for the reason above"
}

step_lock="" # of the whole preparation, or two scripts would bring their settings and the other's texts together
lock_folder "$output" "$name, $protocol"
[[ -d $output/corpus ]] || rm -f "$output/settings" # of data that were refused
hash=$(stop_words_hash)
remember_settings "$output/settings" "task=$name" "data=$(sha256_of "$DATA")" "protocol=$protocol" \
  "min_count=$min_count" "stop_words=$stop_words" ${hash:+"$hash"} "clean=$clean"
step "$name, $protocol" "$output/corpus" -- textcls corpus --data "$DATA" --protocol "$protocol" \
  --min-count "$min_count" --stop-words "$stop_words" ${no_clean:+--no-clean}
binarise
unlock_folder
say "ready: $output ($(wc -l <"$output/seeds/dict.txt") words in the dictionary, $(counted ${#seeds[@]} seed))"
