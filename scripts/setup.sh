#!/usr/bin/env bash
# Makes a complete environment for this project, with whatever pip the Python at hand brings.
set -euo pipefail

usage() {
    cat <<'USAGE'
Usage: bash scripts/setup.sh [VENV]

Makes (or brings up to date) the virtual environment VENV, by default .venv in the root of the repository, with torch,
unmodified fairseq 0.12.2, fairseq_compat and this plugin (the latter two in editable mode). A second call returns at
once unless the lists of requirements have changed.

Environment variables:
  PYTHON       interpreter to use, 3.10 - 3.14 (default: the first suitable of python3, python3.14 ... python3.10)
  TORCH_SPEC   requirement(s) for torch (default: torch==2.13.0).
               An old torch needs an old numpy: TORCH_SPEC='torch==2.2.2 numpy<2'
  EXTRAS       extras of setup.py to install (default: hf,plot,text,test)
  NO_COMPILER  1: fairseq's Python files only, where there is no C++ compiler or it should not be used (slower)
  EDITABLE     1 (default): editable installs; 0: regular ones, so that the checkout may be moved afterwards
pip's own variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, ...) are honoured, for instance to take
torch's CPU builds instead of the larger CUDA ones.
USAGE
}

# shellcheck source=progress.sh
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"
say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}

supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }

find_python() {
    if [[ -n ${PYTHON:-} ]]; then
        command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON was not found; set PYTHON to a Python 3.10 - 3.14"
        supported "$PYTHON" || fail "$PYTHON is $("$PYTHON" --version 2>&1); set PYTHON to a Python 3.10 - 3.14"
        echo "$PYTHON"
        return
    fi
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null && supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.10 - 3.14 was found ($(python3 --version 2>&1 || true)); install one and set PYTHON to it"
}

make_venv() {
    local python
    python=$(find_python)
    say "new environment $venv with $("$python" --version 2>&1)"
    alive "setup: new environment" "$python" -m venv "$venv" || fail "$python -m venv failed; on Debian and Ubuntu: apt install python3-venv"
}

# everything that decides about the contents of the environment
fingerprint() {
    "$venv/bin/python" - "$repo" "$torch_spec" "$extras" "$editable" <<'PY'
import hashlib, pathlib, sys

repo = pathlib.Path(sys.argv[1])
state = hashlib.sha256(repr((sys.version_info[:3], sys.argv[1:])).encode())
files = [repo / name for name in ("setup.py", "pyproject.toml", "scripts/setup.sh")]
for path in sorted([*files, *repo.glob("fairseq_compat/pyproject.toml"), *repo.glob("fairseq_compat/src/*.pth")]):
    state.update(path.read_bytes())
if sys.argv[4] == "0":  # regular installs hold copies of the sources
    for path in sorted([*repo.glob("embinit_fairseq/**/*.py"), *repo.glob("fairseq_compat/src/**/*.py")]):
        state.update(path.read_bytes())
print(state.hexdigest())
PY
}

# how packages come into the environment; one that uv made has no pip
find_installer() {
    if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        install=("$venv/bin/python" -m pip --disable-pip-version-check install)
    elif command -v uv >/dev/null; then
        install=(uv pip install --python "$venv/bin/python")
    elif "$venv/bin/python" -m ensurepip >/dev/null; then
        install=("$venv/bin/python" -m pip --disable-pip-version-check install)
    else
        fail "$venv has no pip and there is no uv; remove $venv, or install one of them"
    fi
}

install_all() {
    local install=() mode=()
    find_installer
    [[ $editable == 0 ]] || mode=(--editable)
    local requirements
    read -ra requirements <<<"$torch_spec"
    say "[1/4] ${requirements[*]} (to download: the longest step)"
    alive "setup: [1/4]" "${install[@]}" "${requirements[@]}"
    say "[2/4] fairseq_compat"
    alive "setup: [2/4]" "${install[@]}" --quiet "${requirements[@]}" ${mode[@]+"${mode[@]}"} "$repo/fairseq_compat"
    say "[3/4] fairseq 0.12.2, unmodified, and what it needs (compiled here, about two minutes)"
    alive "setup: [3/4]" "$venv/bin/python" -m fairseq_compat install ${NO_COMPILER:+--no-compiler}
    say "[4/4] embinit_fairseq with the extras $extras: about 150 packages, one to three minutes, on a busy machine more"
    alive "setup: [4/4]" "${install[@]}" --quiet "${requirements[@]}" ${mode[@]+"${mode[@]}"} "${repo}[$extras]"
}

case ${1:-} in
-h | --help)
    usage
    exit 0
    ;;
-*)
    usage >&2
    exit 2
    ;;
esac
[[ $# -le 1 ]] || {
    usage >&2
    exit 2
}

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${1:-$repo/.venv}
extras=${EXTRAS:-hf,plot,text,test}
editable=${EDITABLE:-1}

if [[ -e $venv && ! -x $venv/bin/python ]]; then
    fail "$venv exists but is no virtual environment; remove it or name another one"
fi
# Two calls take turns, where there is flock: the second one finds its work done.
if command -v flock >/dev/null && exec {turn}<"$repo/scripts"; then
    flock --nonblock "$turn" || { alive "setup: waiting for another setup to end" flock "$turn" || true; }
fi
[[ -e $venv ]] || make_venv
venv=$(cd "$venv" && pwd)
supported "$venv/bin/python" || fail "$venv has $("$venv/bin/python" --version 2>&1), not 3.10 - 3.14; remove it"

torch_spec=${TORCH_SPEC:-torch==2.13.0}

stamp=$venv/.embinit-setup
wanted=$(fingerprint)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    say "$venv is up to date"
    exit 0
fi
rm -f "$stamp"
install_all
alive "setup: a first look" "$venv/bin/python" -m fairseq_compat || fail "fairseq_compat is not active in $venv (see the table above)"
message=$("$venv/bin/python" -c 'import fairseq' 2>&1) || fail "fairseq cannot be imported in $venv: $message"
echo "$wanted" >"$stamp"
say "done; activate it with: source $venv/bin/activate"
