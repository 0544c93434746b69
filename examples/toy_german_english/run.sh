#!/usr/bin/env bash
# The toy German-English comparison of README.md; options go to scripts/quickstart.sh (see its --help).
#
# Usage: [VENV=DIR] bash examples/toy_german_english/run.sh [options of quickstart.sh]
#   bash examples/toy_german_english/run.sh --seed 2 --output runs/toy_seed2
#   bash examples/toy_german_english/run.sh --strategies "normal xavier_pretrained" --output runs/toy_others
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
exec bash "$repo/scripts/quickstart.sh" --output runs/toy_german_english "$@"
