#!/usr/bin/env bash
# Prepare a data set of text classification for fairseq.
#
#   DATA=mr.tsv OUTPUT=data/mr MIN_COUNT=1 STOP_WORDS=none bash scripts/textcls/prepare.sh
#
# DATA: a file of lines split <tab> label <tab> text, with these three words as its first line; split is train or test.
# It may be a .gz; a quotation mark is a character like others. scripts/textcls/from_textgcn.py makes it of a checkout of
# Text GCN. OUTPUT: folder for the data (OUTPUT/corpus, OUTPUT/seeds/N/bin). The same call continues a stopped one, also with
# more SEEDS.
#
# SEEDS: each draws its own tenth of the training texts for validation (1 2 ... 10)
# PROTOCOL: textgcn: words are counted over train and test texts, as Yao et al. 2019 do (default); inductive: over the
#   train texts only, all others become <unk>
# MIN_COUNT: rarer words are removed (textgcn) or become <unk> (inductive); 5, MR keeps all: 1
# STOP_WORDS: words to remove: spacy (default, spaCy's English ones), none (MR), or a file with words
# CLEAN: kim: his clean_str and lower case (default); no: the texts are tokens separated by spaces, leave them
# NAME: name of the data set in tables (the name of the file)
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to a TSV file with the columns split, label, text}" "${OUTPUT:?set it to the folder for the data}"
[[ -f $DATA ]] || die "DATA=$DATA: no such file; name a TSV file with the columns split, label, text"
name=$(basename "$DATA" .gz)
protocol=${PROTOCOL:-textgcn} min_count=${MIN_COUNT:-5} stop_words=${STOP_WORDS:-spacy} clean=${CLEAN:-kim}
[[ $clean == kim || $clean == no ]] || die "CLEAN=$clean: give kim or no"
words=(--protocol "$protocol" --min-count "$min_count")
read -ra seeds <<<"${SEEDS:-1 2 3 4 5 6 7 8 9 10}"

made_with=("task=${NAME:-${name%.*}}" "data=$(sha256sum <"$DATA" | cut -c -64)" "protocol=$protocol"
  "min_count=$min_count" "stop_words=$stop_words" "clean=$clean")
[[ ! -f $stop_words ]] || made_with+=("stop_words_sha256=$(sha256sum <"$stop_words" | cut -c -64)")
settings "$OUTPUT" "${made_with[@]}"

flags=()
[[ $clean == kim ]] || flags=(--no-clean)
[[ -d $OUTPUT/corpus ]] ||
  python "$REPO/scripts/textcls/protocols.py" --data "$DATA" "${words[@]}" --stop-words "$stop_words" \
    ${flags[@]+"${flags[@]}"} --output "$OUTPUT/corpus"
python "$REPO/scripts/textcls/binarise.py" --corpus "$OUTPUT/corpus" "${words[@]}" --seeds "${seeds[@]}" \
  --output "$OUTPUT/seeds" >"$OUTPUT/preprocess.log"
