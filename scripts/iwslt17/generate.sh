#!/usr/bin/env bash
# Translates and scores the test set of IWSLT 2017: see scripts/multi30k/generate.sh, whose options these are (--help).
exec bash "$(dirname "${BASH_SOURCE[0]}")/../multi30k/generate.sh" "$@"
