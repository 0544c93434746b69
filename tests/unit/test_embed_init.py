"""`--embed-init` on stock architectures: every option reaches what it is for, and the report says what was done."""

from __future__ import annotations

import functools
import json
import logging
import os
from argparse import Namespace
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from source_files import numbers

import embinit_fairseq
from embinit_fairseq.checkpoints.reading import initialisation_record
from embinit_fairseq.errors import CoverageError, DimensionError, OptionError, SlotError, VectorFileError
from embinit_fairseq.hooks.options import EmbedInitOptions, request_from
from embinit_fairseq.hooks.registry import EMBED_INIT_REGISTRY, EmbedInit, register_embed_init
from embinit_fairseq.init.draws import TargetStd, parse_std
from embinit_fairseq.init.report import unpack_rows

D = 8
SMALL = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2".split()
SMALL_DECODER = [flag.replace("encoder", "decoder") for flag in SMALL]
TRANSFORMER = ["--task", "translation", "--arch", "transformer_iwslt_de_en", *SMALL, *SMALL_DECODER]
MODELLING = ["--task", "language_modeling", "--tokens-per-sample", "16", "--arch"]
ARCHITECTURES = {
    "transformer": (TRANSFORMER, {"encoder": "encoder", "decoder": "decoder"}),
    "lstm": (
        "--task translation --arch lstm --encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-hidden-size 8 "
        "--decoder-hidden-size 8 --decoder-out-embed-dim 8".split(),
        {"encoder": "encoder", "decoder": "decoder"},
    ),
    "roberta": (
        ["--task", "masked_lm", "--arch", "roberta_base", *SMALL, "--tokens-per-sample", "16"],
        {"encoder": "encoder.sentence_encoder"},
    ),
    "transformer_lm": (
        [*MODELLING, "transformer_lm", *SMALL_DECODER, "--decoder-input-dim", "8", "--decoder-output-dim", "8"],
        {"decoder": "decoder"},
    ),
    "transformer_lm_gpt": ([*MODELLING, "transformer_lm_gpt", *SMALL_DECODER], {"decoder": "decoder"}),
    "lstm_lm": (
        [*MODELLING, *"lstm_lm --decoder-embed-dim 8 --decoder-hidden-size 8 --decoder-out-embed-dim 8".split()],
        {"decoder": "decoder"},
    ),
}
USER_DIR = os.path.dirname(embinit_fairseq.__file__)


def parsed(data, arguments, flags=(), seed=1) -> Namespace:
    common = [str(data), "--user-dir", USER_DIR, "--max-tokens", "100", "--seed", str(seed), "--no-save"]
    return options.parse_args_and_arch(options.get_training_parser(), [*common, *arguments, *flags])


@functools.lru_cache
def task_of(data, arguments):
    """fairseq's configuration takes most of the time that a build takes; the task's is the same for all."""
    return tasks.setup_task(convert_namespace_to_omegaconf(parsed(data, arguments)).task)


def build(data, arguments, *flags, seed=1):
    """Model, task and configuration as fairseq-train builds them."""
    args = parsed(data, arguments, flags, seed)
    if "transformer_lm" in args.arch:  # one with a dataclass
        cfg = convert_namespace_to_omegaconf(args)
        model, told = cfg.model, {"cfg": cfg}
    else:
        model, told = args, {"cfg": {"model": args}}
    task = task_of(str(data), tuple(arguments))
    np.random.seed(seed)
    utils.set_torch_seed(seed)
    return task.build_model(model), task, told


def record_of(cfg, slot):
    return initialisation_record(cfg)["slots"][slot]


def write_vectors(path, rows: dict) -> str:
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items()), encoding="utf-8")
    return str(path)


def read_text(path):
    lines = [line.split(" ") for line in Path(path).read_text().splitlines()]
    return {word: np.array(list(map(np.float32, vector))) for word, *vector in lines}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Dictionaries of 40 words a side, and of a language model; with no text, which no model needs to be built."""
    folder = tmp_path_factory.mktemp("data")
    for name, letter in (("dict.de.txt", "d"), ("dict.en.txt", "e"), ("dict.txt", "d")):
        lines = (f"{letter}{number} {50 - number}\n" for number in range(40))
        (folder / name).write_text("".join(lines))
    (folder / "train.de-en.de.idx").touch()  # what tells fairseq the languages
    return folder


@pytest.fixture(scope="module")
def shared(data, tmp_path_factory):
    """One dictionary for both sides."""
    folder = tmp_path_factory.mktemp("shared")
    for name in ("dict.de.txt", "dict.en.txt"):
        (folder / name).write_text((data / "dict.de.txt").read_text())
    (folder / "train.de-en.de.idx").touch()
    return folder


@pytest.fixture(scope="module")
def glove(tmp_path_factory):
    """GloVe text for 3 of 4 words of each side, and a row that is spelled `<s>`: language -> path."""
    folder = tmp_path_factory.mktemp("vectors")
    matrix = np.round(0.05 + 0.4 * numbers(31, D), 5)
    words = [number for number in range(40) if number % 4]
    return {
        language: write_vectors(
            folder / f"{language}.txt", dict(zip(["<s>", *(f"{language[0]}{n}" for n in words)], matrix))
        )
        for language in ("de", "en")
    }


def encoder(data, path, *flags, strategy="pretrained"):
    """Encoder table (N, D), its dictionary and its record."""
    flags = ["--embed-init", strategy, "--embed-init-path", f"encoder={path}", *flags]
    model, task, cfg = build(data, TRANSFORMER, *flags)
    return model.encoder.embed_tokens.weight.detach().numpy(), task.source_dictionary, record_of(cfg, "encoder")


# ---- architectures


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pretrained_rows_arrive_and_nothing_else_moves(name, data, glove):
    arguments, slots = ARCHITECTURES[name]
    paths = [f"{slot}={glove['en' if slot == 'decoder' and 'encoder' in slots else 'de']}" for slot in slots]
    plain, task, _ = build(data, arguments)
    state = torch.get_rng_state()
    filled, _, cfg = build(data, arguments, "--embed-init", "pretrained", "--embed-init-path", *paths)
    assert torch.equal(torch.get_rng_state(), state)  # the draws leave the global state alone
    weights = filled.state_dict()
    tables = {weights[f"{module}.embed_tokens.weight"].data_ptr() for module in slots.values()}
    for key, value in plain.state_dict().items():
        assert torch.equal(value, weights[key]) == (weights[key].data_ptr() not in tables), key
    for slot, path in (text.split("=") for text in paths):
        table = weights[f"{slots[slot]}.embed_tokens.weight"].numpy()
        vectors = read_text(path)
        dictionary = task.target_dictionary if slot == "decoder" else task.source_dictionary
        found = [word for word in dictionary.symbols[4:] if word in vectors]
        assert len(found) == 30
        for word in found:
            assert (table[dictionary.index(word)] == vectors[word]).all()
        assert not table[dictionary.pad()].any()
        assert (table[dictionary.bos()] != vectors["<s>"]).all()
        assert (np.abs(table[dictionary.bos()]) <= (6 / sum(table.shape)) ** 0.5).all()
    assert set(initialisation_record(cfg)["slots"]) == set(slots)


@pytest.mark.parametrize("share", ["--share-all-embeddings", "--share-decoder-input-output-embed", "bart_base"])
def test_tied_tables_stay_tied(share, shared, glove, tmp_path, monkeypatch):
    flags = ["--embed-init", "pretrained", "--embed-init-path"]
    bart = [*TRANSFORMER[:3], "bart_base", *TRANSFORMER[4:]]
    arguments = bart if share == "bart_base" else [*TRANSFORMER, share]
    model, _, cfg = build(shared, arguments, *flags, f"decoder={glove['de']}")
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    tied = share != "--share-decoder-input-output-embed"
    assert (model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight) == tied
    rows = model.decoder.embed_tokens.weight[4:].detach().numpy()
    assert (rows == read_text(glove["de"])["d1"]).all(1).tolist() == [row == 1 for row in range(40)]
    assert record_of(cfg, "encoder")["tied"] == (["decoder"] if tied else [])
    if tied:
        with pytest.raises(OptionError, match=r"encoder and decoder .*one and the same.*do not share"):
            build(shared, arguments, *flags, f"encoder={glove['de']}", f"decoder={glove['en']}")
        monkeypatch.setenv("HOME", os.path.dirname(glove["de"]))
        _, _, cfg = build(shared, arguments, *flags, "encoder=~/de.txt", "decoder=~/de.txt")
        assert record_of(cfg, "encoder")["source"]["path"] == glove["de"]


def test_slots_without_a_path_get_xavier(data, glove):
    flags = ["--embed-init", "pretrained", "--embed-init-path", f"encoder={glove['de']}"]
    model, _, cfg = build(data, TRANSFORMER, *flags)
    other, _, _ = build(data, TRANSFORMER, "--embed-init", "xavier")
    assert torch.equal(model.decoder.embed_tokens.weight, other.decoder.embed_tokens.weight)
    assert not torch.equal(model.encoder.embed_tokens.weight, other.encoder.embed_tokens.weight)
    assert (record_of(cfg, "decoder")["strategy"], record_of(cfg, "decoder")["source"]) == ("xavier", None)


def test_the_seed_decides(data):
    def table(*flags, seed=1):
        return build(data, TRANSFORMER, "--embed-init", "xavier", *flags, seed=seed)[0].encoder.embed_tokens.weight

    assert torch.equal(table(), table())
    assert not torch.equal(table(), table(seed=2))
    for own in ("7", "0", str(2**64 - 1)):
        assert torch.equal(table("--embed-init-seed", own), table("--embed-init-seed", own, seed=2))
    _, _, cfg = build(data, ARCHITECTURES["transformer_lm"][0], "--embed-init", "xavier", seed=5)
    assert record_of(cfg, "decoder")["seed"] == 5


def test_registry_is_open(data):
    @register_embed_init("ones_for_test")
    class Ones(EmbedInit):
        def table(self, source, draws, options):
            return np.ones((draws.rows, draws.dim), dtype=np.float32)

    try:
        model, task, _ = build(data, TRANSFORMER, "--embed-init", "ones_for_test")
        assert float(model.encoder.embed_tokens.weight.detach().sum()) == (len(task.source_dictionary) - 1) * D
    finally:
        del EMBED_INIT_REGISTRY["ones_for_test"]


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ("pretrained", OptionError, r"add --embed-init-path encoder=VECTORS decoder="),
        ("pretrained --embed-init-path enc={de}", SlotError, r"no slot 'enc'; it has: encoder, decoder"),
        ("pretrained --embed-init-path {de}", OptionError, "expected SLOT=PATH with SLOT one of encoder.decoder"),
        ("pretrained --embed-init-path encoder=", OptionError, "expected SLOT=PATH"),
        ("pretrained --embed-init-path encoder={de}x", VectorFileError, r"de\.txtx"),
        ("pretrained --embed-init-path encoder={en}", CoverageError, "--embed-init-path encoder=.*--embed-init-match"),
        ("pretrained --embed-init-path encoder={wide}", DimensionError, "--encoder-embed-dim 9"),
        ("pretrained --embed-init-std 1 --embed-init-path encoder={de}", OptionError, "--embed-init pretrained_xavier"),
        (
            "xavier_pretrained --embed-init-std 0.5x --embed-init-path encoder={de}",
            OptionError,
            "--embed-init-std 0.5x: .*--embed-init xavier",
        ),
        ("normal --embed-init-std xavier", OptionError, "--embed-init-std xavier: .*--embed-init xavier"),
        ("xavier --embed-init-std much", OptionError, "--embed-init-std much: .*0.25x"),
        ("xavier --embed-init-seed -1", OptionError, "--embed-init-seed -1"),
        (f"xavier --embed-init-seed {2**64}", OptionError, "--embed-init-seed"),
        ("pretrained --embed-init-path encoder=concat:{de}", OptionError, "at least two"),
        ("xavier --embed-init-freeze source", SlotError, "it has: encoder, decoder"),
        ("xavier --embed-init-freeze encoder:sometimes", OptionError, "SLOT:known"),
        ("xavier --embed-init-freeze encoder:known", OptionError, "not known which rows"),
        ("pretrained --embed-init-format x --embed-init-path encoder={de}", OptionError, "there are: "),
        ("pretrained --embed-init-format encoder=word2vec --embed-init-path encoder={de}", VectorFileError, "glove"),
        ("xavier --encoder-embed-path {header}", OptionError, "--encoder-embed-path .*pretrained .*encoder="),
        ("xavier --ddp-backend fully_sharded", OptionError, "fully_sharded.*another backend"),
        ("pretrained --embed-init-oov subword --embed-init-path encoder={de}", OptionError, "--embed-init-oov"),
        ("pretrained --embed-init-path encoder=concat:{wide},{de}", DimensionError, "together 17; expected 8"),
        ("pretrained --embed-init-path encoder=avg:{wide},{de}", OptionError, "concat:"),
        ("pretrained --embed-init-path encoder=avg:{de},{en}", CoverageError, r"--embed-init-path encoder=.*en\.txt"),
    ],
)
def test_bad_options_are_refused_by_name(flags, error, message, data, glove, tmp_path):
    wide = write_vectors(tmp_path / "wide.txt", {f"d{at}": [0.5] * 9 for at in range(40)})
    (tmp_path / "header.vec").write_text(f"31 {D}\n" + Path(glove["de"]).read_text())
    flags = flags.format(wide=wide, header=tmp_path / "header.vec", **glove).split()
    with pytest.raises(error, match=message):
        build(data, TRANSFORMER, "--embed-init", *flags)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [*ARCHITECTURES["transformer_lm"][0], *"--adaptive-input --adaptive-input-factor 1".split(),
             *"--adaptive-input-cutoff 20,30 --adaptive-softmax-cutoff 20,30 --criterion adaptive_loss".split()],
            "adaptive or character",
        ),
        (
            ["--task", "multilingual_translation", "--arch", "multilingual_transformer", "--lang-pairs", "de-en,en-de",
             *SMALL, *SMALL_DECODER],
            r"of de-en, en-de, .*drop --embed-init",
        ),
    ],
)  # fmt: skip
def test_models_without_one_table_a_side_are_refused(arguments, message, data):
    """Filling the table of the first pair would look like success."""
    with pytest.raises(SlotError, match=message):
        build(data, arguments, "--embed-init", "xavier")


def test_a_scale_that_is_none_is_one(data):
    _, _, cfg = build(data, ["--task", "legacy_masked_lm", "--arch", "xlm_base", *SMALL], "--embed-init", "xavier")
    assert record_of(cfg, "encoder")["embed_scale"] == 1.0


def test_generation_never_opens_vectors(data):
    """`from_checkpoint=True` is how fairseq builds a model whose weights come from a file."""
    _, task, cfg = build(data, TRANSFORMER, "--embed-init", "xavier")
    asked = cfg["cfg"]["model"]
    asked.embed_init, asked.embed_init_path = "pretrained", ["encoder=/nonexistent"]
    task.build_model(asked, from_checkpoint=True)
    with pytest.raises(VectorFileError):
        task.build_model(asked)


# ---- options


@pytest.mark.parametrize(
    ("unknown", "needs"),
    [
        ("--embed-init-path=encoder=a.txt --embed-init-strict", "--embed-init-path, --embed-init-strict: needs"),
        ("--embed-init-seed 3 --nobody-knows", "(--embed-init-seed: needs --embed-init {normal,xavier,"),
        ("--embed-init-pth a.txt", None),
        ("--embed-init xavier --embed-init-sed 3", None),
    ],
)
def test_what_is_unknown_for_want_of_a_strategy(unknown, needs, capsys):
    arguments = ["data", "--arch", "transformer", *unknown.split()]
    with pytest.raises(SystemExit):
        options.parse_args_and_arch(options.get_training_parser(), arguments)
    said = capsys.readouterr().err
    assert "unrecognized arguments" in said
    assert needs in said if needs else "needs" not in said
    assert "--embed-init-seed" in options.get_training_parser().format_help()
    assert "--embed-init-seed" not in options.get_generation_parser().format_help()


@pytest.mark.parametrize("choice", [[], ["--embed-init", "pretrained"]])
def test_help_of_trainings_explains_every_option(choice, capsys, monkeypatch):
    """fairseq itself shows no option of a registry, chosen or not."""
    monkeypatch.setenv("COLUMNS", "1000")  # no breaks at hyphens
    with pytest.raises(SystemExit):
        options.parse_args_and_arch(options.get_training_parser(), [*choice, "--help"])
    shown = capsys.readouterr().out
    words = " ".join(shown.split())
    explained = [option for option in fields(EmbedInitOptions) if option.metadata.get("help")]
    assert len(explained) == 10
    for option in explained:
        assert f" --{option.name.replace('_', '-')} " in words
        assert option.metadata["help"].replace("%(default)s", str(option.default)) in words
    assert "its options stand at the end" in words
    assert "docs/embed_init.md" in words
    assert shown.isascii()  # a terminal of any encoding can show it


@pytest.mark.parametrize("path", ["${a}", "a\\b", "a\nb"])
def test_paths_that_fairseqs_configuration_would_change(path, data, capsys):
    with pytest.raises(SystemExit):
        parsed(data, TRANSFORMER, ["--embed-init", "pretrained", "--embed-init-path", f"encoder={path}"])
    assert "rename the file, or make a link" in capsys.readouterr().err


@pytest.mark.parametrize("oov", ["zeros", "mean", "gaussian", "xavier"])
def test_oov(oov, data, glove):
    table, dictionary, record = encoder(data, glove["de"], "--embed-init-oov", oov)
    vectors = read_text(glove["de"])
    rows = table[[row for row in range(4, 44) if dictionary[row] not in vectors]]
    found = np.stack([v for w, v in vectors.items() if w != "<s>"])
    assert len(rows) == 10
    assert f"oov:{oov}|" in record["signature"]
    if oov == "zeros":
        assert not rows.any()
    elif oov == "mean":
        np.testing.assert_allclose(rows, np.tile(found.mean(0, dtype=np.float64), (len(rows), 1)), rtol=1e-5)
    elif oov == "gaussian":
        assert 0.25 < rows.std() < 0.8  # the vectors have 0.4, Xavier 0.2
    else:
        assert np.abs(rows).max() <= (6 / (len(dictionary) + D)) ** 0.5


def test_oov_subword_composes_words_from_pieces(data, glove, tmp_path):
    pieces = {"▁d": numbers(1, D)[0], **dict(zip("0123456789", numbers(10, D, 1))), "▁d7": np.ones(D)}
    path = write_vectors(tmp_path / "pieces.txt", pieces)
    table, dictionary, record = encoder(data, path, "--embed-init-oov", "subword")
    np.testing.assert_allclose(
        table[dictionary.index("d12")], (pieces["▁d"] + pieces["1"] + pieces["2"]) / 3, rtol=1e-5
    )
    assert (table[dictionary.index("d7")] == 1).all()
    assert record["composed"] == len(dictionary) - 5
    record = encoder(data, glove["de"], "--embed-init-oov", "subword", strategy="xavier_pretrained")[2]
    assert record["oov"] is record["matched"] is record["matched_absorption_ratio"] is None  # every row is drawn
    assert "oov" not in record["signature"]
    assert record["composed"] == 0


def test_match_and_markers(data, glove, tmp_path):
    upper, marked = tmp_path / "upper.txt", tmp_path / "marked.txt"
    upper.write_text(Path(glove["de"]).read_text().replace("d", "D"))
    record = encoder(data, upper)[2]
    assert record["rows_by_rule"] == {"casefold": record["found"]}
    assert record["match"] == ["casefold", "entities", "exact", "marker"]
    with pytest.raises(CoverageError, match="--embed-init-match"):
        encoder(data, upper, "--embed-init-match", "exact")
    marked.write_text(Path(glove["de"]).read_text().replace("d", "▁d"))
    assert set(encoder(data, marked)[2]["rows_by_rule"]) == {"marker"}
    with pytest.raises(CoverageError):  # as inner pieces they are other text
        encoder(data, marked, "--embed-init-markers", "sentencepiece")


def test_strict(data, glove, tmp_path):
    others = "".join(f"other{n}" + " 0.5" * D + "\n" for n in range(100))
    (tmp_path / "broken.txt").write_text(Path(glove["de"]).read_text() + "d3 0.1 0.2\n" + others)
    assert encoder(data, tmp_path / "broken.txt")[2]["source"]["broken_lines"] == 1
    with pytest.raises(VectorFileError, match=r"broken\.txt:32"):
        encoder(data, tmp_path / "broken.txt", "--embed-init-strict")


@pytest.mark.parametrize("shuffle", ["rows", "elements"])
def test_shuffled_with_and_without_a_scale(shuffle, data, glove):
    """`--embed-init-std xavier`: the numbers of pretrained_xavier, with other words."""
    flags = ["--embed-init-shuffle", shuffle]
    straight, dictionary, _ = encoder(data, glove["de"], strategy="pretrained_xavier")
    tables = {
        std: encoder(data, glove["de"], *flags, *(["--embed-init-std", std] if std else []), strategy="shuffled")
        for std in (None, "xavier", "0.25x")
    }
    (raw, _, unscaled), (table, _, record), (quarter, _, scaled) = tables.values()
    vectors = read_text(glove["de"])
    found = [row for row in range(4, 44) if dictionary[row] in vectors]
    whole = {frozenset(vectors[dictionary[row]]) for row in found}
    assert ({frozenset(row) for row in raw[found]} == whole) == (shuffle == "rows")
    assert sorted(raw[found].ravel()) == sorted(np.concatenate([vectors[dictionary[row]] for row in found]))
    assert sorted(table[found].ravel()) == sorted(straight[found].ravel())
    assert not (table[found] == straight[found]).all(axis=1).any()
    np.testing.assert_allclose(quarter[found], table[found] / 4, rtol=1e-6)
    assert (record["std"], scaled["std"], unscaled["std"]) == (None, "0.25x", None)
    assert record["target_std"] == pytest.approx(record["matched"]["std"], rel=1e-5)
    assert scaled["target_std"] == pytest.approx(record["target_std"] / 4)
    assert unscaled["target_std"] is None
    name = "init:shuffled|" if shuffle == "rows" else "init:shuffled_elements|"
    for each, std in ((record, "|std:xavier|"), (scaled, "|std:0.25x|"), (unscaled, "|oov:xavier|seed")):
        assert each["signature"].startswith(name)
        assert std in each["signature"]
        assert each["shuffle"] == shuffle


@pytest.mark.parametrize("given", [0.5, "0.5"])
def test_sigmas_inside_older_checkpoints_are_numbers(given, data):
    """fairseq makes a configuration of a checkpoint's `args` as of a command line."""
    args = parsed(data, ARCHITECTURES["transformer_lm"][0], ["--embed-init", "xavier"])
    args.embed_init_std = given
    for cfg in (args, convert_namespace_to_omegaconf(args).model):
        assert parse_std(request_from(cfg).options.embed_init_std) == TargetStd(0.5)


@pytest.mark.parametrize("architecture", ["transformer", "transformer_lm"])
def test_two_sources_side_by_side(architecture, data, glove, tmp_path):
    """Columns 0-4 and 5-7, in two files with a comma in their names; the first lacks d1, the second d2."""
    vectors = read_text(glove["de"])
    halves = [
        write_vectors(tmp_path / name, {word: row[columns] for word, row in vectors.items() if word != left_out})
        for name, columns, left_out in (("a,1.txt", slice(0, 5), "d1"), ("b,2.txt", slice(5, 8), "d2"))
    ]
    arguments, slots = ARCHITECTURES[architecture]
    slot = next(iter(slots))
    source = f"concat:{halves[0].replace(',', ',,')},glove={halves[1].replace(',', ',,')}"
    model, task, cfg = build(data, arguments, "--embed-init", "pretrained", "--embed-init-path", f"{slot}={source}")
    xavier, _, _ = build(data, arguments, "--embed-init", "xavier")
    weights = (each.state_dict()[f"{slots[slot]}.embed_tokens.weight"].numpy() for each in (model, xavier))
    (table, draw), dictionary = weights, task.source_dictionary
    words = vectors.keys() - {"<s>"}
    for word in words:
        row, expected = dictionary.index(word), vectors[word].copy()
        gap = {"d1": slice(0, 5), "d2": slice(5, 8)}.get(word, slice(0, 0))
        expected[gap] = draw[row][gap]
        assert (table[row] == expected).all(), word
    record = record_of(cfg, slot)
    assert (record["found"], record["source"]["found_in_all"]) == (30, 28)
    files = record["source"]["sources"]
    assert [(file["found"], file["dim"], file["path"]) for file in files] == [(29, 5, halves[0]), (29, 3, halves[1])]
    assert (record["source"]["rows"], record["source"]["dim"], record["source"]["format"]) == (60, 8, "concat")
    assert "|src:concat:a,,1.txt,glove=b,,2.txt|dim:8|" in record["signature"]
    given = [vectors[word][:5] for word in words if word != "d1"] + [
        vectors[word][5:] for word in words if word != "d2"
    ]
    numbers_given = np.concatenate(given).astype(np.float64)
    assert record["source_moments"]["std"] == pytest.approx(numbers_given.std(ddof=1), rel=1e-9)
    known = unpack_rows(record["known_rows"], len(dictionary))
    assert not known[[dictionary.index("d1"), dictionary.index("d2")]].any()  # half of each is a draw
    assert known.sum() == 28


def test_low_coverage_is_loud(data, glove, tmp_path, caplog):
    few = tmp_path / "few.txt"
    few.write_text("".join(Path(glove["de"]).read_text().splitlines(keepends=True)[1:6]))
    with caplog.at_level(logging.WARNING):
        encoder(data, few)
        assert "LOW COVERAGE" in caplog.text
        caplog.clear()
        encoder(data, glove["de"])
    assert "LOW COVERAGE" not in caplog.text


def test_every_number_of_the_report(data, glove):
    plain, _, _ = build(data, TRANSFORMER)
    table, dictionary, record = encoder(data, glove["de"], strategy="pretrained_xavier")
    vectors = read_text(glove["de"])
    found = [row for row in range(4, 44) if dictionary[row] in vectors]
    moments = {
        "matched": table[found],
        "before": plain.encoder.embed_tokens.weight.detach().numpy(),
        "source_moments": np.stack([vectors[dictionary[row]] for row in found]),
        "after": table,
    }
    for key, values in moments.items():
        values = values.astype(np.float64)
        expected = {"min": values.min(), "max": values.max(), "mean": values.mean(), "std": values.std(ddof=1)}
        assert record[key] == pytest.approx(expected, rel=1e-9), key
    counts = np.array(dictionary.count)
    positions = float(plain.encoder.embed_positions.get_embedding(1024, D, None).double().std())
    scaled = {"after": table.std(ddof=1, dtype=np.float64), "matched": table[found].std(ddof=1, dtype=np.float64)}
    expected = {
        "found": 30,
        "coverage_types": 0.75,
        "coverage_tokens": counts[found].sum() / counts[4:].sum(),
        "position_std": positions,
        "embed_scale": D**0.5,
        **{f"{key}_scaled_std": std * D**0.5 for key, std in scaled.items()},
        "absorption_ratio": scaled["after"] * D**0.5 / positions,
        "matched_absorption_ratio": scaled["matched"] * D**0.5 / positions,
        "target_std": record["matched"]["std"],
    }
    for key, value in expected.items():
        assert record[key] == pytest.approx(value, rel=1e-5), key
    assert list(record).index("matched_absorption_ratio") < list(record).index("absorption_ratio")
    assert record["signature"].startswith("init:pretrained_xavier|src:de.txt|dim:8|cov:0.7")
    assert record["signature"].endswith("|oov:xavier|std:xavier|seed:1|v:0.1.0")
    assert json.loads(json.dumps(record)) == record


def test_mask_takes_the_mask_row_of_the_format_only(data, tmp_path):
    from safetensors.torch import save_file

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"d{n}" for n in range(40)), "<mask>"]
    matrix = torch.from_numpy(numbers(len(words), D))
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words) + "\n")
    save_file({"bert.embeddings.word_embeddings.weight": matrix}, tmp_path / "bert" / "model.safetensors")
    text = write_vectors(tmp_path / "text.txt", dict.fromkeys(("<mask>", "d1", "d2", "d3"), [0.25] * D))
    tables = []
    for path in (tmp_path / "bert", text):
        flags = ["--embed-init", "pretrained", "--embed-init-path", f"encoder={path}"]
        model, task, _ = build(data, ARCHITECTURES["roberta"][0], *flags)
        tables.append(model.encoder.sentence_encoder.embed_tokens.weight)
    row = task.source_dictionary.index
    for symbol, word in (("<mask>", "[MASK]"), ("<s>", "[CLS]"), ("</s>", "[SEP]"), ("<unk>", "[UNK]"), ("d7", "d7")):
        assert torch.equal(tables[0][row(symbol)], matrix[words.index(word)]), symbol
    assert not (tables[1][row("<mask>")] == 0.25).any()
    assert (tables[1][row("d1")] == 0.25).all()
