#!/usr/bin/env bash
# Shared by table1.sh and table2.sh: the twelve experiments of Table 1 of Kim et al. 2024. To be sourced after
# common.sh.

# <data set>.<embeddings>, in the order of the paper.
# shellcheck disable=SC2034 # by those who source it
EXPERIMENTS=(sst2.words sst2.bert sst2.t5 mnli.words mnli.bert mnli.t5
  multi30k.words multi30k.mbert multi30k.mt5 iwslt17.words iwslt17.mbert iwslt17.mt5)

# translates EXPERIMENT: is it a translation from German to English? All others classify English sentences.
translates() { [[ $1 == multi30k.* || $1 == iwslt17.* ]]; }
