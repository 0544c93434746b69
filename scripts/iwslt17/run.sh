#!/usr/bin/env bash
# Initialisations x seeds on IWSLT 2017: see scripts/multi30k/run.sh, whose options these are (--help).
exec bash "$(dirname "${BASH_SOURCE[0]}")/../multi30k/run.sh" --dataset iwslt17 "$@"
