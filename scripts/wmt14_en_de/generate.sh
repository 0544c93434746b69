#!/usr/bin/env bash
# Translates and scores newstest2014, English-German: see scripts/wmt14/generate.sh, whose options these are (--help).
exec bash "$(dirname "${BASH_SOURCE[0]}")/../wmt14/generate.sh" --pair en-de "$@"
