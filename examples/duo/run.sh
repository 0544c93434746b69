#!/usr/bin/env bash
# Translation with one and with two embeddings of every word, on toy data that this script makes itself (README.md).
#
# Usage: [VENV=DIR] bash examples/duo/run.sh [options]
#   --output DIR   default: runs/duo
#   --seed N       of the data and of the trainings, default 1
#   --epochs N     default 20
#   --ladder       three more trainings, with one switch of Duo after the other (Table 5 of Li et al. 2020)
#
# Four trainings, two at a time. Can be stopped and started again: what is finished is not repeated.
# shellcheck source=../../scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
# shellcheck source=../../scripts/grid.sh
source "$REPO/scripts/grid.sh"
# shellcheck source=../../scripts/multi30k/archs.sh
source "$REPO/scripts/multi30k/archs.sh"

output=runs/duo seed=1 epochs=20 ladder=""
read_options "output seed epochs ladder?" "$@"
whole_numbers 0 seed
whole_numbers 1 epochs
output=$(absolute "$output")
output_folder --output "$output"
use_environment
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
declare -A WINDOW=([near]=1 [far]=8)
toy() { PYTHONPATH=$REPO/scripts:$REPO python -m "toy.$1" "${@:2}"; }

make_corpus() {
  toy corpus --seed "$seed" --train 4000 --test 1000 --monolingual 40000 --output "$1" >/dev/null
}
# Neighbours in a window of one say how a word is used, those in a window of eight what it is about.
make_vectors() {
  python "$REPO/scripts/train_vectors.py" --text "$output/text/mono.$1" --dim 96 --window "$2" --min-count 5 --output "$3"
}
binarise() {
  fairseq-preprocess --source-lang de --target-lang en --destdir "$1" --workers 1 --trainpref "$output/text/train" \
    --validpref "$output/text/valid" --testpref "$output/text/test" >"$output/preprocess.log" 2>&1
}

# options_of ARCH.VECTORS: architecture and vectors.
options_of() {
  local slot lang set table=0 sets
  IFS=_ read -ra sets <<<"${1#*.}"
  arch_options "${1%.*}"
  words --embed-init-path
  for set in "${sets[@]}"; do
    for slot in encoder decoder; do
      lang=de
      [[ $slot == encoder ]] || lang=en
      [[ $table -eq 0 ]] || slot+=_p
      echo "$slot=$output/vectors.${WINDOW[$set]}.$lang.txt"
    done
    table=1
  done
}

one_run() {
  local name=$1 run=$output/runs/$1 options command
  if python "$REPO/scripts/run_result.py" finished --run "$run" --epochs "$epochs"; then return 0; fi
  mapfile -t options < <(options_of "$name")
  command=(fairseq-train "$output/bin" --user-dir "$USER_DIR" --task translation "${options[@]}"
    --embed-init pretrained_xavier --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 96 --decoder-embed-dim 96
    --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 --encoder-attention-heads 4 --decoder-attention-heads 4
    --dropout 0.1 --criterion cross_entropy --max-tokens 800
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 200
    --max-epoch "$epochs" --seed "$seed" --num-workers 0 --cpu --no-epoch-checkpoints
    --save-dir "$run/checkpoints" --log-format json --log-interval 100)
  python "$REPO/scripts/run_result.py" begin --run "$run" --data "$output/bin" \
    --label "direction=de-en" "arch=${name%.*}" "init=${name#*.}" "seed=$seed" -- "${command[@]}"
  log_training "$run" "${command[@]}"
  fairseq-generate "$output/bin" --user-dir "$USER_DIR" --path "$run/checkpoints/checkpoint_best.pt" --beam 5 \
    --max-tokens 4000 --num-workers 0 --cpu >"$run/generate.log" 2>&1 ||
    die "fairseq-generate failed; see $run/generate.log"
  toy score --log "$run/generate.log" --reference "$output/text/test.en" --output "$run/test"
  python "$REPO/scripts/run_result.py" finish --run "$run" --scores "$run/test.scores.json"
}

remember_settings "$output/settings" "seed=$seed"
step "corpus" "$output/text" -- make_corpus
for lang in de en; do
  for window in 1 8; do
    step "vectors, $lang, window $window" "$output/vectors.$window.$lang.txt" -- make_vectors "$lang" "$window"
  done
done
step "binarising" "$output/bin" -- binarise
names=(transformer.near transformer.far duo.near_near duo.near_far)
[[ -z $ladder ]] || names+=(duo_meta.near_far duo_shared.near_far duo_norm.near_far)
run_grid "$(cores)" "$output/logs" one_run < <(printf '%s\n' "${names[@]}")
embinit compare "$output/runs" --output "$output"
