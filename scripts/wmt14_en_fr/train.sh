#!/usr/bin/env bash
# Trains on WMT 2014 English-French: see scripts/wmt14/train.sh, whose options these are (--help).
exec bash "$(dirname "${BASH_SOURCE[0]}")/../wmt14/train.sh" --pair en-fr "$@"
