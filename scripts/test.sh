#!/usr/bin/env bash
# Set up the environment, check style and types, run all tests, show the slowest ones. Arguments go to pytest.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<'USAGE'
Usage: bash scripts/test.sh [ARGUMENT OF PYTEST ...]
  bash scripts/test.sh --cov=embinit_fairseq    with the coverage of the package (on Python 3.11 a minute or two more)

Environment variables: VENV, the environment to use (default: .venv in the root of the repository); EMBINIT_DATA, the
folder with the real data sets (tests that need it are skipped without it); TEST_JOBS, processes that run tests at a time
(default 3, of which one waits for the jobs of tests/cluster most of the time); EMBINIT_TESTS_COLD_START, set to 1 to start
every program as a new process, as users do (slower; without it most are forks of one that has imported torch, see
tests/programs.py); and the variables of scripts/setup.sh.
USAGE
    exit 0
fi

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-$repo/.venv}
EXTRAS=${EXTRAS:-hf,plot,text,test} bash "$repo/scripts/setup.sh" "$venv"
venv=$(cd "$venv" && pwd)
cd "$repo"
"$venv/bin/python" -m ruff check .
"$venv/bin/python" -m ruff format --check .
"$venv/bin/python" -m mypy --no-error-summary
find .ci/run benchmarks examples fairseq_compat scripts tests -type f \( -name '*.sh' -o -name run \) -print0 |
    PATH="$venv/bin:$PATH" xargs -0 -P 2 -n 40 shellcheck --external-sources --source-path SCRIPTDIR
# some tests start fairseq's commands; small tests are slower with many threads
export PATH="$venv/bin:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# else each of the several hundred programs compiles the plugin again
unset PYTHONDONTWRITEBYTECODE
# as for a user: stdout is written in blocks
unset PYTHONUNBUFFERED
# from Python 3.12 on, coverage costs little time
if "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
    export COVERAGE_CORE="${COVERAGE_CORE:-sysmon}"
fi
# all tests of a file in one process, so that fixtures are made once; the long ones come first
"$venv/bin/python" -m pytest -n "${TEST_JOBS:-3}" --dist loadscope --no-loadscope-reorder --durations 20 "$@"
