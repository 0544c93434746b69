"""`embinit expand-vocab` between real fairseq commands: train, expand, then resume, fine-tune, generate, score, use."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import fairseq_cli.eval_lm
import fairseq_cli.generate
import fairseq_cli.preprocess
import fairseq_cli.train
import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer_lm import TransformerLanguageModel

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.main import main
from embinit_fairseq.models.tupe import TupeModel

REPOSITORY = Path(__file__).resolve().parents[2]
SIZES = """--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2
    --decoder-embed-dim 8 --decoder-ffn-embed-dim 8 --decoder-layers 1 --decoder-attention-heads 2""".split()
COMMON = f"""--user-dir {REPOSITORY / "embinit_fairseq"} --optimizer adam --lr 0.01 --batch-size 20 --cpu
    --required-batch-size-multiple 1 --log-format none --num-workers 0 --no-epoch-checkpoints""".split()
MT = ["--task", "translation", *SIZES]
LM = ["--task", "language_modeling", *SIZES[8:], "--tokens-per-sample", "32", "--sample-break-mode", "eos"]
MLM = ["--task", "masked_lm", "--criterion", "masked_lm", *SIZES[:8], "--tokens-per-sample", "32"]
FAMILIES = {
    "transformer": [*MT, "--arch", "transformer_iwslt_de_en"],
    "duo": [*MT, "--arch", "duo_transformer_tiny", "--share-decoder-input-output-embed"],
    "lm": [*LM, "--arch", "transformer_lm_gpt", "--share-decoder-input-output-embed", "--store-ema", "--ema-fp32"],
    "tupe": [*MLM, "--arch", "tupe_tiny", "--rel-pos", "--max-positions", "32"],
}
NEW = ["d1d2", "d3d4", "d5d6"]
pytestmark = pytest.mark.end_to_end


@pytest.fixture
def run(monkeypatch):
    """A fairseq command inside this process."""

    def command(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        module.cli_main()

    return command


@pytest.fixture
def train(run):
    def command(family, data, folder, *flags):
        run(fairseq_cli.train, data, *FAMILIES[family], *COMMON, "--save-dir", folder, *flags)
        return load_checkpoint(folder / "checkpoint_last.pt")

    return command


def expand(checkpoint, dictionary, output, *flags, words=NEW):
    (output.parent / "new.txt").write_text("".join(f"{word}\n" for word in words))
    files = ["--checkpoint", checkpoint, "--dict", dictionary, "--words", output.parent / "new.txt"]
    assert main([str(part) for part in ["expand-vocab", *files, "--output", output, *flags]]) == 0
    return json.loads((output / "expansion.json").read_text())


def with_new_words(folder, text):
    """The text with every d1 or d3 or d5 replaced by a new word."""
    for split in ("train", "valid", "test"):
        words = [line.split() for line in (text / f"{split}.de").read_text().splitlines()]
        pairs = {word.split("d")[1]: word for word in NEW}
        lines = [" ".join(pairs.get(word[1:], word) for word in line) for line in words]
        (folder / f"{split}.de").write_text("\n".join(lines) + "\n")
        shutil.copyfile(text / f"{split}.en", folder / f"{split}.en")


def preprocess(run, texts, output, *flags):
    prefixes = [f"--{split}pref={texts / split}" for split in ("train", "valid", "test")]
    run(fairseq_cli.preprocess, *prefixes, f"--destdir={output}", *flags)


def rows_of(state, key, rows):
    return state["model"][key][rows].clone()


@pytest.mark.parametrize("family", ["lm", "tupe"])
def test_one_dictionary(run, train, monolingual, toy_translation, tmp_path, family, capsys):
    """Resumed on text with the new words they are trained, and everything else goes on; fine-tuned likewise."""
    before = train(family, monolingual, tmp_path / "run", "--max-update", "2")
    record = expand(tmp_path / "run" / "checkpoint_last.pt", monolingual / "dict.txt", tmp_path / "out")
    assert record["averages"] == (["ema", "ema_fp32_params"] if family == "lm" else [])
    with_new_words(tmp_path, toy_translation.parent)
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.de").rename(tmp_path / split)
    preprocess(run, tmp_path, tmp_path / "bin", "--only-source", "--srcdict", tmp_path / "out" / "dict.txt")
    key = next(iter(record["tables"]))
    rows = [word["row"] for word in record["words"]]
    start = rows_of(load_checkpoint(tmp_path / "out" / "model.pt"), key, rows)
    (tmp_path / "resumed").mkdir()
    shutil.copyfile(tmp_path / "out" / "model.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    resumed = train(family, tmp_path / "bin", tmp_path / "resumed", "--max-update", "4")
    assert resumed["optimizer_history"][-1]["num_updates"] == 4
    steps = {float(held["step"]) for held in resumed["last_optimizer_state"]["state"].values()}
    assert steps == {4.0}
    assert (rows_of(resumed, key, rows) - start).abs().min(dim=1).values.min() > 0
    start_of = ["--max-update", "1", "--finetune-from-model", tmp_path / "out/model.pt"]
    tuned = train(family, tmp_path / "bin", tmp_path / "tuned", *start_of)
    assert tuned["optimizer_history"][-1]["num_updates"] == 1
    assert 0 < (rows_of(tuned, key, rows) - start).abs().max() < 0.02  # one step of Adam from there
    assert before["model"][key].shape[0] + 3 == tuned["model"][key].shape[0]
    use(run, family, tmp_path, capsys)


def use(run, family, folder, capsys):
    if family == "lm":
        run(fairseq_cli.eval_lm, folder / "bin", "--path", folder / "out" / "model.pt", "--gen-subset", "test", "--cpu")
        hub = TransformerLanguageModel.from_pretrained(str(folder / "out"), "model.pt")
        assert hub.score("d1d2 d7 d9")["tokens"].tolist()[0] == hub.task.dictionary.index("d1d2") > 3
        return
    hub = TupeModel.from_pretrained(str(folder / "out"), "model.pt")
    dictionary = hub.task.source_dictionary
    tokens = torch.tensor([0, dictionary.index("d1d2"), dictionary.index("<mask>"), dictionary.index("d9"), 2])
    assert len({*tokens.tolist(), 3}) == 6
    assert hub.extract_features(tokens).shape == (1, 5, 8)


def test_translation_with_two_dictionaries(run, train, toy_translation, tmp_path, capsys):
    family = "duo"
    train(family, toy_translation, tmp_path / "run", "--max-update", "2")
    dictionary = toy_translation / "dict.de.txt"
    record = expand(tmp_path / "run" / "checkpoint_last.pt", dictionary, tmp_path / "out", "--side", "encoder")
    assert record["softmax"] is False
    assert len(record["tables"]) == 2
    second = tmp_path / "both"
    second.mkdir()
    words = [f"e{i}e" for i in range(12)]
    flags = ["--side", "decoder", "--method", "gaussian"]
    record = expand(
        tmp_path / "out" / "model.pt", tmp_path / "out" / "dict.en.txt", second / "out", *flags, words=words
    )
    assert (record["rows_before"], record["rows_after"], record["softmax"]) == (64, 76, True)
    with_new_words(tmp_path, toy_translation.parent)
    dictionaries = [
        f"--{side}dict={second / 'out' / name}" for side, name in (("src", "dict.de.txt"), ("tgt", "dict.en.txt"))
    ]
    preprocess(run, tmp_path, tmp_path / "bin", "-s", "de", "-t", "en", *dictionaries)
    (tmp_path / "resumed").mkdir()
    shutil.copyfile(second / "out" / "model.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    resumed = train(family, tmp_path / "bin", tmp_path / "resumed", "--max-update", "4")
    assert {float(held["step"]) for held in resumed["last_optimizer_state"]["state"].values()} == {4.0}
    capsys.readouterr()
    model = second / "out" / "model.pt"
    run(
        fairseq_cli.generate, tmp_path / "bin", "--path", model, "--beam", "2", "--cpu", "--max-len-b", "8", *COMMON[:2]
    )
    assert capsys.readouterr().out.count("\nH-") == 20


def test_resuming_goes_on_as_if_nothing_had_happened(train, toy_translation, tmp_path):
    """Source words that never occur get no gradient: all other numbers must be those of the run without them, to the
    last bit. So the order in which the optimiser knows its parameters was understood."""
    train("transformer", toy_translation, tmp_path / "run", "--max-update", "3")
    flags = ["--side", "encoder"]
    last = tmp_path / "run" / "checkpoint_last.pt"
    record = expand(last, toy_translation / "dict.de.txt", tmp_path / "out", *flags, words=["never", "ever"])
    shutil.copytree(toy_translation, tmp_path / "bin")
    shutil.copyfile(tmp_path / "out" / "dict.de.txt", tmp_path / "bin" / "dict.de.txt")
    (tmp_path / "resumed").mkdir()
    shutil.copyfile(tmp_path / "out" / "model.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    whole = train("transformer", toy_translation, tmp_path / "run", "--max-update", "6")
    resumed = train("transformer", tmp_path / "bin", tmp_path / "resumed", "--max-update", "6")
    hub = TransformerModel.from_pretrained(str(tmp_path / "out"), "model.pt")  # the languages are in the checkpoint
    assert isinstance(hub.translate("never d7 d3", beam=2), str)
    (table,) = record["tables"]
    for key, value in whole["model"].items():
        found = resumed["model"][key]
        assert torch.equal(found[: len(value)] if key == table else found, value), key
    for number, held in whole["last_optimizer_state"]["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            found = resumed["last_optimizer_state"]["state"][number][name]
            assert torch.equal(found[: len(held[name])], held[name])
