#!/usr/bin/env bash
# Shared by the scripts of all data sets; to be sourced:
#   source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
#
# Environment variables:
#   VENV   virtual environment to use (default: the activated one if it has the plugin, else <repository>/.venv; made by
#          scripts/setup.sh if it is missing)
set -euo pipefail
if [[ ${BASH_VERSINFO[0]}${BASH_VERSINFO[1]} -lt 43 ]]; then
  echo "bash $BASH_VERSION is too old: 4.3 or later is needed" >&2
  exit 1
fi

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[[ ! -x ${VIRTUAL_ENV:-}/bin/embinit || ! -x ${VIRTUAL_ENV:-}/bin/fairseq-train ]] || VENV=${VENV:-$VIRTUAL_ENV}
VENV=${VENV:-$REPO/.venv}
USER_DIR=$REPO/embinit_fairseq
export REPO VENV USER_DIR
STEP_UNFINISHED=() STEP_TRAP=""

# die MESSAGE...: say what is wrong and what to do, and stop. If the disk is full that is what is wrong.
die() {
  local full
  full=$(full_disk) && set -- "$full"
  STEP_SAID=1
  echo "$(basename "$0"): error: $*" >&2
  exit 1
}

say() { echo "[$(date +%H:%M:%S)] $*" >&2; }

# usage: print the comment at the head of the calling script.
usage() { awk 'NR > 1 { if (!/^#/) exit; if (/^# shellcheck/) next; sub(/^# ?/, ""); print }' "$0"; }

needs_value() { die "$1 needs a value; see $(basename "$0") --help"; }

no_such_option() { die "$1: no such option; see $(basename "$0") --help"; }

# read_options "NAME... --" ARGUMENT...: the options of the calling script, into variables of the same names (a dash
# becomes an underscore). The first argument lists what there is: "seed" for --seed VALUE, "keep?" for a switch --keep that
# makes the variable 1, "vectors..." for an array that gets what --vectors VALUE... says, and at the end "--" if what
# follows -- is to become the array extra.
read_options() {
  # The names start with read_, because bash's local variables would hide those that are to be set.
  local read_known=" $1 " read_option read_name
  shift
  while [[ $# -gt 0 ]]; do
    read_option=$1 read_name=${1#--}
    shift
    case $read_option in
      -h | --help) usage && exit 0 ;;
      --)
        [[ $read_known == *" -- " ]] || no_such_option --
        # shellcheck disable=SC2034 # the calling script uses it
        extra=("$@")
        return 0
        ;;
    esac
    [[ $read_option =~ ^--[a-z][a-z-]*$ ]] || no_such_option "$read_option"
    local -n read_variable=${read_name//-/_}
    case $read_known in
      *" $read_name "*)
        [[ -n ${1-} && $1 != --* ]] || needs_value "$read_option"
        read_variable=$1
        shift
        ;;
      *" $read_name? "*) read_variable=1 ;;
      *" $read_name... "*)
        [[ $# -gt 0 && $1 != --* ]] || needs_value "$read_option"
        while [[ $# -gt 0 && $1 != --* ]]; do
          read_variable+=("$1")
          shift
        done
        ;;
      *) no_such_option "$read_option" ;;
    esac
  done
}

# one_of OPTION VALUE CHOICE...: the value must be among the choices.
one_of() {
  local option=$1 value=$2
  shift 2
  local choice
  for choice in "$@"; do [[ $choice != "$value" ]] || return 0; done
  die "$option $value: not known; choose one of: $*"
}

# whole_numbers SMALLEST NAME...: what read_options found for these options; one that was not given is fine. Of several
# numbers none may occur twice: runs have the names of their seeds.
whole_numbers() {
  local whole_smallest=$1 whole_name whole_value whole_seen
  shift
  for whole_name in "$@"; do
    local -n whole_variable=${whole_name//-/_}
    whole_seen=" "
    for whole_value in ${whole_variable[@]+"${whole_variable[@]}"}; do
      [[ -n $whole_value ]] || continue
      if [[ ! $whole_value =~ ^(0|[1-9][0-9]{0,17})$ ]] || ((whole_value < whole_smallest)); then
        die "--$whole_name $whole_value: must be a whole number from $whole_smallest"
      fi
      [[ $whole_seen != *" $whole_value "* ]] || die "--$whole_name $whole_value: given twice"
      whole_seen+="$whole_value "
    done
  done
}

# number OPTION VALUE CONDITION WORDS: a number n, such as 0.1 or 2e-4, for which awk finds the condition true.
number() {
  local form='^([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$'
  if [[ ! $2 =~ $form ]] || ! awk -v n="$2" "BEGIN { exit !($3) }"; then die "$1 $2: must be a number $4"; fi
}

# known_init OPTION STRATEGY: `none` (fairseq's own) or a strategy of --embed-init.
known_init() { one_of "$1" "$2" none xavier pretrained pretrained_xavier shuffled xavier_pretrained normal; }

# counted NUMBER NOUN: "1 run", "2 runs".
counted() { if [[ $1 -eq 1 ]]; then echo "1 $2"; else echo "$1 $2s"; fi; }

# absolute PATH: the path of a file that need not exist yet, independent of the current directory.
absolute() {
  case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s/%s\n' "$PWD" "$1" ;;
  esac
}

# output_folder OPTION FOLDER: make the folder for results, before any work, or say why it cannot be written to.
output_folder() {
  local reason
  reason=$(mkdir -p "$2" 2>&1) || die "$1 $2: cannot be made (${reason##*: }); choose another folder"
  [[ -w $2 ]] || die "$1 $2: cannot be written to; choose another folder, or change its permissions"
}

# use_environment: put the virtual environment's commands first; make the environment if there is none.
use_environment() {
  if [[ ! -x $VENV/bin/python ]]; then
    [[ -f $REPO/scripts/setup.sh ]] || die "no environment in $VENV: set VENV to one that has fairseq"
    say "no environment in $VENV yet: making it (VENV=DIR names another one)"
    bash "$REPO/scripts/setup.sh" "$VENV" >&2
  fi
  PATH=$VENV/bin:$PATH
  export PATH
  command -v fairseq-train >/dev/null || die "$VENV has no fairseq-train: remove it, or run scripts/setup.sh $VENV"
}

# find_gpus: how many torch can use, into EMBINIT_GPUS: a grid asks once for all its runs.
find_gpus() {
  EMBINIT_GPUS=${EMBINIT_GPUS:-$(python -c 'import torch; print(torch.cuda.device_count())')}
  export EMBINIT_GPUS
}

has_gpu() { find_gpus && [[ $EMBINIT_GPUS -gt 0 ]]; }

# needs_vectors STRATEGY: all strategies but the purely random ones do.
needs_vectors() { [[ $1 != none && $1 != xavier && $1 != normal ]]; }

# log_training RUN COMMAND...: run fairseq-train with everything in RUN/train.log and the progress on the screen.
log_training() {
  local run=$1
  shift
  say "training: $run, log in train.log"
  "$@" 2>&1 | tee -a "$run/train.log" | awk '/\| (valid|train_inner) \|/ || /[eE]rror/ { print; fflush() }' ||
    die "training failed; see $run/train.log"
  say "trained: $run/checkpoints/checkpoint_best.pt"
}

# step NAME OUTPUT... -- COMMAND ARG...: run "COMMAND ARG... TEMPORARY..." unless all outputs exist.
# The command writes to one temporary name per output, given as its last arguments; they get their real names only
# when it has succeeded, so that whatever exists is complete, and a stopped script goes on where it was. Two scripts that
# work in one folder take turns.
step() {
  # The names start with step_ because the command sees them: bash's local variables are visible to what is called.
  local step_name=$1 step_outputs=() step_temporary=() step_output step_lock="" step_before
  shift
  while [[ $1 != -- ]]; do
    step_outputs+=("$1")
    shift
  done
  shift
  if all_exist "${step_outputs[@]}"; then
    say "$step_name: there already"
    return 0
  fi
  for step_output in "${step_outputs[@]}"; do mkdir -p "$(dirname "$step_output")"; done
  lock_folder "$(dirname "${step_outputs[0]}")" "$step_name"
  if all_exist "${step_outputs[@]}"; then
    say "$step_name: done by another script"
    unlock_folder
    return 0
  fi
  say "$step_name"
  for step_output in "${step_outputs[@]}"; do
    rm -rf "$step_output.part"
    step_temporary+=("$step_output.part")
  done
  step_before=${#STEP_UNFINISHED[@]}
  if [[ $step_before -eq 0 ]]; then
    STEP_TRAP=$(trap -p EXIT)
    trap step_failed EXIT
  fi
  STEP_UNFINISHED+=("${step_temporary[@]}")
  # Not "if ! command": bash would ignore `set -e` inside a function called that way.
  "$@" "${step_temporary[@]}"
  for step_output in "${step_outputs[@]}"; do
    rm -rf "$step_output"
    mv "$step_output.part" "$step_output"
  done
  STEP_UNFINISHED=("${STEP_UNFINISHED[@]:0:step_before}")
  [[ $step_before -gt 0 ]] || eval "${STEP_TRAP:-trap - EXIT}"
  unlock_folder
}

# step_failed: at the end of a script that stops inside a step: nothing unfinished stays, and a full disk is named.
step_failed() {
  local full
  if full=$(full_disk) && [[ -z ${STEP_SAID:-} ]]; then echo "$(basename "$0"): error: $full" >&2; fi
  rm -rf "${STEP_UNFINISHED[@]}"
  if [[ -n $STEP_TRAP ]]; then
    eval "set -- $STEP_TRAP" # trap -- COMMAND EXIT
    eval "$3"
  fi
}

# full_disk: inside a step, if no space is left where it writes: say so and what to do.
full_disk() {
  local place kilobytes
  [[ ${#STEP_UNFINISHED[@]} -gt 0 ]] || return 1
  place=$(dirname "${STEP_UNFINISHED[0]}")
  kilobytes=$(df -Pk "$place" 2>/dev/null | awk 'NR == 2 { print $4 }')
  [[ -n $kilobytes && $kilobytes -lt 100 ]] || return 1
  echo "no space left on the disk of $place: free some space and start again, or choose another --output"
}

all_exist() {
  local path
  for path in "$@"; do [[ -e $path ]] || return 1; done
}

# lock_folder DIR WHAT: wait until no other script works there; step's lock, which the system drops with its processes.
# A step inside a step has the outer one's turn. Without the program flock (macOS) nobody waits.
lock_folder() {
  [[ -z ${STEP_IN_TURN:-} ]] && command -v flock >/dev/null || return 0
  exec {step_lock}<"$1"
  if ! flock --nonblock "$step_lock"; then
    say "$2: waiting for another script that works in $1"
    flock "$step_lock" || true # a file system without locks
  fi
  export STEP_IN_TURN=1
}

unlock_folder() {
  [[ -n $step_lock ]] || return 0
  flock --unlock "$step_lock" || true # what was started here may live on
  exec {step_lock}<&-
  unset STEP_IN_TURN
}

# sha256_of FILE: print the checksum.
sha256_of() {
  if command -v sha256sum >/dev/null; then
    sha256sum "$1" | cut -d' ' -f1
  else
    shasum -a 256 "$1" | cut -d' ' -f1
  fi
}

# fetch URL FILE: with whichever program there is.
fetch() {
  if command -v curl >/dev/null; then
    curl --fail --silent --show-error --location --retry 3 --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --tries=3 --output-document="$2" "$1"
  else
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])' "$1" "$2"
  fi
}

# download URL SHA256 FILE: no download if the right file is there; never leaves a wrong or half file behind.
download() {
  local url=$1 expected=$2 file=$3 actual
  if [[ -f $file && $(sha256_of "$file") == "$expected" ]]; then return 0; fi
  mkdir -p "$(dirname "$file")"
  fetch "$url" "$file.part" || {
    rm -f "$file.part"
    die "cannot download $url: check the connection, or set DATA to a folder with a copy (see --help)"
  }
  actual=$(sha256_of "$file.part")
  if [[ $actual != "$expected" ]]; then
    rm -f "$file.part"
    die "$url has SHA-256 $actual instead of $expected: the file was changed or damaged; try again, or set DATA to a copy"
  fi
  mv "$file.part" "$file"
}

# embinit ARGUMENT...: the plugin's command, from this checkout, installed or not.
embinit() { PYTHONPATH=$REPO${PYTHONPATH:+:$PYTHONPATH} python -m embinit_fairseq.cli.main "$@"; }

# hf_dim DIR: the width of the embeddings in a Hugging Face folder (T5 calls it d_model).
hf_dim() {
  python -c 'import json, sys
config = json.load(open(sys.argv[1]))
print(config.get("hidden_size") or config["d_model"])' "$1/config.json"
}

# setting DATA NAME: what a folder made by prepare.sh was made with.
setting() { sed -n "s/^$2=//p" "$1/settings"; }

# remember_settings FILE LINE...: the options a folder was made with; other options need another folder.
remember_settings() {
  local file=$1 settings
  shift
  settings=$(printf '%s\n' "$@")
  if [[ -f $file ]]; then
    [[ $(cat "$file") == "$settings" ]] || die "$(dirname "$file") was made with other options ($(paste -sd ' ' "$file")): \
choose another --output, or remove that folder"
    return 0
  fi
  mkdir -p "$(dirname "$file")"
  printf '%s\n' "$settings" >"$file.part"
  mv "$file.part" "$file"
}

# data_setting FILE: for remember_settings, the line with the folder DATA. Without DATA it is the one in FILE, so that what
# was begun goes on; there is none if FILE has none. Where nothing is finished FILE is forgotten: DATA was a mistake.
data_setting() {
  local finished
  finished=$(cd "$(dirname "$1")" && find . -type f ! -name "*settings" ! -name "*.part" ! -path "*.part/*")
  [[ -n $finished ]] || rm -f "$1"
  if [[ -f $1 ]] && { [[ -z ${DATA:-} ]] || ! grep -q "^data=" "$1"; }; then
    sed -n "/^data=/p" "$1"
  elif [[ -n ${DATA:-} ]]; then
    echo "data=$(cd -P "$DATA" >/dev/null && pwd)"
  fi
}
