#!/usr/bin/env bash
# Show the effect of the initialisation of token embeddings, on data that this script makes: a small German-English
# corpus from a grammar, word vectors learned from monolingual text of that grammar, one training per strategy of
# --embed-init, translation of a test set, a table.
#
#   bash scripts/quickstart.sh
#   ALL=1 bash scripts/quickstart.sh                                  # six initialisations, 20 epochs instead of 5
#   SEED=2 INITS="normal xavier" OUTPUT=runs/toy_seed2 bash scripts/quickstart.sh --max-epoch 10
#
# OUTPUT   default: runs/quickstart, with ALL=1 runs/quickstart_all. For results.md, curves.png, and
#          runs/<initialisation> with record, log, checkpoints
# INITS    initialisations to compare, default: "xavier pretrained pretrained_xavier"; with ALL=1 also normal, shuffled and
#          shuffled_xavier (shuffled vectors at the scale of xavier; the others are strategies of --embed-init)
# SEED     of the data and of the trainings, default 1: the same seed gives the same numbers
# DIM      of the embeddings, default 96. TRAIN, TEST, MONOLINGUAL: sentences, see scripts/toy/prepare.sh
# JOBS     trainings at a time, one thread each, default 3
#
# Further arguments go to fairseq-train. Makes the environment by scripts/setup.sh if there is none. No GPU is used. Can be
# stopped and started again: finished steps are not repeated.
# shellcheck source=env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
OUTPUT=${OUTPUT:-runs/quickstart${ALL:+_all}} SEED=${SEED:-1} DIM=${DIM:-96}
INITS=${INITS:-xavier pretrained pretrained_xavier${ALL:+ normal shuffled shuffled_xavier}}

OUTPUT=$OUTPUT SEED=$SEED bash "$REPO/scripts/toy/prepare.sh"
# Standard deviation 0.4 is the order of published GloVe tables; the method alone would give an arbitrary scale.
for lang in de en; do
  [[ -e $OUTPUT/vectors.$DIM.$lang.txt ]] || python "$REPO/scripts/train_vectors.py" \
    --text "$OUTPUT/text/mono.$lang" --dim "$DIM" --window 4 --min-count 5 --std 0.4 --output "$OUTPUT/vectors.$DIM.$lang.txt"
done

# Half the time of toy/train.sh's own options: small batches learn more per second here, and fused_adam is faster than adam
# (docs/speed.md).
short="--max-epoch 5 --max-tokens 400 --warmup-updates 100 --optimizer fused_adam"
[[ -z ${ALL:-} ]] || short=
here=${REPO@Q}/scripts out=${OUTPUT@Q} # as the lines of the grid spell them
for init in $INITS; do
  strategy=$init
  # The control for the content of vectors: no word has its own vector; otherwise as pretrained_xavier.
  [[ $init != shuffled_xavier ]] || strategy="shuffled --embed-init-std xavier"
  echo "$init: DATA=$out RUN=$out/runs/$init LABELS=init=$init bash $here/toy/train.sh --seed $SEED" \
    "--encoder-embed-dim $DIM --decoder-embed-dim $DIM $short --embed-init $strategy" \
    "--embed-init-path encoder=$out/vectors.$DIM.de.txt decoder=$out/vectors.$DIM.en.txt ${*@Q}"
done | embinit grid - --logs "$OUTPUT/logs" --jobs "${JOBS:-3}"
embinit compare "$OUTPUT/runs" --output "$OUTPUT" >/dev/null
python "$REPO/scripts/toy/summary.py" "$OUTPUT/results.json"
