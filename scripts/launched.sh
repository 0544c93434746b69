#!/usr/bin/env bash
# Start fairseq-train in one of the processes that LAUNCH of a train.sh makes, with the options that depend on the
# machine on which it runs: --cpu without a GPU, else --fp16 unless PRECISION is set.
#
#   torchrun --nproc-per-node 8 --no-python bash scripts/launched.sh 8 fairseq-train DATA --arch ...
#
# The first argument, DEVICES of train.sh, must be the number of processes, which torchrun gives in WORLD_SIZE.
# shellcheck source=env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
# shellcheck source=devices.sh
source "$REPO/scripts/devices.sh"
devices=$1 program=$2 data=$3
[[ ${WORLD_SIZE:-$devices} == "$devices" ]] ||
  die "DEVICES=$devices, but LAUNCH starts $WORLD_SIZE processes: set it to $WORLD_SIZE"
local_options "$devices"
exec "$program" "$data" "${LOCAL[@]}" "${@:4}"
