#!/usr/bin/env bash
# A folder with all that the grids of ../experiments.py need on a machine with torch, but without a network or a compiler:
# wheels, fairseq compiled for that machine's Python, binarised data, vectors. 20 to 50 MB.
#
# Usage: [PYTHON=python3.12] bash scripts/multi30k/offline/kit.sh KIT DATA NAME=VECTORS ...
#   KIT             the folder to make; a second call adds what is missing
#   DATA            what ../prepare.sh made
#   NAME=VECTORS    as for experiments.py --vectors; text is packed
#   PYTHON          an interpreter of the version that the other machine has
#
# There, from the root of a checkout: bash KIT/setup.sh, then bash KIT/grid.sh GRID JOBS MINUTES.
set -euo pipefail
[[ $# -ge 3 && $1 != -* ]] || { sed -n '2,/^set/s/^#\( \|$\)//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kit=$(realpath -m "$1") data=$2 python=${PYTHON:-python3.12}
shift 2
[[ -d $data/bin ]] || { echo "$data: no folder bin in it; name what prepare.sh made" >&2; exit 2; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pip=("$python" -m pip --disable-pip-version-check --quiet)
mkdir -p "$kit/wheels" "$kit/data/de-en/corpus/raw" "$kit/data/de-en/corpus/tok"

# sacrebleu with one signature everywhere; the rest is what fairseq imports. torch, numpy and tqdm are that machine's.
if ! compgen -G "$kit/wheels/bitarray*" >/dev/null; then
  platforms=(--platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64)
  "${pip[@]}" download --no-deps --only-binary=:all: --python-version "$version" --implementation cp "${platforms[@]}" \
    -d "$kit/wheels" bitarray cffi pycparser hydra-core omegaconf sacremoses mock sacrebleu portalocker tabulate colorama regex
  "${pip[@]}" wheel --no-deps -w "$kit/wheels" antlr4-python3-runtime==4.9.3 subword-nmt==0.3.8
fi
# fairseq without the copy of its examples, half of it
if [[ ! -f $kit/wheels/fairseq.tar.xz ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "${pip[@]}" wheel --no-deps -w "$work" fairseq==0.12.2
  "${pip[@]}" install --no-deps --no-compile --target "$work/site" "$work"/fairseq-*.whl
  rm -rf "$work/site/fairseq/examples" "$work/site/bin"
  find "$work/site" -name '*.so' -exec strip {} +
  tar -C "$work/site" -cJf "$kit/wheels/fairseq.tar.xz" .
fi

cp -r "$data/bin" "$kit/data/de-en/"
cp "$data/corpus/raw/test.en" "$kit/data/de-en/corpus/raw/"
cp "$data/corpus/tok/test.en" "$kit/data/de-en/corpus/tok/"
: >"$kit/vectors"
for each in "$@"; do
  name=${each%%=*} path=${each#*=}
  case $path in
    *.gz | *.xz | *.npz) file=$name.${path##*.} && cp "$path" "$kit/data/$file" ;;
    *) file=$name.xz && { [[ -f $kit/data/$file ]] || xz -9 -T1 -c "$path" >"$kit/data/$file"; } ;;
  esac
  echo "$name=data/$file" >>"$kit/vectors"
done
cp "$here/setup.sh" "$here/grid.sh" "$kit/"
git -C "$here" rev-parse HEAD >"$kit/REVISION"
du -sm "$kit" | awk '{ print $1 " MB in " $2 }'
