"""`--embed-init` on stock architectures: every option reaches what it is for, and the report says what was done."""

from __future__ import annotations

import functools
import json
import os
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from source_files import numbers

import embinit_fairseq
from embinit_fairseq.checkpoints.reading import initialisation_record
from embinit_fairseq.embed_init.request import InitRequest, check_request
from embinit_fairseq.errors import CoverageError, EmbinitError, OptionError, VectorFileError
from embinit_fairseq.init import strategies
from embinit_fairseq.init.report import unpack_rows
from embinit_fairseq.init.strategies import Draws, Source, parse_std
from embinit_fairseq.models import _random_step as steps
from embinit_fairseq.version import VERSION

D = 8
ENCODER = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2"
DECODER = ENCODER.replace("encoder", "decoder")
MODELLING = "--task language_modeling --tokens-per-sample 16 --arch"
LSTM = "--decoder-hidden-size 8 --decoder-out-embed-dim 8 --decoder-embed-dim 8"
BOTH = {"encoder": "encoder", "decoder": "decoder"}
TRANSFORMER = f"--task translation --arch transformer_iwslt_de_en {ENCODER} {DECODER}"
ARCHITECTURES = {
    "transformer": (TRANSFORMER, BOTH),
    "lstm": (f"--task translation --arch lstm --encoder-embed-dim 8 --encoder-hidden-size 8 {LSTM}", BOTH),
    "roberta": (
        f"--task masked_lm --arch roberta_base {ENCODER} --tokens-per-sample 16",
        {"encoder": "encoder.sentence_encoder"},
    ),
    "transformer_lm": (
        f"{MODELLING} transformer_lm {DECODER} --decoder-input-dim 8 --decoder-output-dim 8",
        {"decoder": "decoder"},
    ),
    "transformer_lm_gpt": (f"{MODELLING} transformer_lm_gpt {DECODER}", {"decoder": "decoder"}),
    "lstm_lm": (f"{MODELLING} lstm_lm {LSTM}", {"decoder": "decoder"}),
}
USER_DIR = os.path.dirname(embinit_fairseq.__file__)
PRETRAINED = "--embed-init pretrained --embed-init-path"
XAVIER = "--embed-init xavier"


def parsed(data, arguments, *flags, seed=1) -> Namespace:
    given = [str(data), "--user-dir", USER_DIR, "--max-tokens", "100", "--seed", str(seed), "--no-save"]
    given += arguments.split() + [word for flag in flags for word in flag.split()]
    return options.parse_args_and_arch(options.get_training_parser(), given)


@functools.lru_cache
def task_of(data, arguments):
    """fairseq's configuration takes most of the time that a build takes; the task's is the same for all."""
    return tasks.setup_task(convert_namespace_to_omegaconf(parsed(data, arguments)).task)


def build(data, arguments, *flags, seed=1):
    """Model, task and configuration as fairseq-train builds them."""
    args = parsed(data, arguments, *flags, seed=seed)
    told = {"cfg": {"model": args}}
    if "transformer_lm" in args.arch:  # one with a dataclass
        told = {"cfg": convert_namespace_to_omegaconf(args)}
    task = task_of(str(data), arguments)
    np.random.seed(seed)
    utils.set_torch_seed(seed)
    return task.build_model(told["cfg"].model if "transformer_lm" in args.arch else args), task, told


def record_of(cfg, slot):
    return initialisation_record(cfg)["slots"][slot]


def write_vectors(path, rows: dict) -> str:
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items()), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Dictionaries of 40 words a side, and of a language model; with no text, which no model needs to be built."""
    folder = tmp_path_factory.mktemp("data")
    for name, letter in (("dict.de.txt", "d"), ("dict.en.txt", "e"), ("dict.txt", "d")):
        (folder / name).write_text("".join(f"{letter}{number} {50 - number}\n" for number in range(40)))
    (folder / "train.de-en.de.idx").touch()  # what tells fairseq the languages
    return folder


@functools.lru_cache
def glove_rows(language):
    """For 3 of 4 words of a side, and a row that is spelled `<s>`."""
    words = ["<s>", *(f"{language[0]}{n}" for n in range(40) if n % 4)]
    return dict(zip(words, np.round(0.05 + 0.4 * numbers(31, D), 5).astype(np.float32)))


@pytest.fixture(scope="module")
def glove(tmp_path_factory):
    """Language -> path of GloVe text."""
    folder = tmp_path_factory.mktemp("vectors")
    return {language: write_vectors(folder / f"{language}.txt", glove_rows(language)) for language in ("de", "en")}


def encoder(data, path, *flags, strategy="pretrained"):
    """Encoder table (N, D), its dictionary and its record."""
    model, task, cfg = build(data, TRANSFORMER, f"--embed-init {strategy} --embed-init-path encoder={path}", *flags)
    return model.encoder.embed_tokens.weight.detach().numpy(), task.source_dictionary, record_of(cfg, "encoder")


# ---- architectures


@pytest.mark.parametrize(
    ("arch", "sigma"),
    {
        "transformer": 512**-0.5,
        "transformer_lm": 512**-0.5,
        "tupe_transformer": 512**-0.5,
        "embinit_classifier": 512**-0.5,
        "lstm": 0.1 / 3**0.5,
        "fconv_iwslt_de_en": 0.1,
        "roberta": 0.02,
        "bart_base": 0.02,
        "tupe_base": 0.02,
    }.items(),
)
def test_without_the_flag_each_architecture_starts_at_its_own_scale(tmp_path, arch, sigma):
    """The table in docs/embed_init.md."""
    known = steps.model_options(arch)
    small = [f"--{side}-layers=1" for side in ("encoder", "decoder") if known.get(f"--{side}-layers") is int]
    small += ["--max-positions=32"] * ("--max-positions" in known)
    cfg = steps.configuration(str(tmp_path), arch, steps.task_of(arch), steps.Sizes(vocabulary=2000), ["--cpu", *small])
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    matrices = [weight for name, weight in model.named_parameters() if name.endswith("embed_tokens.weight")]
    assert matrices
    for matrix in matrices:
        assert matrix[5:].std().item() == pytest.approx(sigma, rel=0.01)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pretrained_rows_arrive_and_nothing_else_moves(name, data, glove):
    arguments, slots = ARCHITECTURES[name]
    languages = {slot: "en" if slot == "decoder" and "encoder" in slots else "de" for slot in slots}
    plain, task, _ = build(data, arguments)
    state = torch.get_rng_state()
    paths = (f"{slot}={glove[language]}" for slot, language in languages.items())
    filled, _, cfg = build(data, arguments, PRETRAINED, *paths)
    assert torch.equal(torch.get_rng_state(), state)  # the draws leave the global state alone
    weights = filled.state_dict()
    tables = {weights[f"{module}.embed_tokens.weight"].data_ptr() for module in slots.values()}
    for key, value in plain.state_dict().items():
        assert torch.equal(value, weights[key]) == (weights[key].data_ptr() not in tables), key
    for slot, language in languages.items():
        table, vectors = weights[f"{slots[slot]}.embed_tokens.weight"].numpy(), glove_rows(language)
        dictionary = task.target_dictionary if slot == "decoder" else task.source_dictionary
        assert all((table[dictionary.index(word)] == vectors[word]).all() for word in vectors if word != "<s>")
        assert not table[dictionary.pad()].any()
        assert (table[dictionary.bos()] != vectors["<s>"]).all()
        assert (np.abs(table[dictionary.bos()]) <= (6 / sum(table.shape)) ** 0.5).all()
    assert set(initialisation_record(cfg)["slots"]) == set(slots)


@pytest.mark.parametrize("share", ["--share-all-embeddings", "--share-decoder-input-output-embed"])
def test_tied_tables_stay_tied(share, data, glove, tmp_path, monkeypatch):
    for name in ("dict.de.txt", "dict.en.txt", "train.de-en.de.idx"):  # one dictionary for both sides
        (tmp_path / name).write_text((data / "dict.de.txt").read_text())
    tied, arguments = share == "--share-all-embeddings", f"{TRANSFORMER} {share}"
    model, _, cfg = build(tmp_path, arguments, PRETRAINED, f"decoder={glove['de']}")
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    assert (model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight) == tied
    rows = model.decoder.embed_tokens.weight[4:].detach().numpy()
    assert (rows == glove_rows("de")["d1"]).all(1).tolist() == [row == 1 for row in range(40)]
    assert record_of(cfg, "encoder")["tied"] == (["decoder"] if tied else [])
    if tied:
        with pytest.raises(OptionError, match=r"encoder and decoder .*one and the same.*do not share"):
            build(tmp_path, arguments, PRETRAINED, f"encoder={glove['de']} decoder={glove['en']}")
        monkeypatch.setenv("HOME", os.path.dirname(glove["de"]))
        _, _, cfg = build(tmp_path, arguments, PRETRAINED, "encoder=~/de.txt decoder=~/de.txt")
        assert record_of(cfg, "encoder")["source"]["path"] == glove["de"]


def test_draws_depend_on_seed_and_slot_alone(data, glove):
    def xavier(*flags, seed=1):
        return build(data, TRANSFORMER, XAVIER, *flags, seed=seed)[0]

    model, _, cfg = build(data, TRANSFORMER, PRETRAINED, f"encoder={glove['de']}")
    other = xavier()
    assert torch.equal(model.decoder.embed_tokens.weight, other.decoder.embed_tokens.weight)
    assert not torch.equal(model.encoder.embed_tokens.weight, other.encoder.embed_tokens.weight)
    assert (record_of(cfg, "decoder")["strategy"], record_of(cfg, "decoder")["source"]) == ("xavier", None)
    assert not torch.equal(other.encoder.embed_tokens.weight, xavier(seed=2).encoder.embed_tokens.weight)
    one, two = (xavier(f"--embed-init-seed {2**64 - 1}", seed=s).encoder.embed_tokens.weight for s in (1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, xavier("--embed-init-seed 0").encoder.embed_tokens.weight)
    _, _, cfg = build(data, ARCHITECTURES["transformer_lm"][0], XAVIER, seed=5)
    assert record_of(cfg, "decoder")["seed"] == 5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("pretrained", "add --embed-init-path encoder=VECTORS decoder="),
        ("pretrained --embed-init-path enc={de}", "no slot 'enc'; it has: encoder, decoder"),
        ("pretrained --embed-init-path {de}", "expected SLOT=PATH with SLOT one of encoder.decoder"),
        ("pretrained --embed-init-path encoder=", "expected SLOT=PATH"),
        ("pretrained --embed-init-path encoder={en}", "--embed-init-path encoder=.*--embed-init-match"),
        (
            "pretrained --embed-init-path encoder={wide}",
            "-path encoder=.*--encoder-embed-dim 9((?!decoder).)*$",
        ),
        (
            "pretrained --embed-init-path decoder={wide}",
            "-path decoder=.*--decoder-embed-dim 9((?!encoder).)*$",
        ),
        ("pretrained --embed-init-path encoder=concat:{de},{wide}", "encoder=concat:.*--encoder-embed-dim 17"),
        ("pretrained --embed-init-std 1 --embed-init-path encoder={de}", "one of xavier, pretrained_xavier, shuffled"),
        ("normal --embed-init-std xavier", "--embed-init-std xavier: .*one of xavier, "),
        ("xavier --embed-init-seed -1", "--embed-init-seed -1"),
        (f"xavier --embed-init-seed {2**64}", "--embed-init-seed"),
        ("xavier --embed-init-freeze source", "it has: encoder, decoder"),
        (
            "xavier --embed-init-freeze encoder:known",
            "no row of 'encoder' has a vector.*-path encoder=PATH",
        ),
        ("pretrained --embed-init-format encoder=word2vec --embed-init-path encoder={de}", "glove"),
        ("pretrained --embed-init-format decoder=glove --embed-init-path encoder={de}", "decoder.*--embed-init-path"),
        ("pretrained --embed-init-format enc=glove --embed-init-path encoder={de}", "it has: encoder, decoder"),
        ("xavier --encoder-embed-path {header}", "--encoder-embed-path .*pretrained .*encoder="),
        ("xavier --ddp-backend fully_sharded", "fully_sharded.*another backend"),
        ("pretrained --embed-init-oov subword --embed-init-path encoder={de}", "--embed-init-oov"),
        ("pretrained --embed-init-path encoder=avg:{wide},{de}", "concat:"),
        ("pretrained --embed-init-path encoder=avg:{de},{en}", r"--embed-init-path encoder=.*en\.txt"),
    ],
)
def test_bad_options_are_refused_by_name(flags, message, data, glove, tmp_path):
    wide = write_vectors(tmp_path / "wide.txt", {f"d{at}": [0.5] * 9 for at in range(40)})
    (tmp_path / "header.vec").write_text(f"31 {D}\n" + Path(glove["de"]).read_text())
    with pytest.raises(EmbinitError, match=message):
        build(data, TRANSFORMER, "--embed-init", flags.format(wide=wide, header=tmp_path / "header.vec", **glove))


@pytest.mark.parametrize(
    "name", ["pretrained_xlm_checkpoint", "pretrained_mlm_checkpoint", "load_pretrained_decoder_from"]
)
def test_what_fairseq_took_from_a_checkpoint_is_not_overwritten(name, data):
    _, _, cfg = build(data, TRANSFORMER)
    setattr(cfg["cfg"]["model"], name, "earlier.pt")
    with pytest.raises(OptionError, match=rf"--{name.replace('_', '-')} .*--embed-init-path (en|de)coder=earlier.pt"):
        check_request(cfg["cfg"]["model"], InitRequest("xavier"))


def test_a_scale_that_is_none_is_one(data):
    """With a task that does not say what its dictionaries are."""
    _, _, cfg = build(data, f"--task legacy_masked_lm --arch xlm_base {ENCODER}", XAVIER)
    assert record_of(cfg, "encoder")["embed_scale"] == 1.0


def test_a_format_of_one_slot_or_of_all(data, glove):
    both = (PRETRAINED, f"encoder={glove['de']} decoder={glove['en']}")
    for formats in ("glove", "encoder=glove", "encoder=glove decoder=glove"):
        _, _, cfg = build(data, TRANSFORMER, *both, "--embed-init-format", formats)
        assert [record_of(cfg, slot)["source"]["format"] for slot in BOTH] == ["glove"] * 2


def test_the_sigma_of_positions_is_that_of_rows_in_use(data):
    """The rows of learned positions up to that of the padding are never looked up."""
    model, _, cfg = build(data, TRANSFORMER, XAVIER, "--encoder-learned-pos")
    weight = model.encoder.embed_positions.weight.detach()[model.encoder.embed_positions.padding_idx + 1 :]
    assert record_of(cfg, "encoder")["position_std"] == pytest.approx(float(weight.double().std()), rel=1e-6)


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
    ("flags", "said"),
    [
        ("--embed-init-path=encoder=a.txt --embed-init-strict", "--embed-init-path, --embed-init-strict: needs"),
        ("--embed-init-seed 3 --nobody-knows", "(--embed-init-seed: needs --embed-init {normal,xavier,"),
        ("--embed-init xavier --embed-init-sed 3", "unrecognized arguments: --embed-init-sed 3\n"),
        ("--embed-init xavier --embed-init-seed three", "invalid int value: 'three'\n"),
    ],
)
def test_what_the_parser_refuses(flags, said, capsys):
    """Options without a strategy, and values of another type."""
    with pytest.raises(SystemExit):
        parsed("data", "--arch transformer", flags)
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        options.parse_args_and_arch(options.get_training_parser(), ["--help"])
    assert "--embed-init-seed" in capsys.readouterr().out  # fairseq itself shows no option of a registry
    assert "--embed-init-seed" not in options.get_generation_parser().format_help()


@pytest.mark.parametrize(
    ("flags", "strategy", "source", "signature"),
    [
        *((f"--embed-init-oov {oov}", "pretrained", {"oov": oov}, f"|oov:{oov}|") for oov in ("zeros", "gaussian")),
        ("--embed-init-oov subword", "xavier_pretrained", {}, "src:de.txt|dim:8|cov:0.7"),  # every row is drawn
        ("--embed-init-std 0.25x", "pretrained_xavier", {}, "|std:0.25x|"),
        ("--embed-init-shuffle rows", "shuffled", {}, "init:shuffled|"),
        ("--embed-init-shuffle elements --embed-init-std 0.5", "shuffled_elements", {}, "|std:0.5|"),
    ],
)
def test_flags_reach_the_table_and_the_signature(data, glove, flags, strategy, source, signature):
    table, dictionary, record = encoder(data, glove["de"], flags, strategy=strategy.removesuffix("_elements"))
    words, vectors = list(glove_rows("de"))[1:], np.stack(list(glove_rows("de").values())[1:])
    std = parse_std(flags.split()[-1], "--embed-init-std") if "std" in flags else None
    rule = getattr(strategies, strategy)
    rule = partial(rule, rescaled=True) if "elements" in strategy else rule
    given = Source(np.array(list(map(dictionary.index, words))), vectors, **source)
    expected = strategies.build(rule, given, Draws(44, D, 1, "encoder", std), dictionary.pad())
    np.testing.assert_array_equal(table, expected)
    assert signature in record["signature"]


def test_oov_subword_composes_words_from_pieces(data, tmp_path):
    pieces = {"▁d": numbers(1, D)[0], **dict(zip("0123456789", numbers(10, D, 1))), "▁d7": np.ones(D)}
    path = write_vectors(tmp_path / "pieces.txt", pieces)
    table, dictionary, record = encoder(data, path, "--embed-init-oov subword")
    expected = (pieces["▁d"] + pieces["1"] + pieces["2"]) / 3
    np.testing.assert_allclose(table[dictionary.index("d12")], expected, rtol=1e-5)
    assert (table[dictionary.index("d7")] == 1).all()
    assert record["composed"] == len(dictionary) - 5


def test_how_words_are_matched(data, glove, tmp_path, caplog):
    text, path = Path(glove["de"]).read_text(), tmp_path / "v.txt"

    def record_with(changed, *flags):
        path.write_text(changed)
        return encoder(data, path, *flags)[2]

    record = record_with(text.replace("d", "D"))
    assert record["rows_by_rule"] == {"casefold": record["found"]}
    assert record["match"] == ["casefold", "entities", "exact", "marker"]
    assert set(record_with(text.replace("d", "▁d"))["rows_by_rule"]) == {"marker"}
    for changed, flags in (("D", "--embed-init-match exact"), ("▁d", "--embed-init-markers sentencepiece")):
        with pytest.raises(CoverageError, match="--embed-init-match"):
            record_with(text.replace("d", changed), flags)
    broken = text + "d3 0.1 0.2\n" + "".join(f"other{n}{' 0.5' * D}\n" for n in range(100))
    assert record_with(broken)["source"]["broken_lines"] == 1
    with pytest.raises(VectorFileError, match=r"v\.txt:32"):
        record_with(broken, "--embed-init-strict")
    assert "LOW COVERAGE" not in caplog.text
    record_with("".join(text.splitlines(keepends=True)[1:6]))
    assert "LOW COVERAGE" in caplog.text


def test_two_sources_side_by_side(data, tmp_path):
    """Columns 0-4 and 5-7, in two files with a comma in their names; the first lacks d1, the second d2."""
    vectors, paths = glove_rows("de"), [str(tmp_path / "a,1.txt"), str(tmp_path / "b,2.txt")]
    for path, columns, lacks in zip(paths, (slice(0, 5), slice(5, 8)), ("d1", "d2")):
        write_vectors(Path(path), {word: row[columns] for word, row in vectors.items() if word != lacks})
    table, dictionary, record = encoder(data, "concat:{},glove={}".format(*(path.replace(",", ",,") for path in paths)))
    index = dictionary.index
    assert all((table[index(word)] == vectors[word]).all() for word in vectors.keys() - {"<s>", "d1", "d2"})
    assert (table[index("d1")] == vectors["d1"]).tolist() == [False] * 5 + [True] * 3
    source = record["source"]
    assert (record["found"], source["found_in_all"], source["rows"], source["format"]) == (30, 28, 60, "concat")
    assert [(file["found"], file["dim"]) for file in source["sources"]] == [(29, 5), (29, 3)]
    assert [file["path"] for file in source["sources"]] == paths
    assert "|src:concat:a,,1.txt,glove=b,,2.txt|dim:8|" in record["signature"]
    known = unpack_rows(record["known_rows"], len(dictionary))
    assert (known.sum(), known[index("d1")], known[index("d2")]) == (28, False, False)  # half of each is a draw


def test_every_number_of_the_report(data, glove):
    plain, _, _ = build(data, TRANSFORMER)
    table, dictionary, record = encoder(data, glove["de"], strategy="pretrained_xavier")
    vectors = glove_rows("de")
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
    after, matched = (rows.std(ddof=1, dtype=np.float64) * D**0.5 for rows in (table, table[found]))
    expected = {
        "found": 30,
        "coverage_types": 0.75,
        "coverage_tokens": counts[found].sum() / counts[4:].sum(),
        "position_std": positions,
        "embed_scale": D**0.5,
        "after_scaled_std": after,
        "matched_scaled_std": matched,
        "absorption_ratio": after / positions,
        "matched_absorption_ratio": matched / positions,
        "target_std": record["matched"]["std"],
    }
    assert {key: record[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert record["signature"].endswith(f"|oov:xavier|std:xavier|seed:1|v:{VERSION}")
    assert json.loads(json.dumps(record)) == record
    record = encoder(data, glove["de"], "--embed-init-oov mean", strategy="xavier_pretrained")[2]
    assert record["oov"] is record["matched"] is record["matched_absorption_ratio"] is None  # every row is drawn


# R4 R6
def test_what_does_not_apply_is_not_in_the_record(data, glove):
    record = encoder(data, glove["de"], strategy="shuffled")[2]
    assert (record["shuffle"], record["target_std"]) == ("rows", None)
    assert "|std:" not in record["signature"]
    assert encoder(data, glove["de"])[2]["shuffle"] is None


# R1
def test_matched_rows_are_those_that_one_of_two_sources_has(data, tmp_path):
    vectors, paths = glove_rows("de"), [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, columns, lacks in zip(paths, (slice(0, 5), slice(5, 8)), ("d1", "d2")):
        write_vectors(path, {word: row[columns] for word, row in vectors.items() if word != lacks})
    table, dictionary, record = encoder(data, "concat:{},{}".format(*paths))
    found = [row for row in range(4, 44) if dictionary[row] in vectors]
    assert record["matched"]["std"] == pytest.approx(table[found].std(ddof=1, dtype=np.float64), rel=1e-9)
