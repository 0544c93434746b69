"""`embinit expand-vocab` between real fairseq commands: train, expand, resume, translate."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import recipes
import torch
from fairseq.models.transformer import TransformerModel
from trainings import train_command

from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.cli.main import main

SIZES = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2"
MODEL = f"""--task translation {SIZES} {SIZES.replace("encoder", "decoder")} --arch transformer_iwslt_de_en --cpu
    --optimizer adam --lr 0.01 --batch-size 20 --required-batch-size-multiple 1 --num-workers 0"""
TABLE = "encoder.embed_tokens.weight"
pytestmark = pytest.mark.end_to_end


def test_a_training_continues_with_the_expanded_model(here, toy_translation, tmp_path):
    """Source words that never occur get no gradient: all other numbers must be those of the run without them, to the
    last bit. So the order in which the optimizer knows its parameters was understood."""

    def train(data, folder, updates):
        here(train_command(data, *MODEL.split(), "--save-dir", folder, "--max-update", updates))
        return load_checkpoint(folder / "checkpoint_last.pt")

    train(toy_translation, tmp_path / "run", 3)
    out, data, words = tmp_path / "out", tmp_path / "bin", tmp_path / "new.txt"
    words.write_text("".join(f"new{number}\n" for number in range(12)))
    files = {"checkpoint": tmp_path / "run/checkpoint_last.pt", "dict": toy_translation / "dict.de.txt"}
    options = {**files, "words": words, "output": out, "side": "encoder"}
    assert main(["expand-vocab", *(f"--{name}={value}" for name, value in options.items())]) == 0
    shutil.copytree(toy_translation, data)  # words that never occur need no other text
    shutil.copyfile(out / "dict.de.txt", data / "dict.de.txt")
    (tmp_path / "resumed").mkdir()
    shutil.copyfile(out / "model.pt", tmp_path / "resumed/checkpoint_last.pt")
    uninterrupted, resumed = train(toy_translation, tmp_path / "run", 5), train(data, tmp_path / "resumed", 5)
    for name, value in uninterrupted["model"].items():
        found = resumed["model"][name]
        assert torch.equal(found[: len(value)] if name == TABLE else found, value), name
    assert len(resumed["model"][TABLE]) > len(uninterrupted["model"][TABLE])
    for number, moments in uninterrupted["last_optimizer_state"]["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            found = resumed["last_optimizer_state"]["state"][number][name]
            assert torch.equal(found[: len(moments[name])], moments[name])
    hub = TransformerModel.from_pretrained(str(out), "model.pt")  # the languages are in the checkpoint
    assert isinstance(hub.translate("new1 d7 d3", beam=2), str)


def test_the_whole_way_on_bpe_text(tmp_path):
    """The commands of docs/expand_vocab.md, in small: words that BPE had split are symbols of text and translations."""
    sizes = f"{SIZES} {SIZES.replace('encoder', 'decoder')}".replace("8", "16")
    small = f"{sizes} --cpu --lr 0.02 --batch-size 32 --no-epoch-checkpoints --num-workers 0 --dropout 0"
    changes = {
        "--max-tokens 4096 --lr 0.0005": small,
        "--bpe-size 8000": "--bpe-size 60",
        "--max-epoch 30": "--max-epoch 4",
        "--max-epoch 3\n": "--max-epoch 1\n",
        "--beam 5": "--beam 1 --cpu --max-len-b 20",
        "scripts/": f"{recipes.SCRIPTS}/",
        "--dim 100": "--dim 8",
    }
    pairs, new = recipes.sentence_pairs(), {"finds", "beach", "book"}
    for split, part in (("train", pairs[:216]), ("valid", pairs[216:236]), ("test", pairs[236:])):
        for lang, sentences in zip(("de", "en"), zip(*part)):
            (tmp_path / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in sentences), encoding="utf-8")
    (tmp_path / "new.txt").write_text("\n".join(sorted(new)))
    said = recipes.run_page("expand_vocab.md", changes, tmp_path)
    assert "reachable      3 of 3 new words" in said
    assert "raw text       moses,bpe" in said
    prepared = (tmp_path / "data/text/train.en").read_text(), (tmp_path / "new-data/text/train.en").read_text()
    assert prepared[0].replace("@@ ", "") == prepared[1].replace("@@ ", "")
    assert [new & {*text.split()} for text in prepared] == [set(), new]
    symbols = {line.split()[0] for line in (tmp_path / "grown/dict.en.txt").read_text().splitlines()}
    translated, raw = ((tmp_path / name).read_text() for name in ("new/test.hypothesis.text", "translated.en"))
    assert translated == raw, "raw text through fairseq-interactive is prepared text"
    assert translated.count("\n") == 20
    log = (tmp_path / "new/test.generate.log").read_text()
    found = re.findall(r"^([TH])-\d+\t(?:\S+\t)?(.*)", log, re.MULTILINE)
    hypotheses, targets = ({*" ".join(line for kind, line in found if kind == one).split()} for one in "HT")
    assert new <= targets
    assert new | hypotheses <= symbols
    result = json.loads((tmp_path / "new/result.json").read_text())["scores"]
    assert (result["preparation"], result["sentences"]) == ("moses,bpe", 20)
    dictionaries = [(tmp_path / name / "dict.en.txt").read_text() for name in ("grown", "grown-focus")]
    assert dictionaries[0] == dictionaries[1], "data of one method fit the other's model"
    assert (tmp_path / "new-focus/result.json").is_file()
