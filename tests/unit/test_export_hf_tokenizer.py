"""Tokenizers of exported models against fairseq's own pipeline: dictionary, subword-nmt, inputs of the tasks."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest
from hf_exports import CLASSES, checkpoint_of, export_hf, trained
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")
from embinit_fairseq.export.remote.tokenization_tupe import TupeTokenizer
from embinit_fairseq.export.tokenizer import choose_tokenizer

CODES = "#version: 0.2\nl o\nlo w</w>\ne r</w>\nlo w\nn e\nne w</w>\nlow er</w>\nlow est</w>\n"
PIECES = ["low", "er", "lo@@", "new", "ne@@", "lower", "e@@", "l@@", "o@@", "w", "w@@", "n@@", "r", "s@@", "t"]
LETTERS = ["l", "o", "e", "n", "<url>"]


def load(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=True)


def write(found, folder, *arguments):
    folder.mkdir()
    tokenizer = choose_tokenizer(found, *arguments)
    tokenizer.write(folder)
    return tokenizer


def plain_ids(found, text):
    dictionary = found.model.encoder.dictionary
    return dictionary.encode_line(text, append_eos=False, add_if_not_exist=False).tolist()


def test_words_are_split_where_fairseq_splits_them(tmp_path):
    """Every kind of white space that Python knows, and characters that look like it."""
    found = trained(tmp_path / "c")
    write(found, tmp_path / "out", None, None, None)
    tokenizer = load(tmp_path / "out")
    assert len(tokenizer) == len(found.symbols)
    odd = [chr(code) for code in range(sys.maxunicode) if chr(code).isspace() or code in (0, 0x200B, 0x180E, 0xFEFF)]
    for space in odd:
        text = f"w1{space}w2 {space} w8"
        assert tokenizer(text)["input_ids"] == [0, *plain_ids(found, text), 2], f"U+{ord(space):04X}"
    assert tokenizer("w1 <mask> nothing w8")["input_ids"] == [0, *plain_ids(found, "w1 <mask> nothing w8"), 2]
    assert tokenizer.decode(tokenizer("w1 w2")["input_ids"], skip_special_tokens=True) == "w1 w2"
    assert tokenizer.convert_ids_to_tokens(list(range(len(found.symbols)))) == found.symbols
    padded = tokenizer(["w1", "w1 w2 w3"], padding=True)
    assert padded["input_ids"][0] == [0, 5, 2, 1, 1]
    assert padded["attention_mask"][0] == [1, 1, 1, 0, 0]


def test_pairs_are_the_inputs_of_the_task(tmp_path):
    """masked_lm: as `TupeHub.encode`. sentence_prediction: --init-token and --separator-token."""
    pre_trained = trained(tmp_path / "a")
    fine_tuned = trained(tmp_path / "b", "bert_a_tiny", "", task=f"{CLASSES} --num-classes 3")
    without = CLASSES.replace("--init-token 0 --separator-token 2", "")
    plain = trained(tmp_path / "c", "bert_a_tiny", "", task=f"{without} --num-classes 3")
    for found, expected in (
        (pre_trained, [0, 5, 2, 2, 6, 2]),
        (fine_tuned, [0, 5, 2, 2, 6, 2]),
        (plain, [5, 2, 6, 2]),
    ):
        folder = tmp_path / f"out{len(expected)}{found.arch}"
        write(found, folder, None, None, None)
        assert load(folder)("w1", "w2")["input_ids"] == expected


@pytest.fixture
def bpe(tmp_path):
    """A model over sub-words; -> (trained, path of codes)."""
    (tmp_path / "codes").write_text(CODES)
    words = [*PIECES, *LETTERS, "lowest", "est", "est@@"]
    return trained(tmp_path / "c", words=words), str(tmp_path / "codes")


def all_covered(tmp_path, version="#version: 0.2\n"):
    (tmp_path / "codes").write_text(version + "l o\nlo w</w>\ne r</w>\n")
    words = ["l@@", "l", "o@@", "lo@@", "low", "w", "e@@", "er", "r", "x@@", "<url>"]
    return trained(tmp_path / "c", words=words), str(tmp_path / "codes")


def test_sub_words_as_tokenizer_json_where_every_merge_is_a_symbol(tmp_path):
    found, codes = all_covered(tmp_path)
    tokenizer = write(found, tmp_path / "out", codes, None, None)
    assert tokenizer.why == "sub-words of subword-nmt"
    opened = load(tmp_path / "out")
    assert opened.is_fast
    assert len(opened) == len(found.symbols)
    for text, cut in (("low  loer xlow", "low lo@@ er x@@ low"), ("<url> q low", "<url> q low"), ("el", "e@@ l")):
        assert opened(text)["input_ids"] == [0, *plain_ids(found, cut), 2]
    assert opened.decode(opened("low loer").input_ids, skip_special_tokens=True).strip() == "low loer"


@pytest.mark.parametrize("version", ["", "#version: 0.1\n"])
def test_old_codes_are_cut_in_python(tmp_path, version):
    """Before 0.2 the end of a word was a symbol of its own."""
    (tmp_path / "codes").write_text(f"{version}l o\nlo w\nlow </w>\n")
    found = trained(tmp_path / "c", words=["low", "lo@@", "l@@", "o@@", "w", "low@@", "e@@", "r"])
    tokenizer = write(found, tmp_path / "out", str(tmp_path / "codes"), None, None)
    assert "in Python" in tokenizer.why
    opened = load(tmp_path / "out")
    assert [opened(line)["input_ids"] for line in tokenizer.lines] == tokenizer.expected
    assert opened.tokenize("low lower") == ["low", "low@@", "e@@", "r"]


def test_sub_words_in_python_where_a_merge_is_no_symbol(tmp_path, bpe):
    found, codes = bpe
    tokenizer = write(found, tmp_path / "out", codes, None, None)
    assert tokenizer.why.endswith("in Python: the dictionary lacks 1 piece of the codes")  # low@@
    opened = load(tmp_path / "out")
    assert [opened(line)["input_ids"] for line in tokenizer.lines] == tokenizer.expected
    assert len(opened) == len(found.symbols)
    assert opened.decode(opened("lower newest").input_ids, skip_special_tokens=True).startswith("lower")
    assert opened("low", "new")["input_ids"] == [0, 4, 2, 2, 7, 2]
    assert opened("low", return_special_tokens_mask=True)["special_tokens_mask"] == [1, 0, 1]
    assert opened("<url> low <mask>")["input_ids"] == [0, *plain_ids(found, "<url> low <mask>"), 2]
    opened.save_pretrained(str(tmp_path / "again"))
    assert load(tmp_path / "again")("lower new")["input_ids"] == opened("lower new")["input_ids"]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="lowernst", min_size=1, max_size=12))
def test_pieces_are_those_of_subword_nmt(tmp_path_factory, word):
    from subword_nmt.apply_bpe import BPE

    folder = tmp_path_factory.getbasetemp()
    for version in ("#version: 0.2\n", "#version: 0.1\n"):
        text = CODES.replace("#version: 0.2\n", version) + "l l\nll l\nlo lo\nlolo lo\nlo l\n"
        (folder / "codes").write_text(text)
        (folder / "vocab.txt").write_text("<s>\n<pad>\n</s>\n<unk>\n")
        with open(folder / "codes") as file:
            expected = BPE(file).process_line(word).split()
        assert TupeTokenizer(folder / "vocab.txt", folder / "codes")._pieces(word) == expected


def test_a_tokenizer_of_ones_own(tmp_path, capsys):
    """Its ids must be the dictionary's."""
    checkpoint = checkpoint_of(tmp_path / "c")
    assert export_hf(checkpoint) == 0
    for name, text in {"right": None, "wrong": ("w1", "w2"), "longer": ("<mask>", "<other>")}.items():
        folder = tmp_path / name
        folder.mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            content = (checkpoint.output / file).read_text()
            if text and file == "tokenizer.json":
                vocabulary = json.loads(content)
                words = vocabulary["model"]["vocab"]
                words[text[0]], words[text[1]] = words.get(text[1], 99), words[text[0]]
                content = json.dumps(vocabulary)
            (folder / file).write_text(content)
    capsys.readouterr()
    other = checkpoint_of(tmp_path / "d")
    assert export_hf(other, "--tokenizer", tmp_path / "right") == 0
    assert "copied from" in capsys.readouterr().out
    assert load(other.output)("w1 w2")["input_ids"] == [0, 5, 6, 2]
    for name, message in (
        ("wrong", "w1 has the id 6"),
        ("longer", "give the tokenizer that the dictionary was made of"),
    ):
        assert export_hf(other, "--force", "--tokenizer", tmp_path / name) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("needed", [False, True])
def test_the_code_of_a_tokenizer_is_never_run(tmp_path, capsys, monkeypatch, needed):
    """Nor is it named in what is written, where opening the export would run it. needed: transformers has no other."""
    checkpoint, given = checkpoint_of(tmp_path / "c"), tmp_path / "given"
    assert export_hf(checkpoint) == 0
    shutil.copytree(checkpoint.output, given)
    config = json.loads((given / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["code.Mine", "code.Mine"]}
    config["tokenizer_class"] = "Mine" if needed else config["tokenizer_class"]
    (given / "tokenizer_config.json").write_text(json.dumps(config))
    (given / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    status = export_hf(checkpoint, "--force", "--tokenizer", given)
    assert not (tmp_path / "ran").exists()
    assert status == (2 if needed else 0)
    if needed:
        error = capsys.readouterr().err
        assert "--tokenizer" in error
        assert "tokenizer.json" in error
    else:
        assert "auto_map" not in (checkpoint.output / "tokenizer_config.json").read_text()


def test_text_of_ones_own_is_compared_too(tmp_path, capsys, monkeypatch):
    import embinit_fairseq.export.tokenizer as export_tokenizer

    checkpoint = checkpoint_of(tmp_path / "c")
    (tmp_path / "text").write_text("w1 w2 <unk>\nw3\n")
    assert export_hf(checkpoint, "--verify-text", tmp_path / "text", "--json") == 0
    assert json.loads(capsys.readouterr().out)["text_lines"] == 205
    words = export_tokenizer.words_json

    def other_ids(layout):
        files = words(layout)
        return {
            **files,
            "tokenizer.json": files["tokenizer.json"].replace('"w1": 5', '"w1": 6').replace('"w2": 6', '"w2": 5'),
        }

    monkeypatch.setattr(export_tokenizer, "words_json", other_ids)
    other = checkpoint_of(tmp_path / "d")
    assert export_hf(other, "--verify-text", tmp_path / "text") == 1
    assert "'w1 w2 <unk>' would get the ids [0, 6, 5, 3, 2], in fairseq [0, 5, 6, 3, 2]" in capsys.readouterr().err
    assert not other.output.exists()


def test_a_dictionary_that_no_tokenizer_expresses(tmp_path, capsys):
    """A word that holds a special symbol: transformers would cut it. The model is written without a tokenizer."""
    checkpoint = checkpoint_of(tmp_path / "c", words=["w1", "a<s>b"])
    assert export_hf(checkpoint) == 0
    assert "a<s>b" in capsys.readouterr().out.partition("tokenizer      none, since ")[2].splitlines()[0]
    assert not [path.name for path in checkpoint.output.iterdir() if "token" in path.name]
    assert "AutoTokenizer.from_pretrained" not in (checkpoint.output / "README.md").read_text()
    (tmp_path / "text").write_text("a<s>b\n")
    assert export_hf(checkpoint, "--force", "--verify-text", tmp_path / "text") == 1
    assert "'a<s>b' would get the ids [0, 3, 0, 3, 2], in fairseq [0, 5, 2]" in capsys.readouterr().err
