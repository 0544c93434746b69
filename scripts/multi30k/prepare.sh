#!/usr/bin/env bash
# Prepare Multi30k (task 1, German and English, 29,000 training sentences) for fairseq.
#
#   OUTPUT=data/de-en bash scripts/multi30k/prepare.sh
#   DATA=multi30k OUTPUT=data/en-de.bpe DIRECTION=en-de TOKENS=subword_nmt bash scripts/multi30k/prepare.sh
#
# OUTPUT     for OUTPUT/bin (for fairseq), OUTPUT/text (tokens), OUTPUT/corpus (plain text; its test set is the
#            reference for BLEU)
# DATA       a copy with raw/<split>.<lang>.gz and tok/<split>.lc.norm.tok.<lang>[.gz] (splits train, val,
#            test_2016_flickr); without it the files are downloaded (MULTI30K_URL: a mirror) and checked by SHA-256
# DIRECTION  de-en (default) or en-de
# TOKENS     moses (default): words, the data set's own lower-cased Moses tokens; spacy: words, spaCy's rule-based
#            tokenizers on the lower-cased text (as Kim et al. 2024); subword_nmt: joint BPE on the Moses tokens;
#            sentencepiece: one joint model on the lower-cased text; huggingface: the pieces of the tokenizer in HF
# HF         a Hugging Face folder with tokenizer.json, vocab.txt or spiece.model
# BPE_SIZE   merges of subword_nmt, vocabulary of sentencepiece, default 10000; SPM_TYPE: unigram (default) or bpe
# MIN_COUNT  symbols that the training text has fewer times become <unk>, default 2
#
# The same call continues a stopped one; other values need another OUTPUT.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${OUTPUT:?set it to the folder to make}"
DATA=${DATA:-} DIRECTION=${DIRECTION:-de-en} TOKENS=${TOKENS:-moses} MIN_COUNT=${MIN_COUNT:-2}
BPE_SIZE=${BPE_SIZE:-10000} SPM_TYPE=${SPM_TYPE:-unigram}
sums=$REPO/scripts/multi30k/sha256.txt
url=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d/data/task1}
source=${DIRECTION%-*} target=${DIRECTION#*-} out=$OUTPUT model=""
[[ $DIRECTION == de-en || $DIRECTION == en-de ]] || die "DIRECTION=$DIRECTION: choose de-en or en-de"
[[ -z $DATA || -d $DATA ]] || die "DATA=$DATA: no such folder; name a copy of the data set, or leave it away"
case $TOKENS in
  moses) text=tok ;;
  subword_nmt) text=tok model=$out/bpe.codes ;;
  spacy) text=raw ;;
  sentencepiece) text=raw model=$out/spm.model ;;
  huggingface) text=raw model=${HF:?set it to the folder with the tokenizer (TOKENS=huggingface)} ;;
  *) die "TOKENS=$TOKENS: choose moses, spacy, subword_nmt, sentencepiece or huggingface" ;;
esac
[[ -z ${HF:-} || -d $HF ]] || die "HF=$HF: no such folder"
tokens() { python "$REPO/scripts/tokens.py" "$@"; }
# fetch NAME FILE: download a file of the data set and check it.
fetch() {
  mkdir -p "$(dirname "$2")"
  curl --fail --silent --show-error --location --retry 3 --output "$2.part" "$url/$1" ||
    die "$url/$1: cannot be downloaded; check the connection, or set DATA to a folder with a copy"
  echo "$(awk -v name="$1" '$2 == name { print $1 }' "$sums")  $2.part" | sha256sum --check --quiet ||
    die "$url/$1: not the file that was published ($2.part); try again, or set DATA to a copy"
  mv "$2.part" "$2"
}

if [[ ! -e $out/corpus ]]; then
  rm -rf "$out/corpus.part"
  mkdir -p "$out/corpus.part/raw" "$out/corpus.part/tok"
  for split in train:train val:valid test_2016_flickr:test; do
    for name in "raw/${split%:*}".{de,en}.gz "tok/${split%:*}.lc.norm.tok".{de,en}; do
      file=${DATA:-$out/download}/$name lang=${name%.gz} lang=${lang##*.}
      [[ -n $DATA || -f $file ]] || fetch "$name" "$file"
      [[ -f $file ]] || file=$file.gz
      [[ -f $file ]] || die "DATA=$DATA has no $name: it needs raw/ and tok/ with all splits"
      gzip -dcf "$file" >"$out/corpus.part/${name%%/*}/${split#*:}.$lang" ||
        die "$file cannot be unpacked for the reason above: get it again, or free some space"
    done
    lines=$(for file in "$out/corpus.part"/*/"${split#*:}".*; do awk 'END { print NR }' "$file"; done | sort -u)
    [[ $lines != *$'\n'* ]] || die "${DATA:+DATA=$DATA: }${split%:*} has" "$(paste -sd ' ' <<<"$lines")" \
      "lines in raw and tok: they do not belong together; get them again"
  done
  mv "$out/corpus.part" "$out/corpus"
fi
settings "$out" DIRECTION="$DIRECTION" TOKENS="$TOKENS" HF="${HF:-}" BPE_SIZE="$BPE_SIZE" SPM_TYPE="$SPM_TYPE" \
  MIN_COUNT="$MIN_COUNT" DATA="${DATA#"$out/"}"

if [[ $TOKENS == subword_nmt && ! -e $model ]]; then
  cat "$out/corpus/tok/train.$source" "$out/corpus/tok/train.$target" | tokens encode --kind moses |
    subword-nmt learn-bpe --symbols "$BPE_SIZE" >"$model.part"
  mv "$model.part" "$model"
elif [[ $TOKENS == sentencepiece && ! -e $model ]]; then
  cat "$out/corpus/raw/train.$source" "$out/corpus/raw/train.$target" |
    tokens train-sentencepiece --size "$BPE_SIZE" --type "$SPM_TYPE" --output "$model.part"
  mv "$model.part" "$model"
fi
if [[ ! -e $out/text ]]; then
  mkdir -p "$out/text.part"
  for lang in de en; do
    tokens encode --kind "$TOKENS" --lang "$lang" --model "$model" \
      --input "$out/corpus/$text"/{train,valid,test}."$lang" --output "$out/text.part"/{train,valid,test}."$lang"
  done
  mv "$out/text.part" "$out/text"
fi
if [[ ! -e $out/bin ]]; then
  rm -rf "$out/bin.part"
  fairseq-preprocess --source-lang "$source" --target-lang "$target" --destdir "$out/bin.part" --workers 1 \
    --trainpref "$out/text/train" --validpref "$out/text/valid" --testpref "$out/text/test" \
    --thresholdsrc "$MIN_COUNT" --thresholdtgt "$MIN_COUNT" >"$out/preprocess.log" 2>&1 ||
    die "fairseq-preprocess failed; see $out/preprocess.log"
  tokens record --kind "$TOKENS" --model "$model" --folder "$out/bin.part" --made-by scripts/multi30k/prepare.sh \
    --dict dict.de.txt dict.en.txt --langs de en \
    --raw "$out"/corpus/raw/valid.{de,en} --prepared "$out"/text/valid.{de,en}
  mv "$out/bin.part" "$out/bin"
fi
