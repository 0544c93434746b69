"""`--embed-init` on stock architectures and tasks, inside this process."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from embed_init_builds import ARCHITECTURES, SMALL, SMALL_DECODER, TRANSFORMER, D, build, read_text

from embinit_fairseq.checkpoints.reading import initialisation_record
from embinit_fairseq.errors import CoverageError, DimensionError, OptionError, SlotError, VectorFileError


def data_for(name, toy_translation, monolingual):
    return toy_translation if name in ("transformer", "lstm") else monolingual


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pretrained_rows_arrive_and_nothing_else_moves(name, toy_translation, monolingual, glove):
    arguments, slots = ARCHITECTURES[name]
    data = data_for(name, toy_translation, monolingual)
    paths = [f"{slot}={glove['en' if slot == 'decoder' and 'encoder' in slots else 'de']}" for slot in slots]
    plain, task, _ = build(data, arguments)
    filled, _, cfg = build(data, arguments, "--embed-init", "pretrained", "--embed-init-path", *paths)
    after_states = torch.get_rng_state()
    build(data, arguments)
    assert torch.equal(torch.get_rng_state(), after_states)  # the draws leave the global state alone
    tables = {f"{module}.embed_tokens.weight" for module in slots.values()}
    tied = {
        key
        for key, value in filled.state_dict().items()
        if any(value.data_ptr() == filled.state_dict()[table].data_ptr() for table in tables)
    }
    for key, value in plain.state_dict().items():
        assert torch.equal(value, filled.state_dict()[key]) == (key not in tied), key
    for slot, path in (text.split("=") for text in paths):
        table = filled.state_dict()[f"{slots[slot]}.embed_tokens.weight"].numpy()
        vectors = read_text(path)
        dictionary = task.target_dictionary if slot == "decoder" else task.source_dictionary
        found = [word for word in dictionary.symbols[4:] if word in vectors]
        assert len(found) > 30
        for word in found:
            assert (table[dictionary.index(word)] == vectors[word]).all()
        assert not table[dictionary.pad()].any()
        assert (table[dictionary.bos()] != vectors["<s>"]).all()
        bound = (6 / sum(table.shape)) ** 0.5
        assert (np.abs(table[dictionary.bos()]) <= bound).all()
    record = initialisation_record({"cfg": cfg})
    assert set(record["slots"]) == set(slots)


@pytest.mark.parametrize("share", ["--share-all-embeddings", "--share-decoder-input-output-embed"])
def test_tied_tables_stay_tied(share, toy_translation, glove, tmp_path):
    # one dictionary for both sides
    for name in toy_translation.iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    (tmp_path / "dict.en.txt").write_text((tmp_path / "dict.de.txt").read_text())
    model, _, _ = build(
        tmp_path, [*TRANSFORMER, share], "--embed-init", "pretrained", "--embed-init-path", f"decoder={glove['de']}"
    )
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    assert (model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight) == ("all" in share)
    vectors = read_text(glove["de"])
    assert (model.decoder.embed_tokens.weight[4:].detach().numpy() == vectors["d1"]).all(1).sum() == 1


def test_bart_has_one_table_for_everything(toy_translation, glove, tmp_path):
    for name in toy_translation.iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    (tmp_path / "dict.en.txt").write_text((tmp_path / "dict.de.txt").read_text())
    arguments = ["--task", "translation", "--arch", "bart_base", *TRANSFORMER[4:]]
    model, task, cfg = build(
        tmp_path, arguments, "--embed-init", "pretrained", "--embed-init-path", f"encoder={glove['de']}"
    )
    assert model.encoder.embed_tokens.weight is model.decoder.output_projection.weight
    row = model.decoder.embed_tokens.weight[task.source_dictionary.index("d1")].detach().numpy()
    assert (row == read_text(glove["de"])["d1"]).all()
    assert json.loads(cfg.model.embed_init_record)["slots"]["encoder"]["tied"] == ["decoder"]


def test_two_paths_for_one_table_are_refused(toy_translation, glove, tmp_path):
    for name in toy_translation.iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    (tmp_path / "dict.en.txt").write_text((tmp_path / "dict.de.txt").read_text())
    paths = [f"encoder={glove['de']}", f"decoder={glove['en']}"]
    flags = ["--share-all-embeddings", "--embed-init", "pretrained", "--embed-init-path", *paths]
    with pytest.raises(OptionError, match="one and the same"):
        build(tmp_path, TRANSFORMER, *flags)


def test_slots_without_a_path_get_xavier(toy_translation, glove):
    model, _, _ = build(
        toy_translation, TRANSFORMER, "--embed-init", "pretrained", "--embed-init-path", f"encoder={glove['de']}"
    )
    other, _, _ = build(toy_translation, TRANSFORMER, "--embed-init", "xavier")
    assert torch.equal(model.decoder.embed_tokens.weight, other.decoder.embed_tokens.weight)
    assert not torch.equal(model.encoder.embed_tokens.weight, other.encoder.embed_tokens.weight)


def test_the_seed_decides(toy_translation):
    def table(*flags, seed=1):
        return build(toy_translation, TRANSFORMER, "--embed-init", "xavier", *flags, seed=seed)[0].encoder.embed_tokens

    assert torch.equal(table().weight, table().weight)
    assert not torch.equal(table().weight, table(seed=2).weight)
    assert torch.equal(table("--embed-init-seed", "7").weight, table("--embed-init-seed", "7", seed=2).weight)


def test_std_option(toy_translation):
    model, _, _ = build(toy_translation, TRANSFORMER, "--embed-init", "xavier", "--embed-init-std", "0.5")
    rows = model.encoder.embed_tokens.weight.detach().double()
    assert float(rows[[0, *range(2, len(rows))]].std()) == pytest.approx(0.5, rel=0.02)


def test_registry_is_open(toy_translation):
    from embinit_fairseq.hooks.registry import EMBED_INIT_REGISTRY, EmbedInit, register_embed_init

    @register_embed_init("ones_for_test")
    class Ones(EmbedInit):
        def table(self, source, draws, options):
            return np.ones((draws.rows, draws.dim), dtype=np.float32)

    try:
        model, task, _ = build(toy_translation, TRANSFORMER, "--embed-init", "ones_for_test")
        table = model.encoder.embed_tokens.weight
        assert float(table.sum()) == (len(task.source_dictionary) - 1) * D
    finally:
        del EMBED_INIT_REGISTRY["ones_for_test"]


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ("--embed-init pretrained", OptionError, r"needs vectors: add --embed-init-path encoder=VECTORS decoder="),
        ("--embed-init pretrained --embed-init-path enc={de}", SlotError, r"no slot 'enc'; it has: encoder, decoder"),
        ("--embed-init pretrained --embed-init-path {de}", OptionError, "expected SLOT=PATH"),
        ("--embed-init pretrained --embed-init-path encoder={de}x", VectorFileError, r"de\.txtx"),
        ("--embed-init pretrained --embed-init-path encoder={en}", CoverageError, "none of the"),
        ("--embed-init pretrained --embed-init-path encoder={wide}", DimensionError, "--encoder-embed-dim 9"),
        (
            "--embed-init pretrained --embed-init-std 1 --embed-init-path encoder={de}",
            OptionError,
            "keeps the sigma .*--embed-init pretrained_xavier",
        ),
        (
            "--embed-init xavier_pretrained --embed-init-std 0.5x --embed-init-path encoder={de}",
            OptionError,
            "--embed-init-std 0.5x: .*--embed-init xavier",
        ),
        ("--embed-init normal --embed-init-std xavier", OptionError, "--embed-init-std xavier: .*--embed-init xavier"),
        ("--embed-init xavier --embed-init-std much", OptionError, "--embed-init-std much: .*0.25x"),
        ("--embed-init pretrained --embed-init-path encoder=concat:{de}", OptionError, "at least two"),
        ("--embed-init xavier --embed-init-std -1", OptionError, "positive"),
        ("--embed-init xavier --embed-init-freeze source", SlotError, "it has: encoder, decoder"),
        ("--embed-init xavier --embed-init-freeze encoder:sometimes", OptionError, "SLOT:known"),
        ("--embed-init xavier --embed-init-freeze encoder:known", OptionError, "not known which rows"),
        ("--embed-init pretrained --embed-init-format x --embed-init-path encoder={de}", OptionError, "there are: "),
    ],
)
def test_bad_options_are_refused_by_name(flags, error, message, toy_translation, glove, tmp_path):
    wide = tmp_path / "wide.txt"
    wide.write_text("".join(f"d{at} " + " ".join(["0.5"] * 9) + "\n" for at in range(60)))
    flags = flags.format(wide=wide, **glove).split()
    with pytest.raises(error, match=message):
        build(toy_translation, TRANSFORMER, *flags)


def test_models_without_a_table_are_refused(monolingual):
    adaptive = (
        "--adaptive-input --adaptive-input-factor 1 --adaptive-input-cutoff 20,40 --adaptive-softmax-cutoff 20,40"
    )
    arguments = [*ARCHITECTURES["transformer_lm"][0], *adaptive.split(), "--criterion", "adaptive_loss"]
    with pytest.raises(SlotError, match="adaptive or character"):
        build(monolingual, arguments, "--embed-init", "xavier")


def test_a_model_of_several_pairs_is_refused_by_name(toy_translation):
    """Its `encoder` is that of the first pair: filling one of them would look like success."""
    pairs = ["--task", "multilingual_translation", "--arch", "multilingual_transformer", "--lang-pairs", "de-en,en-de"]
    with pytest.raises(SlotError, match=r"of de-en, en-de, .*drop --embed-init"):
        build(toy_translation, [*pairs, *SMALL, *SMALL_DECODER], "--embed-init", "xavier")


def test_a_scale_that_is_none_is_one(monolingual):
    _, _, cfg = build(
        monolingual, ["--task", "legacy_masked_lm", "--arch", "xlm_base", *SMALL], "--embed-init", "xavier"
    )
    assert initialisation_record({"cfg": cfg})["slots"]["encoder"]["embed_scale"] == 1.0


def test_generation_never_opens_vectors(toy_translation, glove):
    """`from_checkpoint=True` is how fairseq builds a model whose weights come from a file."""
    _, task, cfg = build(toy_translation, TRANSFORMER, "--embed-init", "xavier")
    cfg.model.embed_init, cfg.model.embed_init_path = "pretrained", ["encoder=/nonexistent"]
    task.build_model(cfg.model, from_checkpoint=True)
    with pytest.raises(VectorFileError):
        task.build_model(cfg.model)
