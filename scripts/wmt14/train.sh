#!/usr/bin/env bash
# Train a translation model on prepared WMT 2014 data with the settings of Vaswani et al. 2017, which Li et al. 2020 (Duo)
# say they follow.
#
# Usage: [VENV=DIR] bash scripts/wmt14_en_de/train.sh --data DIR --output RUN [options] [-- FAIRSEQ-TRAIN OPTIONS]
#        [VENV=DIR] bash scripts/wmt14_en_fr/train.sh --data DIR --output RUN [options] [-- FAIRSEQ-TRAIN OPTIONS]
#   --data DIR               what prepare.sh made
#   --output RUN             folder of this run; an interrupted run is continued
#   --arch NAME              default duo_transformer_wmt_en_de, duo_transformer_wmt_en_fr; transformer_wmt_en_de, ...
#   --init STRATEGY          how the token embeddings start: a strategy of --embed-init, or none (default): fairseq's own
#   --vectors SLOT=PATH ...  where vectors come from: encoder=PATH, with Duo also encoder_p=PATH (encoder and decoder have
#                            the same tables)
#   --seed N                 default 1
#   --updates N              default 100000; for big architectures (_big) 300000
#   --warmup N               updates of warm-up, default 4000; then the learning rate falls with 1/sqrt(update)
#   --lr RATE                peak learning rate, default 7e-4; _big 5e-4
#   --dropout P              default 0.1; _big 0.3, with en-fr 0.1
#   --update-tokens N        tokens in an update over all devices, as --max-tokens counts them; default 32768: eight
#                            devices with 4096 each, about 25,000 without padding
#   --max-tokens N           tokens that one device takes at a time (default 4096); fewer devices take several batches
#                            for an update (--update-freq)
#   --devices N              devices that share an update, on all machines (default: the GPUs of this machine)
#   --worker                 on every machine but the first, with LAUNCH: train, and leave the records to the first
#   --precision KIND         fp16 (default on a GPU), bf16 (on a CPU: by autocast) or fp32 (default on a CPU)
#   --save-every N           validate and save every N updates (default: a hundredth of --updates)
#   --keep N                 of these checkpoints the last N are kept (default 10, of *_big* 20: what can be averaged)
#   --pair PAIR              en-de or en-fr: set by scripts/wmt14_en_de and wmt14_en_fr, needed in scripts/wmt14
# Everything after -- goes to fairseq-train, after the options above, so that it can replace them.
#
# Environment: LAUNCH="WORDS ..." stands in front of fairseq-train, for several processes that something else starts:
#   LAUNCH="torchrun --standalone --nproc-per-node 8 --no-python", LAUNCH="srun ..."; see docs/scaling.md.
#
# Writes RUN/train.log, RUN/training.json and RUN/checkpoints. Uses all GPUs there are, a process for each.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

pair="" data="" output="" arch="" init=none vectors=() seed=1 updates="" warmup=4000 lr="" dropout="" update_tokens=32768
max_tokens=4096 devices="" worker="" precision="" save_every="" keep="" extra=()
read_options "pair data output arch init vectors... seed updates warmup lr dropout update-tokens max-tokens devices \
worker? precision save-every keep --" "$@"
read -ra launch <<<"${LAUNCH:-}"

[[ -n $pair && -n $data && -n $output ]] || die "--pair, --data and --output are needed; see $(basename "$0") --help"
one_of --pair "$pair" en-de en-fr
known_init --init "$init"
whole_numbers 0 seed warmup
whole_numbers 1 updates update-tokens max-tokens devices save-every keep
[[ -z $lr ]] || number --lr "$lr" 'n > 0' "above 0"
[[ -z $dropout ]] || number --dropout "$dropout" 'n >= 0 && n < 1' "from 0 to below 1"
[[ -z $precision ]] || one_of --precision "$precision" fp16 bf16 fp32
[[ -z $worker || ${#launch[@]} -gt 0 ]] ||
  die "--worker needs LAUNCH, which starts the processes; see $(basename "$0") --help"
[[ -d $data/bin ]] || die "--data $data: no folder bin in it; run prepare.sh --output $data first"
[[ $(setting "$data" pair) == "$pair" ]] || die "--data $data: holds no data of $pair; run prepare.sh of that pair"
[[ $init != none || ${#vectors[@]} -eq 0 ]] || die "--vectors has no effect without --init STRATEGY"
data=$(absolute "$data") output=$(absolute "$output")
arch=${arch:-duo_transformer_wmt_${pair/-/_}}
[[ -n $keep || $arch != *_big* ]] || keep=20 # Vaswani et al. take the mean of so many
keep=${keep:-10}
use_environment

case $arch in
  *_big*)
    updates=${updates:-300000} lr=${lr:-5e-4}
    [[ $pair == en-fr ]] || dropout=${dropout:-0.3}
    ;;
esac
updates=${updates:-100000} lr=${lr:-7e-4} dropout=${dropout:-0.1}
save_every=${save_every:-$(((updates + 99) / 100))}
device=(--cpu --num-workers 0)
if has_gpu; then
  device=(--num-workers 2)
  precision=${precision:-fp16}
elif [[ $precision == bf16 ]]; then
  precision=amp
elif [[ $precision == fp16 ]]; then
  die "--precision fp16 needs a GPU; on a CPU take bf16 or fp32"
fi
[[ ${precision:-fp32} == fp32 ]] || device+=("--$precision")
together=$((max_tokens * ${devices:-$((EMBINIT_GPUS > 1 ? EMBINIT_GPUS : 1))}))
update_freq=$(((update_tokens + together / 2) / together))
[[ $update_freq -ge 1 ]] || update_freq=1
[[ $((update_freq * together)) -eq $update_tokens ]] || say "note: an update has $((update_freq * together)) tokens, not \
$update_tokens: that is no multiple of --max-tokens times the number of devices"

# Nothing is saved or validated at the end of an epoch: checkpoints to be averaged shall be equally far apart.
command=(fairseq-train "$data/bin" --user-dir "$USER_DIR" --task translation
  --source-lang "${pair%-*}" --target-lang "${pair#*-}" --arch "$arch" --share-all-embeddings --dropout "$dropout"
  --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-9 --weight-decay 0.0 --clip-norm 0.0
  --lr "$lr" --lr-scheduler inverse_sqrt --warmup-updates "$warmup" --warmup-init-lr 1e-7
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1
  --max-tokens "$max_tokens" --update-freq "$update_freq" --max-update "$updates" --seed "$seed"
  --validate-interval-updates "$save_every" --save-interval-updates "$save_every" --keep-interval-updates "$keep"
  --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000
  --save-dir "$output/checkpoints" --log-format json --log-interval 100 "${device[@]}")
[[ $init == none ]] || command+=(--embed-init "$init")
[[ ${#vectors[@]} -eq 0 ]] || command+=(--embed-init-path "${vectors[@]}")
command+=(${extra[@]+"${extra[@]}"})

if [[ -n $worker ]]; then exec "${launch[@]}" "${command[@]}"; fi

output_folder --output "$output"
python "$REPO/scripts/run_result.py" begin --run "$output" --data "$data/bin" \
  --label "direction=$pair" "arch=$arch" "init=$init" "seed=$seed" -- "${command[@]}"
# A finished run that is continued would do one more update.
if PYTHONPATH=$REPO/scripts python -m wikibooks.mlm_log --run "$output" --updates "$updates"; then
  say "trained before: $output"
else
  log_training "$output" ${launch[@]+"${launch[@]}"} "${command[@]}"
fi
