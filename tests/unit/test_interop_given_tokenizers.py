"""Export with the tokenizer that the user gives: the files of GPT-2's byte-level BPE, or a folder of Hugging Face."""

from __future__ import annotations

import io
import json
import shutil

import pytest
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode, get_encoder
from hf_exports import checkpoint_of, export_hf, hub_of, ids_of, load, refused, trained, write
from hf_exports import opened_here as opened_here

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("opened_here")


# ---- GPT-2


@pytest.fixture
def pieces(tmp_path):
    """(folder of encoder.json and vocab.bpe, their numbers as words of a dictionary, in another order)."""
    merges = ["t h", "th e", "\u0120 the", "o w", "l ow", "\u0120 low"]
    names = [*bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "encoder.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return folder, [str(number * 7 % len(names)) for number in range(len(names))]


def test_text_is_segmented_as_by_fairseqs_gpt2_bpe(tmp_path, pieces, capsys):
    folder, words = pieces
    checkpoint = checkpoint_of(tmp_path / "c", words=words, fillers=2)
    (tmp_path / "text").write_text("the lower <mask>\nth\n")
    assert export_hf(checkpoint, "--gpt2-bpe", folder, "--verify-text", tmp_path / "text") == 0
    assert "GPT-2's byte-level BPE of raw text, in which a written </s> is that symbol" in capsys.readouterr().out
    tokenizer = load(checkpoint.output)
    encoder = get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    line = " ".join(map(str, encoder.encode("the  lówer, 12!")))
    expected = ids_of(checkpoint.task.source_dictionary, line, [0])
    assert tokenizer("the  lówer, 12!")["input_ids"] == expected
    assert len(expected) == 16
    assert tokenizer.decode(expected[1:-1]) == "the  lówer, 12!"
    files = {"gpt2_encoder_json": str(folder / "encoder.json"), "gpt2_vocab_bpe": str(folder / "vocab.bpe")}
    hub = hub_of(checkpoint, bpe="gpt2", **files)
    for text in ("the lower <mask> the", "<mask> low", "the"):
        assert hub.encode(text).tolist() == tokenizer(text)["input_ids"]
    assert hub.decode(hub.encode("the low")) == "the low"
    assert tokenizer("the</s>")["input_ids"] != hub.encode("the</s>").tolist()  # as the summary says
    shutil.rmtree(checkpoint.output)
    for flags, text, message in (
        (["--gpt2-bpe", folder, "--lang", "en"], line, "--gpt2-bpe takes raw text as it is: leave --lang out"),
        (["--gpt2-bpe", folder], line, "before segmentation"),
        (["--gpt2-bpe", folder], "the </s> low", "1 of 1 line differ"),
        ([], "the lower", "after segmentation"),
    ):
        (tmp_path / "text").write_text(text)
        code = 1 if "differ" in message else 2
        assert message in refused(capsys, checkpoint, *flags, "--verify-text", tmp_path / "text", code=code)


def test_a_hub_segments_by_a_choice_without_options(tmp_path):
    """fairseq's configuration has the name of such a `--bpe` alone."""
    checkpoint = checkpoint_of(tmp_path / "c", words=[*"dehlotw", "\u2581"])
    hub = hub_of(checkpoint, bpe="characters")
    assert hub.encode("the low").tolist() == ids_of(checkpoint.task.source_dictionary, "t h e \u2581 l o w", [0])


def test_gpt2_files_that_do_not_fit(tmp_path, pieces, capsys):
    folder, words = pieces
    fewer = checkpoint_of(tmp_path / "c", "roberta_base", "", words=words[1:])
    error = refused(capsys, fewer, "--gpt2-bpe", folder)
    assert all(part in error for part in ("1 piece ", f"--gpt2-bpe {folder}", "--dict ", "leave --gpt2-bpe out"))
    (folder / "vocab.bpe").write_text("#version: 0.2\nx y\n")
    assert "do not belong together" in refused(capsys, fewer, "--gpt2-bpe", folder)
    (folder / "encoder.json").unlink()
    assert "encoder.json" in refused(capsys, fewer, "--gpt2-bpe", folder)


# ---- A tokenizer of the user's


def test_a_copied_tokenizer_has_the_dictionarys_ids_and_its_code_is_never_run(tmp_path, capsys, monkeypatch):
    """Nor is the code named in what is written; also if transformers has no other class for it."""
    checkpoint, folder = checkpoint_of(tmp_path / "c", fillers=2), tmp_path / "given"
    write(trained(tmp_path / "t", fillers=2), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["code.Mine", "code.Mine"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    assert export_hf(checkpoint, "--tokenizer", folder) == 0
    assert "auto_map" not in (checkpoint.output / "tokenizer_config.json").read_text()
    assert load(checkpoint.output)("w1 w2")["input_ids"] == [0, 5, 6, 2]
    shutil.rmtree(checkpoint.output)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {"w1": 6, "w2": 5}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert "w1 has the id 6" in refused(capsys, checkpoint, "--tokenizer", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "Mine"}))
    (folder / "tokenizer.json").unlink()
    shutil.copyfile(checkpoint.dictionary, folder / "vocab.txt")
    assert "--tokenizer" in refused(capsys, checkpoint, "--tokenizer", folder)
    assert not (tmp_path / "ran").exists()
