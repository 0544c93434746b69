#!/usr/bin/env bash
# Train a translation model on prepared WMT 2014 data with the settings of Vaswani et al. 2017, which Li et al. 2020 (Duo)
# say they follow.
#
#   DATA=data/wmt14_en_de RUN=runs/duo bash scripts/wmt14/train.sh --arch duo_transformer_wmt_en_de
#   DATA=data/wmt14_en_fr RUN=runs/big bash scripts/wmt14/train.sh --arch transformer_vaswani_wmt_en_fr_big
#
# DATA: prepare.sh's folder. RUN: the folder of this run; the same call continues it (embinit run). Further arguments
# go to fairseq-train, after the options below, so that they can replace them (--arch, --seed, --lr,
# --embed-init, ...). In brackets the defaults of architectures called *_big*. Further variables:
#   PAIR=                 en-de or en-fr; default: that of DATA
#   UPDATES=100000        [300000]
#   UPDATE_TOKENS=32768   tokens in an update over all devices, as --max-tokens counts them: eight devices with 4096 each,
#                         about 25,000 without padding
#   MAX_TOKENS=4096       tokens that one device takes at a time; fewer devices take several batches for an update
#   DEVICES=              devices that share an update, on all machines; default: --distributed-world-size, else the GPUs here
#   PRECISION=            an option of fairseq-train: --fp16 (default on a GPU), --bf16, on a CPU --amp (autocast to bfloat16)
#   SAVE_EVERY= KEEP=10   validate and save every so many updates (default: a hundredth of UPDATES); of these checkpoints so
#                         many last ones are kept, which can be averaged [20]
#   LABELS="KEY=VALUE"    further labels for embinit compare
#   LAUNCH="torchrun ..." launcher of several processes (docs/scaling.md); WORKER=1 on every machine but the first, which
#                         alone keeps the records
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
# shellcheck source=../devices.sh
source "$REPO/scripts/devices.sh"
# shellcheck source=../parts.sh
source "$REPO/scripts/parts.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${RUN:?set it to the folder of the run}"
PAIR=${PAIR:-$(sed -n 's/^pair=//p' "$DATA/settings" 2>/dev/null || true)} PAIR=${PAIR:-en-de}
data_parts "$DATA"
[[ -f ${BIN%%:*}/train.$PAIR.${PAIR%-*}.idx ]] || die "DATA=$DATA: no data of $PAIR in its folder bin; set PAIR, or run prepare.sh first"
lr=7e-4 dropout=0.1
if [[ $* == *_big* ]]; then # Vaswani et al. take the mean of twenty
  : "${UPDATES:=300000}" "${KEEP:=20}"
  lr=5e-4
  [[ $PAIR == en-fr ]] || dropout=0.3
fi
: "${UPDATES:=100000}" "${KEEP:=10}" "${UPDATE_TOKENS:=32768}" "${MAX_TOKENS:=4096}"
integers UPDATES KEEP UPDATE_TOKENS MAX_TOKENS DEVICES SAVE_EVERY
count_devices "$@"
together=$((MAX_TOKENS * DEVICES)) SAVE_EVERY=${SAVE_EVERY:-$(((UPDATES + 99) / 100))}
((UPDATE_TOKENS % together == 0)) ||
  die "UPDATE_TOKENS=$UPDATE_TOKENS: set it to a multiple of MAX_TOKENS times DEVICES (together $together)"
start=(embinit run "$RUN" --label "direction=$PAIR")
# shellcheck disable=SC2206 # lists of words
start+=(${LABELS:-} -- "${LAUNCHER[@]}")
[[ -z ${WORKER:-} ]] || start=("${LAUNCHER[@]}")

# Nothing is saved or validated at the end of an epoch: checkpoints to be averaged shall be equally far apart.
# shellcheck disable=SC2086 # PRECISION may be empty
"${start[@]}" fairseq-train "$BIN" --user-dir "$PLUGIN" --task translation \
  --source-lang "${PAIR%-*}" --target-lang "${PAIR#*-}" --arch "duo_transformer_wmt_${PAIR/-/_}" --share-all-embeddings \
  --dropout "$dropout" --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-9 --weight-decay 0.0 --clip-norm 0.0 \
  --lr "$lr" --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7 \
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-update "$UPDATES" \
  --max-tokens "$MAX_TOKENS" --update-freq "$((UPDATE_TOKENS / together))" --validate-interval-updates "$SAVE_EVERY" \
  --save-interval-updates "$SAVE_EVERY" --keep-interval-updates "$KEEP" --no-epoch-checkpoints \
  --save-interval 1000000 --validate-interval 1000000 --save-dir "$RUN/checkpoints" \
  --log-format json --log-interval 100 ${PRECISION:-} "${LOCAL[@]}" "$@"
