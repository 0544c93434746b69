#!/usr/bin/env bash
# Table 2 of Kim et al. 2024 (and Table 6): range, mean and sigma of the encoder's embeddings in the experiments of Table 1,
# for each way of starting them, beside the positions' sigma. Nothing is trained.
#
# Usage: [SST2=DIR] [MNLI=DIR] [MULTI30K=DIR] [IWSLT17=DIR] [VENV=DIR] bash scripts/reproduce/table2.sh --output DIR \
#          [options]
#   --output DIR           needed; that of table1.sh, whose data are then taken over
#   --experiments, --glove, --hf, --tokens: as in table1.sh; default: what is there
#   --reduced              no difference: there is nothing to reduce
#
# Writes DIR/table2.md and, for each experiment, DIR/<experiment>.stats.json and .md, by embinit stats. An experiment that
# was described before is not described again: remove its files after a change of the vectors.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=experiments.sh
source "$REPO/scripts/reproduce/experiments.sh"

# shellcheck disable=SC2034 # read by their names
output="" experiments=() glove=() hf=() tokens="" reduced=""
read_options "output experiments... glove... hf... tokens reduced?" "$@"
[[ -n $output ]] || die "--output is needed; see $(basename "$0") --help"
output=$(absolute "$output")

bash "$REPO/scripts/reproduce/table1.sh" --prepare-only "$@"
use_environment

# vectors_of EXPERIMENT: what its encoder starts from, nothing if that is not there.
vectors_of() {
  local name=${1#*.} lang=en entry
  ! translates "$1" || lang=de
  [[ $name != words ]] || name=$lang
  # the last: learned by table1.sh
  for entry in ${glove[@]+"${glove[@]}"} ${hf[@]+"${hf[@]}"} "$lang=$output/$1/vectors/$lang.txt"; do
    [[ $entry != "$name="* || ! -e ${entry#*=} ]] || {
      echo "${entry#*=}"
      return
    }
  done
}

# describe EXPERIMENT VECTORS DICTIONARY JSON TEXT
describe() {
  embinit stats --json --vectors "$2" --dict "$3" >"$4"
  {
    printf '## %s\n\n' "$1"
    embinit stats --vectors "$2" --dict "$3" | sed 's/^/    /'
    echo
  } >"$5"
}

texts=()
for name in "${EXPERIMENTS[@]}"; do
  [[ ${#experiments[@]} -eq 0 || " ${experiments[*]} " == *" $name "* ]] || continue
  dictionary=$output/$name/data/bin/input0/dict.txt
  ! translates "$name" || dictionary=$output/$name/data/de-en/bin/dict.de.txt
  [[ -f $dictionary ]] || continue
  vectors=$(vectors_of "$name")
  if [[ -z $vectors ]]; then
    say "left out: $name (no vectors: give --glove, or train with table1.sh first, which learns some)"
    continue
  fi
  step "statistics of $name" "$output/$name.stats.json" "$output/$name.stats.md" -- \
    describe "$name" "$vectors" "$dictionary"
  texts+=("$output/$name.stats.md")
done
[[ ${#texts[@]} -gt 0 ]] || die "nothing to describe: see the messages above"
cat "${texts[@]}" | tee "$output/table2.md.part"
mv "$output/table2.md.part" "$output/table2.md"
