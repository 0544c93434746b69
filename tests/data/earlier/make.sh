#!/usr/bin/env bash
# Makes the files of this folder with an earlier revision of the repository, in an environment with fairseq:
#   bash tests/data/earlier/make.sh CHECKOUT-OF-32b78bf FOLDER
# All paths in them are relative to FOLDER. test_earlier_files.py reads them.
set -euo pipefail
checkout=$(cd "$1" && pwd)
mkdir -p "$2"
cd "$2"
export PYTHONPATH=$checkout:$checkout/fairseq_compat/src OMP_NUM_THREADS=1
ln -sfn "$checkout/embinit_fairseq" embinit_fairseq
mkdir -p text
python - <<'PYTHON'
import random
random.seed(1)
for split, sentences in (("train", 60), ("valid", 8), ("test", 8)):
    with open(f"text/{split}.de", "w") as german, open(f"text/{split}.en", "w") as english:
        for _ in range(sentences):
            words = [random.randrange(12) for _ in range(random.randrange(2, 6))]
            print(*(f"d{word}" for word in words), file=german)
            print(*(f"e{word}" for word in reversed(words)), file=english)
PYTHON
fairseq-preprocess -s de -t en --trainpref text/train --validpref text/valid --testpref text/test --destdir data/bin >/dev/null
small="--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2 --encoder-layers 1"
both="$small --decoder-embed-dim 8 --decoder-ffn-embed-dim 8 --decoder-attention-heads 2 --decoder-layers 1"
common="--user-dir embinit_fairseq --optimizer adam --lr 0.01 --batch-size 20 --cpu --max-epoch 2 --num-workers 0 --max-source-positions 20 --max-target-positions 20 --seed 1
  --no-epoch-checkpoints --log-format json --embed-init xavier"
train() { # NAME OPTION...
  local run=$1
  shift
  mkdir -p "$run"
  # shellcheck disable=SC2086,SC2206 # lists of words
  local command=(fairseq-train data/bin $common --save-dir "$run/checkpoints" "$@")
  python "$checkout/scripts/run_result.py" begin --run "$run" --data data/bin --label init=xavier "arch=$run" seed=1 -- "${command[@]}"
  "${command[@]}" >"$run/train.log" 2>&1
  python "$checkout/scripts/run_result.py" finish --run "$run"
  rm -f "$run/checkpoints/checkpoint_best.pt"
  sed -i "s#$PWD/##g; /site-packages/,+1d" "$run/train.log"  # no paths of this machine
}
# shellcheck disable=SC2086,SC2206 # lists of words
{
  train transformer --task translation --arch transformer $both
  train duo --task translation --arch duo_transformer_tiny $both
  train tupe_transformer --task translation --arch tupe_transformer $both
}
printf 'd3d4 1\nd5d6 1\n' | cut -d' ' -f1 >new.txt
python -m embinit_fairseq.cli.main expand-vocab --checkpoint transformer/checkpoints/checkpoint_last.pt \
  --dict data/bin/dict.de.txt --side encoder --words new.txt --method avg --output expanded
# encoders: a masked model, ELECTRA, both classifiers
for split in train valid; do
  mkdir -p text/labelled
  sed -E 's/.*/l\0/; s/^l(d[0-5]) .*/low/; s/^l.*/high/' "text/$split.de" >"text/labelled/$split.label"
done
one() { # OPTION...
  fairseq-preprocess --only-source --trainpref "text/$1" --validpref "text/${1/train/valid}" --destdir "$2" "${@:3}" >/dev/null
}
one train.de data/masked
one train.de data/labelled/input0 --srcdict data/masked/dict.txt
one labelled/train.label data/labelled/label
encoder() { # NAME DATA OPTION...
  # shellcheck disable=SC2086 # a list of words
  fairseq-train "data/$2" --user-dir embinit_fairseq --optimizer adam --lr 0.01 --batch-size 20 --cpu --max-epoch 2 --num-workers 0 --seed 1 \
    --no-epoch-checkpoints --embed-init xavier --arch "$1" --save-dir "$1" "${@:3}" >/dev/null 2>&1
  rm -f "$1/checkpoint_best.pt"
}
sizes="$small --max-positions 20"
masked="--task masked_lm --tokens-per-sample 20"
labelled="--task sentence_prediction --criterion sentence_prediction_metrics --num-classes 2 --max-positions 20"
# shellcheck disable=SC2086 # lists of words
{
  encoder tupe_tiny masked $masked --criterion masked_lm $sizes
  encoder electra_tiny masked $masked --criterion electra $sizes --generator-layers 1 --generator-embed-dim 4 --generator-ffn-embed-dim 4
  encoder embinit_classifier labelled $labelled $small
  encoder duo_classifier labelled $labelled --encoder-dim-s 3 --encoder-dim-p 5 --duo-ffn-dim 4 --train-embeddings
}
find data -name preprocess.log -delete
rm -r embinit_fairseq text
