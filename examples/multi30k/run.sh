#!/usr/bin/env bash
# Kim's comparison on Multi30k (README.md); options go to scripts/multi30k/run.sh (see its --help).
#
# Usage: [DATA=DIR] [VENV=DIR] bash examples/multi30k/run.sh [options of scripts/multi30k/run.sh]
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
exec bash "$repo/scripts/multi30k/run.sh" --output runs/multi30k "$@"
