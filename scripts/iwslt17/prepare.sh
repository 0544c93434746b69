#!/usr/bin/env bash
# Prepare IWSLT 2017 (TED talks, German and English, 206,000 training sentences) for fairseq, as Kim et al. 2024 use it.
# What it makes goes to scripts/multi30k/train.sh (in batches of 128 sentences; 112 with mT5: --batch-size 112), generate.sh
# and run.sh (CORPUS=iwslt17).
#
#   DATA=iwslt17 OUTPUT=data/iwslt17 bash scripts/iwslt17/prepare.sh
#   DATA=iwslt17 OUTPUT=data/en-de DIRECTION=en-de TEST="tst2010 tst2011" bash scripts/iwslt17/prepare.sh
#
# DATA       where de-en.tgz of the evaluation campaign was unpacked: train.tags.de-en.de, train.tags.de-en.en,
#            IWSLT17.TED.dev2010.de-en.de.xml and so on; or the folder de-en with them is in it; files of en-de will do.
#            Nothing is downloaded: the campaign publishes no checksums
# OUTPUT     for OUTPUT/bin, OUTPUT/text and OUTPUT/corpus, and OUTPUT/source, the talks in the layout of Multi30k
# VALID      sets for validation, default dev2010
# TEST       sets for BLEU, default tst2010; several are put one after the other
# MIN_COUNT  symbols that the training text has fewer times become <unk>, default 5
# DIRECTION, TOKENS, HF, BPE_SIZE, SPM_TYPE: as for scripts/multi30k/prepare.sh, which does all but reading these files
#
# Then, and to compare initialisations:
#   DATA=data/iwslt17 RUN=runs/glove bash scripts/multi30k/train.sh --embed-init pretrained_xavier --seed 1 \
#     --embed-init-path encoder=german.300d.txt decoder=glove.840B.300d.txt
#   DATA=data/iwslt17 RUN=runs/glove bash scripts/multi30k/generate.sh
#   CORPUS=iwslt17 DATA=iwslt17 OUTPUT=runs/iwslt17 DIRECTIONS=de-en TOKENS=spacy SEEDS="1 2 3 4" \
#     INITS="xavier pretrained pretrained_xavier" VECTORS_DE=german.300d.txt VECTORS_EN=glove.840B.300d.txt bash scripts/multi30k/run.sh
# Kim et al. state batch (128, mT5 112), 20 epochs, spaCy's words, and words that occur at least 5 times; not the sets for
# validation and test. Training text are the lines of train.tags without a tag and without pairs with an empty side. BLEU is
# on lower-cased text. Nobody has trained on IWSLT 2017 with this project: the scripts were run on made-up talks.
# shellcheck source=../env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
: "${DATA:?set it to the folder with the files of IWSLT 2017}" "${OUTPUT:?set it to the folder to make}"
[[ -d $DATA ]] || die "DATA=$DATA: no such folder; name the one with the files of IWSLT 2017"
VALID=${VALID:-dev2010} TEST=${TEST:-tst2010}

if [[ ! -e $OUTPUT/source ]]; then
  rm -rf "$OUTPUT/source.part"
  # shellcheck disable=SC2086 # lists of words
  PYTHONPATH=$REPO/scripts:$REPO python -m iwslt17.convert --valid $VALID --test $TEST --pair "${DIRECTION:-de-en}" \
    --data "$DATA" "$OUTPUT/source.part"
  mv "$OUTPUT/source.part" "$OUTPUT/source"
fi
settings "$OUTPUT/source" VALID="$VALID" TEST="$TEST" DATA="$DATA"
DATA=$OUTPUT/source MIN_COUNT=${MIN_COUNT:-5} bash "$REPO/scripts/multi30k/prepare.sh"
echo --batch-size 128 >"$OUTPUT/options" # of fairseq-train; in all else the settings of Multi30k
