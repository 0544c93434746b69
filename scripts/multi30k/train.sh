#!/usr/bin/env bash
# Train a translation model on prepared Multi30k data with the settings of Kim et al. 2024.
#
# Usage: [VENV=DIR] bash scripts/multi30k/train.sh --data DIR --output RUN [options] [-- FAIRSEQ-TRAIN OPTIONS]
#   --data DIR               what prepare.sh made
#   --output RUN             folder of this run; an interrupted run is continued
#   --init STRATEGY          how the token embeddings start: a strategy of --embed-init, or none (default): fairseq's own
#   --vectors SLOT=PATH ...  where vectors come from: encoder=PATH decoder=PATH (for the strategies that use vectors), and
#                            for the second tables of duo encoder_p=PATH decoder_p=PATH
#   --arch NAME              transformer (default), tupe_transformer (positions untied from the words), or a rung of the
#                            ladder of duo.sh: transformer_equal duo_meta duo_shared duo_norm duo
#   --seed N                 default 1
#   --epochs N               default 20; a higher number continues a finished run
#   --dim D                  embedding dimension: default 300, for words; Kim takes 512 or 768 for sub-words
#   --heads N                default: 10 if D is 300, else 8
#   --ffn N                  inner width of the feed-forward layers, default 512 (inferred from the paper's model sizes)
#   --batch N                sentences in a batch, default 64, for words; Kim takes 128 (mBERT) or 96 (mT5)
#   --lr RATE                fixed learning rate, default 2e-4
#   --label KEY=VALUE ...    further labels of this run in tables
# Everything after -- goes to fairseq-train, after the options above, so that it can replace them.
#
# Writes RUN/train.log, RUN/training.json, RUN/checkpoints/checkpoint_{best,last}.pt and RUN/result.json, by `embinit run`.
# Uses a GPU if there is one.
# On a CPU set OMP_NUM_THREADS; several runs with one thread each need less time in all than one run with all cores.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=archs.sh
source "$REPO/scripts/multi30k/archs.sh"

data="" output="" init=none vectors=() arch=transformer seed=1 epochs=20 dim=300 heads="" ffn=512 batch=64 lr=2e-4
label=() extra=()
read_options "data output init vectors... arch seed epochs dim heads ffn batch lr label... --" "$@"

[[ -n $data && -n $output ]] || die "--data and --output are needed; see $(basename "$0") --help"
known_init --init "$init"
one_of --arch "$arch" "${KNOWN_ARCHS[@]}"
whole_numbers 0 seed
whole_numbers 1 epochs dim heads ffn batch
number --lr "$lr" 'n > 0' "above 0"
for entry in ${label[@]+"${label[@]}"}; do [[ $entry == ?*=* ]] || die "--label $entry: give KEY=VALUE"; done
[[ -d $data/bin ]] || die "--data $data: no folder bin in it; run prepare.sh --output $data first"
[[ $init != none || ${#vectors[@]} -eq 0 ]] || die "--vectors has no effect without --init STRATEGY"
data=$(absolute "$data") output=$(absolute "$output")
use_environment

if [[ -z $heads ]]; then
  heads=8
  [[ $dim -ne 300 ]] || heads=10
fi
mapfile -t arch_words < <(arch_options "$arch")
# Loading in the main process is fastest for sentences this short; they are a small part of a step.
command=(fairseq-train "$data/bin" --user-dir "$USER_DIR" --task translation
  "${arch_words[@]}" --encoder-layers 3 --decoder-layers 3
  --encoder-embed-dim "$dim" --decoder-embed-dim "$dim" --encoder-ffn-embed-dim "$ffn" --decoder-ffn-embed-dim "$ffn"
  --encoder-attention-heads "$heads" --decoder-attention-heads "$heads" --dropout 0.1
  --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-9 --lr "$lr" --lr-scheduler fixed
  --criterion cross_entropy --batch-size "$batch" --required-batch-size-multiple 1
  --max-epoch "$epochs" --seed "$seed" --num-workers 0
  --no-epoch-checkpoints --log-format json --log-interval 100)
if [[ $arch == transformer_equal ]]; then
  ffn=$(python "$REPO/scripts/multi30k/equal_ffn.py" -- "${command[@]}" ${extra[@]+"${extra[@]}"})
  extra+=(--encoder-ffn-embed-dim "$ffn" --decoder-ffn-embed-dim "$ffn")
fi
[[ $init == none ]] || command+=(--embed-init "$init")
[[ ${#vectors[@]} -eq 0 ]] || command+=(--embed-init-path "${vectors[@]}")
has_gpu || command+=(--cpu)
command+=(${extra[@]+"${extra[@]}"})

output_folder --output "$output"
direction=$(setting "$data" source)-$(setting "$data" target)
embinit run "$output" --label "direction=$direction" "arch=$arch" "init=$init" "seed=$seed" ${label[@]+"${label[@]}"} \
  -- "${command[@]}"
