#!/usr/bin/env bash
# Makes the wheel and the source distribution.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help || $# -gt 1 ]]; then
    cat <<'USAGE'
Usage: bash build.sh [OUT]

Writes fairseq_compat-VERSION-py3-none-any.whl and fairseq_compat-VERSION.tar.gz into the folder OUT (default: dist beside
this file). The build tool, hatchling, is got from the index into a temporary folder if it is not installed.

Environment variables: PYTHON, the interpreter to use (default: python3); and those of pip.
USAGE
    exit $(($# > 1 ? 2 : 0))
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
mkdir -p "${1:-$here/dist}"
out=$(cd "${1:-$here/dist}" && pwd)
if ! "$python" -c 'import hatchling' 2>/dev/null; then
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    if "$python" -c 'import pip' 2>/dev/null; then
        install=("$python" -m pip --disable-pip-version-check install)
    elif command -v uv >/dev/null; then
        install=(uv pip install --python "$python")
    else
        echo "build.sh: $python has neither hatchling nor pip, and there is no uv; install one of them" >&2
        exit 1
    fi
    "${install[@]}" --quiet --target "$tools" hatchling
    export PYTHONPATH=$tools${PYTHONPATH:+:$PYTHONPATH}
fi
cd "$here"
"$python" -m hatchling build -d "$out"
