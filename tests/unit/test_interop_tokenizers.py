"""Tokenizers of exported folders against fairseq's own pipeline: dictionary, BPE, inputs of the tasks."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from hf_exports import (
    CLASSES,
    checkpoint_of,
    export_hf,
    hub_of,
    ids_of,
    load,
    refused,
    seq2seq_checkpoint,
    trained,
    write,
)
from hf_exports import opened_here as opened_here

pytest.importorskip("transformers")
from transformers import AutoTokenizer

from embinit_fairseq.checkpoints.trained_preparation import OPTION
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError, OptionError, VectorFileError
from embinit_fairseq.interop.open_trained import open_trained
from embinit_fairseq.models.duo_transformer import DuoTransformerModel
from embinit_fairseq.models.tupe import TupeModel
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import record_preparation
from embinit_fairseq.vocab.preparation_steps import STEPS

pytestmark = pytest.mark.usefixtures("opened_here")


# ---- words


def test_words_are_split_where_fairseq_splits_them(tmp_path):
    """At every kind of white space that Python knows, and not at characters that look like it."""
    model = trained(tmp_path / "c")
    write(model, tmp_path / "out")
    tokenizer, dictionary = load(tmp_path / "out"), model.source.dictionary
    odd = [chr(code) for code in range(sys.maxunicode) if chr(code).isspace() or code in (0, 0x200B, 0x180E, 0xFEFF)]
    for text in ["w1 <mask> nothing w8", *(f"w1{space}w2 {space} w8" for space in odd)]:
        assert tokenizer(text)["input_ids"] == ids_of(dictionary, text, [0]), ascii(text)
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == model.source.symbols
    assert (tokenizer.mask_token_id, tokenizer.model_max_length) == (len(dictionary) - 1, 12)
    padded = tokenizer(["w1", "w1 w2 w3"], padding=True)
    assert (padded["input_ids"][0], padded["attention_mask"][0]) == ([0, 5, 2, 1, 1], [1, 1, 1, 0, 0])
    assert tokenizer("w1", "w2")["input_ids"] == [0, 5, 2, 2, 6, 2]  # as `TupeHub.encode`
    task = f"{CLASSES.partition('--init-token')[0]} --num-classes 3"  # without --init-token and --separator-token
    write(trained(tmp_path / "d", "bert_a_tiny", "", task=task), tmp_path / "other")
    assert load(tmp_path / "other")("w1", "w2")["input_ids"] == [5, 2, 6, 2]


def test_a_dictionary_that_no_tokenizer_expresses(tmp_path, capsys):
    """A word that holds a special symbol: transformers would split it. The model is written without a tokenizer."""
    checkpoint = checkpoint_of(tmp_path / "c", words=["w1", "a<s>b"])
    (tmp_path / "text").write_text("a<s>b\n")
    error = refused(capsys, checkpoint, "--verify-text", tmp_path / "text", code=1)
    assert "'a<s>b' would get the ids [0, 3, 0, 3, 2], in fairseq [0, 5, 2]" in error
    assert export_hf(checkpoint, "--json") == 0
    record, written = json.loads(capsys.readouterr().out), {path.name for path in checkpoint.output.iterdir()}
    assert record["tokenizer"].startswith("none, since ")
    assert "a<s>b" in record["tokenizer"]
    assert not {"tokenizer.json", "tokenizer_config.json"} & written
    assert written == {*record["files"]}
    assert "AutoTokenizer.from_pretrained" not in (checkpoint.output / "README.md").read_text()
    assert "`decode` gives" not in (checkpoint.output / "README.md").read_text()


# ---- subword-nmt, raw text and text in subwords

#: a dictionary of text that scripts/glue/prepare.sh prepared
WORDS = "the a man dog went to is on , . 's an or@@ an@@ ge or low <file> <email> <url>".split()
MERGES = "t h,th e</w>,m a,ma n</w>,d o,do g</w>,w e,we n,wen t</w>,t o</w>,i s</w>,o n</w>,' s</w>,l o,lo w</w>"
CODES = "\n".join(["#version: 0.2", *MERGES.split(","), "o r", "a n", "g e</w>", "a n</w>", "o r</w>", ""])
RAW = ["The Man went to an Orange.", "the DOG's low, SLOW", "An or is on www.x.org/a.", "He is on"]
CUT = ["the man went to an or@@ an@@ ge .", "the dog 's low , s@@ low", "an or is on <url> .", "h@@ e is on"]


def record(checkpoint, steps, langs=("en",), **files):
    """Write the record of a checkpoint's data: the steps of each dictionary."""
    folder = checkpoint.folder / "data"
    names = sorted(path.name for path in folder.glob("dict*.txt"))
    steps = {name: parse_steps(steps, lang) for name, lang in zip(names, langs * len(names))}
    record_preparation(folder, steps, files)


#: spaCy makes its rules of a language anew for every cleaner
CLEANED = dataclasses.replace(STEPS["cleaned"], apply=functools.cache(STEPS["cleaned"].apply))


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A checkpoint over WORDS with the record of its text, its codes, raw text and the same text in subwords."""
    pytest.importorskip("sacremoses")
    pytest.importorskip("spacy")
    monkeypatch.setitem(STEPS, "cleaned", CLEANED)
    checkpoint = checkpoint_of(tmp_path / "c", words=WORDS)
    for name, lines in (("codes", [CODES]), ("raw", RAW), ("cut", CUT)):
        (checkpoint.folder / name).write_text("\n".join(lines))
    record(checkpoint, "wikibooks,bpe", codes=checkpoint.folder / "codes")
    return checkpoint


def test_raw_text_that_quotes_subwords_is_raw_text(prepared, capsys):
    """A record says what text is; how it looks says nothing."""
    (prepared.folder / "raw").write_text("\n".join([*RAW, "The man says or@@ an@@ ge.", "▁dog is low"]))
    assert export_hf(prepared, "--verify-text", prepared.folder / "raw", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified_text"]["form"] == "raw text"


def test_raw_text_gets_the_ids_of_the_training(prepared, tmp_path, capsys, monkeypatch):
    assert export_hf(prepared, "--verify-text", prepared.folder / "raw", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    text = summary["verified_text"]
    assert (text["lines"], text["form"], text["unknown"]) == (4, "raw text", 3 / 26)  # s@@ h@@ e
    assert "4 lines of raw text" in (prepared.output / "README.md").read_text()
    assert "lower case" in summary["tokenizer"]
    tokenizer, dictionary = load(prepared.output), prepared.task.source_dictionary
    for raw, cut in zip(RAW, CUT):
        assert tokenizer(raw)["input_ids"] == ids_of(dictionary, cut, [0])
    assert tokenizer("low", "on")["input_ids"] == [0, 20, 2, 2, 11, 2]
    assert tokenizer("low", return_special_tokens_mask=True)["special_tokens_mask"] == [1, 0, 1]
    assert tokenizer.decode(tokenizer(RAW[0]).input_ids, skip_special_tokens=True) == "the man went to an orange."
    tokenizer.save_pretrained(str(tmp_path / "again"))
    again = load(tmp_path / "again")
    assert [again(line)["input_ids"] for line in RAW] == [tokenizer(line)["input_ids"] for line in RAW]
    assert steps_of(tmp_path / "again") == steps_of(prepared.output) == parse_steps("wikibooks,bpe")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "scripts"))
    files = ["--input", str(prepared.folder / "raw"), "--output", str(tmp_path / "encoded")]
    codes = prepared.folder / "codes"
    monkeypatch.setattr(sys, "argv", ["tokens.py", "encode", "--kind=wikibooks", f"--model={codes}", *files])
    importlib.import_module("tokens").main()
    assert (tmp_path / "encoded").read_text().splitlines() == CUT
    for text in (*RAW, *NASTY):  # nothing depends on how a line looks
        assert hub_of(prepared).encode(text).tolist() == tokenizer(text)["input_ids"], text
    mask = [0, *(dictionary.index(symbol) for symbol in "the man went to the <mask> .".split()), 2]
    assert hub_of(prepared).encode("The Man went to the <mask>.").tolist() == mask
    assert tokenizer("The Man went to the <mask>.")["input_ids"] == mask


#: raw lines that look as if they were segmented, tokenised, or symbols
NASTY = (
    "ab@@ cd",
    "▁ein ▁Haus",
    "...",
    "<",
    "R&amp;D",
    "the man went to an or@@ ange",
    "a </s> b <pad>",
    "é e\u0301",
    "",
)


def steps_of(folder):
    return json.loads((folder / "tokenizer_config.json").read_text())["steps"]


def test_a_new_symbol_does_not_change_how_text_is_prepared(prepared):
    """One capital, sign or unsplit comma turned a guess for the whole dictionary; there is none any more."""
    words = [*WORDS, "ℝ", "Queequeg", "yahoo!", "&amp;", "@-@", "whale,"]
    checkpoint = checkpoint_of(prepared.folder.parent / "more", words=words)
    record(checkpoint, "wikibooks,bpe", codes=prepared.folder / "codes")
    for text in RAW:
        assert hub_of(checkpoint).encode(text).tolist() == hub_of(prepared).encode(text).tolist()


def test_what_the_user_says_comes_first(prepared, tmp_path):
    options = {"preparation": "moses", "lowercase": "no", "lang": "deu_Latn"}
    codes = str(prepared.folder / "codes")
    write(open_trained(prepared.path), tmp_path / "out", bpe_codes=codes, **options)
    assert steps_of(tmp_path / "out") == [{"step": "moses", "lang": "de"}, {"step": "bpe"}]
    assert load(tmp_path / "out")("SLOW man.")["input_ids"] == [0, 3, 3, 3, 3, 6, 13, 2]
    write(open_trained(prepared.path), tmp_path / "words", preparation="none")
    assert load(tmp_path / "words")("or@@ an")["input_ids"] == [0, 16, 15, 2]
    assert hub_of(prepared, preparation="none").encode("or@@ an").tolist() == [0, 16, 15, 2]


def test_codes_alone_segment_and_nothing_else(prepared, tmp_path, capsys, caplog):
    """Without a record nothing is guessed; what the dictionary suggests is said."""
    (prepared.folder / "data" / "preparation.json").unlink()
    codes = prepared.folder / "codes"
    assert export_hf(prepared, "--bpe-codes", codes) == 0
    said = capsys.readouterr().out
    assert "Attention: no preparation.json" in said
    assert "give preparation cleaned,lowercase,moses:no-escape,bpe" in said
    hub, tokenizer = hub_of(prepared, bpe_codes=str(codes)), load(prepared.output)
    assert "give preparation cleaned,lowercase,moses:no-escape,bpe" in caplog.text
    for text in ("the man , an orange", "The man, too."):
        words = pytest.importorskip("subword_nmt.apply_bpe").BPE(io.StringIO(CODES)).segment_tokens(text.split())
        assert hub.encode(text).tolist() == tokenizer(text)["input_ids"]
        assert hub.encode(text).tolist() == ids_of(prepared.task.source_dictionary, " ".join(words), [0])


def test_text_whose_preparation_nobody_knows_is_refused(prepared, tmp_path, capsys, monkeypatch):
    folder = prepared.folder
    (folder / "others").write_text(CODES.replace("g e</w>\n", ""))
    for flags, parts in (
        (["--bpe-codes", folder / "others"], ("--bpe-codes", "give that one")),
        (["--lang", "de"], ("--lang de", "--preparation")),
        (["--preparation", "moses,bpe"], ("give it by --bpe-codes",)),
        (["--preparation", "mosses"], ("--preparation mosses", "choose from")),
    ):
        error = refused(capsys, prepared, *flags)
        assert all(part in error for part in parts), error
    (folder / "data" / "preparation.json").rename(folder / "record")
    error = refused(capsys, prepared, "--bpe-codes", folder / "codes", "--verify-text", folder / "cut")
    assert "('or@@' in line 1)" in error
    assert "before segmentation" in error
    words = checkpoint_of(tmp_path / "w", words=[word for word in WORDS if "@" not in word])
    expected = "--preparation cleaned,lowercase,moses:no-escape"
    error = refused(capsys, words, "--verify-text", folder / "raw")
    assert expected in error
    assert "('low,' in line 2)" in error
    assert "looks like cleaned,lowercase,moses:no-escape;" in refused(capsys, words, "--lowercase", "yes")
    with pytest.raises(OptionError, match=r"lowercase.*preparation.*cleaned,lowercase,moses:no-escape"):
        hub_of(words, lowercase=True)
    (folder / "words").write_text("the man , an or\n")
    assert export_hf(words, "--verify-text", folder / "words") == 0
    (folder / "record").rename(folder / "data" / "preparation.json")
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    assert "pip install sacremoses" in refused(capsys, prepared)


#: a dictionary of Moses' words with escapes, in subwords of both sides
MOSES = "l@@ o@@ w@@ e@@ r@@ l o w e r lo@@ lo er@@ er , . &apos;s".split()


@pytest.fixture
def moses_codes(tmp_path):
    pytest.importorskip("sacremoses")
    merges = "l o,e r</w>,& a,&a p,&ap o,&apo s,&apos ;,&apos; s</w>"
    (tmp_path / "codes").write_text("\n".join(["#version: 0.2", *merges.split(","), ""]))
    return tmp_path / "codes"


def test_codes_of_both_sides(tmp_path, moses_codes, capsys):
    checkpoint = seq2seq_checkpoint(tmp_path / "c", "transformer", words=MOSES)
    record(checkpoint, "moses,bpe", ("de", "en"), codes=moses_codes)
    assert export_hf(checkpoint) == 0
    assert "Moses' words" in capsys.readouterr().out
    card = " ".join((checkpoint.output / "README.md").read_text().split())
    assert "`target` tokenizer's `decode` gives text" in card
    assert 'AutoTokenizer.from_pretrained("THIS_FOLDER/target"' in card
    assert "subwords are joined, words are put together" in card
    task = checkpoint.task
    for name, dictionary, cut in (
        ("", task.source_dictionary, "lo@@ w@@ er@@ &apos;s , lo@@ w ."),  # German, where Moses leaves 's
        ("target", task.target_dictionary, "lo@@ w@@ er &apos;s , lo@@ w ."),
    ):
        tokenizer = load(checkpoint.output / name)
        assert steps_of(checkpoint.output / name)[0]["lang"] == ("en" if name else "de")
        if name:
            assert tokenizer("lower's, low.")["input_ids"] == ids_of(dictionary, cut)
            assert tokenizer.decode(ids_of(dictionary, cut), skip_special_tokens=True) == "lower's, low."


def test_the_hub_of_a_translation_model_prepares_text_as_an_exported_tokenizer_does(tmp_path, moses_codes):
    """And puts translations together; without codes text is finished words."""
    checkpoint = seq2seq_checkpoint(tmp_path / "c", "duo", positions="", words=MOSES)
    plain = hub_of(checkpoint, DuoTransformerModel)
    assert plain.encode("Lower low").tolist() == ids_of(checkpoint.task.source_dictionary, "Lower low")
    stated = hub_of(
        checkpoint, DuoTransformerModel, bpe_codes=str(moses_codes), preparation="lowercase,moses", lang="en"
    )
    record(checkpoint, "lowercase,moses,bpe", ("en", "en"), codes=moses_codes)
    recorded = hub_of(checkpoint, DuoTransformerModel)
    expected = ids_of(checkpoint.task.source_dictionary, "lo@@ w@@ er &apos;s , lo@@ w@@ x .")
    for hub in (stated, recorded):
        assert hub.encode("Lower's, LOWx.").tolist() == expected
        assert isinstance(hub.translate("Lower's, low.", beam=2), str)
    options = {"bpe_codes": str(moses_codes), "preparation": "lowercase,moses", "lang": "fr"}
    french = hub_of(checkpoint, DuoTransformerModel, **options)  # of the source alone
    for hub in (stated, recorded, french):
        assert hub.decode(checkpoint.task.target_dictionary.encode_line("lo@@ w &apos;s , lo@@ w .")) == "low's, low."


def test_stated_steps_take_the_place_of_a_record_that_does_not_fit(prepared, capsys, caplog):
    """The record of another dictionary stops the export, not what the user says instead."""
    record(prepared, "lowercase,moses,bpe", codes=prepared.folder / "codes")
    file = Path(prepared.dictionary).with_name("preparation.json")
    content = json.loads(file.read_text())
    content["dictionaries"]["dict.txt"]["symbols"] = "0" * 16
    file.write_text(json.dumps(content))
    assert "name the steps" in refused(capsys, prepared)
    steps = ["--preparation", "moses,bpe", "--bpe-codes", prepared.folder / "codes"]
    assert export_hf(prepared, *steps, "--lang", "xq") == 0
    assert [step["step"] for step in steps_of(prepared.output)] == ["moses", "bpe"]
    assert "xq is not the code" in caplog.text  # English rules, as in every other command


def with_record(checkpoint, steps):
    """Put the record of other steps into the checkpoint; return what export-hf says of the two."""
    entries = json.loads(Path(checkpoint.dictionary).with_name("preparation.json").read_text())["dictionaries"]
    for entry in entries.values():
        entry["steps"] = parse_steps(steps)
    checkpoint.state["cfg"]["embed_init_options"] = {OPTION: json.dumps(entries)}
    checkpoint.save()


def test_a_hub_refuses_options_and_checkpoints_that_contradict_the_record(prepared):
    for options in ({"lowercase": False}, {"lang": "fr"}, {"bpe": "characters"}, {"tokenizer": "space"}):
        with pytest.raises(OptionError, match=rf"{min(options)}=.*preparation"):
            hub_of(prepared, **options)
    with pytest.raises(OptionError, match="tokenizer="):
        hub_of(prepared, preparation="bpe", bpe_codes=str(prepared.folder / "codes"), tokenizer="moses")
    given = {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": str(prepared.folder / "codes")}
    expected = hub_of(prepared).encode(RAW[0]).tolist()
    assert hub_of(prepared, **given).encode(RAW[0]).tolist() == expected
    shutil.copy(prepared.path, prepared.folder / "first.pt")
    with_record(prepared, "moses,bpe")
    both = r"cleaned,lowercase,moses:no-escape,bpe as .*data/preparation.json says, by moses,bpe as .*c.pt says"
    with pytest.raises(DataError, match=both):
        hub_of(prepared)
    stated = {"preparation": "lowercase,moses,bpe", "bpe_codes": given["bpe_codes"]}
    assert hub_of(prepared, **stated).encode("Man").tolist() == hub_of(prepared, **stated).encode("man").tolist()
    Path(prepared.dictionary).with_name("preparation.json").unlink()
    files = "first.pt:c.pt", str(prepared.folder / "data")
    hub = TupeModel.from_pretrained(str(prepared.folder), "c.pt:first.pt", files[1], bpe_codes=given["bpe_codes"])
    assert hub.prepare("Man") != ["man"], "the record of the first, though the second has none"
    shutil.copy(prepared.path, prepared.folder / "first.pt")
    with_entries = json.loads(prepared.state["cfg"]["embed_init_options"][OPTION])
    with_entries["dict.txt"]["steps"] = parse_steps("lowercase,moses,bpe")
    prepared.state["cfg"]["embed_init_options"] = {OPTION: json.dumps(with_entries)}
    prepared.save()
    with pytest.raises(DataError, match=r"moses,bpe as .*first.pt says, by lowercase,moses,bpe as .*c.pt says"):
        TupeModel.from_pretrained(str(prepared.folder), *files)


def test_an_export_whose_data_and_checkpoint_have_two_records(prepared, capsys):
    with_record(prepared, "moses,bpe")
    said = refused(capsys, prepared)
    assert "data/preparation.json says" in said
    assert "in the checkpoint says" in said
    Path(prepared.dictionary).with_name("preparation.json").unlink()  # the remedy
    assert export_hf(prepared, "--bpe-codes", prepared.folder / "codes") == 0
    assert [step["step"] for step in steps_of(prepared.output)] == ["moses", "bpe"]


# ---- sentencepiece


@pytest.fixture
def spm(tmp_path):
    """(path, model): of lower-case text."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text, file = ["the lower one is newer than the widest of them", "lower and newer, wider and slower"], tmp_path / "m"
    options = {"vocab_size": 45, "hard_vocab_limit": False, "minloglevel": 2}
    with open(file, "wb") as stream:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text * 9), model_writer=stream, **options)
    return file, sentencepiece.SentencePieceProcessor(model_file=str(file))


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_model_of_sentencepiece_for_both_sides(tmp_path, spm, capsys, lowercase):
    """By code of this package where text is lower-cased, by transformers' own class where it is not."""
    file, model = spm
    pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    checkpoint = seq2seq_checkpoint(tmp_path / "c", "transformer", words=pieces[::-1][:-2], other=pieces[:-1])
    (tmp_path / "text").write_text("The slower ONE\n")
    (tmp_path / "cut").write_text(" ".join(model.encode("the slower one", out_type=str)))
    record(checkpoint, "lowercase,sentencepiece" if lowercase else "sentencepiece", model=file)
    flags = ["--sentencepiece-model", file]
    assert export_hf(checkpoint, *flags, "--verify-text", tmp_path / "text") == 0
    assert "of sentencepiece" in capsys.readouterr().out
    task = checkpoint.task
    for name, dictionary in (("", task.source_dictionary), ("target", task.target_dictionary)):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.output / name, trust_remote_code=lowercase)
        for text in ("the slower wine, Z", "The SLOWER one"):
            cut = " ".join(model.encode(text.lower() if lowercase else text, out_type=str))
            assert tokenizer(text)["input_ids"] == ids_of(dictionary, cut)
        ids = ids_of(dictionary, (tmp_path / "cut").read_text())
        assert tokenizer.decode(ids, skip_special_tokens=True).split()[-1] == "one"
    check_vectors(checkpoint.output, task.source_dictionary, checkpoint.model.encoder.embed_tokens.weight)
    check_vectors(checkpoint.output, task.target_dictionary, checkpoint.model.decoder.embed_tokens.weight, "decoder")
    (tmp_path / "c" / "data" / "preparation.json").unlink()
    assert export_hf(checkpoint, *flags, "--force", "--verify-text", tmp_path / "cut") == 2
    error = capsys.readouterr().err
    assert "before segmentation" in error
    assert f"'{(tmp_path / 'cut').read_text().split()[0]}' in line 1" in error


def test_a_model_of_sentencepiece_that_made_another_dictionary(tmp_path, spm, capsys):
    foreign = [f"▁{word}" for word in "ein zwei drei vier fuenf sechs sieben".split()]
    checkpoint = seq2seq_checkpoint(tmp_path / "c", "transformer", words=foreign)
    assert "--sentencepiece-model" in refused(capsys, checkpoint, "--sentencepiece-model", spm[0])


# ---- An export is given back as vectors


def check_vectors(path, dictionary, weight, side=None):
    """Every word of the dictionary has its row of the model; fillers and special symbols are no words."""
    table = open_vectors(str(path), side=side).read()
    words = [symbol for symbol in dictionary.symbols if symbol not in SPECIAL and not symbol.startswith("madeupword")]
    assert table.words == words
    np.testing.assert_array_equal(table.matrix, weight[[dictionary.index(word) for word in words]].detach().numpy())


SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def test_an_export_is_read_as_vectors_without_its_code(prepared, tmp_path):
    """With a Python tokenizer, with a tokenizer.json, and as transformers saves it after adding a token."""
    checkpoint = checkpoint_of(tmp_path / "v", words=[*WORDS, "zebra"], fillers=3)
    weight = checkpoint.model.encoder.sentence_encoder.embed_tokens.weight
    record(checkpoint, "wikibooks,bpe", codes=prepared.folder / "codes")
    assert export_hf(checkpoint) == 0
    tokenizer = load(checkpoint.output)
    tokenizer.add_tokens(["Queequeg"])
    tokenizer.save_pretrained(str(checkpoint.output))
    for code in checkpoint.output.glob("*.py"):
        code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    check_vectors(checkpoint.output, checkpoint.task.source_dictionary, weight)
    composed = open_vectors(str(checkpoint.output)).compose(["Orange", "zzz"])
    rows = [checkpoint.task.source_dictionary.index(part) for part in ("or@@", "an@@", "ge")]
    np.testing.assert_allclose(composed.pop("Orange"), weight[rows].detach().numpy().mean(0), rtol=1e-6)
    assert composed == {}
    new = tmp_path / "new"
    new.write_text("the 9\nman 8\nzebra 7\n")
    arguments = ["--checkpoint", prepared.path, "--dict", prepared.dictionary, "--new-dict", str(new)]
    arguments += ["--method", "focus", "--vectors", str(checkpoint.output), "--output", str(tmp_path / "moved")]
    assert main(["transfer-vocab", *arguments]) == 0
    assert not (tmp_path / "ran").exists()
    (checkpoint.output / "tokenizer_config.json").write_text('{"tokenizer_class": "TupeTokenizer", "steps": [{}]}')
    with pytest.raises(VectorFileError, match="export the model again"):
        open_vectors(str(checkpoint.output)).read()
    (checkpoint.output / "vocab.txt").unlink()
    with pytest.raises(VectorFileError, match=r"vocab\.txt: no such file"):
        open_vectors(str(checkpoint.output)).read()
    (checkpoint.folder / "data" / "preparation.json").unlink()
    assert export_hf(checkpoint, "--force") == 0
    assert (checkpoint.output / "tokenizer.json").exists()
    check_vectors(checkpoint.output, checkpoint.task.source_dictionary, weight)


def test_each_side_of_an_export_has_its_own_words(tmp_path):
    """Also if both dictionaries have the same number of symbols."""
    checkpoint = seq2seq_checkpoint(tmp_path / "c", "transformer", words=["ein", "zwei"], other=["one", "two"])
    assert export_hf(checkpoint) == 0
    task, model = checkpoint.task, checkpoint.model
    check_vectors(checkpoint.output, task.source_dictionary, model.encoder.embed_tokens.weight)
    check_vectors(checkpoint.output, task.target_dictionary, model.decoder.embed_tokens.weight, "decoder")


# ---- Added tokens, the recorded preparation, binarised data


@pytest.mark.parametrize("steps", ["wikibooks,bpe", "kim,known"])
def test_added_tokens_take_effect_before_and_after_saving(prepared, tmp_path, steps):
    """They are words of their sentence, as `<mask>`; the text around them is prepared as ever."""
    checkpoint = checkpoint_of(tmp_path / "added", words=WORDS)
    record(checkpoint, steps, **({"codes": prepared.folder / "codes"} if "bpe" in steps else {}))
    assert export_hf(checkpoint) == 0
    tokenizer = load(checkpoint.output)
    before = [tokenizer(text)["input_ids"] for text in (*RAW, *NASTY)]
    tokenizer.add_tokens(["<ent>", "<ent>ity"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E]"]})
    tokenizer.save_pretrained(str(tmp_path / "saved"))
    size = len(WORDS) + 5
    for opened in (tokenizer, load(tmp_path / "saved"), pickle.loads(pickle.dumps(tokenizer))):
        ids = opened("The <ent>ity or<ent>low [E] <Mask>")["input_ids"]
        assert ids == [0, 4, size + 1, 19, size, 20, size + 2, size - 1, 2]
        assert opened.decode(ids, skip_special_tokens=True) == "the <ent>ity or <ent> low"
        assert size + 2 not in opened("low [E]", split_special_tokens=True)["input_ids"]
        assert [opened(text)["input_ids"] for text in (*RAW, *NASTY)] == before
        with pytest.raises(NotImplementedError, match="return_offsets_mapping"):
            opened("low", return_offsets_mapping=True)
        with pytest.raises(ValueError, match="word_ids"):
            opened("low").word_ids()


def test_verified_text_is_compared_with_the_record_and_with_the_data(tmp_path, capsys):
    pytest.importorskip("sacremoses")
    checkpoint = checkpoint_of(tmp_path / "c", words=WORDS)
    record(checkpoint, "lowercase,moses")
    (tmp_path / "raw").write_text("The man, too.\nan OR is on\nthe <mask>\n")
    text = ["--verify-text", tmp_path / "raw"]
    # the user's steps are not those of the record: two sides that do not guess alike
    error = refused(capsys, checkpoint, *text, "--preparation", "moses", code=1)
    assert "2 of 3 lines differ" in error
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "data.bin"), dtype=np.int32)
    for line in ("the man , too .", "an or is on", "the &lt; mask &gt;"):  # in data `<mask>` is text
        builder.add_item(checkpoint.task.source_dictionary.encode_line(line, add_if_not_exist=False))
    builder.finalize(str(tmp_path / "data.idx"))
    assert export_hf(checkpoint, *text, "--verify-bin", tmp_path / "data") == 0
    assert "2 lines also with the binarised data: 0 differ from fairseq" in capsys.readouterr().out
    shutil.rmtree(checkpoint.output)
    (tmp_path / "raw").write_text("The man, too.\nan OR is low\nthe <mask>\n")
    error = refused(capsys, checkpoint, *text, "--verify-bin", tmp_path / "data", code=1)
    assert "1 of 2 lines differ: 'an OR is low'" in error
    assert "in the data" in error
    (tmp_path / "raw").write_text("The man\n")
    assert "3 sentences, expected 1" in refused(capsys, checkpoint, *text, "--verify-bin", tmp_path / "data")
    assert "--verify-text" in refused(capsys, checkpoint, "--verify-bin", tmp_path / "data")


def test_the_tokenizer_of_a_step_is_exported_with_it(tmp_path):
    library = pytest.importorskip("tokenizers")
    folder = tmp_path / "wordpiece"
    folder.mkdir()
    pieces = {piece: row for row, piece in enumerate(["[UNK]", "low", "##er", "on", "the"])}
    model = library.Tokenizer(library.models.WordPiece(pieces, unk_token="[UNK]"))
    model.pre_tokenizer = library.pre_tokenizers.Whitespace()
    model.save(str(folder / "tokenizer.json"))
    recorded = checkpoint_of(tmp_path / "r", words=["the", "low", "##er"])
    record(recorded, "lowercase,huggingface", tokenizer=folder / "tokenizer.json")
    stated = checkpoint_of(tmp_path / "s", words=["the", "low", "##er"])
    assert export_hf(recorded) == 0
    assert export_hf(stated, "--preparation", "lowercase,huggingface", "--tokenizer", folder) == 0
    for checkpoint in (recorded, stated):
        assert load(checkpoint.output)("The LOWER on x")["input_ids"] == [0, 4, 5, 6, 3, 3, 2]
