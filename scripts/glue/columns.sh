#!/usr/bin/env bash
# Binarise the columns of a task; sourced after env.sh by the prepare.sh of glue and of sst2, which set OUTPUT.

# dictionary TEXT MIN_COUNT: make OUTPUT/dict/dict.txt of the training sentences in the folder TEXT.
dictionary() {
  cat "$1"/train.input? >"$OUTPUT/train.all"
  rm -rf "$OUTPUT/dict"
  fairseq-preprocess --only-source --dict-only --trainpref "$OUTPUT/train.all" --thresholdsrc "$2" \
    --destdir "$OUTPUT/dict"
}

# binarise FLAG HOW MODEL DICT FILE...: make OUTPUT/bin of training files, train.COLUMN, and of the validation sets in their
# folder: one dictionary for both sentences of a pair, the classes in GLUE's order, however frequent they are, numbers as
# they are. FLAG HOW MODEL: as for tokens.py, how OUTPUT/corpus became the text; it is recorded next to the dictionary,
# unless fairseq-preprocess has found a record next to DICT.
binarise() {
  local train folder column dict valid
  rm -rf "$OUTPUT/bin.part"
  for train in "${@:5}"; do
    folder=${train%/*} column=${train##*.} dict=$4
    valid=$folder/valid.$column
    [[ ! -f $folder/valid1.$column ]] || valid+=,$folder/valid1.$column
    [[ $column != label ]] || dict=$OUTPUT/corpus/label.dict
    if [[ -f $dict ]]; then
      fairseq-preprocess --only-source --srcdict "$dict" --trainpref "$train" --validpref "$valid" --workers 1 \
        --destdir "$OUTPUT/bin.part/$column"
      [[ $column == label || -f $OUTPUT/bin.part/$column/preparation.json ]] ||
        python "$REPO/scripts/tokens.py" record "$1" "$2" --model "$3" --folder "$OUTPUT/bin.part/$column" \
          --made-by "$0" --dict dict.txt --langs en --raw "$OUTPUT/corpus/valid.$column" --prepared "$folder/valid.$column"
    else
      mkdir "$OUTPUT/bin.part/label" && cp "$OUTPUT"/corpus/*.label "$OUTPUT/bin.part/label"
      [[ ! -f $OUTPUT/corpus/label.scale ]] || cp "$OUTPUT/corpus/label.scale" "$OUTPUT/bin.part/label/scale"
    fi
  done
  mv "$OUTPUT/bin.part" "$OUTPUT/bin"
}
