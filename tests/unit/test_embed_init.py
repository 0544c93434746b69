"""`--embed-init` at the start of a training: each option reaches its matrix, and the report has the right numbers."""

import functools
import json
import math
import os
from argparse import Namespace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import options, tasks, utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import SinusoidalPositionalEmbedding
from source_files import numbers
from torch import nn

import embinit_fairseq
from embinit_fairseq.checkpoint_file import initialisation_record
from embinit_fairseq.embed_init import plugin
from embinit_fairseq.errors import CoverageError, EmbinitError, OptionError, VectorFileError
from embinit_fairseq.init import strategies
from embinit_fairseq.init.draws import Draws
from embinit_fairseq.init.init_report import unpack_rows
from embinit_fairseq.init.strategies import Source
from embinit_fairseq.version import VERSION
from embinit_fairseq.vocab.matching import RULES

D = 8

# ---- A small model that is filled without fairseq's parser ----------------------------------------------------------


def make_dictionary(letter: str) -> Dictionary:
    dictionary = Dictionary()
    for number in range(40):
        dictionary.add_symbol(f"{letter}{number}", n=50 - number)
    return dictionary


class Side(nn.Module):
    def __init__(self, letter: str) -> None:
        super().__init__()
        self.dictionary, self.embed_scale = make_dictionary(letter), math.sqrt(D)
        self.embed_tokens = nn.Embedding(len(self.dictionary), D, padding_idx=1)
        self.embed_positions = SinusoidalPositionalEmbedding(D, 1, 1026)


def small_model() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Module()
    model.encoder, model.decoder = Side("d"), Side("e")
    return model


def start(strategy: str, path: str | list[str] = (), run_seed: int = 1, **flags):
    """Return slot -> matrix and slot -> record of a new training; flags without `embed_init_`, texts for lists."""
    lists = {"format", "match", "freeze"}
    fairseqs = {name: flags.pop(name) for name in ("optimizer", "fp16", "bf16") if name in flags}
    told = {f"embed_init_{name}": value.split() if name in lists else value for name, value in flags.items()}
    told["embed_init_path"] = [f"encoder={path}"] if isinstance(path, str) else list(path)
    cfg, model = Namespace(embed_init=strategy, seed=run_seed, **told, **fairseqs), small_model()
    plugin.prepare_training(model, SimpleNamespace(optimizer_step=None), cfg)
    matrices = {side: getattr(model, side).embed_tokens.weight.detach().numpy() for side in ("encoder", "decoder")}
    return matrices, json.loads(cfg.embed_init_record)["slots"]


def encoder(path, strategy="pretrained", **flags):
    """Return matrix (N, D), word -> row and record of the encoder."""
    matrices, records = start(strategy, str(path), **flags)
    return matrices["encoder"], make_dictionary("d").indices, records["encoder"]


def write_vectors(path, rows: dict) -> str:
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items()), encoding="utf-8")
    return str(path)


@functools.lru_cache
def glove_rows(letter: str) -> dict[str, np.ndarray]:
    """Return vectors for 3 of 4 words of a side, and a row that is spelled `<s>`."""
    words = ["<s>", *(f"{letter}{n}" for n in range(40) if n % 4)]
    return dict(zip(words, np.round(0.05 + 0.4 * numbers(31, D), 5).astype(np.float32)))


@pytest.fixture(scope="module")
def glove(tmp_path_factory):
    """Return letter -> path of GloVe text."""
    folder = tmp_path_factory.mktemp("vectors")
    return {letter: write_vectors(folder / f"{letter}.txt", glove_rows(letter)) for letter in "de"}


# ---- Real architectures and the real parser -------------------------------------------------------------------------

ENCODER = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2"
DECODER = ENCODER.replace("encoder", "decoder")
TRANSFORMER = f"--task translation --arch transformer_iwslt_de_en {ENCODER} {DECODER}"
ARCHITECTURES = {
    "transformer": (TRANSFORMER, {"encoder": "encoder", "decoder": "decoder"}),
    "roberta": (
        f"--task masked_lm --arch roberta_base {ENCODER} --tokens-per-sample 16",
        {"encoder": "encoder.sentence_encoder"},
    ),
    "transformer_lm": (  # with a dataclass
        "--task language_modeling --tokens-per-sample 16 --arch transformer_lm "
        f"{DECODER} --decoder-input-dim 8 --decoder-output-dim 8",
        {"decoder": "decoder"},
    ),
}


def parsed(data, arguments, *flags) -> Namespace:
    user_dir = os.path.dirname(embinit_fairseq.__file__)
    argv = [str(data), "--user-dir", user_dir, "--max-tokens", "100", "--no-save", "--seed", "5"]
    argv += arguments.split() + [word for flag in flags for word in flag.split()]
    return options.parse_args_and_arch(options.get_training_parser(), argv)


@functools.lru_cache
def task_of(data, arguments):
    return tasks.setup_task(convert_namespace_to_omegaconf(parsed(data, arguments)).task)


def build(data, arguments, *flags):
    """Model, task and configuration as fairseq-train builds them."""
    args, task = parsed(data, arguments, *flags), task_of(data, arguments)
    cfg = convert_namespace_to_omegaconf(args) if args.arch == "transformer_lm" else SimpleNamespace(model=args)
    np.random.seed(1)
    utils.set_torch_seed(1)
    return task.build_model(cfg.model), task, {"cfg": cfg if args.arch == "transformer_lm" else vars(cfg)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Dictionaries of both sides and of a language model; with no text, which no model needs to be built."""
    folder = tmp_path_factory.mktemp("data")
    for name, letter in (("dict.de.txt", "d"), ("dict.en.txt", "e"), ("dict.txt", "d")):
        (folder / name).write_text("".join(f"{letter}{number} {50 - number}\n" for number in range(40)))
    (folder / "train.de-en.de.idx").touch()  # what tells fairseq the languages
    return folder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pretrained_rows_arrive_and_nothing_else_moves(name, data, glove):
    arguments, slots = ARCHITECTURES[name]
    letters = {slot: "e" if slot == "decoder" and "encoder" in slots else "d" for slot in slots}
    plain, task, _ = build(data, arguments)
    state = torch.get_rng_state()
    paths = (f"{slot}={glove[letter]}" for slot, letter in letters.items())
    filled, _, cfg = build(data, arguments, "--embed-init pretrained --embed-init-path", *paths)
    assert torch.equal(torch.get_rng_state(), state)  # the draws leave the global state alone
    weights, record = filled.state_dict(), initialisation_record(cfg)["slots"]
    matrices = {weights[f"{module}.embed_tokens.weight"].data_ptr() for module in slots.values()}
    for key, value in plain.state_dict().items():
        assert torch.equal(value, weights[key]) == (weights[key].data_ptr() not in matrices), key
    assert {slot: record[slot]["seed"] for slot in record} == dict.fromkeys(slots, 5)
    for slot, letter in letters.items():
        matrix, vectors = weights[f"{slots[slot]}.embed_tokens.weight"].numpy(), glove_rows(letter)
        dictionary = task.target_dictionary if slot == "decoder" else task.source_dictionary
        assert all((matrix[dictionary.index(word)] == vectors[word]).all() for word in vectors if word != "<s>")
        assert not matrix[dictionary.pad()].any()
        assert (np.abs(matrix[dictionary.bos()]) <= (6 / sum(matrix.shape)) ** 0.5).all()  # a draw, not the row `<s>`


def test_tied_matrices_stay_tied(data, glove, tmp_path, monkeypatch):
    for name in ("dict.de.txt", "dict.en.txt", "train.de-en.de.idx"):  # one dictionary for both sides
        (tmp_path / name).write_text((data / "dict.de.txt").read_text())
    monkeypatch.setenv("HOME", os.path.dirname(glove["d"]))
    init = "--share-all-embeddings --embed-init pretrained --embed-init-path"
    model, _, cfg = build(tmp_path, TRANSFORMER, init, "encoder=~/d.txt decoder=~/d.txt")
    weight, record = model.encoder.embed_tokens.weight, initialisation_record(cfg)["slots"]["encoder"]
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight is weight
    rows = weight[4:].detach().numpy()
    assert (rows == glove_rows("d")["d1"]).all(1).tolist() == [row == 1 for row in range(40)]
    assert (record["tied"], record["source"]["path"]) == (["decoder"], glove["d"])
    with pytest.raises(OptionError, match=r"encoder and decoder .*one and the same.*do not share"):
        build(tmp_path, TRANSFORMER, init, f"encoder={glove['d']} decoder={glove['e']}")


def test_a_frozen_output_layer_is_said(data, caplog):
    tied = "--share-decoder-input-output-embed"
    for name, flags, is_said in (
        ("transformer", "decoder", False),
        ("transformer", f"decoder {tied}", True),
        ("transformer", f"decoder:9 {tied}", False),
        ("transformer", f"encoder {tied}", False),
        ("transformer_lm", f"decoder {tied}", True),
        ("roberta", "encoder", True),
        ("roberta", "encoder --untie-weights-roberta", False),
    ):
        caplog.clear()
        build(data, ARCHITECTURES[name][0], f"--embed-init xavier --embed-init-freeze {flags}")
        remedy = f"--embed-init-freeze {flags.split()[0]}:1000"
        assert (remedy in caplog.text) == is_said, (name, flags)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--embed-init-path=encoder=a.txt --embed-init-strict", "--embed-init-path, --embed-init-strict: needs"),
        ("--embed-init-seed 3 --nobody-knows", "(--embed-init-seed: needs --embed-init {normal,xavier,"),
        ("--embed-init xavier --embed-init-sed 3", "unrecognized arguments: --embed-init-sed 3;"),
    ],
)
def test_options_that_the_parser_refuses_and_its_help(flags, said, capsys):
    with pytest.raises(SystemExit):
        parsed("data", "--arch transformer", flags)
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        options.parse_args_and_arch(options.get_training_parser(), ["--help"])
    assert "--embed-init-seed" in capsys.readouterr().out  # fairseq itself shows no option of a registry
    assert "--embed-init-seed" not in options.get_generation_parser().format_help()


# ---- The learning rate of a matrix ----------------------------------------------------------------------------------

FUSED = {"optimizer": "fused_adam"}


def rates(strategy: str, path: str = "", **flags) -> dict[str, float]:
    """Return slot -> multiple of the learning rate, as the optimizer reads it."""
    model, path = small_model(), [f"encoder={path}"] if path else []
    told = {f"embed_init_{name}": value for name, value in flags.items()}
    cfg = Namespace(embed_init=strategy, embed_init_path=path, **FUSED, **told)
    plugin.prepare_training(model, SimpleNamespace(optimizer_step=None), cfg)
    return {
        side: getattr(getattr(model, side).embed_tokens.weight, "lr_scale", None) for side in ("encoder", "decoder")
    }


def test_a_matrix_has_the_multiple_of_the_rate_that_its_sigma_is_of_xaviers(glove):
    expected = math.sqrt(2 / (44 + D))  # sigma of U(-a, a), a = sqrt(6 / (N + D))
    assert rates("xavier") == {"encoder": None, "decoder": None}
    assert rates("xavier", lr_scale="3") == {"encoder": 3.0, "decoder": 3.0}
    found = rates("xavier", std="8x", lr_scale="sigma")
    assert found == pytest.approx({"encoder": 8, "decoder": 8}, rel=0.1)  # of what was drawn
    vectors = np.stack([row for word, row in glove_rows("d").items() if word != "<s>"]).astype(np.float64)
    found = rates("pretrained", glove["d"], lr_scale="sigma")
    assert found["encoder"] == pytest.approx(vectors.std(ddof=1) / expected, rel=1e-6)  # of the rows with a vector
    assert found["decoder"] == pytest.approx(1, rel=0.1)


# ---- Options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "paths", "flags", "message"),
    [
        ("pretrained", "", {}, "add --embed-init-path encoder=VECTORS decoder="),
        ("pretrained", "enc={d}", {}, "no slot 'enc'; it has: encoder, decoder"),
        ("pretrained", "{d}", {}, "expected SLOT=PATH with SLOT one of encoder.decoder"),
        ("pretrained", "encoder={e}", {}, "--embed-init-path encoder=.*--embed-init-match"),
        ("pretrained", "encoder={wide}", {}, "-path encoder=.*--encoder-embed-dim 9((?!decoder).)*$"),
        (
            "pretrained",
            "encoder=concat:{d},{wide}",
            {},
            "encoder=concat:.*--encoder-embed-dim 17 .*-attention-heads must divide",
        ),
        ("pretrained", "encoder=avg:{d},{e}", {}, r"--embed-init-path encoder=.*e\.txt"),
        ("pretrained", "encoder={d}", {"std": "1"}, "one of xavier, pretrained_xavier, shuffled"),
        ("normal", "", {"std": "xavier"}, "--embed-init-std xavier: .*one of xavier, "),
        ("xavier", "", {"seed": 2**64}, "--embed-init-seed"),
        ("xavier", "", {"freeze": "source"}, "it has: encoder, decoder"),
        ("xavier", "", {"freeze": "encoder:known"}, "no row of 'encoder' has a vector.*-path encoder=PATH"),
        ("pretrained", "encoder={d}", {"format": "encoder=word2vec"}, "glove"),
        ("pretrained", "encoder={d}", {"format": "encoder=pdf"}, "--embed-init-format encoder=pdf.*glove"),
        ("pretrained", "encoder={d}", {"format": "decoder=glove"}, "decoder.*--embed-init-path"),
        ("pretrained", "encoder={d}", {"oov": "subword"}, "--embed-init-oov"),
        ("xavier", "", {"lr_scale": "-1", **FUSED}, "--embed-init-lr-scale -1: .*sigma"),
        ("xavier", "", {"lr_scale": "large", **FUSED}, "--embed-init-lr-scale large: .*sigma"),
        ("xavier", "", {"lr_scale": "sigma", "optimizer": "adam"}, "--optimizer fused_adam$"),
        ("xavier", "", {"lr_scale": "sigma", "fp16": True, **FUSED}, "--fp16 .*--amp"),
        ("xavier", "", {"lr_scale": "2", "bf16": True, **FUSED}, "--bf16 .*--amp"),
    ],
)
def test_bad_options_are_refused_by_name(strategy, paths, flags, message, glove, tmp_path):
    wide = write_vectors(tmp_path / "wide.txt", {f"{letter}{at}": [0.5] * 9 for at in range(40) for letter in "de"})
    with pytest.raises(EmbinitError, match=message):
        start(strategy, paths.format(wide=wide, **glove).split(), **flags)


def test_options_of_fairseq_that_contradict_the_flag():
    names = ("encoder_embed_path", "load_pretrained_decoder_from")
    cases = {name: rf"--{name.replace('_', '-')} .*--embed-init-path (en|de)coder=earlier.pt" for name in names}
    for name, message in (cases | {"ddp_backend": "fully_sharded.*another backend"}).items():
        cfg = Namespace(embed_init="xavier", **{name: "fully_sharded" if name == "ddp_backend" else "earlier.pt"})
        with pytest.raises(OptionError, match=message):
            plugin.prepare_training(small_model(), None, cfg)


def test_draws_depend_on_seed_and_slot_alone(glove):
    def xavier(**flags):
        return start("xavier", [], **flags)[0]

    (matrices, records), other = start("pretrained", glove["d"]), xavier()
    assert (matrices["decoder"] == other["decoder"]).all()  # a slot without vectors has Xavier's numbers
    assert records["decoder"]["strategy"] == "xavier"
    assert (other["encoder"] != xavier(run_seed=2)["encoder"]).any()
    one, two = (xavier(seed=2**64 - 1, run_seed=seed)["encoder"] for seed in (1, 2))
    assert (one == two).all()


@pytest.mark.parametrize("formats", ["glove", "encoder=glove", "word2vec encoder=glove decoder=glove"])
def test_a_format_of_one_slot_or_of_all(glove, formats):
    _, records = start("pretrained", [f"encoder={glove['d']}", f"decoder={glove['e']}"], format=formats)
    assert [record["source"]["format"] for record in records.values()] == ["glove"] * 2


def test_elements_are_shuffled_at_a_chosen_scale(glove):
    matrix, rows, record = encoder(glove["d"], "shuffled", shuffle="elements", std="0.5")
    words = [word for word in glove_rows("d") if word != "<s>"]
    source = Source(np.array([rows[word] for word in words]), np.stack([glove_rows("d")[word] for word in words]))
    draws, rule = Draws(44, D, 1, "encoder", 0.5), partial(strategies.shuffled_elements, rescaled=True)
    np.testing.assert_array_equal(matrix, strategies.build(rule, source, draws, 1))
    assert record["signature"].startswith("init:shuffled_elements|src:d.txt|dim:8|cov:0.7")


def test_how_words_are_matched(glove, tmp_path):
    text, path = Path(glove["d"]).read_text(), tmp_path / "v.txt"

    def record_with(d: str, **flags):
        path.write_text(text.replace("d", d))
        return encoder(path, **flags)[2]

    record = record_with("D")
    assert record["rows_by_rule"] == {"casefold": record["found"]}
    assert record["match"] == sorted(RULES)
    assert set(record_with("▁d")["rows_by_rule"]) == {"marker"}
    for letter, flags in (("D", {"match": "exact"}), ("▁d", {"markers": "sentencepiece"})):
        with pytest.raises(CoverageError, match="--embed-init-match"):
            record_with(letter, **flags)


def test_broken_lines_are_counted_or_refused_and_low_coverage_is_said(glove, tmp_path, caplog):
    text, path = Path(glove["d"]).read_text(), tmp_path / "v.txt"
    path.write_text(text + "d3 0.1 0.2\n" + "".join(f"other{n}{' 0.5' * D}\n" for n in range(100)))
    assert encoder(path)[2]["source"]["broken_lines"] == 1
    with pytest.raises(VectorFileError, match=r"v\.txt:32"):
        encoder(path, strict=True)
    assert "LOW COVERAGE" not in caplog.text
    for words in range(5, 25, 3):  # less than half of the tokens, as the README says
        caplog.clear()
        path.write_text("".join(text.splitlines(keepends=True)[1 : 1 + words]))
        share = encoder(path)[2]["coverage_tokens"]
        assert ("LOW COVERAGE" in caplog.text) == (share < 0.5), share


def test_generation_never_opens_vectors():
    """`from_checkpoint=True` is how fairseq builds a model whose weights come from a file."""
    cfg, model = Namespace(embed_init="pretrained", embed_init_path=["encoder=/nonexistent"]), small_model()
    assert plugin._build_model(lambda *_: model, cfg, None, from_checkpoint=True) is model
    with pytest.raises(VectorFileError):
        plugin._build_model(lambda *_: model, cfg, None)


# ---- The report -----------------------------------------------------------------------------------------------------


def test_two_files_side_by_side_are_reported_one_by_one(tmp_path):
    """Columns 0-4 and 5-7, in two files with a comma in their names; the first lacks d1, the second d2."""
    vectors, paths = glove_rows("d"), [str(tmp_path / "a,1.txt"), str(tmp_path / "b,2.txt")]
    for path, columns, lacks in zip(paths, (slice(0, 5), slice(5, 8)), ("d1", "d2")):
        write_vectors(Path(path), {word: row[columns] for word, row in vectors.items() if word != lacks})
    matrix, rows, record = encoder("concat:{},glove={}".format(*(path.replace(",", ",,") for path in paths)))
    assert all((matrix[rows[word]] == vectors[word]).all() for word in vectors.keys() - {"<s>", "d1", "d2"})
    assert (matrix[rows["d1"]] == vectors["d1"]).tolist() == [False] * 5 + [True] * 3
    source = record["source"]
    assert (record["found"], source["found_in_all"], source["rows"], source["format"]) == (30, 28, 60, "concat")
    assert [(file["path"], file["found"], file["dim"]) for file in source["sources"]] == [
        (path, 29, dim) for path, dim in zip(paths, (5, 3))
    ]
    assert "|src:concat:a,,1.txt,glove=b,,2.txt|dim:8|" in record["signature"]
    complete = unpack_rows(record["known_rows"], len(rows))
    assert (complete.sum(), complete[rows["d1"]]) == (28, False)  # half of it is a draw
    matched = [row for word, row in rows.items() if word in vectors and word != "<s>"]  # one of the files has them
    assert record["matched"]["std"] == pytest.approx(matrix[matched].std(ddof=1, dtype=np.float64), rel=1e-9)


def test_every_number_of_the_report(glove):
    before, vectors = small_model().encoder, glove_rows("d")
    matrix, indices, record = encoder(glove["d"], "pretrained_xavier")
    rows = {word: row for word, row in indices.items() if row > 3 and word in vectors}
    moments = {
        "matched": matrix[[*rows.values()]],
        "before": before.embed_tokens.weight.detach().numpy(),
        "source_moments": np.stack([vectors[word] for word in rows]),
        "after": matrix,
    }
    for key, values in moments.items():
        values = values.astype(np.float64)
        expected = {"min": values.min(), "max": values.max(), "mean": values.mean(), "std": values.std(ddof=1)}
        assert record[key] == pytest.approx(expected, rel=1e-9), key
    counts = np.array(before.dictionary.count)
    positions = float(before.embed_positions.get_embedding(1024, D, None).double().std())
    after, matched = (record[key]["std"] * D**0.5 for key in ("after", "matched"))
    expected = {
        "found": 30,
        "coverage_types": 0.75,
        "coverage_tokens": counts[[*rows.values()]].sum() / counts[4:].sum(),
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


def test_the_report_has_no_number_where_an_option_does_not_apply(glove):
    record = encoder(glove["d"], "xavier_pretrained", oov="mean")[2]
    assert record["oov"] is record["matched"] is record["matched_absorption_ratio"] is record["shuffle"] is None
    record = encoder(glove["d"], "shuffled")[2]
    assert (record["shuffle"], record["target_std"], "|std:" in record["signature"]) == ("rows", None, False)
