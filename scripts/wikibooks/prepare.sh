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

inputs=() output="" jobs="" duplicates=lines frequent=0.21 merges=32640 bpe_words=300000 vocabulary=32768
valid_every=200 shard_mb=32

# number OPTION VALUE SMALLEST: a whole number.
number() { [[ $2 =~ ^[0-9]+$ && $2 -ge $3 ]] || die "$1 $2: must be a whole number from $3"; }
positive() { awk -v n="$2" 'BEGIN { exit !(n + 0 > 0) }' || die "$1 $2: must be a number above 0"; }

while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --input)
      shift
      while [[ $# -gt 0 && $1 != --* ]]; do
        inputs+=("$1")
        shift
      done
      continue
      ;;
    --*) need_value "$1" $# ;;
    *) die "$1: no such option; see $(basename "$0") --help" ;;
  esac
  case $1 in
    --output) output=$2 ;;
    --jobs) number "$1" "$2" 1 && jobs=$2 ;;
    --duplicates) one_of "$1" "$2" lines documents none && duplicates=$2 ;;
    --frequent-types) positive "$1" "$2" && frequent=$2 ;;
    --bpe-merges) number "$1" "$2" 1 && merges=$2 ;;
    --bpe-words) number "$1" "$2" 1 && bpe_words=$2 ;;
    --vocabulary) number "$1" "$2" 8 && vocabulary=$2 ;;
    --valid-every) number "$1" "$2" 2 && valid_every=$2 ;;
    --shard-mb) positive "$1" "$2" && shard_mb=$2 ;;
    *) die "$1: no such option; see $(basename "$0") --help" ;;
  esac
  shift 2
done

[[ ${#inputs[@]} -gt 0 && -n $output ]] || die "--input and --output are needed; see $(basename "$0") --help"
awk -v n="$frequent" 'BEGIN { exit !(n + 0 <= 1) }' || die "--frequent-types $frequent: must be a share, at most 1"
settings=()
for index in "${!inputs[@]}"; do
  [[ -f ${inputs[$index]} ]] || die "--input ${inputs[$index]}: no such file"
  inputs[index]=$(absolute "${inputs[$index]}")
  settings+=("input=${inputs[$index]} $(wc -c <"${inputs[$index]}" | tr -d ' ') bytes")
done
output=$(absolute "$output")
use_environment
jobs=${jobs:-$(cores)}
work=$output/work
export OMP_NUM_THREADS=1

wikibooks() { PYTHONPATH=$REPO/scripts python -m "wikibooks.$1" "${@:2}"; }

learn_bpe() { subword-nmt learn-bpe --dict-input --symbols "$merges" --input "$work/words/bpe.txt" --output "$1"; }

binarise() { wikibooks binarise --work "$work" --vocabulary "$vocabulary" --jobs "$jobs" "$1"; }

remember_settings "$output/settings" "${settings[@]}" "duplicates=$duplicates" "frequent=$frequent" "merges=$merges" \
  "bpe_words=$bpe_words" "vocabulary=$vocabulary" "valid_every=$valid_every" "shard_mb=$shard_mb"

if [[ -f $output/report.json && -d $output/bin ]]; then
  say "ready already: $output/bin"
  exit 0
fi
wikibooks split --input "${inputs[@]}" --output "$work/raw" --shard-mb "$shard_mb" --valid-every "$valid_every"
wikibooks duplicates --work "$work" --unit "$duplicates" --jobs "$jobs"
wikibooks clean --work "$work" --unit "$duplicates" --valid-every "$valid_every" --jobs "$jobs"
wikibooks words --work "$work" --frequent "$frequent" --bpe-words "$bpe_words"
step "learning BPE" "$output/bpe.codes" -- learn_bpe
all_words=()
[[ $(awk -v n="$frequent" 'BEGIN { print n + 0 }') != 1 ]] || all_words=(--all-words)
wikibooks encode --work "$work" --codes "$output/bpe.codes" --jobs "$jobs" ${all_words[@]+"${all_words[@]}"}
step "binarising" "$output/bin" -- binarise
wikibooks report --work "$work" --dictionary "$output/bin/dict.txt" --output "$output/report.json"
say "ready: $output/bin"
