#!/usr/bin/env bash
# Prepare a task of GLUE for fairseq, with the symbols of a pre-trained model.
#
#   DATA=GLUE TASK=RTE OUTPUT=data/RTE DICT=pretraining/bin/dict.txt CODES=pretraining/bpe.codes \
#     bash scripts/glue/prepare.sh
#
# DATA: the folder with GLUE's folders (CoLA, RTE, ...) as they are downloaded from gluebenchmark.com: train.tsv and
# dev.tsv (MNLI: dev_matched.tsv and dev_mismatched.tsv), each of which may be a .gz. TASK: CoLA, SST-2, MRPC, STS-B,
# QQP, MNLI, QNLI or RTE. DICT: dict.txt of the pre-trained model; without it one is made of the training text, for
# models that are trained from scratch (MIN_COUNT: symbols that are rarer become <unk>, default 1).
# Text is prepared as preparation.json next to DICT says. Without that file: PREPARATION: the steps, such as
# lowercase,moses,bpe (`embinit prepare --help` has them), with CODES or HF if they segment; without it CODES: clean,
# tokenise and segment as scripts/wikibooks does, with these codes of its BPE; HF: tokenise with the tokenizer of this
# Hugging Face folder; without either the words of the data set are used as they are.
#
# Makes OUTPUT/bin/{input0,input1,label}. The same call continues a stopped one.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
# shellcheck source=columns.sh
source "$REPO/scripts/glue/columns.sh"
: "${DATA:?set it to the folder with the tasks of GLUE (CoLA, RTE, ...)}" "${TASK:?set it to a task of GLUE, such as RTE}"
: "${OUTPUT:?set it to a folder for the data of this task}"
DICT=${DICT:-} CODES=${CODES:-} HF=${HF:-} PREPARATION=${PREPARATION:-} MIN_COUNT=${MIN_COUNT:-1}
[[ -z $DICT || -f $DICT ]] || die "DICT=$DICT: no such file"
[[ -z $CODES || -f $CODES ]] || die "CODES=$CODES: no such file"
[[ -z $HF || -d $HF ]] || die "HF=$HF: no such folder"
[[ -z $CODES || -z $HF ]] || die "CODES and HF are two ways to segment words: set one of them"

# The columns of the files, and the options of fairseq-train that belong to the task.
[[ -e $OUTPUT/corpus ]] || python "$REPO/scripts/glue/glue_tasks.py" extract "$TASK" "$DATA/$TASK" "$OUTPUT/corpus"
how=(--kind words) record=""
[[ -z $HF ]] || how=(--kind huggingface)
[[ -z $CODES ]] || how=(--kind wikibooks)
[[ -z $PREPARATION ]] || how=(--preparation "$PREPARATION")
if [[ -n $DICT && -f $(dirname "$DICT")/preparation.json ]]; then
  [[ -z $PREPARATION ]] || die "PREPARATION=$PREPARATION: preparation.json next to $DICT says the steps; leave it out"
  how=(--like "$DICT") record=$(sha256sum <"$(dirname "$DICT")/preparation.json" | cut -c -64)
elif [[ -n $DICT && -z $CODES$HF$PREPARATION ]]; then
  echo "no preparation.json next to $DICT: words are used as they are; set PREPARATION to the steps of its text, and" \
    "CODES or HF if it was segmented" >&2
fi
settings "$OUTPUT" "task=$TASK" "dict=$DICT" "codes=$CODES" "hf=$HF" "min_count=$MIN_COUNT" ${record:+"record=$record"} \
  ${PREPARATION:+"preparation=$PREPARATION"}

text=$OUTPUT/corpus
if [[ ${how[1]} != words ]]; then
  text=$OUTPUT/text files=("$OUTPUT"/corpus/*.input?)
  if [[ ! -e $text ]]; then
    rm -rf "$text.part" && mkdir "$text.part"
    python "$REPO/scripts/tokens.py" encode "${how[@]}" --model "$CODES$HF" --input "${files[@]}" \
      --output "${files[@]/#"$OUTPUT/corpus"/"$text.part"}"
    mv "$text.part" "$text"
  fi
fi
if [[ ! -e $OUTPUT/bin ]]; then
  [[ -n $DICT ]] || dictionary "$text" "$MIN_COUNT"
  binarise "${how[@]}" "$CODES$HF" "${DICT:-$OUTPUT/dict/dict.txt}" "$text"/train.input? "$OUTPUT/corpus/train.label"
fi
echo "ready: $OUTPUT/bin ($(wc -l <"$OUTPUT/bin/input0/dict.txt") symbols)"
