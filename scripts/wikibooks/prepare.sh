#!/usr/bin/env bash
# Clean text and cut it into sub-words for masked-language-model pre-training, as Ke et al. 2021 (TUPE), appendix B, do
# with Wikipedia and BookCorpus: de-duplicate, replace addresses and file names by <url>, <email>, <file>, normalise
# punctuation, split into sentences (spaCy), lower-case, Moses tokens, rare words to <unk>, short sentences joined, BPE.
#
# Usage: [VENV=DIR] bash scripts/wikibooks/prepare.sh --input FILE ... --output DIR [options]
#   --input FILE ...       text, plain or gz, bz2, xz: a paragraph or a sentence a line, a blank line behind each document
#   --output DIR           data go here
#   --jobs N               processes (default: one per core), each below about half a gigabyte
#   --duplicates UNIT      what occurs only once: lines (default, as in the authors' code), documents, none
#   --frequent-types S     share of the word types, the most frequent ones, that do not become <unk> (default 0.21; 1: all)
#   --bpe-merges N         default 32640
#   --bpe-words N          learn BPE from so many most frequent words with their counts (default 300000)
#   --vocabulary N         symbols in the dictionary, with fairseq's own four (default 32768)
#   --valid-every N        every N-th passage is for validation (default 200); a passage is a document, or 100 lines of a
#                          longer one
#   --shard-mb N           text that one process handles at a time (default 32)
#
# Makes DIR/bin for fairseq-train (--task masked_lm), DIR/bpe.codes and DIR/report.json; DIR/work, about four times the
# size of the text, may be removed then. Memory does not grow with the text. Can be stopped and started again: finished
# shards are kept.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=../grid.sh
source "$REPO/scripts/grid.sh"

input=() output="" jobs="" duplicates=lines frequent_types=0.21 bpe_merges=32640 bpe_words=300000 vocabulary=32768
valid_every=200 shard_mb=32
read_options "input... output jobs duplicates frequent-types bpe-merges bpe-words vocabulary valid-every shard-mb" "$@"

one_of --duplicates "$duplicates" lines documents none
whole_numbers 1 jobs bpe-merges bpe-words
whole_numbers 8 vocabulary
whole_numbers 2 valid-every
number --shard-mb "$shard_mb" 'n > 0' "above 0"
number --frequent-types "$frequent_types" 'n > 0 && n <= 1' "above 0, at most 1"
[[ ${#input[@]} -gt 0 && -n $output ]] || die "--input and --output are needed; see $(basename "$0") --help"
settings=()
for index in "${!input[@]}"; do
  [[ -f ${input[$index]} ]] || die "--input ${input[$index]}: no such file"
  input[index]=$(absolute "${input[$index]}")
  settings+=("input=${input[$index]} $(wc -c <"${input[$index]}" | tr -d ' ') bytes")
done
output=$(absolute "$output")
use_environment
output_folder --output "$output"
jobs=${jobs:-$(cores)}
work=$output/work
export OMP_NUM_THREADS=1

wikibooks() { PYTHONPATH=$REPO/scripts:$REPO python -m "wikibooks.$1" "${@:2}"; }

learn_bpe() { subword-nmt learn-bpe --dict-input --symbols "$bpe_merges" --input "$work/words/bpe.txt" --output "$1"; }

binarise() { wikibooks binarise --work "$work" --vocabulary "$vocabulary" --jobs "$jobs" "$1"; }

remember_settings "$output/settings" "${settings[@]}" "duplicates=$duplicates" "frequent=$frequent_types" "merges=$bpe_merges" \
  "bpe_words=$bpe_words" "vocabulary=$vocabulary" "valid_every=$valid_every" "shard_mb=$shard_mb"

if [[ -f $output/report.json && -d $output/bin ]]; then
  say "ready already: $output/bin"
  exit 0
fi
wikibooks split --input "${input[@]}" --output "$work/raw" --shard-mb "$shard_mb" --valid-every "$valid_every"
wikibooks duplicates --work "$work" --unit "$duplicates" --jobs "$jobs"
wikibooks clean --work "$work" --unit "$duplicates" --valid-every "$valid_every" --jobs "$jobs"
wikibooks words --work "$work" --frequent "$frequent_types" --bpe-words "$bpe_words"
step "learning BPE" "$output/bpe.codes" -- learn_bpe
all_words=()
[[ $(awk -v n="$frequent_types" 'BEGIN { print n + 0 }') != 1 ]] || all_words=(--all-words)
wikibooks encode --work "$work" --codes "$output/bpe.codes" --jobs "$jobs" ${all_words[@]+"${all_words[@]}"}
step "binarising" "$output/bin" -- binarise
wikibooks report --work "$work" --dictionary "$output/bin/dict.txt" --output "$output/report.json"
say "ready: $output/bin"
