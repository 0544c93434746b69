#!/usr/bin/env bash
# Clean text and segment it into subwords for masked-language-model pre-training, as Ke et al. 2021 (TUPE), appendix B,
# do with Wikipedia and BookCorpus (docs/wikibooks.md describes each step).
#
#   OUTPUT=data/wikibooks bash scripts/wikibooks/prepare.sh wiki.txt.bz2 books/*.txt
#
# The files, plain or gz, bz2, xz, zst, are text (a paragraph or a sentence per line, a blank line after each document), JSON
# (one object with a "text" per line, as in C4, one object, or a list), or <doc ...> files of Wikipedia's extractors; or
# Parquet with a column "text". zst and Parquet need the extra corpus.
# Further variables, with their defaults:
#   DUPLICATES=lines      units that occur once: lines (as in TUPE's code), documents, or none; near: of nearly equal documents
#                         one stays (datatrove's MinHash, extra corpus)
#   FREQUENT_TYPES=0.21   share of the word types, the most frequent ones, that do not become <unk>; 1: all
#   BPE_MERGES=32640 BPE_WORDS=300000   merges, learned from so many most frequent words with their counts
#   VOCABULARY=32768      symbols in the dictionary, with fairseq's own four
#   VALID_EVERY=200       every N-th passage is for validation: a document, or 100 lines of a longer one
#   SHARD_MB=32 JOBS=     text that one process handles at a time, processes (one per core), each below half a gigabyte
#   PART_GB=8             binary training data of a part: more of it becomes OUTPUT/bin.00, OUTPUT/bin.01 ...
#   EXECUTOR=pool         who runs the tasks: processes here; or local, slurm or ray (docs/scaling.md), with
#   RANKS= EXECUTOR_OPTIONS="partition=cpu time=24:00:00" WAIT=1   parts of a step, options of the engine; 0: only submit
#
# Makes OUTPUT/bin for train.sh, OUTPUT/bpe.codes and OUTPUT/report.json; OUTPUT/work, about five times the size of the
# text, may be removed then. Memory does not grow with the text. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder for the data}" "${DUPLICATES:=lines}" "${FREQUENT_TYPES:=0.21}" "${BPE_MERGES:=32640}"
: "${BPE_WORDS:=300000}" "${VOCABULARY:=32768}" "${VALID_EVERY:=200}" "${SHARD_MB:=32}" "${PART_GB:=8}"
[[ $# -gt 0 ]] || die "no text: name its files"
integers BPE_MERGES BPE_WORDS VOCABULARY VALID_EVERY JOBS RANKS
awk -v n="$FREQUENT_TYPES" 'BEGIN { exit !(n + 0 > 0 && n + 0 <= 1) }' ||
  die "FREQUENT_TYPES=$FREQUENT_TYPES: set it to a share above 0, at most 1"
for file in "$@"; do [[ -f $file ]] || die "$file: no such file; if it is a folder, name its files"; done
settings "$OUTPUT" "files=$(wc -c "$@" | sed 's/^ *//' | paste -sd ' ')" "duplicates=$DUPLICATES" "frequent=$FREQUENT_TYPES" \
  "merges=$BPE_MERGES" "bpe_words=$BPE_WORDS" "vocabulary=$VOCABULARY" "valid_every=$VALID_EVERY" "shard_mb=$SHARD_MB" \
  "part_gb=$PART_GB"
[[ ! -f $OUTPUT/report.json ]] || { echo "ready before: $OUTPUT" >&2 && exit 0; }

# shellcheck disable=SC2086 # EXECUTOR_OPTIONS is a list of words
PYTHONPATH=$REPO/scripts:$REPO OMP_NUM_THREADS=1 python -m wikibooks.prepare_wikibooks "$@" --output "$OUTPUT" \
  --duplicates "$DUPLICATES" --frequent-types "$FREQUENT_TYPES" --bpe-merges "$BPE_MERGES" --bpe-words "$BPE_WORDS" \
  --vocabulary "$VOCABULARY" --valid-every "$VALID_EVERY" --shard-mb "$SHARD_MB" --part-gb "$PART_GB" \
  ${JOBS:+--jobs "$JOBS"} ${WAIT:+--wait "$WAIT"} ${EXECUTOR:+--executor "$EXECUTOR"} ${RANKS:+--ranks "$RANKS"} \
  ${EXECUTOR_OPTIONS:+--executor-option $EXECUTOR_OPTIONS}
