#!/usr/bin/env bash
# Prepare a task of GLUE for fairseq, with the symbols of a pre-trained model.
#
# Usage: DATA=DIR [VENV=DIR] bash scripts/glue/prepare.sh --task TASK [options]
#   --task TASK     CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI or RTE
#   --dict FILE     dict.txt of the pre-trained model. Without it one is made of the training data: only for models that
#                   are trained from scratch
#   --codes FILE    clean, tokenise and cut as scripts/wikibooks does, with these codes of its BPE
#   --hf DIR        tokenise with the tokenizer of this Hugging Face folder
#                   Without --codes and --hf the words of the data set are used as they are.
#   --min-count N   without --dict: symbols that the training text has fewer times become <unk> (default 1)
#   --output DIR    default: data/glue/TASK
#
# DATA is a folder with GLUE's folders CoLA, SST-2, ... as they are downloaded from gluebenchmark.com: train.tsv and
# dev.tsv (MNLI: dev_matched.tsv and dev_mismatched.tsv), each of which may be a .gz.
#
# Makes DIR/bin/{input0,input1,label}. Can be stopped and started again: finished steps are not repeated.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

task="" dict="" codes="" hf="" min_count=1 output=""
read_options "task dict codes hf min-count output" "$@"

[[ -n $task ]] || die "--task is needed; see $(basename "$0") --help"
[[ -n ${DATA:-} ]] || die "DATA is not set: set it to the folder with GLUE's tasks (CoLA, RTE, ...); see --help"
[[ -z $dict || -f $dict ]] || die "--dict $dict: no such file"
[[ -z $codes || -f $codes ]] || die "--codes $codes: no such file"
[[ -z $hf || -d $hf ]] || die "--hf $hf: no such folder"
[[ -z $codes || -z $hf ]] || die "--codes and --hf are two ways to cut words: choose one"
whole_numbers 1 min-count
dict=${dict:+$(absolute "$dict")} codes=${codes:+$(absolute "$codes")} hf=${hf:+$(absolute "$hf")}
use_environment
# glue MODULE ARGUMENT...: one of the Python programs beside this script.
glue() { PYTHONPATH=$REPO/scripts python -m "glue.$1" "${@:2}"; }
read -ra tasks <<<"$(glue tasks names)"
one_of --task "$task" "${tasks[@]}"
[[ -d $DATA/$task ]] || die "DATA=$DATA has no folder $task: set DATA to the folder with GLUE's tasks"
output=$(absolute "${output:-data/glue/$task}")
output_folder --output "$output"

fact() { glue tasks show --task "$task" "$1"; }
inputs=$(fact inputs)
read -ra labels <<<"$(fact labels)" # none for regression
read -ra sets <<<"train:train $(fact dev)" # fairseq's name : file

# columns PREFIX: the files of a set's sentences, one a line.
columns() {
  local column
  for ((column = 0; column < inputs; column++)); do echo "$1.input$column"; done
}

encode() {
  local sources=() pair
  for pair in "${sets[@]}"; do mapfile -t -O "${#sources[@]}" sources < <(columns "$output/corpus/${pair%:*}"); done
  if [[ -n $codes ]]; then
    glue encode --codes "$codes" --input "${sources[@]}" --output "$@"
  elif [[ -n $hf ]]; then
    python "$REPO/scripts/tokens.py" encode --kind huggingface --model "$hf" --input "${sources[@]}" --output "$@"
  else
    python "$REPO/scripts/tokens.py" encode --kind words --input "${sources[@]}" --output "$@"
  fi
}

binarise() {
  glue binarise --text "$output/text" --labels "$output/corpus" --sets "${sets[@]%:*}" --inputs "$inputs" \
    --classes ${labels[@]+"${labels[@]}"} ${dict:+--dict "$dict"} --min-count "$min_count" "$1" \
    >"$output/preprocess.log" 2>&1 || die "binarising failed; see $output/preprocess.log"
}

remember_settings "$output/settings" "task=$task" "dict=$dict" "codes=$codes" "hf=$hf" "min_count=$min_count"
texts=()
for pair in "${sets[@]}"; do
  corpus=$output/corpus/${pair%:*}
  mapfile -t files < <(columns "$corpus")
  step "$task, ${pair#*:}" "${files[@]}" "$corpus.label" -- \
    glue tasks extract --task "$task" --source "$DATA/$task/${pair#*:}.tsv"
  mapfile -t -O "${#texts[@]}" texts < <(columns "$output/text/${pair%:*}")
done
step "$task, tokens" "${texts[@]}" -- encode
step "$task, binarising" "$output/bin" -- binarise
unknown=$(sed -n 's|.*/train\.input0: .* tokens, \([0-9.]*%\) replaced.*|\1|p' "$output/preprocess.log")
say "ready: $output/bin ($(wc -l <"$output/bin/input0/dict.txt") symbols; ${unknown:-?} of the training text unknown)"
