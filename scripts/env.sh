#!/usr/bin/env bash
# Finds the environment of the recipes; to be sourced at their head:
#   source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
#
# VENV names the virtual environment (default: the activated one if it has the plugin, else <repository>/.venv, which is
# made by setup.sh if it is missing). Sets REPO, PLUGIN (for --user-dir) and DEVICE (fairseq's options for one device: the
# first GPU, --cpu where there is none). With -h or --help a recipe prints the comment at its head.
set -euo pipefail

case ${1:-} in
  -h | --help)
    awk 'NR > 1 { if (!/^#/) exit; if (/^# shellcheck/) next; sub(/^# ?/, ""); print }' "$0"
    exit 0
    ;;
esac

# die MESSAGE...: one line that says what is wrong and what to do.
die() {
  echo "$(basename "$0"): error: $* (see $(basename "$0") --help)" >&2
  exit 2
}

# known VARIABLE VALUE CHOICE...: VALUE, which a variable names, must be one of the choices.
known() {
  [[ " ${*:3} " == *" $2 "* ]] || die "$1: $2 is not known; choose of ${*:3}"
}

# whole_numbers VARIABLE...: those that are set must be whole numbers from 1.
whole_numbers() {
  local name
  for name; do
    [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] || die "$name=${!name}: set it to a whole number from 1"
  done
}

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=progress.sh
source "$REPO/scripts/progress.sh"
PLUGIN=$REPO/embinit_fairseq
[[ ! -x ${VIRTUAL_ENV:-}/bin/embinit || ! -x ${VIRTUAL_ENV:-}/bin/fairseq-train ]] || VENV=${VENV:-$VIRTUAL_ENV}
VENV=${VENV:-$REPO/.venv}
[[ -x $VENV/bin/fairseq-train && -x $VENV/bin/embinit ]] || bash "$REPO/scripts/setup.sh" "$VENV" >&2
PATH=$VENV/bin:$PATH
DEVICE=(--cpu)
if [[ -n ${CUDA_VISIBLE_DEVICES-0} ]] && compgen -G "/dev/nvidia[0-9]*" >/dev/null; then
  DEVICE=(--distributed-world-size 1) # fairseq would take all, and an update would have the batches of all
fi
export REPO PLUGIN VENV PATH

# local_options [DEVICES]: sets LOCAL, the options of fairseq-train that follow from whether this machine has a GPU.
local_options() {
  LOCAL=(--num-workers 0 --cpu)
  if [[ ${DEVICE[0]} != --cpu ]]; then
    LOCAL=(--num-workers 2)
    [[ -n ${PRECISION+set} ]] || LOCAL+=(--fp16)
  fi
  [[ -z ${1:-} ]] || LOCAL+=(--distributed-world-size "$1")
}

# count_devices ARGUMENT...: sets DEVICES, which share an update, by --distributed-world-size among the arguments, else the
# GPUs of this machine; LAUNCHER, what comes before fairseq-train; and LOCAL. What LAUNCH starts may be on other machines, so that
# launched.sh decides there whether there is a GPU.
# shellcheck disable=SC2034,SC2206 # used by the recipes; a list of words
count_devices() {
  local given=
  [[ ! " $*" =~ .*\ --distributed-world-size[=\ ]([1-9][0-9]*) ]] || given=${BASH_REMATCH[1]}
  [[ ${DEVICES:-$given} == "${given:-${DEVICES:-}}" ]] ||
    die "DEVICES=$DEVICES, but --distributed-world-size $given: leave one of them out"
  [[ -z ${WORKER:-} ]] || : "${LAUNCH:?WORKER needs it: what starts the processes}"
  DEVICES=${DEVICES:-$given} LAUNCHER=() LOCAL=()
  [[ -n ${LAUNCH:-} ]] || local_options "$DEVICES"
  DEVICES=${DEVICES:-$(python -c 'from embinit_fairseq.runs.grid import visible_gpus; print(len(visible_gpus()) or 1)')}
  [[ -z ${LAUNCH:-} ]] || LAUNCHER=($LAUNCH bash "$REPO/scripts/launched.sh" "$DEVICES")
}

# settings FOLDER NAME=VALUE ...: what a folder is made with, in FOLDER/settings; others need another folder, once there is
# anything finished in it.
settings() {
  local folder=$1 now
  now=$(printf '%s\n' "${@:2}")
  if [[ -f $folder/settings && $(<"$folder/settings") != "$now" &&
    -n $(find "$folder" -type f ! -name settings ! -path '*.part*' -print -quit) ]]; then
    die "$folder was made with $(paste -sd ' ' "$folder/settings"), not with ${*:2}: name another folder, or remove it"
  fi
  mkdir -p "$folder" || die "$folder: cannot be made; name another folder"
  printf '%s\n' "$now" >"$folder/settings"
}

# fetch URL SHA256 FILE: download, unless the file is there; never leaves a wrong or half file behind.
fetch() {
  [[ ! -f $3 ]] || return 0
  mkdir -p "$(dirname "$3")"
  curl --fail --silent --show-error --location --retry 3 --output "$3.part" "$1" ||
    die "$1: cannot be downloaded; check the connection, or set DATA to a folder with a copy"
  echo "$2  $3.part" | sha256sum --check --quiet || die "$1: not the file it was ($3.part); try again, or set DATA to a copy"
  mv "$3.part" "$3"
}

# alone FOLDER: only one prepare.sh makes a folder at a time; another call says which process it waits for, and goes on
# then with what is missing. What is locked is the folder itself, as long as any process of the recipe lives: no file
# stays behind. Nothing is locked without flock, on file systems without locks, and in a recipe that such a recipe calls.
alone() {
  mkdir -p "$1" || die "OUTPUT=$1: cannot be made; choose another folder"
  [[ ! ${MAKING:-} -ef $1 ]] && command -v flock >/dev/null && exec {turn}<"$1" || return 0
  export MAKING=$1
  flock --nonblock "$turn" || {
    echo "$(basename "$0"): waiting for $(holder "$1"), which makes $1" >&2
    flock "$turn" || true
  }
}

# holder FOLDER: the process that has it open, beside this one.
holder() {
  exec {turn}<&-
  local numbers
  numbers=$(find /proc/[0-9]*/fd -lname "$(realpath "$1")" 2>/dev/null | cut -d / -f 3 | grep -vx "$$" | sort -n) || true
  [[ -n $numbers ]] && echo "process ${numbers%%$'\n'*}" || echo "another call"
}
