#!/usr/bin/env bash
# Initialisations x seeds on MNLI: see scripts/sst2/run.sh, whose options these are (--help).
exec bash "$(dirname "${BASH_SOURCE[0]}")/../sst2/run.sh" --task MNLI "$@"
