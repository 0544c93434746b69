#!/usr/bin/env bash
# Translate newstest2014 with the mean of a run's last checkpoints, and score it.
#
# Usage: [VENV=DIR] bash scripts/wmt14_en_de/generate.sh --data DIR --run RUN [options] [-- FAIRSEQ-GENERATE OPTIONS]
#        [VENV=DIR] bash scripts/wmt14_en_fr/generate.sh --data DIR --run RUN [options] [-- FAIRSEQ-GENERATE OPTIONS]
#   --data DIR       what prepare.sh made
#   --run RUN        what train.sh made
#   --average N      mean of the last N checkpoints (default 5; Vaswani et al. take 20 for big models); 0: no mean, but the
#                    checkpoint of the lowest validation loss
#   --beam N         default 4
#   --lenpen P       exponent of the length that a hypothesis' score is divided by, default 0.6
#   --max-tokens N   tokens in a batch (default 12000)
#   --pair PAIR      en-de or en-fr: set by scripts/wmt14_en_de and wmt14_en_fr, needed in scripts/wmt14
#
# Writes RUN/averaged.<N>.<updates>.pt, RUN/test/{generate.log,hypothesis.tokens,hypothesis.text,reference.text,
# scores.json} and RUN/result.json and prints the scores, all of them case-sensitive:
#   bleu                           sacrebleu on detokenised text against the raw reference: the figure to report
#   bleu_tokenized                 on Moses tokens
#   bleu_tokenized_compound_split  the same with hyphens as tokens of their own, as Vaswani et al. count for en-de
#   chrf                           sacrebleu's chrF2, on detokenised text
# Can be stopped and started again; what is there for the same checkpoints and options is not done again. Other options
# make all of RUN/test anew. Two scripts that translate with one run take turns.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

pair="" data="" run="" average=5 beam=4 lenpen=0.6 max_tokens=12000 extra=()
read_options "pair data run average beam lenpen max-tokens --" "$@"

[[ -n $pair && -n $data && -n $run ]] || die "--pair, --data and --run are needed; see $(basename "$0") --help"
one_of --pair "$pair" en-de en-fr
whole_numbers 0 average
whole_numbers 1 beam max-tokens
number --lenpen "$lenpen" 'n >= 0' "from 0"
[[ -f $data/settings ]] || die "--data $data: not made by prepare.sh"
[[ $(setting "$data" pair) == "$pair" ]] || die "--data $data: holds no data of $pair; run prepare.sh of that pair"
[[ -f $run/checkpoints/checkpoint_best.pt ]] || die "--run $run: no checkpoints/checkpoint_best.pt; run train.sh first"
data=$(absolute "$data") run=$(absolute "$run")
use_environment

tokens=$(setting "$data" tokens) target=${pair#*-} output=$run/test
wmt14() { PYTHONPATH=$REPO/scripts:$REPO python -m "wmt14.$1" "${@:2}"; }

averaged() { wmt14 average --checkpoints "$run/checkpoints" --number "$average" "$1"; }

translate() {
  "${command[@]}" >"$1" 2>"$output/generate.errors" || die "fairseq-generate failed; see $output/generate.errors"
}

lock_folder "$run" "translating"
python "$REPO/scripts/trained_dictionaries.py" --data "$data" --run "$run"
if [[ $average -eq 0 ]]; then
  checkpoint=$run/checkpoints/checkpoint_best.pt
  identity=best.$(sha256_of "$checkpoint")
else
  newest=$(wmt14 average --checkpoints "$run/checkpoints" --number "$average" --list | tail -n 1)
  identity=${newest%.pt} identity=$average.${identity##*_}
  checkpoint=$run/averaged.$identity.pt
  if [[ $checkpoint -ot $run/checkpoints/$newest ]]; then rm -rf "$checkpoint" "$output"; fi # trained anew
  step "averaging the last $average checkpoints" "$checkpoint" -- averaged
fi
command=(fairseq-generate "$data/bin" --user-dir "$USER_DIR" --task translation --gen-subset test
  --source-lang "${pair%-*}" --target-lang "$target" --path "$checkpoint" --beam "$beam" --lenpen "$lenpen"
  --max-len-a 1 --max-len-b 50 --max-tokens "$max_tokens" --num-workers 0)
has_gpu || command+=(--cpu)
command+=(${extra[@]+"${extra[@]}"})

settings=$(printf '%s\n' "$identity" "${command[@]}")
if [[ ! -f $output/settings || $(cat "$output/settings") != "$settings" ]]; then
  rm -rf "$output"
  mkdir -p "$output"
  printf '%s\n' "$settings" >"$output/settings.part"
  mv "$output/settings.part" "$output/settings"
fi
step "translating newstest2014" "$output/generate.log" -- translate
made_with=$(sha256_of "$output/settings")
if [[ -f $output/scores.json ]] && grep -q "$made_with" "$output/scores.json"; then
  say "scoring: there already: $output/scores.json"
else
  wmt14 score --log "$output/generate.log" --tokens "$tokens" --lang "$target" --model "$data/spm.model" \
    --reference "$data/test.$target" --output "$output" \
    --label "beam=$beam" "lenpen=$lenpen" "checkpoint=$identity" "settings=$made_with"
fi
[[ $run/result.json -nt $output/scores.json ]] ||
  python "$REPO/scripts/run_result.py" finish --run "$run" --scores "$output/scores.json"
