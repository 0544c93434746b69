#!/usr/bin/env bash
# Build the wheels and source distributions of embinit_fairseq and fairseq_compat, and check them.
#
# Usage: bash scripts/release.sh [OUT]
#   OUT   folder of the four files, new or empty (default: dist in the repository)
#
# Refused: versions that differ between version.py, CITATION.cff and CHANGELOG.md; descriptions that an index would not
# show; wheels without py.typed; with a tag (TAG=v0.2.0), a version that is not the tag's.
# Environment variables: PYTHON, the interpreter (default: python3); TAG; and pip's own, for the build tools.
set -euo pipefail

fail() {
  echo "release: error: $*" >&2
  exit 1
}

case ${1:-} in
  -*) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "${BASH_SOURCE[0]}" && exit 0 ;;
esac
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
mkdir -p "${1:-$repo/dist}"
out=$(cd "${1:-$repo/dist}" && pwd)
[[ -z $(ls -A "$out") ]] || fail "$out is not empty; name another folder, or remove it"
cd "$repo"

version=$(sed -n 's/^VERSION = "\(.*\)"/\1/p' embinit_fairseq/version.py)
compat=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' fairseq_compat/src/fairseq_compat/__init__.py)
[[ -z ${TAG:-} || $TAG == "v$version" ]] || fail "the tag is $TAG, embinit_fairseq/version.py says $version"
grep -q "^version: $version$" CITATION.cff || fail "CITATION.cff has another version than $version"
grep -q "^## $version" CHANGELOG.md || fail "CHANGELOG.md has no section $version"
grep -q "^## $compat" fairseq_compat/CHANGELOG.md || fail "fairseq_compat/CHANGELOG.md has no section $compat"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! "$python" -c 'import build, hatchling, setuptools, twine, wheel' 2>/dev/null; then
  "$python" -m pip --disable-pip-version-check install --quiet --target "$work/tools" build hatchling setuptools twine wheel
  export PYTHONPATH=$work/tools
fi
cp -r setup.py pyproject.toml README.md LICENSE embinit_fairseq fairseq_compat "$work" # setuptools writes into its folder
"$python" -m build --no-isolation --outdir "$out" "$work" >"$work/log" 2>&1 || fail "$(tail -n 20 "$work/log")"
"$python" -m build --no-isolation --outdir "$out" "$work/fairseq_compat" >"$work/log" 2>&1 || fail "$(tail -n 20 "$work/log")"
"$python" -m twine check --strict "$out"/*
for wheel in "$out"/*.whl; do
  "$python" -m zipfile -l "$wheel" | grep py.typed >/dev/null || fail "$wheel has no py.typed"
done
echo "release: embinit_fairseq $version and fairseq_compat $compat are in $out"
