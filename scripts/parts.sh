#!/usr/bin/env bash
# Find the binary data that prepare.sh made, in one folder or in parts; sourced after env.sh.

# data_parts DATA: set BIN, the data argument of fairseq-train: DATA/bin, or DATA/bin.00:DATA/bin.01:... (a part per epoch).
# shellcheck disable=SC2034 # the recipes use BIN
data_parts() {
  local part expected number name
  BIN=$1/bin
  [[ ! -d $BIN ]] || return 0
  [[ -d $1/bin.00 ]] || die "DATA=$1: no folder bin in it; set it to the OUTPUT of prepare.sh"
  expected=$(sed -n 's/.*"parts": \([0-9]*\).*/\1/p' "$1/report.json") BIN=
  for ((number = 0; number < expected; number++)); do
    printf -v part '%s/bin.%02d' "$1" "$number"
    for name in "$1"/bin.00/dict*.txt; do
      cmp -s "$name" "$part/${name##*/}" ||
        die "$part: missing, or made with another dictionary than $1/bin.00; the preparation made $expected parts: copy all of them"
    done
    BIN+=${BIN:+:}$part
  done
}
