"""Every option of `--embed-init` reaches what it is for, and the report says what was done."""

from __future__ import annotations

import logging
import os
import subprocess
from argparse import Namespace
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from embed_init_builds import ARCHITECTURES, TRANSFORMER, D, build, read_text
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from programs import PYTHON
from torch import nn

from embinit_fairseq.checkpoints.reading import initialisation_record
from embinit_fairseq.errors import CoverageError, DimensionError, OptionError, VectorFileError
from embinit_fairseq.hooks.options import EmbedInitOptions, Request, request_from
from embinit_fairseq.hooks.resume import checkpoint_to_restore
from embinit_fairseq.hooks.slots import position_std
from embinit_fairseq.init.draws import TargetStd, parse_std
from embinit_fairseq.init.report import unpack_rows

PACKAGE = Path(__file__).resolve().parents[2] / "embinit_fairseq"


def record_of(cfg):
    return initialisation_record({"cfg": cfg})


def encoder(data, path, *flags, strategy="pretrained"):
    """Encoder table (N, D), its dictionary and its record."""
    flags = ["--embed-init", strategy, "--embed-init-path", f"encoder={path}", *flags]
    model, task, cfg = build(data, TRANSFORMER, *flags)
    return (
        model.encoder.embed_tokens.weight.detach().numpy(),
        task.source_dictionary,
        record_of(cfg)["slots"]["encoder"],
    )


@pytest.mark.end_to_end
@pytest.mark.parametrize("choice", [[], ["--embed-init", "pretrained"]])
def test_help_of_trainings_explains_every_option(choice):
    """fairseq itself shows no option of a registry, chosen or not."""
    command = [PYTHON, "-m", "fairseq_cli.train", "--user-dir", str(PACKAGE), *choice, "--help"]
    wide = {**os.environ, "COLUMNS": "1000"}  # no breaks at hyphens
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=wide).stdout
    words = " ".join(shown.split())
    explained = [option for option in fields(EmbedInitOptions) if option.metadata.get("help")]
    assert len(explained) == 10
    for option in explained:
        assert f" --{option.name.replace('_', '-')} " in words
        assert option.metadata["help"].replace("%(default)s", str(option.default)) in words
    assert "how the token embeddings start; its options stand at the end" in words
    assert "docs/embed_init.md" in words
    assert shown.isascii()  # a terminal of any encoding can show it
    assert not shown.endswith("\n\n")


def test_options_are_known_with_a_strategy_only(capsys):
    """The help does not add them to the parser; those of other commands do not list them."""
    arguments = ["data", "--arch", "transformer", "--embed-init-seed", "3"]
    with pytest.raises(SystemExit):
        options.parse_args_and_arch(options.get_training_parser(), arguments)
    said = "unrecognized arguments: --embed-init-seed 3 (--embed-init-seed: needs --embed-init {normal,xavier,"
    assert said in capsys.readouterr().err
    arguments += ["--embed-init", "xavier"]
    assert options.parse_args_and_arch(options.get_training_parser(), arguments).embed_init_seed == 3
    assert "--embed-init-seed" in options.get_training_parser().format_help()
    assert "--embed-init-seed" not in options.get_generation_parser().format_help()


@pytest.mark.parametrize(
    ("unknown", "needs"),
    [
        ("--embed-init-path=encoder=a.txt --embed-init-strict", "--embed-init-path, --embed-init-strict: needs"),
        ("--embed-init-seed 3 --nobody-knows", "(--embed-init-seed: needs"),
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


def missing(dictionary, path):
    vectors = read_text(path)
    return [row for row in range(4, len(dictionary)) if dictionary[row] not in vectors]


@pytest.mark.parametrize("oov", ["zeros", "mean", "gaussian", "xavier"])
def test_oov(oov, toy_translation, glove):
    table, dictionary, record = encoder(toy_translation, glove["de"], "--embed-init-oov", oov)
    rows = table[missing(dictionary, glove["de"])]
    found = np.stack([v for w, v in read_text(glove["de"]).items() if w in dictionary.indices and w != "<s>"])
    assert len(rows) > 10
    assert f"oov:{oov}|" in record["signature"]
    if oov == "zeros":
        assert not rows.any()
    elif oov == "mean":
        np.testing.assert_allclose(rows, np.tile(found.mean(0, dtype=np.float64), (len(rows), 1)), rtol=1e-5)
    elif oov == "gaussian":
        assert 0.2 < rows.std() < 0.8  # the vectors have 0.4, Xavier 0.17
    else:
        assert np.abs(rows).max() <= (6 / (len(dictionary) + D)) ** 0.5


def test_oov_subword_composes_words_from_pieces(toy_translation, tmp_path):
    generator = np.random.default_rng(0)
    pieces = {"▁d": generator.normal(size=D), **{str(n): generator.normal(size=D) for n in range(10)}}
    path = tmp_path / "pieces.txt"
    path.write_text(
        "".join(f"{w} {' '.join(f'{x:.4f}' for x in v)}\n" for w, v in pieces.items()) + "▁d7" + " 1" * D + "\n"
    )
    table, dictionary, record = encoder(toy_translation, path, "--embed-init-oov", "subword")
    expected = (read_text(path)["▁d"] + read_text(path)["1"] + read_text(path)["2"]) / 3
    np.testing.assert_allclose(table[dictionary.index("d12")], expected, rtol=1e-5)
    assert (table[dictionary.index("d7")] == 1).all()
    assert record["composed"] == len(dictionary) - 5
    plain = tmp_path / "plain.txt"
    plain.write_text("d1" + " 1" * D + "\n" + "d2" + " 2" * D + "\n")
    with pytest.raises(OptionError, match="subword"):  # GloVe has no sub-words
        encoder(toy_translation, plain, "--embed-init-oov", "subword")


def test_match(toy_translation, glove, tmp_path):
    upper = tmp_path / "upper.txt"
    upper.write_text(Path(glove["de"]).read_text().replace("d", "D"))
    _, _, record = encoder(toy_translation, upper)
    assert record["rows_by_rule"] == {"casefold": record["found"]}
    assert record["match"] == ["casefold", "entities", "exact", "marker"]
    with pytest.raises(CoverageError, match="--embed-init-match"):
        encoder(toy_translation, upper, "--embed-init-match", "exact")


def test_markers(toy_translation, glove, tmp_path):
    marked = tmp_path / "marked.txt"
    marked.write_text(Path(glove["de"]).read_text().replace("d", "▁d"))
    assert set(encoder(toy_translation, marked)[2]["rows_by_rule"]) == {"marker"}
    with pytest.raises(CoverageError):  # as inner pieces they are other text
        encoder(toy_translation, marked, "--embed-init-markers", "sentencepiece")


def test_strict_and_format(toy_translation, glove, tmp_path):
    broken = tmp_path / "broken.txt"
    others = "".join(f"other{n}" + " 0.5" * D + "\n" for n in range(100))
    broken.write_text(Path(glove["de"]).read_text() + "d3 0.1 0.2\n" + others)
    assert encoder(toy_translation, broken)[2]["source"]["broken_lines"] == 1
    with pytest.raises(VectorFileError, match=r"broken\.txt:"):
        encoder(toy_translation, broken, "--embed-init-strict")
    with pytest.raises(VectorFileError, match="--embed-init-format"):
        encoder(toy_translation, glove["de"], "--embed-init-format", "encoder=word2vec")


def test_shuffle(toy_translation, glove):
    rows, dictionary, by_rows = encoder(toy_translation, glove["de"], strategy="shuffled")
    elements, _, by_elements = encoder(
        toy_translation, glove["de"], "--embed-init-shuffle", "elements", strategy="shuffled"
    )
    vectors = read_text(glove["de"])
    found = [row for row in range(4, len(dictionary)) if dictionary[row] in vectors]
    whole = {frozenset(vectors[dictionary[row]]) for row in found}
    assert {frozenset(row) for row in rows[found]} == whole
    assert not {frozenset(row) for row in elements[found]} & whole
    assert by_rows["signature"].startswith("init:shuffled|")
    assert by_elements["signature"].startswith("init:shuffled_elements|")


@pytest.mark.parametrize("shuffle", ["rows", "elements"])
def test_shuffled_at_xaviers_scale(shuffle, toy_translation, glove):
    """`--embed-init-std xavier`: the numbers of pretrained_xavier, with other words."""
    flags = ["--embed-init-shuffle", shuffle]
    straight, dictionary, _ = encoder(toy_translation, glove["de"], strategy="pretrained_xavier")
    table, _, record = encoder(toy_translation, glove["de"], *flags, "--embed-init-std", "xavier", strategy="shuffled")
    quarter, _, scaled = encoder(toy_translation, glove["de"], *flags, "--embed-init-std", "0.25x", strategy="shuffled")
    raw, _, unscaled = encoder(toy_translation, glove["de"], *flags, strategy="shuffled")
    found = [row for row in range(4, len(dictionary)) if dictionary[row] in read_text(glove["de"])]
    assert sorted(table[found].ravel()) == sorted(straight[found].ravel())
    assert not (table[found] == straight[found]).all(axis=1).any()
    np.testing.assert_allclose(quarter[found], table[found] / 4, rtol=1e-6)
    order = {value: at for at, value in enumerate(sorted(raw[found].ravel()))}
    rank = np.argsort(np.argsort(table[found].ravel()))
    assert [order[value] for value in raw[found].ravel()] == rank.tolist()  # one permutation at every scale
    assert (record["std"], scaled["std"], unscaled["std"]) == (None, "0.25x", None)
    assert record["target_std"] == pytest.approx(record["matched"]["std"], rel=1e-5)
    assert scaled["target_std"] == pytest.approx(record["target_std"] / 4)
    assert unscaled["target_std"] is None
    assert "|std:xavier|" in record["signature"]
    assert "|std:0.25x|" in scaled["signature"]
    assert "std:" not in unscaled["signature"]


@pytest.mark.parametrize("given", [0.5, "0.5"])
def test_sigmas_inside_older_checkpoints_are_numbers(given, monolingual):
    """fairseq makes a configuration of a checkpoint's `args` as of a command line."""
    flags = [
        str(monolingual),
        "--user-dir",
        str(PACKAGE),
        *ARCHITECTURES["transformer_lm"][0],
        "--embed-init",
        "xavier",
    ]
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    args.embed_init_std = given
    cfg = convert_namespace_to_omegaconf(args)
    assert parse_std(request_from(cfg.model).options.embed_init_std) == TargetStd(0.5)
    assert parse_std(request_from(args).options.embed_init_std) == TargetStd(0.5)


@pytest.fixture
def halves(toy_translation, glove, tmp_path):
    """The vectors of the German words as columns 0-4 and 5-7, in two files with a comma in their names; the first lacks
    d1, the second d2."""
    vectors = read_text(glove["de"])
    paths = []
    for name, columns, left_out in (("a,1.txt", slice(0, 5), "d1"), ("b,2.txt", slice(5, 8), "d2")):
        rows = {word: row[columns] for word, row in vectors.items() if word != left_out}
        lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items())
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
        paths.append(str(tmp_path / name))
    return paths


@pytest.mark.parametrize("architecture", ["transformer", "transformer_lm"])
def test_two_sources_side_by_side(architecture, halves, toy_translation, monolingual, glove):
    arguments, slots = ARCHITECTURES[architecture]
    slot = next(iter(slots))
    data = toy_translation if architecture == "transformer" else monolingual
    source = f"concat:{halves[0].replace(',', ',,')},glove={halves[1].replace(',', ',,')}"
    flags = ["--embed-init", "pretrained", "--embed-init-path", f"{slot}={source}"]
    model, task, cfg = build(data, arguments, *flags)
    xavier, _, _ = build(data, arguments, "--embed-init", "xavier")
    weights = (each.state_dict()[f"{slots[slot]}.embed_tokens.weight"].numpy() for each in (model, xavier))
    (table, draw), dictionary, vectors = weights, task.source_dictionary, read_text(glove["de"])
    for word in vectors.keys() & set(dictionary.symbols[4:]):
        row, expected = dictionary.index(word), vectors[word].copy()
        if word == "d1":
            expected[:5] = draw[row][:5]
        if word == "d2":
            expected[5:] = draw[row][5:]
        assert (table[row] == expected).all(), word
    record = record_of(cfg)["slots"][slot]
    found = len(vectors.keys() & set(dictionary.symbols[4:]))
    assert (record["found"], record["source"]["found_in_all"]) == (found, found - 2)
    assert [file["found"] for file in record["source"]["sources"]] == [found - 1, found - 1]
    assert [file["dim"] for file in record["source"]["sources"]] == [5, 3]
    assert [file["path"] for file in record["source"]["sources"]] == halves
    assert "|src:concat:a,,1.txt,glove=b,,2.txt|dim:8|" in record["signature"]
    known = unpack_rows(record["known_rows"], len(dictionary))
    assert not known[[dictionary.index("d1"), dictionary.index("d2")]].any()  # half of each is a draw
    assert known.sum() == found - 2


def test_a_word_of_a_mean(toy_translation, glove, tmp_path):
    (tmp_path / "other.txt").write_text("d1" + " 1" * D + "\n" + "d4" + " 2" * D + "\n")
    table, dictionary, record = encoder(toy_translation, f"avg:{glove['de']},{tmp_path / 'other.txt'}")
    expected = (read_text(glove["de"])["d1"].astype(np.float64) + 1) / 2
    assert (table[dictionary.index("d1")] == expected.astype(np.float32)).all()
    assert (table[dictionary.index("d4")] == 2).all()
    assert [file["found"] for file in record["source"]["sources"]][1] == 2


@pytest.mark.parametrize("strategy", ["pretrained_xavier", "shuffled", "xavier_pretrained"])
def test_every_strategy_takes_several_sources(strategy, toy_translation, glove, halves):
    source = "concat:" + ",".join(path.replace(",", ",,") for path in halves)
    table, dictionary, record = encoder(toy_translation, source, strategy=strategy)
    assert np.isfinite(table).all()
    moments = record["source_moments"]
    vectors = read_text(glove["de"])
    given = [vectors[word][:5] for word in dictionary.symbols[4:] if word in vectors and word != "d1"]
    given += [vectors[word][5:] for word in dictionary.symbols[4:] if word in vectors and word != "d2"]
    numbers = np.concatenate(given).astype(np.float64)
    assert moments["std"] == pytest.approx(numbers.std(ddof=1), rel=1e-9)
    assert moments["mean"] == pytest.approx(numbers.mean(), rel=1e-9)


def test_several_sources_that_do_not_fit(toy_translation, glove, halves):
    one = halves[0].replace(",", ",,")
    with pytest.raises(DimensionError, match=r"5 dimensions, .*de\.txt has 8 dimensions, together 13; expected 8"):
        encoder(toy_translation, f"concat:{one},{glove['de']}")
    with pytest.raises(OptionError, match=r"5 dimensions, .*de\.txt has 8 dimensions.*concat:"):
        encoder(toy_translation, f"avg:{one},{glove['de']}")
    with pytest.raises(CoverageError, match=r"--embed-init-path encoder=.*en\.txt: none of the"):
        encoder(toy_translation, f"avg:{glove['de']},{glove['en']}")


def test_low_coverage_is_loud(toy_translation, glove, tmp_path, caplog):
    few = tmp_path / "few.txt"
    few.write_text("".join(Path(glove["de"]).read_text().splitlines(keepends=True)[1:6]))
    with caplog.at_level(logging.WARNING):
        encoder(toy_translation, few)
    assert "LOW COVERAGE" in caplog.text
    caplog.clear()
    encoder(toy_translation, glove["de"])
    assert "LOW COVERAGE" not in caplog.text


def test_every_number_of_the_report(toy_translation, glove):
    plain, _, _ = build(toy_translation, TRANSFORMER)
    table, dictionary, record = encoder(toy_translation, glove["de"], strategy="pretrained_xavier")
    vectors = read_text(glove["de"])
    found = [row for row in range(4, len(dictionary)) if dictionary[row] in vectors]
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
    assert record["found"] == len(found)
    assert record["coverage_types"] == pytest.approx(len(found) / (len(dictionary) - 4))
    assert record["coverage_tokens"] == pytest.approx(counts[found].sum() / counts[4:].sum())
    positions = plain.encoder.embed_positions.get_embedding(1024, D, None).double().std()
    assert record["position_std"] == pytest.approx(float(positions))
    assert record["embed_scale"] == pytest.approx(D**0.5)
    assert record["after_scaled_std"] == pytest.approx(table.std(ddof=1, dtype=np.float64) * D**0.5)
    assert record["absorption_ratio"] == pytest.approx(record["after_scaled_std"] / float(positions))
    assert record["matched_scaled_std"] == pytest.approx(record["matched"]["std"] * D**0.5)
    assert record["matched_absorption_ratio"] == pytest.approx(record["matched_scaled_std"] / float(positions))
    keys = list(record)
    assert keys.index("matched_absorption_ratio") < keys.index("absorption_ratio")
    assert record["signature"].startswith("init:pretrained_xavier|src:de.txt|dim:8|cov:0.7")
    assert record["signature"].endswith("|oov:xavier|std:xavier|seed:1|v:0.1.0")


def test_rows_of_no_use_are_not_reported(toy_translation, glove):
    record = encoder(toy_translation, glove["de"], "--embed-init-oov", "subword", strategy="xavier_pretrained")[2]
    assert record["oov"] is None  # every row is drawn
    assert "oov" not in record["signature"]
    assert record["matched"] is record["matched_absorption_ratio"] is None


def test_position_sigma_leaves_padding_out():
    learned = nn.Embedding(10, 4, padding_idx=1)
    owner = nn.Module()
    assert position_std(owner) is None
    owner.embed_positions = learned
    assert position_std(owner) == pytest.approx(float(learned.weight[2:].double().std()))


def test_mask_takes_the_mask_row_of_the_format_only(monolingual, toy_translation, tmp_path):
    from safetensors.torch import save_file

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"d{n}" for n in range(60)), "<mask>"]
    matrix = torch.randn(len(words), D, generator=torch.Generator().manual_seed(0))
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    save_file({"bert.embeddings.word_embeddings.weight": matrix}, folder / "model.safetensors")
    arguments = ARCHITECTURES["roberta"][0]
    model, task, _ = build(
        monolingual, arguments, "--embed-init", "pretrained", "--embed-init-path", f"encoder={folder}"
    )
    table = model.encoder.sentence_encoder.embed_tokens.weight
    for symbol, word in (("<mask>", "[MASK]"), ("<s>", "[CLS]"), ("</s>", "[SEP]"), ("<unk>", "[UNK]"), ("d7", "d7")):
        assert torch.equal(table[task.source_dictionary.index(symbol)], matrix[words.index(word)]), symbol
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{w} " + " ".join(["0.25"] * D) + "\n" for w in ("<mask>", "d1", "d2", "d3")))
    model, task, _ = build(monolingual, arguments, "--embed-init", "pretrained", "--embed-init-path", f"encoder={text}")
    row = model.encoder.sentence_encoder.embed_tokens.weight[task.source_dictionary.index("<mask>")]
    assert not (row == 0.25).any()


def test_seed_zero_and_the_seed_of_dataclass_architectures(toy_translation, monolingual):
    flags = ["--embed-init", "xavier"]
    one = build(toy_translation, TRANSFORMER, *flags, "--embed-init-seed", "0", seed=1)[0]
    two = build(toy_translation, TRANSFORMER, *flags, "--embed-init-seed", "0", seed=2)[0]
    assert torch.equal(one.encoder.embed_tokens.weight, two.encoder.embed_tokens.weight)
    _, _, cfg = build(monolingual, ARCHITECTURES["transformer_lm"][0], *flags, seed=5)
    assert record_of(cfg)["slots"]["decoder"]["seed"] == 5


def test_stock_flags_for_the_same_table_are_refused(toy_translation, glove, tmp_path):
    vec = tmp_path / "header.vec"
    lines = Path(glove["de"]).read_text().splitlines()
    vec.write_text(f"{len(lines)} {D}\n" + "\n".join(lines) + "\n")
    with pytest.raises(OptionError, match=r"--encoder-embed-path .* fill the same table"):
        build(toy_translation, TRANSFORMER, "--embed-init", "xavier", "--encoder-embed-path", str(vec))


def test_home_directories_are_understood_for_tied_slots_too(toy_translation, glove, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "de.txt").write_text(Path(glove["de"]).read_text())
    data = tmp_path / "data"
    data.mkdir()
    for file in toy_translation.iterdir():
        (data / file.name).write_bytes(file.read_bytes())
    (data / "dict.en.txt").write_text((data / "dict.de.txt").read_text())
    paths = ["--embed-init-path", "encoder=~/de.txt", "decoder=~/de.txt"]
    _, _, cfg = build(data, [*TRANSFORMER, "--share-all-embeddings"], "--embed-init", "pretrained", *paths)
    assert record_of(cfg)["slots"]["encoder"]["source"]["path"] == str(tmp_path / "de.txt")


def test_sharded_tables_are_refused(toy_translation):
    flags = ["--embed-init", "xavier", "--ddp-backend", "fully_sharded"]
    with pytest.raises(OptionError, match="fully_sharded"):
        build(toy_translation, TRANSFORMER, *flags)


@pytest.mark.end_to_end
def test_a_mistake_is_one_line_in_fairseqs_commands(toy_translation, tmp_path):
    """Not twenty lines of traceback; errors that are not ours keep it."""

    def train(data, *flags):
        command = [str(Path(PYTHON).with_name("fairseq-train")), str(data), "--user-dir", str(PACKAGE), *TRANSFORMER]
        command += ["--cpu", "--optimizer", "adam", "--max-tokens", "100", "--max-update", "1", "--no-save", *flags]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    done = train(toy_translation, "--embed-init", "pretrained")
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert last.startswith("fairseq-train: error: --embed-init pretrained needs vectors: add --embed-init-path")
    done = train(tmp_path / "nowhere")
    assert (done.returncode, "Traceback" in done.stderr) == (1, True)


def test_which_checkpoint_is_continued(tmp_path):
    """As fairseq.checkpoint_utils.load_checkpoint decides."""
    run, other = tmp_path / "run", tmp_path / "other.pt"
    run.mkdir()

    def restored(**keywords):
        return checkpoint_to_restore(Request("xavier", EmbedInitOptions(), 1, save_dir=str(run), **keywords))

    assert restored(restore_file="checkpoint_last.pt") is None
    assert restored(restore_file=str(other)) is None
    other.touch()
    assert restored(restore_file=str(other)) == str(other)
    assert restored(restore_file="checkpoint_last.pt", continue_once=str(other)) == str(other)
    with pytest.raises(OptionError, match="--finetune-from-model"):
        restored(restore_file="checkpoint_last.pt", finetune_from_model=str(other))
    (run / "checkpoint_last.pt").touch()
    last = str(run / "checkpoint_last.pt")
    assert restored(restore_file="checkpoint_last.pt", continue_once=str(other)) == last
    assert restored(restore_file="checkpoint_last.pt", finetune_from_model=str(other)) == last
    assert restored(restore_file="checkpoint_last.pt", checkpoint_suffix="-shard0") is None
    assert initialisation_record({}) is None
    assert initialisation_record({"cfg": {"model": Namespace()}}) is None
