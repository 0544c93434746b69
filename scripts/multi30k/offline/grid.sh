#!/usr/bin/env bash
# Behind setup.sh, from the root of the checkout: grid.sh GRID JOBS MINUTES [OPTION OF experiments.py ...]
# The same call goes on. Runs are in $RUNS (default: /tmp/runs); records, logs and translations in $OUT/GRID.tar.gz.
set -uo pipefail
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) runs=${RUNS:-/tmp/runs} out=${OUT:-/tmp}
export PATH=${VENV:-/tmp/venv}/bin:$PATH OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
vectors=()
while IFS='=' read -r name file; do vectors+=("$name=$kit/data/$file"); done <"$kit/vectors"
python scripts/multi30k/experiments.py "$1" --data "$kit/data/de-en" --output "$runs/$1" --jobs "$2" --minutes "$3" \
  --vectors "${vectors[@]}" "${@:4}"
code=$?
python - "$kit/REVISION" "$runs/$1" <<'P'
import json, sys
from pathlib import Path

revision = Path(sys.argv[1]).read_text().strip()
for file in Path(sys.argv[2]).glob("*/result.json"):
    record = json.loads(file.read_text())
    if not record["versions"].get("revision"):  # a copy of the checkout without its history
        record["versions"]["revision"] = revision
        file.write_text(json.dumps(record, indent=2) + "\n")
P
mkdir -p "$out"
find "$runs/$1" -maxdepth 2 \( -name '*.json' -o -name train.log -o -name 'test.*' \) -print0 |
  tar -czf "$out/$1.tar.gz" --null --files-from - --transform "s#^${runs#/}/##"
exit $code
