#!/usr/bin/env bash
# Give a language model its new words, by several methods, and binarise the text that has them as symbols.
#
#   DATA=data/expansion LM=runs/lm OUTPUT=runs/models bash scripts/expansion/expand.sh
#
# DATA: prepare.sh's folder. LM: the folder that train.sh (or shift.py) made. Further variables:
#   METHODS="..."   of `embinit expand-vocab --method`, METHOD=C for another --noise-scale; default: all that need no vectors
#                   (distill reads the training text in old pieces)
#   VECTORS=        vectors of old and new subwords, for METHODS="focus omp"
#   SEEDS=1         of the methods' random draws
#
# Makes OUTPUT/<method>.seed<N> (the output of expand-vocab, with verify.json and verify.png: KL of the validation text
# before any training, for old pieces) and OUTPUT/bin, the text in new pieces. The same call continues a stopped one, and
# another call adds methods and seeds.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder of prepare.sh}" "${LM:?set it to the folder of train.sh}" "${OUTPUT:?set it to a folder for models}"
[[ -d $DATA/bin && -f $DATA/words.txt ]] || die "DATA=$DATA: no bin and words.txt in it; set it to the OUTPUT of prepare.sh"
[[ -f $LM/architecture ]] || die "LM=$LM: not trained to the end; run train.sh with RUN=$LM first"
METHODS=${METHODS:-$(python -c 'from embinit_fairseq.init.methods import EXPANSION, METHODS
print(*(name for name in EXPANSION if not METHODS[name].needs_vectors))')}
checkpoint=$LM/checkpoints/checkpoint_last.pt
settings "$OUTPUT" "checkpoint=$(sha256sum <"$checkpoint")" "words=$(sha256sum <"$DATA/words.txt")"

for seed in ${SEEDS:-1}; do
  for method in $METHODS; do
    model=$OUTPUT/$method.seed$seed more=() dict=$DATA/bin/dict.txt
    [[ $method != *=* ]] || more=(--noise-scale "${method#*=}")
    [[ $method != focus && $method != omp ]] || more=(--vectors "${VECTORS:?set it to vectors of old and new subwords}")
    if [[ $method == distill ]]; then # its text is in pieces, since <unk> is a symbol there: the dictionary has no record
      more=(--distill-text "$DATA/text/old/train") dict=$OUTPUT/dict.txt
      cp "$DATA/bin/dict.txt" "$dict"
    fi
    [[ -d $model ]] || embinit expand-vocab --checkpoint "$checkpoint" --dict "$dict" \
      --words "$DATA/words.txt" --method "${method%%=*}" ${more[@]+"${more[@]}"} --seed "$seed" --reset-optimizer \
      --verify "$DATA/text/old/valid" --output "$model"
    if [[ ! -d $OUTPUT/bin ]]; then # new words have the same rows by all methods
      rm -rf "$OUTPUT/bin.part"
      fairseq-preprocess --only-source --srcdict "$model/dict.txt" --trainpref "$DATA/text/new/train" \
        --validpref "$DATA/text/new/valid" --destdir "$OUTPUT/bin.part" >"$OUTPUT/preprocess.log"
      mv "$OUTPUT/bin.part" "$OUTPUT/bin"
    fi
  done
done
