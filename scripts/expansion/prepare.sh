#!/usr/bin/env bash
# Prepare text for Hewitt's experiment of adaptation: sub-words, the frequent words that they split, and the text with
# and without these words as symbols of their own.
#
#   DATA=wikitext-2 OUTPUT=data/expansion bash scripts/expansion/prepare.sh
#
# DATA: a folder with train.txt and valid.txt, or wiki.train.tokens and wiki.valid.tokens as WikiText-2 names them; either
# may be a .gz. A paragraph or sentence a line, words separated by spaces, <unk> for a word that the text does not have. Variables:
#   BPE_SIZE=3000 WORDS=100   merges, and how many new words: the most frequent ones of the training text that
#                             BPE splits
#   VALID_LINES=300           of the validation text, the first that are not empty
#   LM_DATA=                  another text of the language model and of BPE, a folder like DATA, which is a new domain then
#
# Makes OUTPUT/corpus (words), bpe.codes, words.tsv (new words, pieces, counts), words.txt (the same for expand-vocab),
# text/{old,new} (pieces) and bin (old pieces, for fairseq); of another LM_DATA lm, text/lm and bin, then bin.old has DATA.
# The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to a folder with train.txt and valid.txt}" "${OUTPUT:?set it to the folder for the data}"
: "${BPE_SIZE:=3000}" "${WORDS:=100}" "${VALID_LINES:=300}"
integers BPE_SIZE WORDS VALID_LINES
# find_text VARIABLE: sets train and valid to the files of the folder that the variable names.
find_text() {
  local folder=${!1} file
  [[ -d $folder ]] || die "$1=$folder: no such folder; set it to one with train.txt and valid.txt"
  folder=$(cd "$folder" && pwd) train="" valid=""
  for file in "$folder"/{train.txt,wiki.train.tokens}{,.gz}; do [[ ! -f $file ]] || train=$file; done
  for file in "$folder"/{valid.txt,wiki.valid.tokens}{,.gz}; do [[ ! -f $file ]] || valid=$file; done
  [[ $train && $valid ]] || die "$1=$folder: neither train.txt and valid.txt nor wiki.{train,valid}.tokens (or .gz) in it"
}
lm_files=() lm_sums=()
if [[ ${LM_DATA:-} ]]; then
  find_text LM_DATA
  lm_files=("$train" "$valid") lm_sums=("lm_train=$(sha256sum <"$train")" "lm_valid=$(sha256sum <"$valid")")
fi
find_text DATA
settings "$OUTPUT" "train=$(sha256sum <"$train")" "valid=$(sha256sum <"$valid")" "bpe_size=$BPE_SIZE" "words=$WORDS" \
  "valid_lines=$VALID_LINES" ${lm_sums[@]+"${lm_sums[@]}"}
export PYTHONPATH=$REPO/scripts:$REPO
cd "$OUTPUT" || exit

# whole FILE COMMAND...: write the output of the command to FILE, completely or not at all.
whole() {
  [[ ! -f $1 ]] || return 0
  mkdir -p "$(dirname "$1")"
  "${@:2}" >"$1.part" && mv "$1.part" "$1"
}
# lines FILE LIMIT: non-empty lines, at most so many (0: all), words separated by one blank.
lines() {
  gzip -dcf "$1" | awk -v limit="$2" 'NF && (!limit || n++ < limit) { $1 = $1; print; some = 1 } END { exit !some }' ||
    die "$1: damaged, or no words in it; get it again"
}
whole corpus/train lines "$train" 0
whole corpus/valid lines "$valid" "$VALID_LINES"
known=corpus cut=old # the text of the language model, in words and in pieces
if [[ ${LM_DATA:-} ]]; then
  known=lm cut=lm
  whole lm/train lines "${lm_files[0]}" 0
  whole lm/valid lines "${lm_files[1]}" "$VALID_LINES"
fi
whole bpe.codes subword-nmt learn-bpe --symbols "$BPE_SIZE" --input "$known/train"
whole words.tsv python -m expansion.words choose --codes bpe.codes --train corpus/train --valid corpus/valid \
  --old "$known/train" --count "$WORDS"
# shellcheck disable=SC2016 # awk's
whole words.txt awk -F '\t' 'NR > 1 { print $1 "\t" $2 }' words.tsv
for split in train valid; do
  whole "text/old/$split" python -m expansion.words cut --codes bpe.codes "corpus/$split"
  whole "text/new/$split" python -m expansion.words cut --codes bpe.codes --words words.txt "corpus/$split"
  whole "text/$cut/$split" python -m expansion.words cut --codes bpe.codes "$known/$split"
done
# in training fairseq leaves longer lines out; in validation all words must be there
awk 'NF > 1023 { exit 1 }' text/*/valid || die "$valid: a line has more than 1023 pieces; break it"
# binarise FOLDER TEXT WORDS OPTION...: for fairseq, with the record; the steps do not make lines with <unk> from raw text
binarise() {
  [[ ! -d $1 ]] || return 0
  rm -rf "$1.part"
  fairseq-preprocess --only-source --trainpref "text/$2/train" --validpref "text/$2/valid" --destdir "$1.part" "${@:4}" \
    >preprocess.log
  for place in "$3" "text/$2"; do { grep -vF '<unk>' "$place/valid" || true; } >"$place/plain"; done
  python "$REPO/scripts/tokens.py" record --preparation bpe --model bpe.codes --folder "$1.part" \
    --made-by scripts/expansion/prepare.sh --dict dict.txt --langs en --raw "$3/plain" --prepared "text/$2/plain"
  rm "$3/plain" "text/$2/plain"
  mv "$1.part" "$1"
}
binarise bin "$cut" "$known"
[[ $cut == old ]] || binarise bin.old old corpus --srcdict bin/dict.txt
echo "ready: $OUTPUT/bin ($(wc -l <bin/dict.txt) symbols), $(wc -l <words.txt) new words in words.tsv" >&2
