#!/usr/bin/env bash
# Text classification as in Li et al. 2020 (Duo): couples of embeddings and baselines x seeds, then one table.
#
# Usage: DATA=FILE [VENV=DIR] bash scripts/textcls/run.sh --output DIR [options] [-- FAIRSEQ-TRAIN OPTIONS]
#   --output DIR               data, runs and results go here
#   --protocols NAME ...       textgcn (default), inductive, or both: see prepare.sh
#   --vectors NAME=FILE ...    word vectors of any dimensions
#   --own-vectors NAME=DIM ... vectors to be learned from the training texts, by scripts/train_vectors.py
#   --min-count, --stop-words, --no-clean, --name: see prepare.sh
#   --models, --attentions, --epochs, --patience, --lr, --batch, --jobs, --keep-checkpoints: see train.sh
#   --seeds N ...              default: 1 2 ... 10
# Everything after -- goes to fairseq-train.
#
# Can be stopped and started again, also with more seeds, models or vectors. Results: DIR/results.md, results.json.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

HERE=$REPO/scripts/textcls
output="" protocols=() vectors=() own_vectors=() min_count="" stop_words="" no_clean="" name="" models=() attentions=()
seeds=() epochs="" patience="" lr="" batch="" jobs="" keep_checkpoints="" extra=()
read_options "output protocols... vectors... own-vectors... min-count stop-words no-clean? name models... attentions... \
seeds... epochs patience lr batch jobs keep-checkpoints? --" "$@"

[[ -n $output ]] || die "--output is needed; see $(basename "$0") --help"
[[ -n ${DATA:-} ]] || die "DATA is not set: set it to a TSV file with the columns split, label, text; see --help"
[[ ${#protocols[@]} -gt 0 ]] || protocols=(textgcn)
for protocol in "${protocols[@]}"; do one_of --protocols "$protocol" textgcn inductive; done
[[ ${#seeds[@]} -gt 0 ]] || seeds=(1 2 3 4 5 6 7 8 9 10)
for pair in ${own_vectors[@]+"${own_vectors[@]}"}; do
  [[ $pair =~ ^[A-Za-z0-9_.-]+=[1-9][0-9]*$ ]] || die "--own-vectors $pair: NAME=DIMENSION is needed"
done
for pair in ${vectors[@]+"${vectors[@]}"}; do # train.sh reads them, but only after all the preparation
  [[ $pair == ?*=* ]] || die "--vectors $pair: its name in tables is missing; give NAME=FILE, such as a=$pair"
  [[ -e ${pair#*=} ]] || die "--vectors $pair: no such file"
done
output=$(absolute "$output")
use_environment
output_folder --output "$output"

preparing=(--seeds "${seeds[@]}" ${min_count:+--min-count "$min_count"} ${stop_words:+--stop-words "$stop_words"}
  ${no_clean:+--no-clean} ${name:+--name "$name"})
training=(--seeds "${seeds[@]}" ${epochs:+--epochs "$epochs"} ${patience:+--patience "$patience"} ${lr:+--lr "$lr"}
  ${batch:+--batch "$batch"} ${jobs:+--jobs "$jobs"} ${keep_checkpoints:+--keep-checkpoints})
[[ ${#models[@]} -eq 0 ]] || training+=(--models "${models[@]}")
[[ ${#attentions[@]} -eq 0 ]] || training+=(--attentions "${attentions[@]}")

driver=""
trap '[[ -z $driver ]] || kill "$driver" 2>/dev/null || true' EXIT
for protocol in "${protocols[@]}"; do
  data=$output/data/$protocol all=(${vectors[@]+"${vectors[@]}"})
  bash "$HERE/prepare.sh" --protocol "$protocol" --output "$data" "${preparing[@]}"
  for pair in ${own_vectors[@]+"${own_vectors[@]}"}; do
    file=$output/vectors/$protocol/${pair%=*}.${pair#*=}.txt # with the dimension: another one is another file
    step "vectors ${pair%=*}, $protocol" "$file" -- python "$REPO/scripts/train_vectors.py" \
      --text "$data/corpus/train.input0" --dim "${pair#*=}" --output
    all+=("${pair%=*}=$file")
  done
  say "training, protocol $protocol"
  bash "$HERE/train.sh" --data "$data" --output "$output/runs/$protocol" "${training[@]}" \
    ${all[@]+--vectors "${all[@]}"} -- ${extra[@]+"${extra[@]}"} &
  driver=$! # in the background: while bash waits for a command, it would not see that it is to stop
  wait "$driver"
  driver=""
done
PYTHONPATH=$REPO/scripts python -m textcls.table --runs "$output/runs" --output "$output"
