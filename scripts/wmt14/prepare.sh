#!/usr/bin/env bash
# Make WMT 2014's training text and newstest2014 ready for fairseq, as fairseq's own recipe does: normalised punctuation,
# Moses tokens, joined BPE, no pairs with an empty side, more than 250 pieces or more than 1.5 times as many on one side.
#
#   PAIR=en-de OUTPUT=data/wmt14_en_de bash scripts/wmt14/prepare.sh
#   PAIR=en-fr DATA=wmt14 OUTPUT=data/wmt14_en_fr bash scripts/wmt14/prepare.sh
#
# PAIR: en-de (default) or en-fr.
# DATA: a folder with WMT's files, unpacked (training/europarl-v7.de-en.en, also without the folder, also .gz) or in WMT's
# archives (training-parallel-europarl-v7.tgz, ..., test-full.tgz); newstest2014.en and newstest2014.de as plain text will
# do. Without DATA the archives are downloaded and checked (SHA-256): 1.7 GB, en-fr 6.6 GB. Further variables:
#   CORPORA="..." LIMIT=          default: WMT 2014's; only the first so many pairs of each, to try things out
#   TOKENS=subword_nmt            BPE on Moses tokens; or sentencepiece, on the text itself
#   BPE_SIZE=32000                merges of BPE, pieces of sentencepiece (en-fr 40000)
#   BPE_WORDS=300000              learn BPE from so many most frequent words with their counts
#   SPM_TYPE=unigram SPM_LINES=1000000    or bpe; learn sentencepiece from so many lines, evenly spaced
#   VALID_EVERY=100               every N-th pair is for validation (en-fr 1333)
#   MAX_LENGTH=250 MAX_RATIO=1.5  pieces of a side, and of one side for each piece of the other
#   TEST_FROM=data                newstest2014; or sacrebleu (default without DATA), which downloads its own copy, wmt14/full
#   SHARD_PAIRS=50000 JOBS=       pairs that one process handles at a time, processes (one per core)
#   PART_GB=8                     binary training data of a part: more of it becomes OUTPUT/bin.00, OUTPUT/bin.01 ...
#   EXECUTOR=pool RANKS= EXECUTOR_OPTIONS= WAIT=1   as for scripts/wikibooks/prepare.sh
#
# Makes OUTPUT/bin for fairseq, bpe.codes or spm.model, test.* (raw; the reference of BLEU) and report.json; OUTPUT/work may
# be removed then. Memory does not grow with the text. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
case ${PAIR:=en-de} in
  en-de) : "${BPE_SIZE:=32000}" "${VALID_EVERY:=100}" ;;
  en-fr) : "${BPE_SIZE:=40000}" "${VALID_EVERY:=1333}" ;;
  *) die "PAIR=$PAIR: set it to en-de or en-fr" ;;
esac
: "${OUTPUT:?set it to the folder for the data}" "${TOKENS:=subword_nmt}" "${BPE_WORDS:=300000}" "${SHARD_PAIRS:=50000}"
: "${SPM_TYPE:=unigram}" "${SPM_LINES:=1000000}" "${MAX_LENGTH:=250}" "${MAX_RATIO:=1.5}" "${JOBS:=$(getconf _NPROCESSORS_ONLN)}"
: "${PART_GB:=8}"
integers LIMIT BPE_SIZE BPE_WORDS SPM_LINES VALID_EVERY MAX_LENGTH SHARD_PAIRS JOBS RANKS
[[ -z ${DATA:-} || -d $DATA ]] || die "DATA=$DATA: no such folder"
TEST_FROM=${TEST_FROM:-$([[ -n ${DATA:-} ]] && echo data || echo sacrebleu)}
settings "$OUTPUT" "pair=$PAIR" "data=${DATA:+$(cd "$DATA" && pwd)}" "corpora=${CORPORA:-}" "limit=${LIMIT:-}" \
  "tokens=$TOKENS" "size=$BPE_SIZE" "bpe_words=$BPE_WORDS" "spm=$SPM_TYPE $SPM_LINES" "valid_every=$VALID_EVERY" \
  "max_length=$MAX_LENGTH" "max_ratio=$MAX_RATIO" "test=$TEST_FROM" "shard_pairs=$SHARD_PAIRS" \
  "part_gb=$PART_GB"
[[ ! -f $OUTPUT/report.json ]] || { echo "ready before: $OUTPUT" >&2 && exit 0; }

export PYTHONPATH=$REPO/scripts:$REPO OMP_NUM_THREADS=1
# shellcheck disable=SC2086 # CORPORA and EXECUTOR_OPTIONS are lists of words
python -m wmt14.prepare_wmt14 --output "$OUTPUT" --pair "$PAIR" ${DATA:+--data "$DATA"} ${CORPORA:+--corpora $CORPORA} \
  ${LIMIT:+--limit "$LIMIT"} --tokens "$TOKENS" --size "$BPE_SIZE" --bpe-words "$BPE_WORDS" --spm-type "$SPM_TYPE" \
  --spm-lines "$SPM_LINES" --valid-every "$VALID_EVERY" --max-length "$MAX_LENGTH" --max-ratio "$MAX_RATIO" \
  --test-from "$TEST_FROM" --shard-pairs "$SHARD_PAIRS" --part-gb "$PART_GB" --jobs "$JOBS" \
  ${WAIT:+--wait "$WAIT"} ${EXECUTOR:+--executor "$EXECUTOR"} ${RANKS:+--ranks "$RANKS"} ${EXECUTOR_OPTIONS:+--executor-option $EXECUTOR_OPTIONS}
