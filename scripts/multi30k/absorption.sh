#!/usr/bin/env bash
# Does untying positions from words remove their absorption? {transformer, tupe_transformer} x {xavier, pretrained,
# pretrained_xavier} x seeds on Multi30k, then one table.
#
# Kim et al. (2024) suspect that vectors much larger than the position encodings added to them absorb these.
# tupe_transformer adds nothing to the vectors. If absorption is what harms, "pretrained" loses little against
# "pretrained_xavier" there, and much in transformer.
#
# Usage: [DATA=DIR] [VENV=DIR] bash scripts/multi30k/absorption.sh --output DIR [options] [-- OPTIONS OF train.sh]
#   options are those of run.sh but --archs and --inits: --directions, --seeds, --epochs, --jobs, --vectors, ...
#
# Runs of transformer have the names that run.sh gives them: with its --output they are taken over.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

for option in "$@"; do
  case $option in
    -h | --help) usage && exit 0 ;;
    --archs | --inits) die "$option is fixed here; use run.sh for other grids" ;;
    --) break ;;
  esac
done
exec bash "$REPO/scripts/multi30k/run.sh" --archs transformer tupe_transformer \
  --inits xavier pretrained pretrained_xavier "$@"
