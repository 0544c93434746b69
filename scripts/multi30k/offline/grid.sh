#!/usr/bin/env bash
# Behind setup.sh, from the root of the checkout: grid.sh GRID JOBS MINUTES [OPTION OF experiments.py ...]
# The same call goes on. Runs are in $RUNS (default: /tmp/runs); records, logs and translations in $OUT/GRID.tar.gz (OUT:
# /tmp). WORKER=1/2 and WORKER=2/2 share a list between two machines.
set -uo pipefail
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) runs=${RUNS:-/tmp/runs}/$1 out=${OUT:-/tmp}
export PATH=${VENV:-/tmp/venv}/bin:$PATH OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
mkdir -p "$runs" "$out"
mapfile -t vectors < <(sed "s#=#=$kit/#" "$kit/vectors")
python scripts/multi30k/experiments.py "$1" --data "$kit/data/de-en" --output "$runs" --vectors "${vectors[@]}" "${@:4}" |
  embinit grid - --logs "$runs/logs" --jobs "$2" --minutes "$3" ${WORKER:+--worker "$WORKER"}
code=$?
# The checkout there is a copy without its history.
find "$runs" -name result.json -exec sed -i "s/\"revision\": null/\"revision\": \"$(<"$kit/REVISION")\"/" {} +
find "$runs" -maxdepth 2 \( -name '*.json' -o -name '*.log' -o -name 'test.*' \) -print0 |
  tar -czf "$out/$1.tar.gz" --null --files-from - --transform "s#^${runs#/}/##"
exit $code
