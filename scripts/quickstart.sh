#!/usr/bin/env bash
# Shows what the initialisation of token embeddings does, on data that this script makes itself: a small German-English
# corpus from a grammar, word vectors learned from monolingual text of that grammar, one training per strategy of
# --embed-init, translation of a test set, a BLEU table and the curves of the validation loss.
#
# Usage: [VENV=DIR] bash scripts/quickstart.sh [options]
#   --output DIR          default: runs/quickstart in the current directory
#   --strategies "A B"    what to compare; default: "normal xavier pretrained pretrained_xavier shuffled shuffled_xavier"
#                         (shuffled_xavier: shuffled vectors at the scale of xavier; the others are those of --embed-init)
#   --seed N              of the data and of the trainings, default 1: the same seed gives the same numbers
#   --epochs N            default 20
#   --dim D               of the embeddings and the model, default 96
#   --train N --test N --monolingual N
#                         sentences, default 4000, 1000 and 40000 (monolingual: per language)
#   --jobs N              trainings at a time, one thread each; default: 2, or 1 on a single core
#
# Makes the environment VENV (default: .venv) by scripts/setup.sh if needed; that takes the longest, once. Then about
# three to eight minutes on two CPU cores; no GPU is used. Can be stopped and started again: what is finished is not
# repeated.
#
# Writes DIR/table.md, DIR/curves.png and per strategy DIR/runs/<strategy>/result.json, train.log and checkpoints.
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

output=runs/quickstart strategies="normal xavier pretrained pretrained_xavier shuffled shuffled_xavier" seed=1 epochs=20 dim=96
train=4000 test=1000 monolingual=40000 jobs=""
read_options "output strategies seed epochs dim train test monolingual jobs" "$@"

for option in seed epochs dim train test monolingual ${jobs:+jobs}; do
  [[ ${!option} =~ ^[1-9][0-9]*$ ]] || die "--$option ${!option}: expected a whole number above 0"
done
read -ra strategies <<<"$strategies"
[[ ${#strategies[@]} -gt 0 ]] || die "--strategies is empty: name at least one"
for strategy in "${strategies[@]}"; do
  one_of --strategies "$strategy" normal xavier pretrained pretrained_xavier shuffled shuffled_xavier xavier_pretrained
done
((dim % 4 == 0)) || die "--dim $dim: must be a multiple of 4, the number of attention heads"
output=$(absolute "$output")
output_folder --output "$output"

# The default environment is brought up to date; one that was named is used as it is if it has fairseq.
if [[ $VENV == "$REPO/.venv" || ! -x $VENV/bin/fairseq-train ]]; then bash "$REPO/scripts/setup.sh" "$VENV" >&2; fi
use_environment
python -c 'import matplotlib, sacrebleu' || die "$VENV lacks matplotlib or sacrebleu: run scripts/setup.sh $VENV"

SECONDS=0
# One thread per process: fastest for a model of this size, and the same numbers whatever the number of cores.
export OMP_NUM_THREADS=1
[[ -n $jobs ]] || jobs=$(python -c 'import os; print(min(2, os.cpu_count() or 1))')
toy() { PYTHONPATH=$REPO/scripts:$REPO python -m "toy.$1" "${@:2}"; }

make_corpus() {
  toy corpus --seed "$seed" --train "$train" --test "$test" --monolingual "$monolingual" --output "$1" >/dev/null
}

# Sigma 0.4 is the order of published GloVe tables; the method alone would give an arbitrary scale.
make_vectors() {
  python "$REPO/scripts/train_vectors.py" --text "$output/text/mono.$1" --dim "$dim" --window 4 --min-count 5 --std 0.4 \
    --output "$2"
}

binarise() {
  fairseq-preprocess --source-lang de --target-lang en --destdir "$1" --workers 1 --trainpref "$output/text/train" \
    --validpref "$output/text/valid" --testpref "$output/text/test" >"$output/preprocess.log" 2>&1 ||
    die "fairseq-preprocess failed; see $output/preprocess.log"
}

# train_one STRATEGY DONE: leaves the file DONE; a stopped training is continued from its last epoch.
train_one() {
  local strategy=$1 run=$output/runs/$1 command
  command=(fairseq-train "$output/bin" --user-dir "$USER_DIR" --task translation --arch transformer_iwslt_de_en
    --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim "$dim" --decoder-embed-dim "$dim"
    --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 --encoder-attention-heads 4 --decoder-attention-heads 4
    --dropout 0.1 --criterion cross_entropy --max-tokens 800
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 200
    --max-epoch "$epochs" --seed "$seed" --num-workers 0 --cpu --no-epoch-checkpoints
    --save-dir "$run/checkpoints" --log-format json --log-interval 1000)
  case $strategy in
    # The control for "what vectors know": no word has its own, and nothing else differs from pretrained_xavier.
    shuffled_xavier) command+=(--embed-init shuffled --embed-init-std xavier) ;;
    *) command+=(--embed-init "$strategy") ;;
  esac
  case $strategy in
    xavier | normal) ;;
    *) command+=(--embed-init-path "encoder=$output/vectors.de.txt" "decoder=$output/vectors.en.txt") ;;
  esac
  mkdir -p "$run"
  python "$REPO/scripts/run_result.py" begin --run "$run" --data "$output/bin" \
    --label "direction=de-en" "init=$strategy" "seed=$seed" -- "${command[@]}"
  "${command[@]}" 2>&1 | tee -a "$run/train.log" | toy progress "$strategy" "$epochs" || {
    tail -n 5 "$run/train.log" >&2
    die "training with $strategy failed; see $run/train.log"
  }
  date >"$2"
}

# translate_one STRATEGY RESULT: the test set with the checkpoint of the lowest validation loss.
translate_one() {
  local run=$output/runs/$1
  fairseq-generate "$output/bin" --user-dir "$USER_DIR" --path "$run/checkpoints/checkpoint_best.pt" --beam 5 \
    --max-tokens 4000 --num-workers 0 --cpu >"$run/generate.log" 2>&1 ||
    die "fairseq-generate failed; see $run/generate.log"
  toy score --log "$run/generate.log" --reference "$output/text/test.en" --output "$run/test"
  python "$REPO/scripts/run_result.py" finish --run "$run" --scores "$run/test.scores.json"
  date >"$2"
}

run_one() {
  step "training with $1" "$output/runs/$1/trained" -- train_one "$1"
  step "translating with $1" "$output/runs/$1/translated" -- translate_one "$1"
}

remember_settings "$output/settings" "seed=$seed" "epochs=$epochs" "dim=$dim" "train=$train" "test=$test" \
  "monolingual=$monolingual"
step "corpus" "$output/text" -- make_corpus
step "German word vectors" "$output/vectors.de.txt" -- make_vectors de
step "English word vectors" "$output/vectors.en.txt" -- make_vectors en
step "binarising" "$output/bin" -- binarise

# Job control gives every background job a process group of its own, so that stopping this script stops them whole.
set -m
running=()
stop_all() {
  for job in ${running[@]+"${running[@]}"}; do kill -TERM -- "-$job" 2>/dev/null || true; done
}
trap 'stop_all; exit 130' INT TERM
trap stop_all EXIT
# wait_all: for the jobs that were started; if one fails the others are finished first, so that nothing is wasted.
wait_all() {
  local job failed=0
  for job in ${running[@]+"${running[@]}"}; do wait "$job" || failed=1; done
  running=()
  [[ $failed -eq 0 ]] || die "not all trainings were finished (see above); starting again goes on from here"
}
for strategy in "${strategies[@]}"; do
  # Without the trap of this script, which `step` would take for the job's own: a job that is done would stop the others.
  (trap - EXIT && run_one "$strategy") </dev/null &
  running+=($!)
  [[ ${#running[@]} -lt $jobs ]] || wait_all
done
wait_all

echo
runs=("${strategies[@]/#/$output/runs/}")
toy report "${runs[@]}" --output "$output"
echo
echo "Table: $output/table.md, curves: $output/curves.png ($((SECONDS / 60)) min $((SECONDS % 60)) s since the start)"
