#!/usr/bin/env bash
# Pre-train a masked language model on prepared text with the settings of Ke et al. 2021 (TUPE).
#
#   DATA=data/wikibooks RUN=runs/tupe_r bash scripts/wikibooks/train.sh --arch tupe_base --embedding-normalize --rel-pos
#
# DATA: prepare.sh's folder. RUN: the folder of this run; the same call continues it (embinit run). Further arguments go to
# fairseq-train, after the options below, so that they can replace them. Further variables:
#   UPDATES=1000000   the learning rate falls to 0 over so many, after a warm-up of one in a hundred
#   BATCH=256         sequences in an update, over all devices
#   DEVICE_BATCH=     sequences that one device takes at a time: 16, or its whole share if that is less
#   DEVICES=          devices that share an update, on all machines; default: --distributed-world-size, else the GPUs here
#   PRECISION=        an option of fairseq-train: --fp16 (default on a GPU), --bf16, on a CPU --amp (autocast to bfloat16)
#   SAVE_EVERY=       validate and save every so many updates and at the end; the last of these checkpoints and every tenth
#                     are kept. Default: a hundredth of UPDATES, below 100000 a twentieth, but not less than 50
#   LABELS="model=tupe_r"   further labels for embinit compare
#   LAUNCH="torchrun ..."   launcher of several processes (docs/scaling.md); WORKER=1 on every machine but the first, which
#                           alone keeps the records
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
# shellcheck source=../devices.sh
source "$REPO/scripts/devices.sh"
# shellcheck source=../parts.sh
source "$REPO/scripts/parts.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}" "${UPDATES:=1000000}" "${BATCH:=256}"
data_parts "$DATA"
integers UPDATES BATCH DEVICE_BATCH DEVICES SAVE_EVERY
count_devices "$@"
share=$((BATCH / DEVICES))
DEVICE_BATCH=${DEVICE_BATCH:-$((share < 1 ? 1 : share < 16 ? share : 16))}
together=$((DEVICE_BATCH * DEVICES))
((BATCH % together == 0)) || die "BATCH=$BATCH: set it to a multiple of DEVICE_BATCH times DEVICES (together $together)"
SAVE_EVERY=${SAVE_EVERY:-$((UPDATES >= 100000 ? UPDATES / 100 : UPDATES >= 1000 ? UPDATES / 20 : 50))}
start=(embinit run "$RUN" --label task=masked_lm)
# shellcheck disable=SC2206 # lists of words
start+=(${LABELS:-} -- "${LAUNCHER[@]}")
[[ -z ${WORKER:-} ]] || start=("${LAUNCHER[@]}")

# Blocks of complete sentences (FULL-SENTENCES); a sentence that is longer than a block is left out. Nothing is saved or
# validated at the end of an epoch: how long one is says little about the training.
# shellcheck disable=SC2086 # PRECISION may be empty
"${start[@]}" fairseq-train "$BIN" --user-dir "$PLUGIN" --task masked_lm --criterion masked_lm \
  --sample-break-mode complete --tokens-per-sample 512 --mask-prob 0.15 --skip-invalid-size-inputs-valid-test \
  --dropout 0.1 --attention-dropout 0.1 --weight-decay 0.01 --clip-norm 1.0 \
  --optimizer adam --adam-betas "(0.9, 0.999)" --adam-eps 1e-6 --lr 1e-4 --lr-scheduler polynomial_decay \
  --warmup-updates "$((UPDATES / 100))" --total-num-update "$UPDATES" --max-update "$UPDATES" \
  --batch-size "$DEVICE_BATCH" --required-batch-size-multiple 1 --update-freq "$((BATCH / together))" \
  --validate-interval-updates "$SAVE_EVERY" --save-interval-updates "$SAVE_EVERY" \
  --keep-interval-updates 1 --keep-interval-updates-pattern "$((10 * SAVE_EVERY))" \
  --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000 --save-dir "$RUN/checkpoints" \
  --log-format json --log-interval 100 ${PRECISION:-} "${LOCAL[@]}" "$@"
