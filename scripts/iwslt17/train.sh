#!/usr/bin/env bash
# Trains on IWSLT 2017: see scripts/multi30k/train.sh, whose options these are (--help); batches have 128 sentences.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../multi30k/train.sh" --batch 128 "$@"
