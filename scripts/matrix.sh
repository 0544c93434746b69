#!/usr/bin/env bash
# Makes an environment for each Python, runs the suite in it, and deletes it: one at a time, as each takes gigabytes.
set -euo pipefail

if [[ $# -eq 0 || $1 == -h || $1 == --help ]]; then
    cat <<'USAGE'
Usage: bash scripts/matrix.sh PYTHON ...
  bash scripts/matrix.sh python3.10 python3.13
  TORCH_SPEC='torch==2.4.1 numpy<2' TESTS=fairseq_compat/tests bash scripts/matrix.sh python3.10

At the end there is a table: Python, torch, numpy, and what passed, failed and was skipped.

Environment variables: OUTPUT, where environments and logs go (default: matrix); TESTS, what to run (default: all); KEEP, set
to 1 to keep the environments; TEST_JOBS, processes that run tests at a time (default 2); and those of scripts/setup.sh.
USAGE
    exit $(($# == 0 ? 2 : 0))
fi

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "${OUTPUT:-matrix}"
output=$(cd "${OUTPUT:-matrix}" && pwd)
read -ra tests <<<"${TESTS:-tests fairseq_compat/tests}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

status=0
table=$(printf '%-10s %-14s %-8s %s' python torch numpy tests)
for python in "$@"; do
    name=$("$python" -c 'import platform; print(platform.python_version())')
    venv=$output/$name
    log=$output/$name.log
    versions='not installed'
    result="setup failed, see $log"
    if PYTHON=$python bash "$repo/scripts/setup.sh" "$venv" >"$log" 2>&1; then
        versions=$("$venv/bin/python" -c 'import numpy, torch; print(f"{torch.__version__:14} {numpy.__version__:8}")')
        (cd "$repo" && env -u KEEP PATH="$venv/bin:$PATH" "$venv/bin/python" -m pytest "${tests[@]}" --verbosity=0 \
            -n "${TEST_JOBS:-2}" --dist loadscope) >>"$log" 2>&1 || status=1
        result=$(grep -E '(passed|failed|error)' "$log" | tail -n 1)
        grep -E '^(FAILED|ERROR)' "$log" || true
    else
        status=1
    fi
    table+=$'\n'$(printf '%-10s %s %s' "$name" "$versions" "$result")
    [[ ${KEEP:-} == 1 ]] || rm -rf "$venv"
done
echo "$table"
exit $status
