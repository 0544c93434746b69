"""`embinit expand-vocab` between real fairseq commands: train, expand, resume, translate."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest
import recipes
import torch
from fairseq.models.transformer import TransformerModel
from trainings import train_command

from embinit_fairseq.checkpoints.reading import load_checkpoint
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
    """The commands of docs/expand_vocab.md, in small: words that BPE had cut are symbols of text and translations."""
    page = (recipes.SCRIPTS.parent / "docs/expand_vocab.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    sizes = f"{SIZES} {SIZES.replace('encoder', 'decoder')}".replace("8", "16")
    small = f"{sizes} --cpu --lr 0.01 --batch-size 32 --no-epoch-checkpoints --num-workers 0 --dropout 0"
    for place, other in (
        ("--max-tokens 4096 --lr 0.0005", small),
        ("-s 8000", "-s 40"),
        ("--max-epoch 30", "--max-epoch 1"),
        ("--max-epoch 3\n", "--max-epoch 1\n"),
        ("--beam 5", "--beam 1 --cpu"),
    ):
        assert commands.count(place) == 1, place
        commands = commands.replace(place, other)
    pairs = [[side.replace(".", " .") for side in pair] for pair in recipes.sentence_pairs()]
    for split, part in (("train", pairs[:216]), ("valid", pairs[216:236]), ("test", pairs[236:])):
        for lang, sentences in zip(("de", "en"), zip(*part)):
            (tmp_path / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in sentences), encoding="utf-8")
    (tmp_path / "new.txt").write_text("finds\nbeach\nbook\n")
    env = recipes.environment(PATH=f"{recipes.VENV}/bin:{os.environ['PATH']}")
    command = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "reachable      3 of 3 new words" in done.stdout
    assert "segment by     subword-nmt apply-bpe --codes grown/bpe.codes" in done.stdout
    record = json.loads((tmp_path / "grown/expansion.json").read_text())["segmentation"]["text"]
    running = (tmp_path / "train.en").read_text().split()
    expected = {word: running.count(word) for word in ("finds", "beach", "book")}
    assert (record["before"], record["after"], record["sentences"]) == ({}, expected, 216)
    found = re.findall(r"^([TH])-\d+\t(?:\S+\t)?(.*)", (tmp_path / "translations").read_text(), re.MULTILINE)
    said, wanted = ([line for kind, line in found if kind == one] for one in "HT")
    assert (len(said), len(wanted)) == (20, 20)
    assert expected.keys() <= set(" ".join(wanted).split())
    symbols = {line.split()[0] for line in (tmp_path / "grown/dict.en.txt").read_text().splitlines()}
    assert expected.keys() | set(" ".join(said).split()) <= symbols
