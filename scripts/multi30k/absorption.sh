#!/usr/bin/env bash
# Does untying positions from words remove their absorption? {transformer, tupe_transformer} x {xavier, pretrained,
# pretrained_xavier} x seeds on Multi30k, then one table.
#
# Kim et al. (2024) suspect that vectors much larger than the position encodings added to them absorb these.
# tupe_transformer adds nothing to the vectors. If absorption is what harms, "pretrained" loses little against
# "pretrained_xavier" there, and much in transformer.
#
# Usage: [DATA=DIR] [VENV=DIR] bash scripts/multi30k/absorption.sh --output DIR [options] [-- OPTIONS OF train.sh]
#   --output DIR               data, vectors, runs and results go here
#   --dataset NAME             multi30k (default), or iwslt17 with --directions de-en by default
#   --directions PAIR ...      default: de-en en-de
#   --seeds N ...              default: 1 2
#   --epochs N                 default 20
#   --jobs N                   runs at a time, default: one per core (CPU) or per GPU
#   --vectors LANG=PATH ...    vectors of a language; one without any gets vectors learned from the training text
#   --tokens KIND, --hf DIR    as in prepare.sh; with huggingface the folder is also the vectors of both languages
#   --dim D                    as in train.sh
#
# Runs of transformer have the names that run.sh gives them: with its --output they are taken over.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

for option in "$@"; do
  case $option in
    --archs | --inits | --vectors-p) die "$option is fixed here; use run.sh for other grids" ;;
    --) break ;;
  esac
done
[[ $# -eq 0 || $1 == -* ]] || no_such_option "$1" # it would become another --inits
set -- --archs transformer tupe_transformer --inits xavier pretrained pretrained_xavier "$@"
# Not another process: messages and --help are those of this script.
# shellcheck source=run.sh
source "$REPO/scripts/multi30k/run.sh"
