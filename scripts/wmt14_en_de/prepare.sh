#!/usr/bin/env bash
# Prepares WMT 2014 English-German: see scripts/wmt14/prepare.sh, whose options these are (--help).
exec bash "$(dirname "${BASH_SOURCE[0]}")/../wmt14/prepare.sh" --pair en-de "$@"
