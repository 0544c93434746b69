"""`embinit expand-vocab` between real fairseq commands: train, expand, then resume, fine-tune, generate, score, use."""

from __future__ import annotations

import json
import shutil
import sys

import fairseq_cli.eval_lm
import fairseq_cli.generate
import fairseq_cli.preprocess
import fairseq_cli.train
import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from pre_training import PLUGIN

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.main import main
from embinit_fairseq.models.tupe import TupeModel

ENCODER = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2"
DECODER = ENCODER.replace("encoder", "decoder")
COMMON = """--optimizer adam --lr 0.01 --batch-size 20 --cpu --required-batch-size-multiple 1 --log-format none
    --num-workers 0 --no-epoch-checkpoints"""
FAMILIES = {
    "transformer": f"--task translation {ENCODER} {DECODER} --arch transformer_iwslt_de_en",
    "lm": f"""--task language_modeling {DECODER} --tokens-per-sample 32 --sample-break-mode eos --store-ema --ema-fp32
        --arch transformer_lm_gpt --share-decoder-input-output-embed""",
    "tupe": f"""--task masked_lm --criterion masked_lm {ENCODER} --tokens-per-sample 32 --arch tupe_tiny --rel-pos
        --max-positions 32""",
}
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
    def command(family, data, folder, updates, *flags, start=None):
        if start is not None:
            folder.mkdir()
            shutil.copyfile(start, folder / "checkpoint_last.pt")
        flags = ["--save-dir", folder, "--max-update", updates, *flags]
        run(fairseq_cli.train, data, *PLUGIN, *FAMILIES[family].split(), *COMMON.split(), *flags)
        return load_checkpoint(folder / "checkpoint_last.pt")

    return command


def expand(checkpoint, dictionary, output, words, *flags):
    (output.parent / "new.txt").write_text("\n".join(words))
    files = {"checkpoint": checkpoint, "dict": dictionary, "words": output.parent / "new.txt", "output": output}
    assert main(["expand-vocab", *(f"--{option}={path}" for option, path in files.items()), *flags]) == 0
    return json.loads((output / "expansion.json").read_text())


def text_with_new_words(toy_translation, folder):
    """The German text with every d1, d3, d5 replaced by a new word, and the English one."""
    new = {"d1": "d1d2", "d3": "d3d4", "d5": "d5d6"}
    for split in ("train", "valid", "test"):
        lines = (toy_translation.parent / f"{split}.de").read_text().splitlines()
        text = "".join(" ".join(new.get(word, word) for word in line.split()) + "\n" for line in lines)
        for name in (split, f"{split}.de"):
            (folder / name).write_text(text)
        shutil.copyfile(toy_translation.parent / f"{split}.en", folder / f"{split}.en")
    return list(new.values()), [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]


def steps_of(checkpoint) -> set[float]:
    return {float(held["step"]) for held in checkpoint["last_optimizer_state"]["state"].values()}


@pytest.mark.parametrize("family", ["lm", "tupe"])
def test_one_dictionary(run, train, monolingual, toy_translation, tmp_path, family):
    """Resumed on text with the new words they are trained, and everything else goes on; fine-tuned likewise."""
    train(family, monolingual, tmp_path / "run", 2)
    words, texts = text_with_new_words(toy_translation, tmp_path)
    out, binary = tmp_path / "out", tmp_path / "bin"
    record = expand(tmp_path / "run" / "checkpoint_last.pt", monolingual / "dict.txt", out, words)
    assert record["averages"] == (["ema", "ema_fp32_params"] if family == "lm" else [])
    flags = ["--only-source", "--srcdict", out / "dict.txt", "--destdir", binary]
    run(fairseq_cli.preprocess, *texts, *flags)
    key, rows = next(iter(record["tables"])), [word["row"] for word in record["words"]]
    start = load_checkpoint(out / "model.pt")["model"][key][rows]
    resumed = train(family, binary, tmp_path / "resumed", 4, start=out / "model.pt")
    assert steps_of(resumed) == {4.0} == {float(resumed["optimizer_history"][-1]["num_updates"])}
    assert (resumed["model"][key][rows] - start).abs().min(dim=1).values.min() > 0
    if family == "lm":
        run(fairseq_cli.eval_lm, binary, "--path", out / "model.pt", "--gen-subset", "test", "--cpu")
        hub = TransformerLanguageModel.from_pretrained(str(out), "model.pt")
        assert hub.score("d1d2 d7 d9")["tokens"].tolist()[0] == hub.task.dictionary.index("d1d2") > 3
        return
    tuned = train(family, binary, tmp_path / "tuned", 1, "--finetune-from-model", out / "model.pt")
    assert 0 < (tuned["model"][key][rows] - start).abs().max() < 0.02  # one step of Adam from there
    hub = TupeModel.from_pretrained(str(out), "model.pt")
    tokens = torch.tensor([0, *map(hub.task.source_dictionary.index, ("d1d2", "<mask>", "d9")), 2])
    assert len({*tokens.tolist(), 3}) == 6
    assert hub.extract_features(tokens).shape == (1, 5, 8)


def test_translation(run, train, toy_translation, tmp_path, capsys):
    """Source words that never occur get no gradient: all other numbers must be those of the run without them, to the
    last bit. So the order in which the optimiser knows its parameters was understood. Then the other side grows."""
    train("transformer", toy_translation, tmp_path / "run", 3)
    last, out, second = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "out", tmp_path / "second"
    words, texts = text_with_new_words(toy_translation, tmp_path)
    record = expand(last, toy_translation / "dict.de.txt", out, words, "--side=encoder")
    assert record["softmax"] is False
    shutil.copytree(toy_translation, tmp_path / "bin")
    shutil.copyfile(out / "dict.de.txt", tmp_path / "bin" / "dict.de.txt")
    whole = train("transformer", toy_translation, tmp_path / "run", 5)
    resumed = train("transformer", tmp_path / "bin", tmp_path / "resumed", 5, start=out / "model.pt")
    hub = TransformerModel.from_pretrained(str(out), "model.pt")  # the languages are in the checkpoint
    assert isinstance(hub.translate("d1d2 d7 d3", beam=2), str)
    (table,) = record["tables"]
    for key, value in whole["model"].items():
        found = resumed["model"][key]
        assert torch.equal(found[: len(value)] if key == table else found, value), key
    for number, held in whole["last_optimizer_state"]["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            found = resumed["last_optimizer_state"]["state"][number][name]
            assert torch.equal(found[: len(held[name])], held[name])

    flags = ["--side=decoder", "--method=gaussian"]
    record = expand(out / "model.pt", out / "dict.en.txt", second, [f"e{i}e" for i in range(12)], *flags)
    assert (record["rows_before"], record["rows_after"], record["softmax"]) == (64, 76, True)
    dictionaries = [f"--{side}dict={second}/dict.{name}.txt" for side, name in (("src", "de"), ("tgt", "en"))]
    run(fairseq_cli.preprocess, "-s", "de", "-t", "en", *texts, *dictionaries, "--destdir", tmp_path / "new")
    assert steps_of(train("transformer", tmp_path / "new", tmp_path / "both", 4, start=second / "model.pt")) == {4.0}
    capsys.readouterr()
    flags = ["--path", second / "model.pt", "--beam", "2", "--cpu", "--max-len-b", "8", *PLUGIN]
    run(fairseq_cli.generate, tmp_path / "new", *flags)
    assert capsys.readouterr().out.count("\nH-") == 20
