#!/usr/bin/env bash
# Trains a classifier on MNLI: see scripts/sst2/train.sh, whose options these are (--help); the data say what they are.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../sst2/train.sh" "$@"
