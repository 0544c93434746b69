#!/usr/bin/env bash
# Translate the test set (test_2016_flickr) with the checkpoint of the lowest validation loss, and score it.
#
# Usage: [VENV=DIR] bash scripts/multi30k/generate.sh --data DIR --run RUN [options] [-- FAIRSEQ-GENERATE OPTIONS]
#   --data DIR    what prepare.sh made
#   --run RUN     what train.sh made
#   --beam N      default 5
#   --subset S    test (default) or valid
#   --batch N     sentences in a batch, default 128
#
# Writes RUN/<subset>.hypothesis.{tokens,text}, RUN/<subset>.reference.text (a copy, for embinit compare),
# RUN/<subset>.scores.json and RUN/result.json and prints the scores:
#   bleu            sacrebleu on detokenised text against the raw reference, both lower-cased (the models' vocabulary is)
#   bleu_tokenized  on lower-cased tokens as they are; comparable with papers that report tokenised BLEU only
#   chrf            sacrebleu's chrF2 on the same text as bleu
# Two scripts that translate with one run take turns; what the last one made is there in the end.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

data="" run="" beam=5 subset=test batch=128 extra=()
read_options "data run beam subset batch --" "$@"

[[ -n $data && -n $run ]] || die "--data and --run are needed; see $(basename "$0") --help"
one_of --subset "$subset" test valid
whole_numbers 1 beam batch
[[ -f $data/settings ]] || die "--data $data: not made by prepare.sh"
[[ -f $run/checkpoints/checkpoint_best.pt ]] || die "--run $run: no checkpoints/checkpoint_best.pt; run train.sh first"
data=$(absolute "$data") run=$(absolute "$run")
use_environment

lock_folder "$run" "translating"
python "$REPO/scripts/trained_dictionaries.py" --data "$data" --run "$run"

target=$(setting "$data" target)
case $(setting "$data" tokens) in
  subword_nmt) steps=(bpe moses) ;;
  sentencepiece) steps=(sentencepiece="$data/spm.model") ;;
  huggingface) steps=(huggingface="$(setting "$data" hf)") ;;
  *) steps=("$(setting "$data" tokens)") ;;
esac

command=(fairseq-generate "$data/bin" --user-dir "$USER_DIR" --task translation --gen-subset "$subset"
  --path "$run/checkpoints/checkpoint_best.pt" --beam "$beam" --batch-size "$batch" --num-workers 0)
has_gpu || command+=(--cpu)
command+=(${extra[@]+"${extra[@]}"})

say "translating $subset: $run"
"${command[@]}" >"$run/$subset.generate.log" 2>&1 || die "fairseq-generate failed; see $run/$subset.generate.log"
embinit score "$run" --subset "$subset" --ref "$data/corpus/raw/$subset.$target" \
  --tokenized "$data/corpus/tok/$subset.$target" --lowercase --lang "$target" --detokenize "${steps[@]}"
