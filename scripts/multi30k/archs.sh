#!/usr/bin/env bash
# Shared by train.sh and run.sh: the names of --arch and what they are to fairseq-train. To be sourced after common.sh.

# The rungs of the ladder of duo.sh, in the order of Table 5 of Li et al. 2020, have names of our own.
DUO_LADDER=(duo_meta duo_shared duo_norm duo)
# shellcheck disable=SC2034 # read by those who source this file
KNOWN_ARCHS=(transformer tupe_transformer transformer_equal "${DUO_LADDER[@]}")

# arch_options NAME: the options of fairseq-train, a word a line.
arch_options() {
  case $1 in
    transformer_equal) words --arch transformer ;; # and wider feed-forward layers: see equal_ffn.py
    duo_meta) words --arch duo_transformer --duo-share-weights off --duo-norm off --duo-fusion off ;;
    duo_shared) words --arch duo_transformer --duo-norm off --duo-fusion off ;;
    duo_norm) words --arch duo_transformer --duo-fusion off ;;
    duo) words --arch duo_transformer ;;
    *) words --arch "$1" ;;
  esac
}

words() { printf '%s\n' "$@"; }
