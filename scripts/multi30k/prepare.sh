#!/usr/bin/env bash
# Prepare Multi30k (task 1, German and English, 29,000 training sentences) for fairseq.
#
# Usage: [DATA=DIR] [VENV=DIR] bash scripts/multi30k/prepare.sh [options]
#   --tokens KIND     moses (default): words, the data set's own lower-cased Moses tokens
#                     spacy: words, spaCy's rule-based tokenizers on the lower-cased text (as Kim et al. 2024)
#                     subword_nmt: joint BPE on the Moses tokens
#                     sentencepiece: one joint model on the lower-cased text
#                     huggingface: the pieces of the tokenizer in --hf
#   --hf DIR          Hugging Face folder with tokenizer.json, vocab.txt or spiece.model (--tokens huggingface)
#   --source LANG     de (default) or en
#   --target LANG     en (default) or de
#   --bpe-size N      merges of subword_nmt, vocabulary of sentencepiece (default 10000)
#   --spm-type TYPE   unigram (default) or bpe (--tokens sentencepiece)
#   --min-count N     symbols that the training text has fewer times become <unk> (default 2)
#   --output DIR      default: data/multi30k/<source>-<target>.<tokens>
#
# DATA is a local copy with raw/<split>.<lang>.gz and tok/<split>.lc.norm.tok.<lang>[.gz] (splits train, val,
# test_2016_flickr). Without it the files come from the data set's repository on GitHub and are checked by SHA-256.
#
# Makes DIR/bin (for fairseq), DIR/text (tokens) and DIR/corpus (plain text; its test set is the reference for BLEU).
# Can be stopped and started again: finished steps are not repeated. DATA may be left out then, but not be another one.
# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

HERE=$REPO/scripts/multi30k
# The pinned revision of the data set's repository. MULTI30K_URL: another mirror with the same files.
# MULTI30K_SUMS: its checksums; empty for other data in that layout (scripts/iwslt17).
MULTI30K_SUMS=${MULTI30K_SUMS-$HERE/sha256.txt}
MULTI30K_URL=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d/data/task1}
tokens=moses hf="" source=de target=en bpe_size=10000 spm_type=unigram min_count=2 output=""
read_options "tokens hf source target bpe-size spm-type min-count output" "$@"

one_of --tokens "$tokens" moses spacy subword_nmt sentencepiece huggingface
one_of --source "$source" de en
one_of --target "$target" de en
one_of --spm-type "$spm_type" unigram bpe
whole_numbers 1 bpe-size min-count
[[ $source != "$target" ]] || die "--source and --target are both $source"
[[ $tokens != huggingface || -d $hf ]] || die "--tokens huggingface needs --hf DIR, a folder with a tokenizer (got '$hf')"
[[ -z ${DATA:-} || -d $DATA ]] || die "DATA=$DATA: no such folder; see $(basename "$0") --help"
output=$(absolute "${output:-data/multi30k/$source-$target.$tokens}")
use_environment
output_folder --output "$output"
lock_folder "$output" "preparing"

# published NAME TEXT: the plain text of one published file. The tok files are stored without compression there.
published() {
  local name=$1 text=$2 file expected unwritten
  unwritten="${text%.part} cannot be written for the reason above: free some space, or choose another --output"
  expected=$([[ -z $MULTI30K_SUMS ]] || awk -v name="$name" '$2 == name { print $1 }' "$MULTI30K_SUMS")
  if [[ -n ${DATA:-} ]]; then
    file=$DATA/$name
    [[ -f $file ]] || file=$DATA/$name.gz
    [[ -f $file ]] || die "DATA=$DATA has no $name: it needs raw/ and tok/ as described by --help"
  else
    file=$output/download/$name
    download "$MULTI30K_URL/$name" "$expected" "$file"
  fi
  case $file in
    *.gz)
      gzip -dc "$file" >"$text" || {
        gzip -t "$file" 2>/dev/null || die "$file is damaged: get it again"
        die "$unwritten"
      }
      ;;
    *) cp "$file" "$text" || die "$unwritten" ;;
  esac
  if [[ -n $MULTI30K_SUMS && $expected != "$(sha256_of "$file")" && $expected != "$(sha256_of "$text")" ]]; then
    say "note: $file differs from the published file (SHA-256)"
  fi
}

# split_text NAME FILE...: a split's raw text in both languages, then its tokens. All have the same number of lines.
split_text() {
  local tok=tok/$1.lc.norm.tok index lines first=""
  local names=("raw/$1.$source.gz" "raw/$1.$target.gz" "$tok.$source" "$tok.$target")
  shift
  for index in "${!names[@]}"; do
    published "${names[index]}" "${@:index+1:1}"
    lines=$(awk 'END { print NR }' "${@:index+1:1}")
    first=${first:-$lines}
    [[ $lines -eq $first ]] || die "${DATA:+DATA=$DATA: }${names[0]} has $first lines, ${names[index]} $lines: they do not \
belong together; get them again"
  done
}

# tokenise LANG TRAIN VALID TEST: one side of all splits in the chosen tokens.
tokenise() {
  local lang=$1 corpus=$output/corpus/raw model=""
  shift
  case $tokens in
    moses) corpus=$output/corpus/tok ;;
    subword_nmt) corpus=$output/corpus/tok model=$output/bpe.codes ;;
    sentencepiece) model=$output/spm.model ;;
    huggingface) model=$hf ;;
  esac
  python "$REPO/scripts/tokens.py" encode --kind "$tokens" --lang "$lang" --model "$model" \
    --input "$corpus/train.$lang" "$corpus/valid.$lang" "$corpus/test.$lang" --output "$@"
}

learn_bpe() {
  cat "$output/corpus/tok/train.$source" "$output/corpus/tok/train.$target" |
    python "$REPO/scripts/tokens.py" encode --kind moses | subword-nmt learn-bpe --symbols "$bpe_size" >"$1"
}

learn_sentencepiece() {
  cat "$output/corpus/raw/train.$source" "$output/corpus/raw/train.$target" |
    python "$REPO/scripts/tokens.py" train-sentencepiece --size "$bpe_size" --type "$spm_type" --output "$1"
}

binarise() {
  local bin=$1
  fairseq-preprocess --source-lang "$source" --target-lang "$target" --destdir "$bin" --workers 1 \
    --trainpref "$output/text/train" --validpref "$output/text/valid" --testpref "$output/text/test" \
    --thresholdsrc "$min_count" --thresholdtgt "$min_count" >"$output/preprocess.log" 2>&1 ||
    die "fairseq-preprocess failed; see $output/preprocess.log"
}

# What scripts/iwslt17 made is a part of the folder, wherever that is moved.
data_line=()
[[ ${DATA:-} == "$output/source" ]] || mapfile -t data_line < <(data_setting "$output/settings")
remember_settings "$output/settings" "tokens=$tokens" "source=$source" "target=$target" "size=$bpe_size" \
  "spm_type=$spm_type" "min_count=$min_count" "hf=${hf:+$(absolute "$hf")}" \
  ${data_line[@]+"${data_line[@]}"}

for pair in train:train val:valid test_2016_flickr:test; do
  raw=$output/corpus/raw/${pair#*:} tok=$output/corpus/tok/${pair#*:}
  step "text of ${pair#*:}" "$raw.$source" "$raw.$target" "$tok.$source" "$tok.$target" -- split_text "${pair%:*}"
done
[[ $tokens != subword_nmt ]] || step "learning BPE" "$output/bpe.codes" -- learn_bpe
[[ $tokens != sentencepiece ]] || step "learning a sentencepiece model" "$output/spm.model" -- learn_sentencepiece
for lang in "$source" "$target"; do
  text=$output/text
  step "$lang, $tokens" "$text/train.$lang" "$text/valid.$lang" "$text/test.$lang" -- tokenise "$lang"
done
step "binarising" "$output/bin" -- binarise
say "ready: $output/bin ($(wc -l <"$output/bin/dict.$source.txt") + $(wc -l <"$output/bin/dict.$target.txt") symbols)"
