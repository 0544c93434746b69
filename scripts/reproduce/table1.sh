#!/usr/bin/env bash
# Table 1 of Kim et al. 2024 (and its Figure 1, right): accuracy on SST-2 and MNLI, BLEU on Multi30k and IWSLT 2017 from
# German to English, for each way of starting the embeddings, over seeds.
#
#   sst2.words, mnli.words, multi30k.words, iwslt17.words    word vectors (GloVe)                   D 300
#   sst2.bert, mnli.bert, multi30k.mbert, iwslt17.mbert      tokenizer and embeddings of (m)BERT    D of the folder
#   sst2.t5, mnli.t5, multi30k.mt5, iwslt17.mt5              those of (m)T5
#
# Usage: [SST2=DIR] [MNLI=DIR] [MULTI30K=DIR] [IWSLT17=DIR] [VENV=DIR] bash scripts/reproduce/table1.sh --output DIR \
#          [options] [-- OPTIONS]
#   --output DIR           data, runs and results go here
#   --experiments NAME ... default: those of the twelve for which everything is there
#   --glove LANG=PATH ...  word vectors, de=PATH and en=PATH; default for translation: learned from the training text
#   --hf NAME=DIR ...      Hugging Face folders: bert=DIR and t5=DIR for classification, mbert=DIR and mt5=DIR for
#                          translation
#   --tokens KIND          of multi30k.words and iwslt17.words: moses (default) or spacy, as in the paper
#   --dim D                of the word vectors, default 300
#   --seeds N ...          default, as many as in the paper: 5 for SST-2, 3 for MNLI, 4 for translation, from 1
#   --epochs N             default, as in the paper: 5 for SST-2, 9 for mnli.words, 10 for mnli.bert and mnli.t5, 20 for
#                          translation
#   --jobs N               runs at a time, default: one per core (CPU) or per GPU; on a SLURM cluster an array (grid.sh)
#   --reduced              another default: seed 1, 3 epochs of classification, 8 of translation
#   --prepare-only         only the data; default: everything
# OPTIONS are options of train.sh of all data sets; they may end in "-- OPTIONS" for fairseq-train.
#
# SST2, MNLI: GLUE's folders SST-2 and MNLI. IWSLT17: the campaign's files, see scripts/iwslt17/prepare.sh. Without its
# folder the experiments of a data set are left out. MULTI30K: a copy of the data set, see scripts/multi30k/prepare.sh;
# without it the files are downloaded.
#
# Can be stopped and started again. Results: DIR/results.md, results.json, curves.png by embinit compare.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=experiments.sh
source "$REPO/scripts/reproduce/experiments.sh"

output="" experiments=() glove=() hf=() tokens=moses dim=300 seeds=() epochs="" jobs="" reduced="" prepare_only="" extra=()
read_options "output experiments... glove... hf... tokens dim seeds... epochs jobs reduced? prepare-only? --" "$@"

[[ -n $output ]] || die "--output is needed; see $(basename "$0") --help"
whole_numbers 0 seeds
whole_numbers 1 epochs jobs dim
one_of --tokens "$tokens" moses spacy
for name in ${experiments[@]+"${experiments[@]}"}; do one_of --experiments "$name" "${EXPERIMENTS[@]}"; done
for entry in ${glove[@]+"${glove[@]}"}; do
  [[ $entry == de=* || $entry == en=* ]] || die "--glove $entry: give de=PATH or en=PATH"
  [[ -e ${entry#*=} ]] || die "--glove $entry: no such file"
done
for entry in ${hf[@]+"${hf[@]}"}; do
  one_of --hf "${entry%%=*}" bert t5 mbert mt5
  [[ -f ${entry#*=}/config.json ]] || die "--hf $entry: no Hugging Face folder (it has no config.json)"
done
declare -A folders=([SST2]=${SST2:-} [MNLI]=${MNLI:-} [MULTI30K]=${MULTI30K:-} [IWSLT17]=${IWSLT17:-})
for variable in SST2 MNLI MULTI30K IWSLT17; do
  [[ -z ${folders[$variable]} || -d ${folders[$variable]} ]] || die "$variable=${folders[$variable]}: no such folder"
done
output=$(absolute "$output")

# given NAME NAME=PATH...: the path of that name, nothing if there is none.
given() {
  local name=$1 entry
  shift
  for entry in "$@"; do
    [[ $entry != "$name="* ]] || absolute "${entry#*=}"
  done
}

glove_of() { given "$1" ${glove[@]+"${glove[@]}"}; }

# hf_of EXPERIMENT: its Hugging Face folder, nothing for words.
hf_of() { given "${1#*.}" ${hf[@]+"${hf[@]}"}; }

# variable_of EXPERIMENT: the name of the variable with the folder of its data set.
variable_of() {
  local dataset=${1%.*}
  echo "${dataset^^}"
}

# lacks EXPERIMENT: what it cannot do without, nothing if all is there.
lacks() {
  local variable
  variable=$(variable_of "$1")
  [[ -n ${folders[$variable]} || $variable == MULTI30K ]] || echo "$variable=DIR"
  if [[ $1 != *.words ]]; then
    [[ -n $(hf_of "$1") ]] || echo "--hf ${1#*.}=DIR"
  elif ! translates "$1"; then
    [[ -n $(glove_of en) ]] || echo "--glove en=PATH"
  fi
}

# default EXPERIMENT WHAT: seeds, epochs or batch; Table 5 and appendix A.2 of the paper.
default() {
  case $1.$2${reduced:+.reduced} in
    *.seeds.reduced) echo 1 ;;
    sst2.*.seeds) echo 1 2 3 4 5 ;;
    mnli.*.seeds) echo 1 2 3 ;;
    *.seeds) echo 1 2 3 4 ;;
    sst2.*.epochs.reduced | mnli.*.epochs.reduced) echo 3 ;;
    *.epochs.reduced) echo 8 ;;
    sst2.*.epochs) echo 5 ;;
    mnli.words.epochs) echo 9 ;;
    mnli.*.epochs) echo 10 ;;
    *.epochs) echo 20 ;;
    multi30k.words.batch*) echo 64 ;;
    multi30k.mt5.batch*) echo 96 ;;
    iwslt17.mt5.batch*) echo 112 ;;
    *.batch*) echo 128 ;;
  esac
}

# translate EXPERIMENT, classify EXPERIMENT: the data, and unless --prepare-only the runs.
translate() {
  local folder=$output/$1 scripts=$REPO/scripts/${1%.*} own lang vectors=() kind=(--tokens "$tokens")
  own=$(hf_of "$1")
  [[ -z $own ]] || kind=(--tokens huggingface --hf "$own")
  bash "$scripts/prepare.sh" "${kind[@]}" --output "$folder/data/de-en"
  [[ -z $prepare_only ]] || return 0
  if [[ -n $own ]]; then
    kind+=(--dim "$(hf_dim "$own")")
  else
    kind+=(--dim "$dim")
    for lang in de en; do [[ -z $(glove_of "$lang") ]] || vectors+=("$lang=$(glove_of "$lang")"); done
  fi
  [[ ${#vectors[@]} -eq 0 ]] || kind+=(--vectors "${vectors[@]}")
  bash "$scripts/run.sh" --output "$folder" --directions de-en "${kind[@]}" "${grid[@]}" -- "${training[@]}"
}

classify() {
  local task=SST-2 own dimension=()
  [[ $1 != mnli.* ]] || task=MNLI
  own=$(hf_of "$1")
  [[ -n $own ]] || dimension=(--encoder-embed-dim "$dim")
  export TASK=$task HF=$own
  OUTPUT=$output/$1/data bash "$REPO/scripts/sst2/prepare.sh"
  [[ -z $prepare_only ]] || return 0
  OUTPUT=$output/$1 VECTORS=${own:-$(glove_of en)} INITS=${inits[*]} SEEDS=${own_seeds[*]} JOBS=$jobs LABELS="experiment=$1" \
    bash "$REPO/scripts/sst2/run.sh" --batch-size "$(default "$1" batch)" --max-epoch "${epochs:-$(default "$1" epochs)}" \
    "${dimension[@]}" "${extra[@]}"
}

chosen=()
for name in "${experiments[@]:-${EXPERIMENTS[@]}}"; do
  missing=$(lacks "$name" | paste -sd ' ')
  if [[ -z $missing ]]; then
    chosen+=("$name")
  elif [[ ${#experiments[@]} -gt 0 ]]; then
    die "--experiments $name: needs $missing"
  else
    say "left out: $name (needs $missing)"
  fi
done
use_environment
output_folder --output "$output"

for name in "${chosen[@]}"; do
  say "experiment $name"
  inits=(xavier pretrained pretrained_xavier)
  [[ $name == *.words ]] || inits+=(shuffled)
  read -ra own_seeds <<<"${seeds[*]:-$(default "$name" seeds)}"
  grid=(--inits "${inits[@]}" --seeds "${own_seeds[@]}" --epochs "${epochs:-$(default "$name" epochs)}"
    ${jobs:+--jobs "$jobs"})
  training=(--label "experiment=$name" --batch "$(default "$name" batch)" ${extra[@]+"${extra[@]}"})
  export DATA=${folders[$(variable_of "$name")]}
  if translates "$name"; then translate "$name"; else classify "$name"; fi
done
[[ -n $prepare_only ]] || embinit compare "${chosen[@]/#/$output/}" --baseline xavier --output "$output"
