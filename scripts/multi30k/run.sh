#!/usr/bin/env bash
# The grid of Kim et al. 2024 on Multi30k or IWSLT 2017: directions x initialisations x seeds (x architectures), then a
# table and training curves.
#
# Usage: [DATA=DIR] [VENV=DIR] bash scripts/multi30k/run.sh --output DIR [options] [-- OPTIONS OF train.sh],
# for IWSLT 2017 scripts/iwslt17/run.sh
#   --dataset NAME             multi30k (default) or iwslt17 (default of scripts/iwslt17), whose scripts are called
#   --output DIR               data, vectors, runs and results go here
#   --directions PAIR ...      default: de-en en-de; of iwslt17: de-en
#   --archs NAME ...           default: transformer; as in train.sh
#   --inits STRATEGY ...       default: xavier pretrained pretrained_xavier shuffled (none: fairseq's own)
#   --seeds N ...              default: 1 2
#   --epochs N                 default 20
#   --jobs N                   runs at a time, default: one per core (CPU) or per GPU
#   --vectors LANG=PATH ...    vectors of a language, such as en=glove.840B.300d.txt; a language without any gets
#                              vectors learned from the training text (scripts/train_vectors.py)
#   --vectors-p LANG=PATH ...  vectors of the second table of duo; without any it starts as Xavier does
#   --tokens KIND, --hf DIR    as in prepare.sh; with huggingface the folder is also the vectors of both languages
#   --dim D                    as in train.sh
#
# Can be stopped and started again: finished runs are kept, interrupted ones continue. With a higher --epochs all go on.
# Results: DIR/results.md, results.json, curves.png. The table so far, while the grid is running:
#   embinit compare DIR/runs
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=archs.sh
source "$REPO/scripts/multi30k/archs.sh"
# shellcheck source=../grid.sh
source "$REPO/scripts/grid.sh"

dataset=multi30k output="" directions=() archs=() inits=() seeds=() vectors=() vectors_p=() epochs=20 jobs=""
tokens=moses hf="" dim=300 extra=()
read_options "dataset output directions... archs... inits... seeds... epochs jobs vectors... vectors-p... tokens hf \
dim --" "$@"

[[ -n $output ]] || die "--output is needed; see $(basename "$0") --help"
one_of --dataset "$dataset" multi30k iwslt17
HERE=$REPO/scripts/$dataset
[[ ${#directions[@]} -gt 0 || $dataset != iwslt17 ]] || directions=(de-en)
[[ ${#directions[@]} -gt 0 ]] || directions=(de-en en-de)
[[ ${#archs[@]} -gt 0 ]] || archs=(transformer)
for arch in "${archs[@]}"; do one_of --archs "$arch" "${KNOWN_ARCHS[@]}"; done
[[ ${#inits[@]} -gt 0 ]] || inits=(xavier pretrained pretrained_xavier shuffled)
for init in "${inits[@]}"; do known_init --inits "$init"; done
[[ ${#seeds[@]} -gt 0 ]] || seeds=(1 2)
for direction in "${directions[@]}"; do one_of --directions "$direction" de-en en-de; done
whole_numbers 0 seeds
whole_numbers 1 epochs jobs dim
one_of --tokens "$tokens" moses spacy subword_nmt sentencepiece huggingface
[[ -z $hf || -d $hf ]] || die "--hf $hf: no such folder"
for entry in ${vectors[@]+"${vectors[@]}"}; do
  [[ $entry == de=* || $entry == en=* ]] || die "--vectors $entry: give de=PATH or en=PATH"
  [[ -e ${entry#*=} ]] || die "--vectors $entry: no such file"
done
for entry in ${vectors_p[@]+"${vectors_p[@]}"}; do
  [[ $entry == de=* || $entry == en=* ]] || die "--vectors-p $entry: give de=PATH or en=PATH"
  [[ -e ${entry#*=} ]] || die "--vectors-p $entry: no such file"
  [[ " ${archs[*]} " == *" duo"* ]] || die "--vectors-p: none of --archs ${archs[*]} has a second table"
done
output=$(absolute "$output")
use_environment
output_folder --output "$output"
jobs=${jobs:-$(default_jobs)}

learn_vectors() { python "$REPO/scripts/train_vectors.py" --text "$1" --dim "$dim" --output "$2"; }

# given_for LANG LANG=PATH...: the file of a language, nothing if none is given.
given_for() {
  local lang=$1 entry
  shift
  for entry in "$@"; do
    [[ $entry != "$lang="* ]] || {
      absolute "${entry#*=}"
      return
    }
  done
}

# vectors_of LANG: the file given for a language, or the one that was learned.
vectors_of() {
  local given
  given=$(given_for "$1" ${vectors[@]+"${vectors[@]}"})
  if [[ -n $given ]]; then
    echo "$given"
    return
  fi
  if [[ -n $hf ]]; then absolute "$hf"; else echo "$output/vectors/$1.txt"; fi
}

# second_tables DIRECTION: SLOT=PATH for those of duo's second tables that have vectors.
second_tables() {
  local source target
  source=$(given_for "${1%-*}" ${vectors_p[@]+"${vectors_p[@]}"})
  target=$(given_for "${1#*-}" ${vectors_p[@]+"${vectors_p[@]}"})
  [[ -z $source ]] || echo "encoder_p=$source"
  [[ -z $target ]] || echo "decoder_p=$target"
}

one_run() {
  local seed=$1 direction=$2 arch=$3 init=$4 run=$output/runs/$2.$3.$4.seed$1 options=()
  [[ $arch != transformer ]] || run=$output/runs/$direction.$init.seed$seed
  if needs_vectors "$init"; then
    options=(--vectors "encoder=$(vectors_of "${direction%-*}")" "decoder=$(vectors_of "${direction#*-}")")
    [[ $arch != duo* ]] || mapfile -t -O ${#options[@]} options < <(second_tables "$direction")
  fi
  bash "$HERE/train.sh" --data "$output/data/$direction" --output "$run" --arch "$arch" --init "$init" --seed "$seed" \
    --epochs "$epochs" --dim "$dim" ${options[@]+"${options[@]}"} ${extra[@]+"${extra[@]}"}
  # embinit run has dropped the scores of a training that has gone on since
  grep -q '"bleu": {' "$run/result.json" ||
    bash "$HERE/generate.sh" --data "$output/data/$direction" --run "$run"
}

for direction in "${directions[@]}"; do
  bash "$HERE/prepare.sh" --tokens "$tokens" ${hf:+--hf "$hf"} --output "$output/data/$direction" \
    --source "${direction%-*}" --target "${direction#*-}"
done
for init in "${inits[@]}"; do
  needs_vectors "$init" || continue
  for lang in de en; do
    file=$(vectors_of "$lang")
    [[ $file != "$output/vectors/"* ]] || step "vectors from the training text: $lang" "$file" -- \
      learn_vectors "$output/data/${directions[0]}/text/train.$lang"
  done
done
# list_runs: seeds outermost, so that after the first seed the table is complete, if without deviations.
list_runs() {
  local seed direction arch init
  for seed in "${seeds[@]}"; do
    for direction in "${directions[@]}"; do
      for arch in "${archs[@]}"; do
        for init in "${inits[@]}"; do echo "$seed $direction $arch $init"; done
      done
    done
  done
}

say "$(counted ${#directions[@]} direction) x $(counted ${#archs[@]} architecture)" \
  "x $(counted ${#inits[@]} initialisation) x $(counted ${#seeds[@]} seed), $(at_a_time "$jobs")"
run_grid "$jobs" "$output/logs" one_run < <(list_runs)
embinit compare "$output/runs" --output "$output"
