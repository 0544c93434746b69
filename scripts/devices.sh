#!/usr/bin/env bash
# Choose devices and processes of a training; sourced after env.sh by recipes that can use several devices.

# local_options DEVICES: set LOCAL, the options of fairseq-train that depend on whether this machine has a GPU.
local_options() {
  LOCAL=(--num-workers 0 --cpu)
  # shellcheck disable=SC2153 # env.sh sets DEVICE
  if [[ ${DEVICE[0]} != --cpu ]]; then
    LOCAL=(--num-workers 2)
    [[ -n ${PRECISION+set} ]] || LOCAL+=(--fp16)
  fi
  [[ -z $1 ]] || LOCAL+=(--distributed-world-size "$1")
}

# count_devices ARGUMENT...: set DEVICES, the number of devices that share an update (--distributed-world-size among the
# arguments, else the GPUs of this machine); LAUNCHER, the words before fairseq-train; and LOCAL. LAUNCH may start
# processes on other machines: there launched.sh sets LOCAL.
# shellcheck disable=SC2034,SC2206 # used by the recipes; a list of words
count_devices() {
  local option=
  [[ ! " $*" =~ .*\ --distributed-world-size[=\ ]([1-9][0-9]*) ]] || option=${BASH_REMATCH[1]}
  [[ ${DEVICES:-$option} == "${option:-${DEVICES:-}}" ]] ||
    die "DEVICES=$DEVICES, but --distributed-world-size $option: leave one of them out"
  [[ -z ${WORKER:-} ]] || : "${LAUNCH:?WORKER needs it: the command that starts the processes}"
  DEVICES=${DEVICES:-$option} LAUNCHER=() LOCAL=()
  [[ -n ${LAUNCH:-} ]] || local_options "$DEVICES"
  DEVICES=${DEVICES:-$(python -c 'import torch; print(torch.cuda.device_count() or 1)')}
  [[ -z ${LAUNCH:-} ]] || LAUNCHER=($LAUNCH bash "$REPO/scripts/launched.sh" "$DEVICES")
}
