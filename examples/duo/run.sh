#!/usr/bin/env bash
# Translation with one and with two embeddings of every word, on toy data that this script makes itself (README.md).
#
# Usage: [VENV=DIR] bash examples/duo/run.sh [options]
#   --output DIR   default: runs/duo
#   --seed N       of the data and of the trainings, default 1
#   --epochs N     default 20
#
# Four trainings, two at a time. Can be stopped and started again: what is finished is not repeated.
# shellcheck source=../../scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
# shellcheck source=../../scripts/grid.sh
source "$REPO/scripts/grid.sh"

output=runs/duo seed=1 epochs=20
read_options "output seed epochs" "$@"
whole_numbers 0 seed
whole_numbers 1 epochs
output=$(absolute "$output")
output_folder --output "$output"
use_environment
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
toy() { PYTHONPATH=$REPO/scripts python -m "toy.$1" "${@:2}"; }

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

# options_of NAME: architecture and vectors.
options_of() {
  local near_de=$output/vectors.1.de.txt near_en=$output/vectors.1.en.txt far_de=$output/vectors.8.de.txt \
    far_en=$output/vectors.8.en.txt
  case $1 in
    transformer.near) words --arch transformer --embed-init-path "encoder=$near_de" "decoder=$near_en" ;;
    transformer.far) words --arch transformer --embed-init-path "encoder=$far_de" "decoder=$far_en" ;;
    duo.near_near) words --arch duo_transformer --embed-init-path "encoder=$near_de" "encoder_p=$near_de" \
      "decoder=$near_en" "decoder_p=$near_en" ;;
    duo.near_far) words --arch duo_transformer --embed-init-path "encoder=$near_de" "encoder_p=$far_de" \
      "decoder=$near_en" "decoder_p=$far_en" ;;
  esac
}
words() { printf '%s\n' "$@"; }

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
run_grid "$(cores)" "$output/logs" one_run <<<"transformer.near
transformer.far
duo.near_near
duo.near_far"
python "$REPO/scripts/results_table.py" --runs "$output/runs" --output "$output"
