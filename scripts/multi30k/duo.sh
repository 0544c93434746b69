#!/usr/bin/env bash
# What do two embeddings of every word bring? The ablation ladder of Li et al. 2020 (Table 5) on Multi30k, then one table
# with validation loss, perplexity and BLEU, and their curves (the paper's Figure 3, Tables 6 and 7).
#
#   transformer         fairseq's
#   transformer_equal   the same with feed-forward layers so wide that it has as many parameters as duo
#   duo_meta            "+ Meta Embeddings": duo_transformer with all switches off
#   duo_shared          "+ Weight Sharing"
#   duo_norm            "+ Duo Normalization"
#   duo                 "+ Fusion Layer": the whole model
#
# Usage: [DATA=DIR] [VENV=DIR] bash scripts/multi30k/duo.sh --output DIR [options] [-- OPTIONS OF train.sh]
#   --output DIR               data, vectors, runs and results go here
#   --dataset NAME             multi30k (default), or iwslt17 with --directions de-en by default
#   --directions PAIR ...      default: de-en en-de
#   --seeds N ...              default: 1 2
#   --epochs N                 default 20
#   --jobs N                   runs at a time, default: one per core (CPU) or per GPU
#   --inits STRATEGY ...       default: xavier. With vectors: pretrained_xavier, ...
#   --vectors LANG=PATH ...    vectors of a language, of the first table of duo
#   --vectors-p LANG=PATH ...  those of its second table; a language without any starts it as Xavier does
#   --tokens KIND, --hf DIR    as in prepare.sh; with huggingface the folder is also the vectors of both languages
#   --dim D                    as in train.sh
#
# Validation BLEU is that of greedy search on the data set's tokens, after every epoch.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=archs.sh
source "$REPO/scripts/multi30k/archs.sh"

given_inits=0 separators=0
for option in "$@"; do
  if [[ $option == -- ]]; then
    separators=$((separators + 1))
  elif [[ $separators -eq 0 ]]; then
    case $option in
      --archs) die "$option is fixed here; use run.sh for other grids" ;;
      --inits) given_inits=1 ;;
    esac
  fi
done
[[ $# -eq 0 || $1 == -* ]] || no_such_option "$1" # it would become another --archs
[[ $given_inits -eq 1 ]] || set -- --inits xavier "$@"
set -- --archs transformer transformer_equal "${DUO_LADDER[@]}" "$@"
# The options of train.sh come last, and among them, behind a second --, those of fairseq-train.
for ((; separators < 2; separators++)); do set -- "$@" --; done
set -- "$@" --eval-bleu --eval-bleu-args '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}' --eval-tokenized-bleu
# Not another process: messages and --help are those of this script.
# shellcheck source=run.sh
source "$REPO/scripts/multi30k/run.sh"
