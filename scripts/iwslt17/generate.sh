#!/usr/bin/env bash
# Translate the test sets of IWSLT 2017 with the checkpoint of the lowest validation loss, and score them on lower-cased
# text, as Multi30k's.
#
#   DATA=data/iwslt17 RUN=runs/glove bash scripts/iwslt17/generate.sh
#
# DATA, RUN: as for train.sh. SUBSET: test (default) or valid. What stands behind the script's name goes to
# fairseq-generate: --batch-size 64 where memory is short.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to what prepare.sh made}" "${RUN:?set it to the folder of the run}"
[[ -d $DATA/source ]] || die "DATA=$DATA: not made by iwslt17/prepare.sh"
bash "$REPO/scripts/multi30k/generate.sh" "$@"
