#!/usr/bin/env bash
# Prepare SST-2 (GLUE: 67,349 training and 872 validation phrases, negative or positive) for fairseq.
#
# Usage: DATA=DIR [VENV=DIR] bash scripts/sst2/prepare.sh [options]
#   --hf DIR        tokenise with the tokenizer of this Hugging Face folder; its embeddings can then start the model.
#                   Without it the words of the data set are used as they are.
#   --min-count N   symbols that the training text has fewer times become <unk> (default 2)
#   --output DIR    default: data/sst2
#
# DATA is the folder SST-2 of GLUE with train.tsv and dev.tsv (either may be a .gz), to be had from gluebenchmark.com.
# The labels of the test set are not public: as in Kim et al. 2024 the accuracy on the validation set is reported.
#
# Makes DIR/bin/{input0,label}. Can be stopped and started again: finished steps are not repeated.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

hf="" min_count=2 output=data/sst2
read_options "hf min-count output" "$@"

[[ -n ${DATA:-} ]] || die "DATA is not set: set it to GLUE's folder SST-2 with train.tsv and dev.tsv; see --help"
hf=${hf:+$(absolute "$hf")}
[[ -z $hf || -d $hf ]] || die "--hf $hf: no such folder"
[[ -d $DATA ]] || die "DATA=$DATA: no such folder; set it to GLUE's folder SST-2"
whole_numbers 1 min-count
output=$(absolute "$output")
use_environment
output_folder --output "$output"

# plain NAME: print a file of DATA, compressed or not.
plain() {
  if [[ -f $DATA/$1 ]]; then cat "$DATA/$1"; elif [[ -f $DATA/$1.gz ]]; then gzip -dc "$DATA/$1.gz"; else
    die "DATA=$DATA has neither $1 nor $1.gz: set DATA to GLUE's folder SST-2"
  fi
}

# split_columns NAME TEXT LABELS: sentence <tab> label, after one line of headings.
split_columns() {
  plain "$1" | awk -F '\t' -v name="$DATA/$1" -v text="$2" -v labels="$3" '
    { sub(/\r$/, "") }
    NR == 1 { next }
    NF != 2 || ($2 != "0" && $2 != "1") {
      print name ", line " NR ": expected a sentence, a tab, and 0 or 1" > "/dev/stderr"
      exit 1
    }
    { print $1 > text; print $2 > labels }
    END { if (NR < 2) exit 1 }' || die "$DATA/$1 is not in the layout of SST-2 (sentence <tab> label)"
}

tokenise() {
  local kind=words
  [[ -z $hf ]] || kind=huggingface
  python "$REPO/scripts/tokens.py" encode --kind "$kind" --model "$hf" \
    --input "$output/corpus/train.text" "$output/corpus/valid.text" --output "$@"
}

# by_length TEXT LABELS: the training phrases, the shortest first, equally long ones in the data set's (random) order.
# fairseq's task forms batches of neighbours: shuffled, two thirds of a batch would be padding. train.sh shuffles the
# batches, as for translation.
by_length() {
  paste "$output/corpus/train.label" "$output/text/train" |
    awk -F '\t' -v OFS='\t' '{ print split($2, tokens, " "), $0 }' | LC_ALL=C sort -s -n -k 1,1 |
    awk -F '\t' -v text="$1" -v labels="$2" '{ print $3 > text; print $2 > labels }'
}

binarise() {
  local bin=$1
  mkdir -p "$bin"
  {
    fairseq-preprocess --only-source --trainpref "$output/by_length/text" --validpref "$output/text/valid" \
      --destdir "$bin/input0" --thresholdsrc "$min_count" --workers 1
    # A given dictionary keeps class 0 the first class, whatever label is more frequent.
    printf '0 1\n1 1\n' >"$bin/labels.txt"
    fairseq-preprocess --only-source --trainpref "$output/by_length/label" --validpref "$output/corpus/valid.label" \
      --destdir "$bin/label" --srcdict "$bin/labels.txt" --workers 1
    rm "$bin/labels.txt"
  } >"$output/preprocess.log" 2>&1 || die "fairseq-preprocess failed; see $output/preprocess.log"
}

dim=300
[[ ! -f $hf/config.json ]] || dim=$(hf_dim "$hf")
remember_settings "$output/settings" "hf=$hf" "dim=$dim" "min_count=$min_count"

for pair in train:train dev:valid; do
  corpus=$output/corpus/${pair#*:}
  step "${pair%:*}" "$corpus.text" "$corpus.label" -- split_columns "${pair%:*}.tsv"
done
step "tokens" "$output/text/train" "$output/text/valid" -- tokenise
step "sorting by length" "$output/by_length/text" "$output/by_length/label" -- by_length
step "binarising" "$output/bin" -- binarise
say "ready: $output/bin ($(wc -l <"$output/bin/input0/dict.txt") symbols, D = $dim)"
