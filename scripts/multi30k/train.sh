#!/usr/bin/env bash
# Train a translation model on prepared Multi30k data with the settings of Kim et al. 2024.
#
#   DATA=data/de-en RUN=runs/xavier bash scripts/multi30k/train.sh --embed-init xavier --seed 1
#   DATA=data/de-en RUN=runs/glove bash scripts/multi30k/train.sh --embed-init pretrained_xavier \
#     --embed-init-path encoder=vectors.de.txt decoder=glove.6B.300d.txt --seed 1 --max-epoch 8
#
# DATA    prepare.sh's folder, of this or another corpus; DATA/options has other options of fairseq-train for it
# RUN     the folder of this run, by embinit run; the same call continues it
# DIM     embedding dimension, default 300, for words; Kim takes 512 or 768 for sub-words
# HEADS   default: 10 if DIM is 300, else 8
# LABELS  further labels for embinit compare, such as "vectors=glove"
#
# Further arguments go to fairseq-train, after the options below, so that they can replace them.
# Kim's batches of sub-words have 128 (mBERT) or 96 sentences (mT5): --batch-size 128. On a CPU set
# OMP_NUM_THREADS; several trainings with one thread each need less time in all than one training with all cores.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}"
[[ -d $DATA/bin ]] || die "DATA=$DATA: no folder bin in it; run prepare.sh first"
DIM=${DIM:-300}
HEADS=${HEADS:-$((DIM == 300 ? 10 : 8))} own=()
[[ ! -f $DATA/options ]] || read -ra own <"$DATA/options"

# Loading in the main process is fastest for sentences this short; they are a small part of a step.
# shellcheck disable=SC2086 # LABELS is a list of words
embinit run "$RUN" --label "direction=$(sed -n 's/^DIRECTION=//p' "$DATA/settings")" ${LABELS:-} -- \
  fairseq-train "$DATA/bin" --user-dir "$PLUGIN" --task translation \
  --arch transformer --encoder-layers 3 --decoder-layers 3 \
  --encoder-embed-dim "$DIM" --decoder-embed-dim "$DIM" --encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512 \
  --encoder-attention-heads "$HEADS" --decoder-attention-heads "$HEADS" --dropout 0.1 \
  --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-9 --lr 2e-4 --lr-scheduler fixed \
  --criterion cross_entropy --batch-size 64 --required-batch-size-multiple 1 --max-epoch 20 --num-workers 0 \
  --no-epoch-checkpoints --log-format json --log-interval 100 "${DEVICE[@]}" "${own[@]}" "$@"
