#!/usr/bin/env bash
# Fine-tune a pre-trained model on a prepared task of GLUE, with the settings of Ke et al. 2021 (table 2).
#
# Usage: [VENV=DIR] bash scripts/glue/train.sh --data DIR --output RUN --checkpoint FILE [options] [-- OPTIONS]
#   --data DIR          what prepare.sh made
#   --output RUN        folder of this run; an interrupted run is continued
#   --checkpoint FILE   pre-trained model; its architecture and all options of it are read from the file
#   --from-scratch      take the architecture of the checkpoint, but random weights
#   --arch NAME         another architecture than the checkpoint's; without --checkpoint: train NAME from scratch
#   --lr RATE           peak learning rate, default 3e-5 (the paper tries 2e-5, 3e-5, 4e-5 and 5e-5)
#   --seed N            default 1
#   --epochs N          default: 5 for MNLI, QNLI and QQP, else 10
#   --batch N           examples in a batch, default 32
#   --name NAME         what the model is called in tables (default: the architecture)
#   --keep-checkpoints  keep the run's checkpoints; otherwise they are removed when it has finished
# Everything after -- goes to fairseq-train, after the options above, so that it can replace them.
#
# Writes RUN/train.log, RUN/training.json and RUN/result.json (best epoch by GLUE's metric of the task: Matthews'
# correlation for CoLA, Pearson's for STS-B, accuracy otherwise). Uses a GPU if there is one.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

data="" output="" checkpoint="" from_scratch="" arch="" lr=3e-5 seed=1 epochs="" batch=32 name="" keep_checkpoints=""
extra=()
read_options "data output checkpoint from-scratch? arch lr seed epochs batch name keep-checkpoints? --" "$@"

[[ -n $data && -n $output ]] || die "--data and --output are needed; see $(basename "$0") --help"
[[ -n $checkpoint || -n $arch ]] || die "--checkpoint FILE is needed (or --arch NAME, to train from scratch)"
[[ -n $checkpoint || -z $from_scratch ]] || die "--from-scratch needs --checkpoint FILE, whose architecture is meant"
[[ -z $checkpoint || -f $checkpoint ]] || die "--checkpoint $checkpoint: no such file"
[[ -d $data/bin && -f $data/settings ]] || die "--data $data: not prepared; run prepare.sh --output $data first"
whole_numbers 0 seed
whole_numbers 1 epochs batch
number --lr "$lr" 'n > 0' "above 0"
data=$(absolute "$data") output=$(absolute "$output") checkpoint=${checkpoint:+$(absolute "$checkpoint")}
use_environment
# glue MODULE ARGUMENT...: one of the Python programs beside this script.
glue() { PYTHONPATH=$REPO/scripts python -m "glue.$1" "${@:2}"; }

task=$(setting "$data" task)
fact() { glue tasks show --task "$task" "$1"; }
metric=$(fact metric)
labels=$(fact labels)
read -ra metrics <<<"$(fact metrics)"
[[ -n $epochs ]] || epochs=$(fact epochs)
valid=""
for pair in $(fact dev); do valid+=${valid:+,}${pair%:*}; done

remember_run() {
  output_folder --output "$output"
  remember_settings "$output/settings" "task=$task" "checkpoint=$checkpoint" "scratch=$from_scratch" "arch=$arch" \
    "lr=$lr" "seed=$seed" "epochs=$epochs" "batch=$batch" "options=${extra[*]-}"
}
if [[ -f $output/result.json ]]; then
  remember_run
  say "finished before: $output"
  exit 0
fi

model=(--arch "$arch") updates=0
if [[ -n $checkpoint ]]; then
  messages=$(mktemp)
  trap 'rm -f "$messages"' EXIT
  options=$(glue model_options "$checkpoint" --dict "$data/bin/input0/dict.txt" ${arch:+--arch "$arch"} \
    2>"$messages") || die "$(tail -n 1 "$messages" | sed 's/^error: //')"
  mapfile -t model <<<"$options"
  updates=${model[0]} model=("${model[@]:1}")
  [[ -z $from_scratch ]] || updates=0
fi
remember_run
remember_settings "$output/pretraining" "updates=$updates" # another file may have got the checkpoint's name

# --finetune-from-model: the checkpoint's weights for a new run, without its optimizer, schedule and position in the
# data; a run that was interrupted goes on from its own checkpoint_last.pt.
command=(fairseq-train "$data/bin" --user-dir "$USER_DIR" --task sentence_prediction --num-classes "$(fact classes)"
  --init-token 0 --separator-token 2 --shorten-method truncate "${model[@]}"
  --criterion sentence_prediction_metrics --glue-metrics "${metrics[@]}"
  --best-checkpoint-metric "$metric" --maximize-best-checkpoint-metric --valid-subset "$valid"
  --optimizer adam --adam-betas "(0.9, 0.999)" --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1.0
  --lr "$lr" --lr-scheduler polynomial_decay_epochs --warmup-ratio 0.06 --max-epoch "$epochs"
  --batch-size "$batch" --required-batch-size-multiple 1 --seed "$seed" --num-workers 0
  --no-epoch-checkpoints --save-dir "$output/checkpoints" --log-format json --log-interval 100)
[[ -n $labels ]] || command+=(--regression-target)
[[ -z $checkpoint || -n $from_scratch ]] || command+=(--finetune-from-model "$checkpoint")
has_gpu || command+=(--cpu)
command+=(${extra[@]+"${extra[@]}"})

python "$REPO/scripts/run_result.py" begin --run "$output" --data "$data/bin" --metric "valid_$metric" --higher \
  --label "task=$task" "model=${name:-${model[1]}}" "lr=$lr" "seed=$seed" "updates=$updates" \
  "constant=$(glue tasks constant --task "$task" "$data/corpus/valid.label")" -- "${command[@]}"
log_training "$output" "${command[@]}"
python "$REPO/scripts/run_result.py" finish --run "$output"
[[ -n $keep_checkpoints ]] || rm -rf "$output/checkpoints"
