"""Embedding matrices of the translation models through real trainings, and options that a training must not change."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
import torch
from pre_training import TRAINING, train_command
from trainings import losses, model_of, run_to_end

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import DimensionError, OptionError
from embinit_fairseq.models.duo_transformer import DuoTransformerModel

pytestmark = pytest.mark.end_to_end
SIZES = """--encoder-layers 1 --decoder-layers 1 --encoder-ffn-embed-dim 8 --decoder-ffn-embed-dim 8
    --encoder-attention-heads 4 --decoder-attention-heads 4 --batch-size 20 --lr 0.003""".split()
DUO = f"--task translation --arch duo_transformer_tiny --encoder-embed-dim 16 {' '.join(SIZES)}".split()
TUPE = f"--task translation --arch tupe_transformer --rel-pos --encoder-embed-dim 8 {' '.join(SIZES)}".split()
STILL = ["--max-update", "1", "--lr", "0"]  # the checkpoint of update 0
#: the embedding matrix of each slot
MATRICES = {
    "encoder": "encoder.embedding.embed_tokens.weight",
    "encoder_p": "encoder.embedding.embed_tokens_p.weight",
    "decoder": "decoder.embedding.embed_tokens.weight",
    "decoder_p": "decoder.embedding.embed_tokens_p.weight",
}


def command(data, *flags):
    return train_command(data, *TRAINING, *flags)


@pytest.fixture(scope="module")
def joined(trained):
    """Translation with one dictionary of both languages."""
    return trained("duo_transformer").data / "text"


def vectors(path, words, dim, seed):
    """A GloVe text file for these words."""
    rows = np.random.default_rng(seed).normal(0.1, 0.4, (len(words), dim))
    path.write_text("".join(f"{word} " + " ".join(f"{x:.5f}" for x in row) + "\n" for word, row in zip(words, rows)))
    return dict(zip(words, torch.from_numpy(rows)))


def words_of(data, language):
    found = [line.split()[0] for line in (data / f"dict.{language}.txt").read_text().splitlines()]
    return [word for word in found if "madeup" not in word]


def slots_of(run):
    return json.loads((run / "embed_init.json").read_text())["slots"]


@pytest.mark.parametrize("strategy", ["pretrained", "pretrained_xavier"])
def test_embed_init_fills_four_matrices_of_four_dimensions(strategy, toy_translation, here, tmp_path):
    """And leaves the one without a path to xavier."""
    dims, written, paths = {"encoder": 5, "encoder_p": 7, "decoder": 6, "decoder_p": 9}, {}, []
    languages = {slot: "de" if slot.startswith("encoder") else "en" for slot in dims}
    for seed, (slot, dim) in enumerate(dims.items()):
        written[slot] = vectors(tmp_path / f"{slot}.txt", words_of(toy_translation, languages[slot]), dim, seed)
        paths.append(f"{slot}={tmp_path / slot}.txt")
    flags = ["--encoder-dim-s", 5, "--encoder-dim-p", 7, "--decoder-dim-s", 6, "--decoder-dim-p", 9]
    init = ["--embed-init", strategy, "--embed-init-path", *paths[:3], "--save-dir", tmp_path / "run"]
    here(command(toy_translation, *DUO, *flags, *STILL, *init))
    slots, model = slots_of(tmp_path / "run"), model_of(tmp_path / "run" / "checkpoint_last.pt")
    assert set(slots) == set(dims)
    for slot, dim in dims.items():
        matrix = model[MATRICES[slot]]
        assert (slots[slot]["dim"], matrix.shape[1]) == (dim, dim)
        assert slots[slot]["strategy"] == (strategy if slot != "decoder_p" else "xavier")
        assert slots[slot]["absorption_ratio"] > 0
        row, expected = matrix[4 + 3].double(), written[slot][words_of(toy_translation, languages[slot])[3]]
        correlation = float(torch.corrcoef(torch.stack([row, expected]))[0, 1])
        assert (correlation > 0.9999) == (slot != "decoder_p")
        assert torch.allclose(row, expected, atol=1e-5) == (strategy == "pretrained" and slot != "decoder_p")
        assert not matrix[1].any()


def test_embed_init_finds_no_positions_beside_the_words_of_tupe_transformer(
    toy_translation, glove, here, tmp_path, caplog
):
    paths = [f"encoder={glove['de']}", f"decoder={glove['en']}"]
    init = ["--embed-init", "pretrained", "--embed-init-path", *paths, "--save-dir", tmp_path]
    here(command(toy_translation, *TUPE, *STILL, *init))
    slots, model = slots_of(tmp_path), model_of(tmp_path / "checkpoint_last.pt")
    assert set(slots) == {"encoder", "decoder"}
    for slot, language in (("encoder", "de"), ("decoder", "en")):
        assert slots[slot]["position_std"] is slots[slot]["absorption_ratio"] is None
        assert slots[slot]["embed_scale"] == pytest.approx(8**0.5)
        with open(glove[language]) as file:
            written = dict(line.split(" ", 1) for line in file)
        words = words_of(toy_translation, language)
        word = next(word for word in words if word in written)
        expected = torch.tensor([float(x) for x in written[word].split()])
        assert torch.equal(model[f"{slot}.embed_tokens.weight"][4 + words.index(word)], expected)
    assert "absorption ratio" not in caplog.text


def test_embed_init_fills_tied_matrices_once(joined, here, tmp_path):
    """encoder and decoder are one slot with two names; as frozen rows they stay what they were in training."""
    words = words_of(joined, "de")
    s, p = vectors(tmp_path / "s.txt", words, 16, 0), vectors(tmp_path / "p.txt", words, 5, 1)
    paths = [f"encoder={tmp_path / 's.txt'}", f"decoder_p={tmp_path / 'p.txt'}"]
    flags = ["--share-all-embeddings", "--encoder-dim-p", 5, "--embed-init", "pretrained", "--embed-init-path", *paths]
    run = ["--embed-init-freeze", "decoder", "--max-update", "3", "--save-dir", tmp_path / "run"]
    here(command(joined, *DUO, "--decoder-embed-dim", 16, *flags, *run))
    tied = {name: slot["tied"] for name, slot in slots_of(tmp_path / "run").items()}
    assert tied == {"encoder": ["decoder"], "encoder_p": ["decoder_p"]}
    model = model_of(tmp_path / "run" / "checkpoint_last.pt")
    for encoder, decoder, written, frozen in (("encoder", "decoder", s, True), ("encoder_p", "decoder_p", p, False)):
        assert torch.equal(model[MATRICES[encoder]], model[MATRICES[decoder]])
        row = model[MATRICES[encoder]][4 + 3].double()
        assert torch.allclose(row, written[words[3]], atol=1e-5) == frozen
        assert torch.allclose(row, written[words[3]], atol=0.05)


def test_the_papers_model(joined, here, tmp_path):
    """Tied, one matrix from GloVe and one that is learned: what they begin with, what is computed from them, and that
    they learn."""
    words = words_of(joined, "de")
    written = vectors(tmp_path / "glove.txt", words[:-3], 12, 0)  # three words have no vector
    paper = ["--share-all-embeddings", "--encoder-dim-s", 12, "--duo-share-weights", "pair", "--decoder-embed-dim", 16]
    init = ["--embed-init", "pretrained", "--embed-init-path", f"encoder={tmp_path / 'glove.txt'}"]
    here(command(joined, *DUO, *paper, *init, *STILL, "--save-dir", tmp_path / "start"))
    slots = {name: (slot["strategy"], slot["tied"]) for name, slot in slots_of(tmp_path / "start").items()}
    assert slots == {"encoder": ("pretrained", ["decoder"]), "encoder_p": ("xavier", ["decoder_p"])}
    model = model_of(tmp_path / "start" / "checkpoint_last.pt")
    glove, learned = model[MATRICES["encoder"]], model[MATRICES["encoder_p"]]
    for word, row in written.items():
        assert torch.allclose(glove[4 + words.index(word)].double(), row, atol=1e-5)
    bound = (6 / (len(learned) + 16)) ** 0.5
    assert 0.95 * bound < float(learned.abs().max()) <= bound
    assert float(learned[4:].std()) == pytest.approx(bound / 3**0.5, rel=0.1)
    for side in ("encoder", "decoder"):  # E_S is mapped to the dimension of the model, E_P has it
        assert model[f"{side}.embedding.embed_map.weight"].shape == (16, 12)
    assert model["decoder.fused_tables.proj.weight"].shape == (16, 12 + 16)
    assert not [name for name in model if "output_projection" in name or "embed_map_p" in name]

    found = losses(run_to_end(command(joined, *DUO, *paper, *init, "--max-update", 60, "--save-dir", tmp_path / "run")))
    assert float(found["train", "60"]) < 0.8 * float(found["train", "1"])
    hub = DuoTransformerModel.from_pretrained(str(tmp_path / "run"), "checkpoint_last.pt", str(joined))
    model = hub.models[0]
    source, previous = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8, 9]])
    with torch.no_grad():
        logits, _ = model(source, None, previous)
        f, _ = model(source, None, previous, features_only=True)
    tied = torch.cat([model.get_parameter(MATRICES[slot]) for slot in ("encoder", "encoder_p")], dim=1)
    expected = f @ (tied @ model.get_parameter("decoder.fused_tables.proj.weight").T).T
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_a_training_that_began_as_on_goes_on_as_stream(toy_translation, here, tmp_path):
    """The older name is in command lines and in the checkpoints that they made; no other name is the same function."""
    flags = [*DUO, "--duo-share-weights"]
    whole = losses(
        run_to_end(command(toy_translation, *flags, "stream", "--max-update", 12, "--save-dir", tmp_path / "w"))
    )
    here(command(toy_translation, *flags, "on", "--max-update", 6, "--save-dir", tmp_path / "run"))
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    assert str(load_checkpoint(checkpoint)["cfg"]["model"]["duo_share_weights"]) == "on"
    last = ["--max-update", 12, "--save-dir", tmp_path / "run"]
    with pytest.raises(OptionError, match=r"--duo-share-weights stream \(here pair\)"):
        here(command(toy_translation, *flags, "pair", *last))
    with pytest.raises(OptionError, match=r"--duo-norm decoder \(here off\)"):  # of which no shape tells
        here(command(toy_translation, *flags, "stream", "--duo-norm", "off", *last))
    rest = losses(run_to_end(command(toy_translation, *flags, "stream", *last)))
    assert {number for kind, number in rest if kind == "train"} == {str(number) for number in range(7, 13)}
    assert all(whole[key] == loss for key, loss in rest.items())


@pytest.mark.parametrize(
    ("model", "flags", "remedy"),
    [
        (TUPE, ["--share-all-embeddings"], "binarise with --joined-dictionary"),
        (DUO, ["--share-all-embeddings"], "binarise with --joined-dictionary"),
        (
            DUO,
            ["--embed-init", "pretrained", "--embed-init-path", "encoder_q=x"],
            "encoder, encoder_p, decoder, decoder_p",
        ),
        (DUO, ["--embed-init", "pretrained"], "encoder=VECTORS encoder_p=VECTORS decoder=VECTORS decoder_p=VECTORS"),
        (DUO, ["--embed-init", "pretrained", "--embed-init-path", "encoder_p={vectors}"], "--encoder-dim-p"),
    ],
)
def test_mistakes_end_before_training_with_a_remedy(model, flags, remedy, toy_translation, here, tmp_path):
    vectors(tmp_path / "v.txt", words_of(toy_translation, "de"), 5, 0)
    flags = [flag.format(vectors=tmp_path / "v.txt") for flag in flags]
    with pytest.raises((OptionError, DimensionError), match=remedy):
        here(command(toy_translation, *model, *flags, "--max-update", "1", "--save-dir", tmp_path / "run"))
    assert not list(tmp_path.glob("run/*"))


def test_the_command_ends_with_an_exit_status_and_the_remedy(toy_translation, tmp_path):
    arguments = command(toy_translation, *DUO, "--duo-streams", "3", "--save-dir", tmp_path)
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode != 0
    assert "--duo-streams 3: must be 1 or 2" in done.stderr.splitlines()[-1]
