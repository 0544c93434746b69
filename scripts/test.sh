#!/usr/bin/env bash
# Sets up the environment, checks style, runs all tests with coverage. Extra arguments go to pytest.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<'USAGE'
Usage: bash scripts/test.sh [ARGUMENT OF PYTEST ...]

Environment variables: VENV, the environment to use (default: .venv in the root of the repository); EMBINIT_DATA, the
folder with the real data sets (tests that need it are skipped without it); TEST_JOBS, processes that run tests at a time
(default 2); and those of scripts/setup.sh.
USAGE
    exit 0
fi

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-$repo/.venv}
bash "$repo/scripts/setup.sh" "$venv"
venv=$(cd "$venv" && pwd)
cd "$repo"

"$venv/bin/python" -m ruff check .
"$venv/bin/python" -m ruff format --check .
# fairseq's commands are started by some tests, and small tests are slower with many threads
export PATH="$venv/bin:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
"$venv/bin/python" -m pytest tests -n "${TEST_JOBS:-2}" --cov=embinit_fairseq --cov-report=term-missing:skip-covered "$@"
