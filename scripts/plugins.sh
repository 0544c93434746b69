#!/usr/bin/env bash
# Try public plugins of fairseq on toy data, without a GPU: train 2 updates, resume up to 4, then generate or validate.
#
#   bash scripts/plugins.sh CHECKOUT ...
#
# CHECKOUT: a folder with the sources of a plugin, such as a git clone; it stays as it is. Every case of the table below
# whose plugin is in it is tried; one with --embed-init trains with this repository's plugin beside the other one. At the
# end there is a table: checkout, commit, case, and for each step ok, the log of what failed, or the module that is missing.
# The exit code is 1 if something failed.
#
# OUTPUT: where data, runs and logs go (default: plugins); finished data is used again. CASES: a regular expression; only
# the cases that match are tried. PYTHONPATH: may name another build of fairseq (python -m fairseq_compat install --source
# FAIRSEQ --target FOLDER) and the modules that a case needs.
# shellcheck source=env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[[ $# -gt 0 ]] || die "name the folders with the plugins to try"
mkdir -p "${OUTPUT:=plugins}"
OUTPUT=$(cd "$OUTPUT" && pwd)
text=$OUTPUT/toy/text
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONDONTWRITEBYTECODE=1

# table: the cases; a line is: try CASE PLUGIN MODULES DATA OPTION... -- COMMAND...
# PLUGIN: its --user-dir in CHECKOUT, or another file that shows it is there. MODULES: what has to be importable.
table() {
  local encoder=(--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2)
  local decoder=(--decoder-embed-dim 16 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2)
  local small=("${encoder[@]}" "${decoder[@]}" --share-all-embeddings) generate=(fairseq-generate --max-len-b 10) how task
  local xavier=(--embed-init xavier)

  how=(model_configs "" joined "${small[@]}" --arch transformer_18_18)
  try IndicTrans2 "${how[@]}" -- "${generate[@]}"
  try "IndicTrans2 + embinit" "${how[@]}" "${xavier[@]}" -- "${generate[@]}"

  task=("" joined "${small[@]}" --criterion reg_label_smoothed_cross_entropy --reg-alpha 5)
  how=(fairseq_src/examples/summeration_rdrop/summeration_rdrop_src "${task[@]}" --task rdrop_summeration --arch bart_base)
  try summeration_rdrop "${how[@]}" -- "${generate[@]}"
  how=(fairseq_src/examples/translation_rdrop/translation_rdrop_src "${task[@]}" --task rdrop_translation --arch transformer)
  try translation_rdrop "${how[@]}" -- "${generate[@]}"
  try "translation_rdrop + embinit" "${how[@]}" "${xavier[@]}" -- "${generate[@]}"

  how=(examples/contrastive_extension ahocorasick joined "${small[@]}" --arch transformer)
  try "contrastive, sentences" "${how[@]}" --criterion label_smoothed_cross_entropy_with_contrastive -- "${generate[@]}"
  how+=(--task entity_ct_translation --use-entity-ct --entity-dict entities)
  try "contrastive, entities" "${how[@]}" --criterion label_smoothed_ce_with_entity_contrastive -- "${generate[@]}"
  try "contrastive, both" "${how[@]}" --criterion label_smoothed_ce_with_multi_granularity_contrastive -- "${generate[@]}"

  how=(convex-learning "" joined "${small[@]}" --criterion label_smoothed_cross_entropy_convex --convex-order 2
    --arch transformer_wmt_en_de)
  try "Convex" "${how[@]}" -- "${generate[@]}"
  try "Convex + embinit" "${how[@]}" "${xavier[@]}" -- "${generate[@]}"
  task=(--task translation_lev)
  how=(convex-learning "" joined "${small[@]}" --criterion nat_loss_convex --convex-order 3)
  try "Convex, CMLM" "${how[@]}" "${task[@]}" --pred-length-offset --noise random_mask --arch cmlm_transformer_convex \
    -- "${generate[@]}" "${task[@]}" --iter-decode-max-iter 0 --iter-decode-with-beam 5
  task+=(--noise full_mask)
  try "Convex, NAT" "${how[@]}" "${task[@]}" --pred-length-offset --src-embedding-copy --arch nat_convex \
    -- "${generate[@]}" "${task[@]}" --iter-decode-max-iter 0
  task=(--task translation_ctc --noise full_mask --src-upsample-ratio 2 --plain-ctc)
  try "Convex, CTC" "${how[@]}" "${task[@]}" --src-embedding-copy --arch nat_ctc_convex \
    -- python "$checkout/convex-learning/scripts/generate_ctc.py" "${task[@]}" --iter-decode-max-iter 0

  # without what loads files from the internet, or does not know this version of faiss
  try "knn-seq, its tests" knn_seq/pytest.ini "faiss h5py sentence_transformers" "" -- env --chdir "$checkout" \
    PYTHONPATH="$checkout:${PYTHONPATH:-}" python -m pytest knn_seq -p no:cacheprovider \
    -k "not HFTokenizer and not set_nprobe and not TorchPQIndexBase and not FaissIndexFast"

  try pointer_generator examples/pointer_generator/pointer_generator_src "" pointers "${small[@]}" --alignment-heads 1 \
    --alignment-layer -1 --source-position-markers 50 --arch transformer_pointer_generator -- "${generate[@]}"
  task=(--task translation_moe --method hMoElp --mean-pool-gating-network --num-experts 3)
  how=(examples/translation_moe/translation_moe_src "" joined "${small[@]}" "${task[@]}" --arch transformer)
  try translation_moe "${how[@]}" -- "${generate[@]}" "${task[@]}" --gen-expert 0
  try "translation_moe + embinit" "${how[@]}" "${xavier[@]}" -- "${generate[@]}" "${task[@]}" --gen-expert 0
  task=(--task multilingual_translation_latent_depth --lang-pairs "de-en,en-de" --decoder-langtok --decoder-latent-layer)
  try latent_depth examples/latent_depth/latent_depth_src "" joined "${encoder[@]}" "${decoder[@]}" "${task[@]}" \
    --share-encoders --share-decoders --share-decoder-input-output-embed --arch latent_multilingual_transformer \
    --target-layers 12 --sparsity-weight 0.1 --anneal-updates 5000 --soft-update 500 --share-weight 0.1 \
    -- "${generate[@]}" "${task[@]}" --source-lang de --target-lang en
  try linformer examples/linformer/linformer_src "" words "${encoder[@]}" --task masked_lm --criterion masked_lm \
    --arch linformer_roberta_base --tokens-per-sample 32 -- fairseq-validate --task masked_lm
  task=(--task commonsense_qa --init-token 0 --criterion sentence_ranking --num-classes 5)
  try commonsense_qa examples/roberta/commonsense_qa "" questions "${encoder[@]}" "${task[@]}" --max-positions 512 \
    --arch roberta_base -- fairseq-validate "${task[@]}"
  try Levenshtein fairseq/models/nat/levenshtein_transformer.py fairseq.libnat joined "${small[@]}" --task translation_lev \
    --criterion nat_loss --noise random_delete --arch levenshtein_transformer \
    -- "${generate[@]}" --task translation_lev --iter-decode-max-iter 3
}

# make NAME: the data of the cases, in OUTPUT/data/NAME.
make() {
  local data=$OUTPUT/data/$1 joined=$OUTPUT/data/joined split
  [[ ! -e $data ]] || return 0
  rm -rf "$data.part" && mkdir -p "$data.part"
  local pair=(fairseq-preprocess --source-lang de --target-lang en --joined-dictionary --destdir "$data.part")
  local from=(--trainpref "$text/train" --validpref "$text/valid" --testpref "$text/test")
  case $1 in
    joined)
      "${pair[@]}" "${from[@]}"
      paste <(cut -d ' ' -f 2 "$text/train.de") <(cut -d ' ' -f 2 "$text/train.en") | sort -u >"$data.part/entities" ;;
    words)
      fairseq-preprocess --only-source --destdir "$data.part" --trainpref "$text/train.en" --validpref "$text/valid.en" ;;
    questions) # a sentence, and five words of it
      cp "$joined/dict.en.txt" "$data.part/dict.txt"
      for split in train valid; do
        awk 'NF > 4 { printf "{@answerKey@: @%s@, @question@: {@stem@: @%s@, @choices@: [", substr("ABCDE", NR % 5 + 1, 1), $0
          for (i = 1; i <= 5; i++) printf "%s{@text@: @%s@}", (i > 1 ? ", " : ""), $i
          print "]}}" }' "$text/$split.en" | tr @ '"' >"$data.part/$split.jsonl"
      done ;;
    pointers) # 60 words; <unk-N> is an unknown word, at position N of the source
      { head -n 60 "$joined/dict.de.txt" && seq -f '<unk-%g> 0' 0 49; } >"$data.part/words"
      cut -d ' ' -f 1 "$data.part/words" >"$data.part/vocabulary"
      for split in train valid test; do
        python "$checkout/examples/pointer_generator/preprocess.py" --vocab "$data.part/vocabulary" --source "$text/$split.de" \
          --target "$text/$split.en" --source-out "$data.part/$split.de" --target-out "$data.part/$split.en"
      done
      "${pair[@]}" "${from[@]//$text/$data.part}" --srcdict "$data.part/words" ;;
  esac >"$data.log" 2>&1 || die "data for the cases cannot be made; see $data.log"
  mv "$data.part" "$data"
}

# step NAME PATTERN COMMAND...: a step of a case, unless an earlier one failed; its log has to contain PATTERN.
step() {
  [[ -z $failed ]] || { steps+=(-) && return; }
  if "${@:3}" >"$run/$1.log" 2>&1 && grep -qE -- "$2" "$run/$1.log"; then steps+=(ok); else
    steps+=("$run/$1.log") failed=1 status=1
  fi
}

# try CASE PLUGIN MODULES DATA OPTION... -- COMMAND...: tries a case if the checkout has its PLUGIN.
try() {
  local name=$1 plugin=$checkout/$2 modules=$3 data=$OUTPUT/data/$4 options=() user_dir=() steps=() failed="" run module
  [[ -e $plugin && $name =~ ${CASES:-.} ]] || return 0
  tried=1 run=$OUTPUT/runs/$(basename "$checkout")/${name//[^[:alnum:]]/_}
  rm -rf "$run" && mkdir -p "$run"
  [[ -z $4 ]] || { make joined && make "$4"; }
  shift 4
  while [[ $1 != -- ]]; do options+=("$1") && shift; done && shift
  [[ ! -d $plugin ]] || user_dir=(--user-dir "$plugin")
  if [[ " ${options[*]} " == *" --embed-init "* ]]; then # fairseq takes one --user-dir: it can import several
    user_dir=(--user-dir "$run/plugins_together") && mkdir "$run/plugins_together"
    printf 'from argparse import Namespace\nfrom fairseq.utils import import_user_module\n' >"$run/plugins_together/__init__.py"
    printf 'import_user_module(Namespace(user_dir="%s"))\n' "$plugin" "$PLUGIN" >>"$run/plugins_together/__init__.py"
  fi
  for module in $modules; do
    python -c "import torch, $module" 2>/dev/null || steps=("needs $module") failed=1
  done
  if [[ -z ${options[*]} ]]; then step tests " passed" "$@"; else
    local train=(fairseq-train "$data" "${user_dir[@]}" "${options[@]}" --save-dir "$run/checkpoints" --cpu --num-workers 0
      --optimizer adam --lr 1e-3 --max-tokens 500 --skip-invalid-size-inputs-valid-test)
    step train "done training" "${train[@]}" --max-update 2
    step resume "@ 2 updates" "${train[@]}" --max-update 4
    step "$(basename "$1")" "^H-|valid on" "$@" "$data" "${user_dir[@]}" --path "$run/checkpoints/checkpoint_last.pt" \
      --cpu --num-workers 0 --max-tokens 500
  fi
  results+=$'\n'$(printf '%-18s %-8s %-27s %s' "$(basename "$checkout")" "$commit" "$name" "${steps[*]}")
  echo "${results##*$'\n'}" >&2
}

status=0 results=$(printf '%-18s %-8s %-27s %s' checkout commit case "train, resume, generate or validate")
TRAIN=300 TEST=40 MONOLINGUAL=400 OUTPUT=$OUTPUT/toy bash "$REPO/scripts/toy/prepare.sh"
for checkout in "$@"; do
  checkout=$(cd "$checkout" && pwd) tried=""
  commit=$(git -C "$checkout" rev-parse --short=8 HEAD 2>/dev/null || echo -)
  table
  [[ -n $tried ]] || die "$checkout: no plugin of the table in it${CASES:+ among those that CASES=$CASES names}"
done
echo "$results"
exit "$status"
