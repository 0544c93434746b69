#!/usr/bin/env bash
# Train a language model with new words on, by fairseq, and follow its perplexity per word.
#
# Usage: [VENV=DIR] bash scripts/expansion/adapt.sh --data DIR --models DIR --output RUN [options] [-- OPTIONS]
#   --data DIR         what prepare.sh made
#   --models DIR       what expand.sh made
#   --output RUN       folder of this run; an interrupted run is continued
#   --method NAME      how the new words begin (default avg), or none: the old model goes on with the old pieces
#   --seed N           default 1: order of the text, dropout, and of gaussian and normal the draw
#   --updates N        default 500; a higher number continues a finished run
#   --every N          validate every N updates, default 20
#   --lr RATE          fixed learning rate, default 2e-4
#   --batch-tokens N   pieces in an update, with padding (default 1024); longer paragraphs are left out
#   --amp              half precision where PyTorch's autocast has it (bfloat16 on a CPU); validation is in single one
# Everything after -- goes to fairseq-train, after the options above, so that it can replace them. Options of the
# architecture that train.sh got behind -- are needed here, too.
#
# The learning rate has no warm-up, and Adam begins anew. Writes RUN/start.log (validation before the first update, by
# fairseq-validate), RUN/train.log, RUN/training.json, RUN/checkpoints, RUN/curve.json and RUN/result.json.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

data="" models="" output="" method=avg seed=1 updates=500 every=20 lr=2e-4 batch_tokens=1024 amp="" extra=()
read_options "data models output method seed updates every lr batch-tokens amp? --" "$@"

[[ -n $data && -n $models && -n $output ]] || die "--data, --models and --output are needed; see $(basename "$0") --help"
one_of --method "$method" none avg gaussian zeros normal subword
whole_numbers 0 seed
whole_numbers 1 updates every batch-tokens
number --lr "$lr" 'n > 0' "above 0"
[[ -d $data/bin && -f $data/words.txt ]] || die "--data $data: not prepared; run prepare.sh --output $data first"
name=$method
case $method in gaussian | normal) name=$method.seed$seed ;; esac
[[ -d $models/bin && -f $models/$name/model.pt ]] || die "--models $models: has no bin or no $name; run expand.sh \
--output $models --methods $method --seeds $seed first"
data=$(absolute "$data") models=$(absolute "$models") output=$(absolute "$output")
use_environment

bin=$models/bin
[[ $method != none ]] || bin=$data/bin
read -ra model <<<"$(setting "$models" model)"
device=()
has_gpu || device+=(--cpu)
common=("$bin" --user-dir "$REPO/scripts/expansion/word_loss" --task language_modeling --sample-break-mode eos
  --tokens-per-sample 1024 --num-workers 0 --log-format json ${device[@]+"${device[@]}"})
command=(fairseq-train "${common[@]}" "${model[@]}" --criterion word_loss --new-words "$data/words.txt"
  --finetune-from-model "$models/$name/model.pt"
  --optimizer adam --adam-betas "(0.9, 0.98)" --clip-norm 1.0 --lr "$lr" --lr-scheduler fixed
  --max-update "$updates" --max-tokens "$batch_tokens" --max-tokens-valid 4096 --required-batch-size-multiple 1
  --seed "$seed" --validate-interval-updates "$every" --save-interval-updates 100 --keep-interval-updates 1
  --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000
  --save-dir "$output/checkpoints" --log-interval 20 ${amp:+--amp})
command+=(${extra[@]+"${extra[@]}"})

validate_first() {
  local overrides
  overrides=$(python -c 'import sys; print({"new_words": sys.argv[1]})' "$data/words.txt")
  fairseq-validate "${common[@]}" --path "$models/$name/model.pt" --max-tokens 4096 --required-batch-size-multiple 1 \
    --model-overrides "$overrides" >"$1" 2>&1 || die "fairseq-validate failed; see $1"
}

output_folder --output "$output"
remember_settings "$output/settings" "method=$method" "seed=$seed" "model=$(sha256_of "$models/$name/model.pt")" \
  "words=$(sha256_of "$data/words.txt")"
python "$REPO/scripts/run_result.py" begin --run "$output" --data "$bin" \
  --label "method=$method" "seed=$seed" -- "${command[@]}"
step "validation before adaptation" "$output/start.log" -- validate_first
# A finished run that is continued would do one more update.
if PYTHONPATH=$REPO/scripts python -m wikibooks.mlm_log --run "$output" --updates "$updates"; then
  say "trained before: $output"
else
  log_training "$output" "${command[@]}"
fi
PYTHONPATH=$REPO/scripts python -m expansion.curve --run "$output" --model "$models/$name" --every "$every" \
  --updates "$updates"
python "$REPO/scripts/run_result.py" finish --run "$output" --scores "$output/curve.json"
