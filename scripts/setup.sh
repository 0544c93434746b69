#!/usr/bin/env bash
# Make or update the virtual environment VENV (default: .venv in the repository) with torch, unmodified fairseq 0.12.2,
# fairseq_compat and this plugin. A second call returns at once unless the requirements have changed.
#
# Usage: bash scripts/setup.sh [VENV]
#
# Environment variables:
#   PYTHON       interpreter, 3.10 - 3.14 (default: the first suitable of python3, python3.14 ... python3.10)
#   TORCH_SPEC   requirements for torch (default: torch==2.13.0).
#                An old torch needs an old numpy: TORCH_SPEC='torch==2.2.2 numpy<2'
#   EXTRAS       extras of setup.py to install (default: as in the last call, else hf,plot,text; test.sh adds test)
#   NO_COMPILER  1: fairseq's Python files only, where there is no C++ compiler (slower)
#   EDITABLE     0: regular installs, so that the checkout may be moved afterwards (default: 1, editable ones)
# pip's own variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, ...) are honoured, for instance to take
# torch's CPU builds instead of the larger CUDA ones.
set -euo pipefail

help() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "${BASH_SOURCE[0]}"; }
say() { echo "setup: $*"; }
fail() {
  echo "setup: error: $*" >&2
  exit 1
}
supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }

case ${1:-} in
  -h | --help) help && exit 0 ;;
  -*) help >&2 && exit 2 ;;
esac
[[ $# -le 1 ]] || { help >&2 && exit 2; }
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${1:-$repo/.venv} editable=${EDITABLE:-1}
read -ra torch <<<"${TORCH_SPEC:-torch==2.13.0}"

[[ ! -e $venv || -x $venv/bin/python ]] || fail "$venv exists but is no virtual environment; remove it or name another one"
if [[ ! -e $venv ]]; then
  for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
    if supported "$python"; then break; fi
  done
  supported "$python" || fail "${PYTHON:-python3} is $("${PYTHON:-python3}" --version 2>&1 || true); set PYTHON to a Python 3.10 - 3.14"
  say "new environment $venv with $("$python" --version)"
  "$python" -m venv "$venv" || fail "$python -m venv failed; on Debian and Ubuntu: apt install python3-venv"
fi
venv=$(cd "$venv" && pwd)
supported "$venv/bin/python" || fail "$venv has $("$venv/bin/python" --version 2>&1), not 3.10 - 3.14; remove it"

chosen=$venv/.embinit-extras
extras=${EXTRAS:-$(cat "$chosen" 2>/dev/null || echo hf,plot,text)}

# everything that the content of the environment depends on; regular installs hold copies of the sources
wanted=$({
  "$venv/bin/python" --version && echo "$repo ${torch[*]} $extras $editable" && cd "$repo"
  cat setup.py pyproject.toml scripts/setup.sh fairseq_compat/pyproject.toml fairseq_compat/src/*.pth
  [[ $editable != 0 ]] || find embinit_fairseq fairseq_compat/src -name '*.py' -print0 | sort -z | xargs -0 cat
} | cksum)
stamp=$venv/.embinit-setup
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  say "$venv is up to date"
  exit 0
fi
rm -f "$stamp"

if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
  # Python compiles a file when it is first imported; to compile all of them here takes about a minute
  install=("$venv/bin/python" -m pip --disable-pip-version-check install --no-compile)
elif command -v uv >/dev/null; then # an environment that uv made has no pip
  install=(uv pip install --python "$venv/bin/python")
else
  fail "$venv has no pip and there is no uv; remove $venv, or install one of them"
fi
mode=()
[[ $editable == 0 ]] || mode=(--editable)
say "[1/4] ${torch[*]} (to download: the longest step)"
"${install[@]}" "${torch[@]}"
say "[2/4] fairseq_compat"
"${install[@]}" --quiet "${torch[@]}" ${mode[@]+"${mode[@]}"} "$repo/fairseq_compat"
say "[3/4] fairseq 0.12.2, unmodified, and its requirements (compiled here: about two minutes)"
"$venv/bin/python" -m fairseq_compat install ${NO_COMPILER:+--no-compiler}
say "[4/4] embinit_fairseq with the extras $extras: one to three minutes"
"${install[@]}" "${torch[@]}" ${mode[@]+"${mode[@]}"} "${repo}[$extras]"
"$venv/bin/python" -m fairseq_compat || fail "fairseq_compat is not active in $venv (see the table above)"
message=$("$venv/bin/python" -c 'import fairseq' 2>&1) || fail "fairseq cannot be imported in $venv: $message"
echo "$extras" >"$chosen"
echo "$wanted" >"$stamp"
say "done; activate it with: source $venv/bin/activate"
