"""Converted checkpoints of the TUPE authors' code: outputs equal theirs, and fairseq's commands accept them."""

from __future__ import annotations

import math
import re
import subprocess
from pathlib import Path

import authors_tupe as authors
import pytest
import torch
from fairseq import checkpoint_utils
from programs import PYTHON

from embinit_fairseq.convert_tupe.convert import convert_tupe
from embinit_fairseq.convert_tupe.options import flags
from embinit_fairseq.models.tupe import TupeModel

REPOSITORY = Path(__file__).resolve().parents[2]
SYMBOLS = 17
MASK = SYMBOLS - 1
HEAD = "sentence_classification_head"
#: `<s> ... </s>`, padded on the right; a row that fills all 16 positions
TOKENS = torch.tensor(
    [
        [0, 7, 8, MASK, 10, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [0, 5, 6, 3, 9, 11, 12, 13, 14, 15, 7, 8, 9, MASK, 11, 2],
        [0, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]
)


def convert(folder, weights, fp16=False, **changes) -> Path:
    args = authors.make_args(weights, **changes)
    checkpoint = authors.save(folder / "ref.pt", weights, args, fp16=fp16, legacy=True)
    dictionary = authors.write_dictionary(folder / "theirs.txt", authors.words_of_dictionary())
    convert_tupe(checkpoint, dictionary, str(folder / "out"))
    return folder / "out"


def load(folder, how) -> torch.nn.Module:
    if how == "hub":
        return TupeModel.from_pretrained(str(folder), "model.pt").model
    path, data = str(folder / "model.pt"), {"data": str(folder)}
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides=data)
    return models[0].eval()


def assert_equal(ours, theirs, precision):
    assert theirs.abs().max() > 0.1  # there is something to compare
    torch.testing.assert_close(ours, theirs, rtol=0, atol={torch.float64: 1e-9, torch.float32: 5e-5}[precision])


@pytest.mark.parametrize(
    ("rel_pos", "emb_norm", "pre_ln", "fp16"),
    [(True, True, False, False), (True, False, True, True), (False, True, True, False), (False, False, False, True)],
)
@torch.no_grad()
def test_features_and_logits_equal_theirs(tmp_path, rel_pos, emb_norm, pre_ln, fp16):
    weights = authors.make_weights(SYMBOLS, rel_pos=rel_pos, emb_norm=emb_norm, pre_ln=pre_ln)
    folder = convert(tmp_path, weights, fp16)
    tokens, real = TOKENS, TOKENS != authors.PAD
    for how in ("fairseq", "hub"):
        model = load(folder, how)
        for precision in (torch.float32, torch.float64):
            w = {name: (value.half() if fp16 else value).to(precision) for name, value in weights.items()}
            model = model.to(precision)
            expected = authors.features(w, tokens)
            ours, _ = model(tokens, features_only=True)
            assert_equal(ours[real], expected[real], precision)
            logits, _ = model(tokens)
            assert logits.shape == (*tokens.shape, SYMBOLS)
            assert_equal(logits[real], authors.lm_logits(w, expected)[real], precision)
            masked = tokens == MASK
            logits, _ = model(tokens, masked_tokens=masked)
            assert_equal(logits, authors.lm_logits(w, expected[masked]), precision)


@torch.no_grad()
def test_distances_beyond_the_last_bucket(tmp_path):
    weights = authors.make_weights(SYMBOLS, positions=140)
    tokens = torch.randint(3, SYMBOLS, (2, 140), generator=torch.Generator().manual_seed(1))
    tokens[:, 0], tokens[1, 60:] = 0, authors.PAD
    model = load(convert(tmp_path, weights), "fairseq").double()
    expected = authors.features({name: value.double() for name, value in weights.items()}, tokens)
    real = tokens != authors.PAD
    assert_equal(model(tokens, features_only=True)[0][real], expected[real], torch.float64)


@pytest.mark.parametrize(("rel_pos", "regression"), [(False, True), (True, False)])
@torch.no_grad()
def test_classification_logits_equal_theirs(tmp_path, rel_pos, regression):
    weights = authors.make_weights(SYMBOLS, rel_pos=rel_pos, classes=1 if regression else 3)
    folder = convert(tmp_path, weights, **authors.fine_tuned(regression_target=regression))
    for how in ("fairseq", "hub"):
        model = load(folder, how)
        for precision in (torch.float32, torch.float64):
            w = {name: value.to(precision) for name, value in weights.items()}
            expected = authors.class_logits(w, authors.features(w, TOKENS))
            ours, _ = model.to(precision)(TOKENS, classification_head_name=HEAD)
            assert_equal(ours, expected, precision)


def test_the_hub_knows_the_words(tmp_path):
    weights = authors.make_weights(SYMBOLS, classes=3)
    hub = TupeModel.from_pretrained(str(convert(tmp_path, weights, **authors.fine_tuned())), "model.pt")
    # seven specials, w0, w1, ..., and <mask> as the last
    assert hub.encode("w0 w2 <url>", "<mask>").tolist() == [0, 7, 9, 6, 2, 2, MASK, 2]
    w = {name: value.double() for name, value in weights.items()}
    tokens = hub.encode("w0 w2")
    expected = authors.class_logits(w, authors.features(w, tokens[None])).log_softmax(-1)
    assert_equal(hub.double().predict(HEAD, tokens).detach(), expected, torch.float64)
    hub = TupeModel.from_pretrained(str(tmp_path / "out"), "model.pt", bpe="subword_nmt", bpe_codes=_codes(tmp_path))
    assert hub.cfg.bpe._name == "subword_nmt"


def _codes(folder) -> str:
    (folder / "codes").write_text("#version: 0.2\nw 0</w>\n")
    return str(folder / "codes")


# --- fairseq's commands


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def binarise(destination: Path, text: Path, dictionary: Path) -> None:
    command = [PYTHON, "-m", "fairseq_cli.preprocess", "--only-source", "--srcdict", dictionary]
    run(*command, "--trainpref", text, "--validpref", text, "--destdir", destination)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """Twelve lines of words of their dictionary and a class of each, binarised with converted dictionaries.

    folder/bin, and beside it ref.pt (fine-tuned) and out/, what the command makes of it.
    """
    folder, generator = tmp_path_factory.mktemp("sentences"), torch.Generator().manual_seed(0)
    draw = lambda high, *size: torch.randint(high, size, generator=generator).tolist()  # noqa: E731
    lines = [" ".join(f"w{word}" for word in draw(7, 1 + length % 5)) for length in range(12)]
    labels = draw(3, 12)
    (folder / "text").write_text("\n".join(lines) + "\n")
    (folder / "labels").write_text("".join(f"class{label}\n" for label in labels))
    weights = authors.make_weights(SYMBOLS, classes=3)
    args = authors.make_args(weights, **authors.fine_tuned())
    checkpoint = authors.save(folder / "ref.pt", weights, args, fp16=True)
    dictionary = authors.write_dictionary(folder / "theirs.txt", authors.words_of_dictionary())
    command = [PYTHON, "-m", "embinit_fairseq.cli.main", "convert-tupe", "--json"]
    run(*command, "--checkpoint", checkpoint, "--dict", dictionary, "--output", folder / "out")
    for column, text in (("input0", "text"), ("label", "labels")):
        binarise(folder / "bin" / column, folder / text, folder / "out" / column / "dict.txt")
    return folder, lines, labels, weights


def test_validation_of_a_fine_tuned_model_gives_their_loss(sentences):
    """The real command, on data binarised with the converted dictionary, against their forward on their ids."""
    folder, lines, labels, weights = sentences
    command = [PYTHON, "-m", "fairseq_cli.validate", folder / "bin", "--user-dir", "embinit_fairseq", "--cpu"]
    command += ["--path", folder / "out" / "model.pt", "--task", "sentence_prediction", "--num-classes", 3]
    command += ["--criterion", "sentence_prediction", "--init-token", 0, "--max-positions", 16, "--batch-size", 4]
    output = run(*command, "--log-format", "json")
    found = float(re.findall(r'"valid_loss": "([\d.]+)"', output)[-1])

    w = {name: value.half().double() for name, value in weights.items()}
    loss = 0.0
    for line, label in zip(lines, labels):
        tokens = torch.tensor([[0, *(7 + int(word[1:]) for word in line.split()), 2]])
        loss -= authors.class_logits(w, authors.features(w, tokens)).log_softmax(-1)[0, label].item()
    assert found == pytest.approx(loss / len(lines) / math.log(2), abs=1e-3)  # in bits, three digits printed


def test_training_goes_on_from_a_pretrained_model(tmp_path, sentences):
    folder = convert(tmp_path, authors.make_weights(SYMBOLS))
    command = [PYTHON, "-m", "fairseq_cli.train", sentences[0] / "bin", "--user-dir", "embinit_fairseq"]
    command += ["--cpu", "--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", 3]
    command += ["--init-token", 0, "--optimizer", "adam", "--lr", 0, "--max-update", 2, "--batch-size", 4]
    converted = torch.load(folder / "model.pt", weights_only=True)
    command += [*flags(converted["cfg"]["model"]).split(), "--finetune-from-model", folder / "model.pt"]
    run(*command, "--save-dir", tmp_path / "run", "--log-format", "json")
    trained = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=True)
    assert trained["optimizer_history"][-1]["num_updates"] == 2
    # lr 0: what was loaded is what is saved; fine-tuning needs no language-model head
    for name, value in converted["model"].items():
        if not name.startswith("encoder.lm_head."):
            assert torch.equal(trained["model"][name], value), name
