#!/usr/bin/env bash
# Give a language model its new words, by several methods, and binarise the text that has them as symbols.
#
# Usage: [VENV=DIR] bash scripts/expansion/expand.sh --data DIR --lm RUN --output DIR [options]
#   --data DIR       what prepare.sh made
#   --lm RUN         what train.sh made; its last checkpoint is taken
#   --output DIR     expanded models go here
#   --methods M ...  of `embinit expand-vocab`, default: avg gaussian zeros normal subword
#   --seeds N ...    of the draws of gaussian and normal, default: 1
#
# Makes DIR/<method>[.seed<N>] (what expand-vocab writes, with verify.json and verify.png: how far the validation text is
# changed before any training, for old pieces), DIR/none (the model as it is), DIR/bin (new pieces). Can be stopped and
# started again, and called again with more methods or seeds.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

data="" lm="" output="" methods=() seeds=()
read_options "data lm output methods... seeds..." "$@"

[[ -n $data && -n $lm && -n $output ]] || die "--data, --lm and --output are needed; see $(basename "$0") --help"
[[ ${#methods[@]} -gt 0 ]] || methods=(avg gaussian zeros normal subword)
for method in "${methods[@]}"; do one_of --methods "$method" avg gaussian zeros normal subword; done
[[ ${#seeds[@]} -gt 0 ]] || seeds=(1)
whole_numbers 0 seeds
[[ -d $data/bin && -f $data/words.txt ]] || die "--data $data: not prepared; run prepare.sh --output $data first"
checkpoint=$lm/checkpoints/checkpoint_last.pt
[[ -f $checkpoint && -f $lm/result.json ]] || die "--lm $lm: not trained to the end; run train.sh --output $lm first"
data=$(absolute "$data") output=$(absolute "$output")
use_environment
output_folder --output "$output"

# expand METHOD SEED DIR
expand() {
  embinit expand-vocab --checkpoint "$checkpoint" --dict "$data/bin/dict.txt" --words "$data/words.txt" --method "$1" \
    --seed "$2" --reset-optimizer --verify "$data/text/old/valid" --output "$3" >>"$output/expand.log" 2>&1 ||
    die "embinit expand-vocab failed; see $output/expand.log"
}

unchanged() {
  mkdir "$1"
  cp "$checkpoint" "$1/model.pt"
  cp "$data/bin/dict.txt" "$1/dict.txt"
}

# binarise DICTIONARY BIN
binarise() {
  fairseq-preprocess --only-source --srcdict "$1" --trainpref "$data/text/new/train" --validpref "$data/text/new/valid" \
    --destdir "$2" --workers 1 >"$output/preprocess.log" 2>&1 ||
    die "fairseq-preprocess failed; see $output/preprocess.log"
}

remember_settings "$output/settings" "model=$(setting "$lm" model)" "checkpoint=$(sha256_of "$checkpoint")" \
  "words=$(sha256_of "$data/words.txt")" "valid=$(sha256_of "$data/text/old/valid")"
step "none" "$output/none" -- unchanged
for method in "${methods[@]}"; do
  name=$method
  case $method in
    gaussian | normal) for seed in "${seeds[@]}"; do
      name=$method.seed$seed
      step "$method, seed $seed" "$output/$name" -- expand "$method" "$seed"
    done ;;
    *) step "$method" "$output/$name" -- expand "$method" 1 ;;
  esac
done
step "binarising" "$output/bin" -- binarise "$output/$name/dict.txt" # new words have the same rows by all methods
say "ready: $output"
