#!/usr/bin/env bash
# Table 1 of Kim et al. 2024 (and its Figure 1, right): accuracy on SST-2 and BLEU on Multi30k, German to English, for each
# way of starting the embeddings, over seeds. Not in it: MNLI and IWSLT 2017.
#
#   multi30k.words, sst2.words   word vectors (GloVe)                    D 300
#   multi30k.mbert, sst2.bert    tokenizer and embeddings of (m)BERT     D of the folder
#   multi30k.mt5, sst2.t5        those of (m)T5
#
# Usage: [MULTI30K=DIR] [SST2=DIR] [VENV=DIR] bash scripts/reproduce/table1.sh --output DIR [options] [-- OPTIONS]
#   --output DIR           data, runs and results go here
#   --experiments NAME ... default: those of the six for which everything is there
#   --glove LANG=PATH ...  word vectors, de=PATH and en=PATH; default for Multi30k: learned from the training text
#   --hf NAME=DIR ...      Hugging Face folders: bert=DIR and t5=DIR for SST-2, mbert=DIR and mt5=DIR for Multi30k
#   --tokens KIND          of multi30k.words: moses (default) or spacy, as in the paper
#   --dim D                of the word vectors, default 300
#   --seeds N ...          default: 1 2 3 4 for Multi30k, 1 2 3 4 5 for SST-2 (the paper's numbers of runs)
#   --epochs N             default: 20 for Multi30k, 10 for SST-2
#   --jobs N               runs at a time, default: one per core (CPU) or per GPU; on a SLURM cluster an array (grid.sh)
#   --reduced              another default: seed 1, 8 epochs of Multi30k, 3 of SST-2
#   --prepare-only         only the data; default: everything
# OPTIONS are options of train.sh of both data sets; they may end in "-- OPTIONS" for fairseq-train.
#
# MULTI30K: a copy of the data set, see scripts/multi30k/prepare.sh; without it the files are downloaded. SST2: GLUE's
# folder SST-2, without which its experiments are left out.
#
# Can be stopped and started again. Results: DIR/results.md, results.json, curves.png by embinit compare.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

NAMES=(sst2.words sst2.bert sst2.t5 multi30k.words multi30k.mbert multi30k.mt5)
output="" experiments=() glove=() hf=() tokens=moses dim=300 seeds=() epochs="" jobs="" reduced="" prepare_only="" extra=()
read_options "output experiments... glove... hf... tokens dim seeds... epochs jobs reduced? prepare-only? --" "$@"

[[ -n $output ]] || die "--output is needed; see $(basename "$0") --help"
whole_numbers 0 seeds
whole_numbers 1 epochs jobs dim
one_of --tokens "$tokens" moses spacy
for name in ${experiments[@]+"${experiments[@]}"}; do one_of --experiments "$name" "${NAMES[@]}"; done
for entry in ${glove[@]+"${glove[@]}"}; do
  [[ $entry == de=* || $entry == en=* ]] || die "--glove $entry: give de=PATH or en=PATH"
  [[ -e ${entry#*=} ]] || die "--glove $entry: no such file"
done
for entry in ${hf[@]+"${hf[@]}"}; do
  one_of --hf "${entry%%=*}" bert t5 mbert mt5
  [[ -f ${entry#*=}/config.json ]] || die "--hf $entry: no Hugging Face folder (it has no config.json)"
done
[[ -z ${SST2:-} || -d $SST2 ]] || die "SST2=$SST2: no such folder"
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

# folder_of EXPERIMENT: its Hugging Face folder, nothing for words.
folder_of() { given "${1#*.}" ${hf[@]+"${hf[@]}"}; }

# lacks EXPERIMENT: what it cannot do without, nothing if all is there.
lacks() {
  case $1 in
    sst2.*) [[ -n ${SST2:-} ]] || echo "SST2=DIR" ;;
  esac
  case $1 in
    sst2.words) [[ -n $(glove_of en) ]] || echo "--glove en=PATH" ;;
    multi30k.words) ;;
    *) [[ -n $(folder_of "$1") ]] || echo "--hf ${1#*.}=DIR" ;;
  esac
}

# default EXPERIMENT WHAT: seeds or epochs.
default() {
  case $1.$2${reduced:+.reduced} in
    *.seeds.reduced) echo 1 ;;
    multi30k.*.seeds) echo 1 2 3 4 ;;
    sst2.*.seeds) echo 1 2 3 4 5 ;;
    multi30k.*.epochs.reduced) echo 8 ;;
    multi30k.*.epochs) echo 20 ;;
    sst2.*.epochs.reduced) echo 3 ;;
    sst2.*.epochs) echo 10 ;;
  esac
}

# multi30k EXPERIMENT and sst2 EXPERIMENT: the data, and unless --prepare-only the runs.
multi30k() {
  local folder=$output/$1 own lang vectors=() training=(--label "experiment=$1")
  own=$(folder_of "$1")
  export DATA=${MULTI30K:-}
  local kind=(--tokens "$tokens")
  [[ -z $own ]] || kind=(--tokens huggingface --hf "$own")
  bash "$REPO/scripts/multi30k/prepare.sh" "${kind[@]}" --output "$folder/data/de-en"
  [[ -z $prepare_only ]] || return 0
  if [[ -z $own ]]; then
    kind+=(--dim "$dim")
    for lang in de en; do [[ -z $(glove_of "$lang") ]] || vectors+=("$lang=$(glove_of "$lang")"); done
  else
    kind+=(--dim "$(hf_dim "$own")")
    inits+=(shuffled)
    training+=(--batch "$([[ $1 == *.mt5 ]] && echo 96 || echo 128)")
  fi
  [[ ${#vectors[@]} -eq 0 ]] || kind+=(--vectors "${vectors[@]}")
  bash "$REPO/scripts/multi30k/run.sh" --output "$folder" --directions de-en "${kind[@]}" "${grid[@]}" \
    --inits "${inits[@]}" -- "${training[@]}" ${extra[@]+"${extra[@]}"}
}

sst2() {
  local folder=$output/$1 own source=() training=(--label "experiment=$1")
  own=$(folder_of "$1")
  export DATA=$SST2
  bash "$REPO/scripts/sst2/prepare.sh" ${own:+--hf "$own"} --output "$folder/data"
  [[ -z $prepare_only ]] || return 0
  if [[ -n $own ]]; then
    source=(--hf "$own")
    inits+=(shuffled)
  else
    source=(--vectors "$(glove_of en)")
    training+=(--dim "$dim")
  fi
  bash "$REPO/scripts/sst2/run.sh" --output "$folder" "${source[@]}" "${grid[@]}" --inits "${inits[@]}" \
    -- "${training[@]}" ${extra[@]+"${extra[@]}"}
}

chosen=()
for name in "${experiments[@]:-${NAMES[@]}}"; do
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
  read -ra own_seeds <<<"${seeds[*]:-$(default "$name" seeds)}"
  grid=(--seeds "${own_seeds[@]}" --epochs "${epochs:-$(default "$name" epochs)}" ${jobs:+--jobs "$jobs"})
  "${name%.*}" "$name"
done
[[ -n $prepare_only ]] || embinit compare "${chosen[@]/#/$output/}" --baseline xavier --output "$output"
