#!/usr/bin/env bash
# Can the content of word vectors matter? Few pairs of Multi30k, German to English, and five initialisations at Xavier's
# scale: random numbers, vectors learned from the pairs, oracle vectors, and both sets of vectors shuffled. The oracle's
# are the embeddings of a model of the same size that was trained on the other pairs.
#
#   DATA=multi30k OUTPUT=runs/content bash scripts/multi30k/content.sh
#
# OUTPUT   data, vectors, the oracle, runs and the results (results.md, results.json, curves.png) go here
# PAIRS    default: "1000 4000", the first pairs of the training text; the oracle reads the pairs after the largest number
# SEEDS    default: "1 2 3"
# JOBS     trainings at a time, see embinit grid. DATA, TOKENS, MIN_COUNT: as for prepare.sh
#
# A training is validated about every 64 updates and ends after five validations without a lower loss. Further arguments
# go to fairseq-train. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder for data, runs and results}" "${PAIRS:=1000 4000}" "${SEEDS:=1 2 3}"
steps=$REPO/scripts/multi30k all=$OUTPUT/data/all most=0
for pairs in $PAIRS; do ((pairs <= most)) || most=$pairs; done
size=(--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 100 --decoder-embed-dim 100
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256)

# part FOLDER COMMAND...: the training text that a command makes of each language's, binarised for fairseq.
part() {
  local folder=$1 lang split
  [[ ! -d $folder/bin ]] || return 0
  mkdir -p "$folder/text"
  for lang in de en; do
    for split in valid test; do cp "$all/text/$split.$lang" "$folder/text"; done
    "${@:2}" "$all/text/train.$lang" >"$folder/text/train.$lang"
  done
  rm -rf "$folder/bin.part"
  fairseq-preprocess --source-lang de --target-lang en --destdir "$folder/bin.part" --workers 1 \
    --trainpref "$folder/text/train" --validpref "$folder/text/valid" --testpref "$folder/text/test" \
    --thresholdsrc "${MIN_COUNT:-2}" --thresholdtgt "${MIN_COUNT:-2}" >"$folder/preprocess.log" 2>&1 ||
    die "fairseq-preprocess failed; see $folder/preprocess.log"
  mv "$folder/bin.part" "$folder/bin"
}

OUTPUT=$all DIRECTION=de-en bash "$steps/prepare.sh"
part "$OUTPUT/data/oracle" tail -n +$((most + 1))
oracle=$OUTPUT/oracle
embinit run "$oracle" --label init=oracle -- fairseq-train "$OUTPUT/data/oracle/bin" --user-dir "$PLUGIN" \
  --task translation --arch transformer "${size[@]}" --encoder-attention-heads 10 --decoder-attention-heads 10 \
  --dropout 0.1 --optimizer fused_adam --adam-betas "(0.9,0.98)" --adam-eps 1e-9 --lr 1e-3 --lr-scheduler fixed \
  --criterion fused_cross_entropy --batch-size 64 --required-batch-size-multiple 1 --max-epoch 8 --num-workers 0 \
  --no-epoch-checkpoints --log-format json --log-interval 100 --embed-init xavier --seed 1 "${DEVICE[@]}" "$@"
cp "$OUTPUT/data/oracle/bin"/dict.*.txt "$oracle/checkpoints"
for side in encoder:de decoder:en; do
  [[ -f $OUTPUT/oracle.${side#*:}.txt ]] || embinit save-vectors --vectors "$oracle/checkpoints/checkpoint_best.pt" \
    --side "${side%:*}" --output "$OUTPUT/oracle.${side#*:}.txt"
done

for pairs in $PAIRS; do
  part "$OUTPUT/data/$pairs" head -n "$pairs"
  for lang in de en; do
    [[ -e $OUTPUT/own.$pairs.$lang.txt ]] || python "$REPO/scripts/train_vectors.py" --dim 100 \
      --text "$OUTPUT/data/$pairs/text/train.$lang" --output "$OUTPUT/own.$pairs.$lang.txt"
  done
done

# Seeds outermost: after the first seed the table is complete, if without deviations.
for seed in $SEEDS; do
  for pairs in $PAIRS; do
    every=$(((64 * 64 + pairs - 1) / pairs))
    python "$steps/experiments.py" content --data "$OUTPUT/data/$pairs" --output "$OUTPUT/runs/$pairs" \
      --label "pairs=$pairs" --vectors "de=$OUTPUT/own.$pairs.de.txt" "en=$OUTPUT/own.$pairs.en.txt" \
      "de_oracle=$OUTPUT/oracle.de.txt" "en_oracle=$OUTPUT/oracle.en.txt" \
      -- "${size[@]}" --lr 5e-4 --validate-interval "$every" --save-interval "$every" "$@" |
      sed -n "s/^[a-z_]*\.seed$seed: /$pairs.&/p"
  done
done | embinit grid - --logs "$OUTPUT/logs" ${JOBS:+--jobs "$JOBS"}
embinit compare "$OUTPUT/runs" --by pairs init --output "$OUTPUT"
