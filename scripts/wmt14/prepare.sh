#!/usr/bin/env bash
# Make WMT 2014's training text and newstest2014 ready for fairseq, as fairseq's own recipe does: normalised punctuation,
# Moses tokens, joined BPE, no pairs with an empty side, more than 250 pieces or more than 1.5 times as many on one side.
#
# Usage: [DATA=DIR] [VENV=DIR] bash scripts/wmt14_en_de/prepare.sh [options]
#        [DATA=DIR] [VENV=DIR] bash scripts/wmt14_en_fr/prepare.sh [options]
#   --output DIR          default: data/wmt14_en_de, data/wmt14_en_fr
#   --corpora NAME ...    default: europarl commoncrawl news-v9, with en-fr europarl commoncrawl un news-v9 giga; news-v12
#                         (en-de) is what fairseq's recipe takes instead of WMT 2014's own news-v9
#   --limit N             only the first N pairs of each corpus, to try things out
#   --tokens KIND         subword_nmt (default): BPE on Moses tokens; or sentencepiece on the text itself
#   --bpe-size N          merges of BPE, pieces of sentencepiece (default 32000, with en-fr 40000)
#   --bpe-words N         learn BPE from so many most frequent words with their counts (default 300000)
#   --spm-type TYPE       unigram (default) or bpe (--tokens sentencepiece)
#   --spm-lines N         learn sentencepiece from so many lines, evenly spaced (default 1000000)
#   --valid-every N       every N-th pair is for validation (default 100, with en-fr 1333)
#   --max-length N        pieces of a side (default 250)
#   --max-ratio R         pieces of one side for each piece of the other (default 1.5)
#   --test-from ORIGIN    where newstest2014 comes from: data (default if DATA is set), or sacrebleu (default otherwise),
#                         which downloads its own copy, wmt14/full
#   --jobs N              processes (default: one per core)
#   --shard-pairs N       pairs that one process handles at a time (default 50000)
#   --pair PAIR           en-de or en-fr: set by scripts/wmt14_en_de and wmt14_en_fr, needed in scripts/wmt14
#
# DATA is a folder with WMT's files, unpacked (training/europarl-v7.de-en.en, also without the folder, also .gz) or in
# WMT's archives (training-parallel-europarl-v7.tgz, ..., test-full.tgz); newstest2014.en and newstest2014.de as plain
# text will do. Without DATA the archives are downloaded and checked (SHA-256): 1.7 GB, with en-fr 6.6 GB.
#
# Makes DIR/bin for fairseq, DIR/bpe.codes or spm.model, DIR/test.* (raw; the reference of BLEU), DIR/report.json; DIR/text
# and DIR/work may be removed then. Memory does not grow with the text before fairseq-preprocess, the last step. Can be
# stopped and started again: finished shards and steps are kept, a download goes on. DATA may be left out then, but not be
# another one. Two scripts that prepare one folder take turns.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=../grid.sh
source "$REPO/scripts/grid.sh"

pair="" output="" corpora=() limit="" tokens=subword_nmt bpe_size="" bpe_words=300000 spm_type=unigram
spm_lines=1000000 valid_every="" max_length=250 max_ratio=1.5 test_from="" jobs="" shard_pairs=50000
read_options "pair output corpora... limit tokens bpe-size bpe-words spm-type spm-lines valid-every max-length max-ratio \
test-from jobs shard-pairs" "$@"

[[ -n $pair ]] || die "--pair is needed: en-de or en-fr"
one_of --pair "$pair" en-de en-fr
one_of --tokens "$tokens" subword_nmt sentencepiece
one_of --spm-type "$spm_type" unigram bpe
whole_numbers 1 limit bpe-size bpe-words spm-lines max-length jobs shard-pairs
whole_numbers 2 valid-every
number --max-ratio "$max_ratio" 'n >= 1' "from 1"
available=(europarl commoncrawl news-v9)
case $pair in
  en-de) known=("${available[@]}" news-v12) bpe_size=${bpe_size:-32000} valid_every=${valid_every:-100} ;;
  en-fr) available=(europarl commoncrawl un news-v9 giga) known=("${available[@]}") bpe_size=${bpe_size:-40000} valid_every=${valid_every:-1333} ;;
esac
[[ ${#corpora[@]} -gt 0 ]] || corpora=("${available[@]}")
for corpus in "${corpora[@]}"; do one_of --corpora "$corpus" "${known[@]}"; done
[[ -z ${DATA:-} || -d $DATA ]] || die "DATA=$DATA: no such folder; see $(basename "$0") --help"
source=${pair%-*} target=${pair#*-}
output=$(absolute "${output:-data/wmt14_${source}_$target}")
work=$output/work text=$output/text
# What was begun without the option goes on as it began.
if [[ -z $test_from && -f $output/settings ]]; then test_from=$(setting "$output" test); fi
[[ -n $test_from ]] || test_from=$([[ -n ${DATA:-} ]] && echo data || echo sacrebleu)
one_of --test-from "$test_from" data sacrebleu
[[ $test_from != data || -n ${DATA:-} || -f $work/files.json || -f $output/report.json ]] ||
  die "--test-from data needs DATA, a folder with newstest2014"
use_environment
output_folder --output "$output"
lock_folder "$output" "preparing"
jobs=${jobs:-$(cores)}
model=$output/bpe.codes
[[ $tokens != sentencepiece ]] || model=$output/spm.model
export OMP_NUM_THREADS=1

wmt14() { PYTHONPATH=$REPO/scripts:$REPO python -m "wmt14.$1" "${@:2}"; }

learn() {
  wmt14 learn --work "$work" --langs "$source" "$target" --tokens "$tokens" --size "$bpe_size" \
    --bpe-words "$bpe_words" --spm-type "$spm_type" --spm-lines "$spm_lines" --jobs "$jobs" "$1"
}

test_set() { wmt14 testset --work "$work" --pair "$pair" --tokens "$tokens" --model "$model" "$@"; }

# join_shards NAME FILE
join_shards() {
  cat "$work"/encoded/[0-9][0-9][0-9][0-9][0-9]/"$1" >"$2"
  [[ -s $2 ]] || die "nothing is left for ${1%.*}: give more text, or another --valid-every than $valid_every"
}

binarise() {
  fairseq-preprocess --source-lang "$source" --target-lang "$target" --joined-dictionary --destdir "$1" \
    --trainpref "$text/train" --validpref "$text/valid" --testpref "$text/test" --workers "$jobs" \
    >"$output/preprocess.log" 2>&1 || die "fairseq-preprocess failed; see $output/preprocess.log"
}

mapfile -t data_line < <(data_setting "$output/settings")
remember_settings "$output/settings" "pair=$pair" "source=$source" "target=$target" "corpora=${corpora[*]}" \
  "limit=$limit" "tokens=$tokens" "size=$bpe_size" "bpe_words=$bpe_words" "spm=$spm_type $spm_lines" \
  "valid_every=$valid_every" "max_length=$max_length" "max_ratio=$max_ratio" "test=$test_from" "shard_pairs=$shard_pairs" \
  ${data_line[@]+"${data_line[@]}"}

if [[ -f $output/report.json && -d $output/bin ]]; then
  say "ready already: $output/bin"
  exit 0
fi
wmt14 collect --pair "$pair" --corpora "${corpora[@]}" ${DATA:+--data "$DATA"} --test-from "$test_from" --work "$work"
wmt14 shards --work "$work" --langs "$source" "$target" --pairs "$shard_pairs" ${limit:+--limit "$limit"}
wmt14 clean --work "$work" --langs "$source" "$target" --tokens "$tokens" --valid-every "$valid_every" --jobs "$jobs"
step "learning the pieces" "$model" -- learn
wmt14 encode --work "$work" --langs "$source" "$target" --tokens "$tokens" --model "$model" \
  --max-length "$max_length" --max-ratio "$max_ratio" --jobs "$jobs"
step "newstest2014" "$output/test.$source" "$output/test.$target" "$text/test.$source" "$text/test.$target" -- test_set
for split in train valid; do
  for lang in "$source" "$target"; do
    step "$split.$lang" "$text/$split.$lang" -- join_shards "$split.$lang"
  done
done
step "binarising" "$output/bin" -- binarise
wmt14 report --work "$work" --dictionary "$output/bin/dict.$source.txt" --output "$output/report.json"
say "ready: $output/bin"
