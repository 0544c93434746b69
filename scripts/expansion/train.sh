#!/usr/bin/env bash
# Train the language model that gets new words later: a small `transformer_lm` on old pieces.
#
# Usage: [VENV=DIR] bash scripts/expansion/train.sh --data DIR --output RUN [options] [-- FAIRSEQ-TRAIN OPTIONS]
#   --data DIR         what prepare.sh made
#   --output RUN       folder of this run; an interrupted run is continued
#   --seed N           default 1
#   --updates N        default 3000; the learning rate falls to 0 over so many
#   --warmup N         updates of warm-up, default: one in twenty
#   --layers N, --dim D, --heads N, --ffn N
#                      default 2, 128, 4, 512; tables of input and output are one
#   --dropout P        default 0.1
#   --lr RATE          peak learning rate, default 2e-3
#   --batch-tokens N   pieces in an update, with padding (default 2048); longer paragraphs are left out
#   --amp              half precision where PyTorch's autocast has it (bfloat16 on a CPU); validation is in single one
# Everything after -- goes to fairseq-train, after the options above, so that it can replace them.
#
# Each paragraph is a sample of its own. Writes RUN/train.log, RUN/training.json, RUN/checkpoints and, at the end,
# RUN/result.json. Uses a GPU if there is one.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

data="" output="" seed=1 updates=3000 warmup="" layers=2 dim=128 heads=4 ffn=512 dropout=0.1 lr=2e-3 batch_tokens=2048
amp="" extra=()
read_options "data output seed updates warmup layers dim heads ffn dropout lr batch-tokens amp? --" "$@"

[[ -n $data && -n $output ]] || die "--data and --output are needed; see $(basename "$0") --help"
whole_numbers 0 seed warmup
whole_numbers 1 updates layers dim heads ffn batch-tokens
number --lr "$lr" 'n > 0' "above 0"
number --dropout "$dropout" 'n >= 0 && n < 1' "from 0 to below 1"
[[ -d $data/bin && -f $data/words.txt ]] || die "--data $data: not prepared; run prepare.sh --output $data first"
data=$(absolute "$data") output=$(absolute "$output")
use_environment

device=()
has_gpu || device+=(--cpu)
[[ -z $amp ]] || device+=(--amp)
every=$(((updates + 9) / 10))
# what adapt.sh needs again
model=(--arch transformer_lm --share-decoder-input-output-embed
  --decoder-embed-dim "$dim" --decoder-input-dim "$dim" --decoder-output-dim "$dim" --decoder-ffn-embed-dim "$ffn"
  --decoder-layers "$layers" --decoder-attention-heads "$heads" --decoder-normalize-before --dropout "$dropout")
command=(fairseq-train "$data/bin" --user-dir "$REPO/scripts/expansion/word_loss" --task language_modeling
  --sample-break-mode eos --tokens-per-sample 1024 "${model[@]}" --criterion word_loss
  --new-words "$data/words.txt" --optimizer adam --adam-betas "(0.9, 0.98)" --weight-decay 0.01 --clip-norm 1.0
  --lr "$lr" --lr-scheduler polynomial_decay --warmup-updates "${warmup:-$((updates / 20))}"
  --total-num-update "$updates" --max-update "$updates" --max-tokens "$batch_tokens" --seed "$seed"
  --validate-interval-updates "$every" --save-interval-updates "$every" --keep-interval-updates 1
  --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000 --num-workers 0
  --save-dir "$output/checkpoints" --log-format json --log-interval 20 ${device[@]+"${device[@]}"})
command+=(${extra[@]+"${extra[@]}"})

output_folder --output "$output"
remember_settings "$output/settings" "model=${model[*]}"
python "$REPO/scripts/run_result.py" begin --run "$output" --data "$data/bin" \
  --label "task=language_modeling" "seed=$seed" -- "${command[@]}"
# A finished run that is continued would do one more update.
if PYTHONPATH=$REPO/scripts python -m wikibooks.mlm_log --run "$output" --updates "$updates"; then
  say "trained before: $output"
else
  log_training "$output" "${command[@]}"
fi
python "$REPO/scripts/run_result.py" finish --run "$output"
