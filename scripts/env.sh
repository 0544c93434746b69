#!/usr/bin/env bash
# Find the environment of the recipes, which source this file at their head.
#
# VENV names the virtual environment (default: the active one if it has the plugin, else <repository>/.venv, which
# setup.sh makes if it is missing). Sets REPO, PLUGIN (for --user-dir) and DEVICE (fairseq's options for one device: the
# first GPU, or --cpu). With -h or --help a recipe prints the comment at its head.
set -euo pipefail
case ${1:-} in
  -h | --help)
    awk 'NR > 1 { if (!/^#/) exit; if (/^# shellcheck/) next; sub(/^# ?/, ""); print }' "$0" && exit 0
    ;;
esac

# die MESSAGE...: print one line with the mistake and the remedy.
die() {
  echo "$(basename "$0"): error: $* (see $(basename "$0") --help)" >&2
  exit 2
}

# integers VARIABLE...: refuse a variable that is set to anything but an integer from 1.
integers() {
  local name
  for name; do
    [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] || die "$name=${!name}: set it to an integer from 1"
  done
}

# settings FOLDER NAME=VALUE ...: keep the settings of a folder in FOLDER/settings; refuse a folder made with others, and
# one in which another call is working.
settings() {
  local folder=$1 now lock
  mkdir -p "$folder" || die "$folder: cannot be made; name another folder"
  exec {lock}<"$folder"
  flock -n "$lock" || [[ $? -ne 1 ]] || die "$folder: another call is making it; wait for its end"
  now=$(printf '%s\n' "${@:2}")
  [[ ! -f $folder/settings || $(<"$folder/settings") == "$now" || # or nothing is finished in it
    -z $(find "$folder" \( -name '.*.tmp' -o -name '*.part' \) -prune -o -type f ! -name settings -print -quit) ]] ||
    die "$folder was made with $(paste -sd ' ' "$folder/settings"), not with ${*:2}: name another folder, or remove it"
  printf '%s\n' "$now" >"$folder/settings"
}

# hidden_size FOLDER: print the dimension of the embeddings of a Hugging Face folder.
hidden_size() {
  python -c 'import json, sys
config = json.load(open(sys.argv[1])); print(config.get("hidden_size") or config["d_model"])' "$1/config.json"
}

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) && PLUGIN=$REPO/embinit_fairseq
[[ ! -x ${VIRTUAL_ENV:-}/bin/embinit || ! -x ${VIRTUAL_ENV:-}/bin/fairseq-train ]] || VENV=${VENV:-$VIRTUAL_ENV}
VENV=${VENV:-$REPO/.venv}
[[ -x $VENV/bin/fairseq-train && -x $VENV/bin/embinit ]] || bash "$REPO/scripts/setup.sh" "$VENV" >&2
PATH=$VENV/bin:$PATH
# shellcheck disable=SC2034 # the recipes use DEVICE
if [[ -n ${CUDA_VISIBLE_DEVICES-0} ]] && compgen -G "/dev/nvidia[0-9]*" >/dev/null; then
  DEVICE=(--distributed-world-size 1) # fairseq would take all GPUs, and an update would have the batches of all
else
  DEVICE=(--cpu)
fi
export REPO PLUGIN VENV PATH
