#!/usr/bin/env bash
# Prepare text for Hewitt's experiment of adaptation: sub-words, the frequent words that they split, and the text with
# and without these words as symbols of their own.
#
# Usage: DATA=DIR [VENV=DIR] bash scripts/expansion/prepare.sh [options]
#   --bpe-size N     merges of BPE (subword-nmt), default 3000
#   --words N        how many new words, default 100: the most frequent ones of the training text among those that BPE
#                    splits and that the validation lines have
#   --valid-lines N  the first so many non-empty lines of the validation text are used, default 300
#   --output DIR     default: data/expansion
#
# DATA is a folder with train.txt and valid.txt, or wiki.train.tokens and wiki.valid.tokens as WikiText-2 names them;
# either may be a .gz. One paragraph or sentence a line, words separated by blanks, <unk> where the text has no word.
# Empty lines are left out.
#
# Makes DIR/corpus (words), DIR/bpe.codes, DIR/words.tsv (new words, pieces, counts), DIR/words.txt (the same for
# `embinit expand-vocab --words`), DIR/text/{old,new} (pieces) and DIR/bin (old pieces, for fairseq). Can be stopped and
# started again: finished steps are not repeated.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

bpe_size=3000 words=100 valid_lines=300 output=data/expansion
read_options "bpe-size words valid-lines output" "$@"

whole_numbers 1 bpe-size words valid-lines
[[ -n ${DATA:-} ]] || die "DATA is not set: set it to a folder with train.txt and valid.txt; see --help"
[[ -d $DATA ]] || die "DATA=$DATA: no such folder; set it to one with train.txt and valid.txt"
output=$(absolute "$output")
use_environment
output_folder --output "$output"

# source_of SPLIT: the file of DATA with this split.
source_of() {
  local file
  for file in "$DATA/$1.txt"{,.gz} "$DATA/wiki.$1.tokens"{,.gz}; do
    [[ ! -f $file ]] || {
      echo "$file"
      return
    }
  done
  die "DATA=$DATA has neither $1.txt nor wiki.$1.tokens (or .gz): set DATA to a folder with the text"
}

# corpus SPLIT LINES TEXT: non-empty lines, at most so many (0: all), words separated by one blank.
corpus() {
  local file command=(cat)
  file=$(source_of "$1")
  [[ $file != *.gz ]] || command=(gzip -dc)
  "${command[@]}" "$file" | awk -v limit="$2" 'NF && (!limit || n++ < limit) { $1 = $1; print }' >"$3" ||
    die "$file cannot be read: get it again"
  [[ -s $3 ]] || die "$file: no words in it; set DATA to a folder with text"
}

learn_bpe() { subword-nmt learn-bpe --symbols "$bpe_size" <"$output/corpus/train" >"$1" 2>"$output/learn_bpe.log"; }

# expansion MODULE ARGUMENT...: one of the Python programs beside this script.
expansion() { PYTHONPATH=$REPO/scripts python -m "expansion.$1" "${@:2}"; }

choose_words() {
  expansion words --codes "$output/bpe.codes" --train "$output/corpus/train" --valid "$output/corpus/valid" \
    --count "$words" --output "$@"
}

# segment KIND TRAIN VALID: old: all words are cut; new: the new ones are not.
segment() {
  local kind=$1 options=()
  shift
  [[ $kind != new ]] || options=(--words "$output/words.txt")
  expansion segment --codes "$output/bpe.codes" ${options[@]+"${options[@]}"} \
    --input "$output/corpus/train" "$output/corpus/valid" --output "$@"
  # in training fairseq leaves longer lines out; in validation all words must be there
  awk 'NF > 1023 { print "line " NR " with " NF " pieces"; exit 1 }' "$2" ||
    die "$valid: a line has more than 1023 pieces (see above; empty lines do not count): break it"
}

binarise() {
  fairseq-preprocess --only-source --trainpref "$output/text/old/train" --validpref "$output/text/old/valid" \
    --destdir "$1" --workers 1 >"$output/preprocess.log" 2>&1 ||
    die "fairseq-preprocess failed; see $output/preprocess.log"
}

train=$(source_of train) valid=$(source_of valid)
remember_settings "$output/settings" "train=$(sha256_of "$train")" "valid=$(sha256_of "$valid")" "bpe_size=$bpe_size" \
  "words=$words" "valid_lines=$valid_lines"
step "training text" "$output/corpus/train" -- corpus train 0
step "validation text" "$output/corpus/valid" -- corpus valid "$valid_lines"
step "learning BPE" "$output/bpe.codes" -- learn_bpe
step "choosing new words" "$output/words.tsv" "$output/words.txt" -- choose_words
for kind in old new; do
  step "pieces, $kind" "$output/text/$kind/train" "$output/text/$kind/valid" -- segment "$kind"
done
step "binarising" "$output/bin" -- binarise
say "ready: $output/bin ($(wc -l <"$output/bin/dict.txt") symbols), $(wc -l <"$output/words.txt") new words in words.tsv"
