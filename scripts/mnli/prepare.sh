#!/usr/bin/env bash
# Prepares MNLI for fairseq: see scripts/sst2/prepare.sh, whose options these are (--help).
exec bash "$(dirname "${BASH_SOURCE[0]}")/../sst2/prepare.sh" --task MNLI "$@"
