"""`embinit expand-vocab` on every family of models. Oracles: fairseq loads the result; old rows and logits are the same
to the last bit; new rows are means taken with plain loops; the divergence is computed from both distributions."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from expand_checkpoints import (
    DECODER,
    ENCODER,
    FAMILIES,
    LM,
    NEW,
    TWO_TABLES,
    USER_DIR,
    WORDS,
    argv,
    as_fairseq,
    assert_same,
    dictionary,
    divergence,
    logits,
    make,
)

from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OptionError
from embinit_fairseq.init.init_report import symbols_digest
from embinit_fairseq.resize.trim import TrimRequest, trimming

TABLE, TIED, OTHER = "decoder.embed_tokens.weight", "decoder.output_projection.weight", "decoder.layers.0.fc1.weight"


@pytest.fixture
def lm(tmp_path):
    return make(tmp_path, "lm_tied")


def before_and_after(checkpoint, model, task):
    """Logits of the old model for the same symbols, of the new one in the same order, and those of the new words."""
    found = []
    for made, known in ((checkpoint.model, checkpoint.task), (model, task)):
        words = known.target_dictionary or known.source_dictionary
        source = [known.source_dictionary.index(symbol) for symbol in "w3 w1 w8 </s>".split()]
        target = ["</s>" if hasattr(made, "decoder") or hasattr(made, "models") else "<s>", *"w0 w5 w2 w2 w7".split()]
        found.append((logits(made, source, [*map(words.index, target)]), words.indices))
    (old, old_rows), (new, new_rows) = found
    return old, new[:, [new_rows[symbol] for symbol in old_rows]], new[:, [new_rows[word] for word in NEW]]


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"lm", "transformer"}))  # which other tests expand
def test_every_family_and_back(family, tmp_path):
    """One expansion each: what is longer, its rows, old logits, the bound, the dictionary, the optimizer. Trimmed to
    the old words, all bits are the old ones, those of the average, too."""
    checkpoint = make(tmp_path, family)
    checkpoint.state["extra_state"]["ema"] = {name: value + 1 for name, value in checkpoint.state["model"].items()}
    checkpoint.save()
    record, loaded = checkpoint.expand(), as_fairseq(checkpoint)
    symbols = (checkpoint.task.target_dictionary if record["sides"] else checkpoint.task.source_dictionary).symbols
    size, described = len(symbols), 4 + len(WORDS)
    before, after = checkpoint.state["model"], checkpoint.written()["model"]
    longer = [name for name in before if before[name].shape != after[name].shape]
    assert sorted(longer) == sorted(name for names in record["tables"].values() for name in names)
    for name in longer:
        old, new = before[name].double(), after[name].double()
        assert len(new) == len(old) + 3 == size + 3
        for row in range(described, described + 3):
            torch.testing.assert_close(new[row], sum(old) / len(old), rtol=1e-6, atol=1e-7)
    moments = checkpoint.written()["last_optimizer_state"]["state"]
    for number, (name, parameter) in enumerate(loaded[0].named_parameters()):
        for key in ("exp_avg", "exp_avg_sq"):
            assert moments[number][key].shape == parameter.shape
            assert not (name in longer and moments[number][key][described : described + 3].any())
    assert record["moved"] == {symbol: row + 3 for row, symbol in enumerate(symbols) if row >= described}  # [de] __de__
    assert (record["n"], record["k"], record["rows_before"], record["rows_after"]) == (size, 3, size, size + 3)
    if "sentence_prediction" in FAMILIES[family]:
        assert (record["softmax"], record["bound"]) == (False, None)
        assert (checkpoint.output / "label/dict.txt").read_text() == "a 1\nb 1\nc 1\n"
    else:
        assert record["bound"] == pytest.approx(math.log(1 + 3 / size))
        old, kept, new = before_and_after(checkpoint, *loaded)
        torch.testing.assert_close(kept, old, rtol=0, atol=1e-6)  # a longer product may be summed in another order
        assert divergence(old, torch.cat([kept, new], dim=1)).max() <= record["bound"] + 1e-6
    if family == "multilingual_shared":  # written for all languages
        texts = {path.name: path.read_text() for path in checkpoint.output.glob("dict*")}
        assert (sorted(texts), len({*texts.values()})) == (["dict.de.txt", "dict.en.txt", "dict.nl.txt"], 1)
    name, back = Path(checkpoint.dictionary).name, tmp_path / "back"
    files = {"checkpoint": checkpoint.output / "model.pt", "dictionary": checkpoint.output / name, "output": back}
    options = {
        "keep": (checkpoint.dictionary,),
        "side": "decoder" if family in TWO_TABLES else None,
        "user_dir": USER_DIR,
    }
    with trimming(TrimRequest(**{option: str(path) for option, path in files.items()}, **options)) as (*_, record):
        assert record["words_removed"] == len(NEW)
    assert (back / name).read_text() == Path(checkpoint.dictionary).read_text()
    found = load_checkpoint(back / "model.pt")
    for part in ("model", "last_optimizer_state", "extra_state"):
        assert_same(checkpoint.state[part], found[part], part)


def test_fillers_are_reused_the_mask_moves(tmp_path):
    """Two fillers, three words; KL is over the symbols that mean what they meant."""
    checkpoint = make(tmp_path, "roberta", fillers=2)
    record = checkpoint.expand()
    assert [word["row"] for word in record["words"]] == [13, 14, 15]
    assert record["moved"] == {"<mask>": 16}
    assert (record["reused_fillers"], record["n"], record["rows_before"], record["rows_after"]) == (2, 14, 16, 17)
    model, task = as_fairseq(checkpoint)
    assert task.source_dictionary.symbols[12:] == ["w8", "x", "y", "z", "<mask>"]
    kept = [*range(13), 15]
    old, new = (state["model"]["encoder.lm_head.weight"] for state in (checkpoint.state, checkpoint.written()))
    torch.testing.assert_close(new[13:16].double(), old[kept].double().mean(0).expand(3, -1), rtol=1e-6, atol=1e-7)
    before = logits(checkpoint.model, [0], [0, 5, 15, 7, 2])[:, kept]
    after = logits(model, [0], [0, 5, 16, 7, 2])
    torch.testing.assert_close(after[:, [*range(13), 16]], before, rtol=0, atol=1e-6)
    kl = divergence(before, torch.cat([before, after[:, 13:16]], dim=1))
    assert kl.max() <= record["bound"] == math.log1p(3 / 14)
    # a filler is left: tables are as long as they were
    record = checkpoint.expand(words=("x",), average_over="words", force=True)
    assert record["n"] == len(WORDS)
    assert (record["rows_before"], record["rows_after"], record["moved"]) == (16, 16, {})
    assert as_fairseq(checkpoint)[1].source_dictionary.symbols[12:] == ["w8", "x", "madeupword0001", "<mask>"]


def test_averages_of_a_model_in_half_precision(lm):
    """They may have other names of a tied table. What is no tensor of the model is left alone, as by fairseq."""
    in_model, in_average = (TABLE,), (TABLE, TIED)
    weights = {name: value.half() for name, value in lm.state["model"].items()}
    others = {name: value for name, value in weights.items() if name not in (TABLE, TIED)}
    average = {name: value + 0.5 for name, value in others.items()} | {"of nobody": torch.ones(3)}
    average |= dict.fromkeys(in_average, weights[TABLE] + 0.5)
    fp32 = {name: value.float() for name, value in average.items()}
    lm.state["extra_state"] |= {"ema": average, "ema_fp32_params": fp32, "best": 1.5}
    paused = {"patience": {"best": 1.5, "num_runs": 2}, "epoch_loss": 2.0}
    lm.state["extra_state"] |= {"val_loss": 1.75, "compat": paused}
    lm.state["model"] = {**others, **{name: weights[TABLE] for name in in_model}}
    lm.save()
    assert lm.expand("gaussian", noise_scale=1.0)["averages"] == ["ema", "ema_fp32_params"]
    written = lm.written()
    model = written["model"][TABLE]
    kept = {name: value for name, value in written["extra_state"].items() if name not in ("ema", "ema_fp32_params")}
    iterator = lm.state["extra_state"]["train_iterator"]
    expected = {"train_iterator": iterator, "val_loss": 1.75, "compat": {"patience": {}, "epoch_loss": 2.0}}
    assert kept == expected, "the best value is of another model"
    assert model[13:].std(0).min() > 1e-3
    assert {TABLE, TIED} & set(written["model"]) == set(in_model)
    for name, precision in (("ema", torch.float16), ("ema_fp32_params", torch.float32)):
        found = written["extra_state"][name]
        assert {TABLE, TIED} & set(found) == set(in_average)
        assert torch.equal(found["of nobody"], torch.ones(3))
        for key in in_average:  # the same draw, so the same distance as the old rows have
            assert found[key].dtype == precision
            torch.testing.assert_close(found[key].float() - model.float(), torch.full((16, 8), 0.5), rtol=0, atol=4e-3)


def test_the_seed_the_record_and_what_else_is_in_the_checkpoint(lm, tmp_path):
    torch.manual_seed(5)
    rows, state = [], (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())
    for seed in (1, 1, 2):
        record = lm.expand("gaussian", force=True, seed=seed, noise_scale=1.0)
        rows.append(lm.written()["model"][TABLE][13:])
    assert torch.equal(rows[0], rows[1])
    assert (rows[0] - rows[2]).abs().mean() > 0.05
    assert (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()) == state
    assert json.loads((lm.output / "expansion.json").read_text()) == record
    assert (record["request"]["method"], record["seed"], record["optimizer"]) == ("gaussian", 2, True)
    assert record["sha256"]["words"] == hashlib.sha256((tmp_path / "new.txt").read_bytes()).hexdigest()
    for name in ("extra_state", "cfg", "optimizer_history"):
        assert lm.written()[name] == lm.state[name], name


def vectors_of(checkpoint, *words) -> tuple[str, dict[str, np.ndarray]]:
    """A file of vectors, and what is in it."""
    vectors = dict(zip(words, np.random.default_rng(3).normal(size=(len(words), 5))))
    (checkpoint.folder / "vectors.txt").write_text(
        "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors.items())
    )
    return str(checkpoint.folder / "vectors.txt"), vectors


@pytest.mark.parametrize("family", ["lm", "roberta"])
def test_rows_of_similar_old_words(family, tmp_path):
    """By FOCUS's equation, sparsemax by sorting, on matrices and bias. Fillers, specials and `<mask>` take no part,
    though the file has them; a new word may take a filler's row."""
    checkpoint = make(tmp_path, family, fillers=1)
    path, vectors = vectors_of(checkpoint, *WORDS[:7], "x", "y", "z", "<mask>", "madeupword0000", "<unk>")
    record = checkpoint.expand("focus", vectors=path)
    cosines = {
        word: {
            w: vectors[word] @ vectors[w] / np.sqrt(vectors[word] @ vectors[word] * (vectors[w] @ vectors[w]))
            for w in WORDS[:7]
        }
        for word in NEW
    }
    w = np.zeros((3, 13))
    for number, word in enumerate(NEW):
        ranked = sorted(cosines[word].values(), reverse=True)
        size = max(k for k in range(1, 8) if 1 + k * ranked[k - 1] > sum(ranked[:k]))
        tau = (sum(ranked[:size]) - 1) / size
        for row, old in enumerate(WORDS[:7], start=4):
            w[number, row] = max(cosines[word][old] - tau, 0)
    rows = [word["row"] for word in record["words"]]
    for names in record["tables"].values():
        before, after = checkpoint.state["model"][names[0]].double(), checkpoint.written()["model"][names[0]].double()
        torch.testing.assert_close(after[rows], torch.from_numpy(w) @ before[:13], rtol=1e-5, atol=1e-6)
    assert record["bounds"]["uniform"] == pytest.approx(math.log1p(w.sum(axis=0).max()))
    assert record["bounds"]["attained"] <= record["bound"] <= record["bounds"]["uniform"]
    omp = checkpoint.expand("omp", vectors=path, sparsity=2, force=True)
    assert (omp["bound"], omp["bounds"], omp["drawn"]) == (None, None, 0)


def test_words_without_a_vector_are_drawn_and_there_is_no_bound(lm, shown):
    path, _ = vectors_of(lm, *WORDS[:7], "x", "y")
    text = shown(*argv(lm, "--method", "focus", "--vectors", path))
    assert "no bound with focus, since 1 word without a vector is drawn" in text
    rows = lm.written()["model"][TABLE][13:]
    other = lm.expand("focus", vectors=path, seed=2, force=True)
    assert other["drawn"] == 1
    assert [torch.equal(*pair) for pair in zip(rows, lm.written()["model"][TABLE][13:])] == [True, True, False]


# --- translation has two dictionaries: which one is meant, and what becomes of the other


def test_the_side_is_found_by_the_size(tmp_path):
    """The dictionary of the other side is written, too, if it is there."""
    checkpoint, data, other = make(tmp_path, "transformer"), tmp_path / "data", tmp_path / "other"
    record = checkpoint.expand()
    assert (record["sides"], set(record["tables"])) == (["decoder"], {TABLE, TIED})
    source = checkpoint.expand(dictionary=str(data / "dict.de.txt"), output=str(other))
    assert (source["sides"], set(source["tables"])) == (["encoder"], {"encoder.embed_tokens.weight"})
    assert (source["softmax"], source["bound"]) == (False, None)
    assert (other / "dict.en.txt").read_text() == (data / "dict.en.txt").read_text()
    files = {"checkpoint": other / "model.pt", "dictionary": other / "dict.en.txt", "output": tmp_path / "third"}
    assert checkpoint.expand(words=("u",), **{name: str(path) for name, path in files.items()})["rows_after"] == 14
    assert (tmp_path / "third" / "dict.de.txt").read_text().endswith("most 7\nx 1\ny 1\nz 1\n")

    (data / "dict.de.txt").write_text(dictionary(WORDS[:3]))  # of other data
    files = ["model.pt", "dict.en.txt", "expansion.json"]
    assert checkpoint.expand(force=True)["files"] == files
    assert {path.name for path in checkpoint.output.iterdir()} == {*files}


def test_two_tables_of_one_size_ask_for_the_side(tmp_path):
    checkpoint = make(tmp_path, "transformer", other=WORDS)
    for side, said in (
        (None, r"dict\.en\.txt: it fits the encoder and the decoder.*--side encoder"),
        ("encoder", r"dict\.en\.txt: by its name .* encoder.*give dict\.de\.txt"),
    ):
        with pytest.raises(OptionError, match=said):
            checkpoint.expand(side=side)
    assert checkpoint.expand(side="decoder")["sides"] == ["decoder"]
    record = checkpoint.expand(side="both", force=True)
    assert (record["sides"], len(record["tables"])) == (["encoder", "decoder"], 3)
    (tmp_path / "data" / "dict.de.txt").write_text(dictionary([f"v{i}" for i in range(9)]))
    with pytest.raises(OptionError, match=r"dict\.de\.txt is another dictionary"):
        checkpoint.expand(side="both", force=True)


#: what a task is told -> the dictionaries that the result has, and the sides that change
TASKS = {
    "translation_multi_simple_epoch --lang-pairs de-en --source-dict d/dict.de.txt --target-dict d/dict.en.txt": (
        "dict.de.txt dict.en.txt",
        ["decoder"],
    ),
    "translation_multi_simple_epoch --lang-pairs nl-en --fixed-dictionary d/dict.txt": ("dict.txt", None),
    "translation": ("dict.de.txt dict.en.txt", ["decoder"]),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_says_itself_which_dictionaries_it_reads(tmp_path, monkeypatch, task):
    """They have its names, and fairseq loads the result with nothing but the folder; languages may be inferred."""
    names, sides = TASKS[task]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.de-en.en.idx").touch()
    flags = f"--task {task} --arch transformer_iwslt_de_en {ENCODER} {DECODER}"
    monkeypatch.setitem(FAMILIES, "told", flags.replace("d/", f"{tmp_path}/data/"))
    checkpoint = make(tmp_path, "told")
    record = checkpoint.expand()
    assert (record["files"], record["sides"]) == (["model.pt", *names.split(), "expansion.json"], sides)
    assert len(as_fairseq(checkpoint)[1].target_dictionary) == record["rows_after"] == record["rows_before"] + 3


# --- what it prints, and what it refuses in one line, with nothing written


def test_for_people(tmp_path, shown):
    checkpoint, more = make(tmp_path, "roberta", fillers=1), [f"n{i}" for i in range(10)]
    parts = ["3: x, y, z", "15 -> 17 (1 filler became words)", "avg, over 14 rows", "<mask> to row 16"]
    parts += ["<= 0.1942 nats", "embed_tokens.weight = encoder.lm_head.weight", "the optimizer's state"]
    zeros = ["--method", "zeros", "--force"]
    for flags, words, expected in (([], "xyz", parts), (zeros, more, ["no bound with zeros", "n7 and 2 more"])):
        text = shown(*argv(checkpoint, *flags, words=words))
        assert all(part in text for part in expected), text
    # an averaged checkpoint has no moments, nor has plain gradient descent
    for state in (None, torch.optim.SGD(checkpoint.model.parameters(), lr=0.1).state_dict()):
        checkpoint.state["last_optimizer_state"] = state
        checkpoint.save()
        assert "also expanded  nothing: no average" in shown(*argv(checkpoint, "--force"))


def test_errors_are_one_line_and_nothing_is_left(lm, tmp_path, refused):
    """A pipe can be read once, and has no SHA-256; nobody writes to this one."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "old.vec").write_text("w0 1 2\nw1 2 1\n")
    before = sorted([*(path.name for path in tmp_path.iterdir()), "new.txt"])
    for more, words, said in (
        (("--words", f"{tmp_path}/pipe"), NEW, f"--words {tmp_path}/pipe: a pipe or device"),
        (("--verify", f"{tmp_path}/pipe"), NEW, f"--verify {tmp_path}/pipe: a pipe or device"),
        ((), ("x", "w1"), "new.txt:2: "),
        (("--user-dir", "/nowhere"), NEW, "--user-dir /nowhere: no plugin of fairseq"),
        (("--method", "subword"), NEW, "needs the subwords of 'x'"),
        (("--segment-text", f"{tmp_path}/new.txt"), NEW, "--segment-text: "),
        (("--method", "gaussian", "--noise-scale=-1e-9"), NEW, "--noise-scale -1e-09"),
        (("--noise-scale", "0.1"), NEW, "--noise-scale 0.1: .*leave it out"),
        (("--seed", "-1"), NEW, "--seed -1"),
        (("--method", "focus"), NEW, "--method focus needs --vectors FILE"),
        (("--vectors", f"{tmp_path}/new.txt"), NEW, "--vectors .*avg reads no vectors; leave it out"),
        (("--format", "npz"), NEW, "--format npz: .*leave it out"),
        (("--sparsity", "2"), NEW, "--sparsity 2: .*leave it out"),
        (("--method", "omp", "--vectors", f"{tmp_path}/old.vec"), NEW, "--vectors .*old.vec: .*none of the new words"),
        (("--side", "decoder"), NEW, "--side decoder: .*leave --side out"),
    ):
        assert re.search(said, refused(*argv(lm, *more, words=words)))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_dictionaries_that_do_not_fit(lm, tmp_path):
    checkpoint = make(tmp_path / "two", "transformer")
    path = tmp_path / "other.txt"
    path.write_text(dictionary([*WORDS, "a", "b", "c", "d", "e"]))
    for model, tables in ((checkpoint, r"15 rows \(encoder\)"), (lm, "has 13 rows")):
        with pytest.raises(DataError, match=rf"--dict .*other\.txt: .* symbols \(4 specials, 14 lines.*{tables}"):
            model.expand(dictionary=str(path))
    path.write_bytes(dictionary().replace("\n", "\r").encode())
    lm.expand(dictionary=str(path))
    assert (lm.output / "dict.txt").read_bytes() == f"{dictionary()}x 1\ny 1\nz 1\n".encode()
    path.write_text(dictionary(WORDS[::-1]))
    slots = {"decoder": {"rows": 13, "dictionary": symbols_digest(lm.task.dictionary.symbols)}}
    lm.state["cfg"]["embed_init_options"] = {"embed_init_record": json.dumps({"slots": slots})}
    lm.save()
    with pytest.raises(DataError, match=r"--dict .*other\.txt: as many symbols .*\(decoder\).*of its training"):
        lm.expand(dictionary=str(path), force=True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (f"{LM} transformer_lm --adaptive-softmax-cutoff 5,8 --decoder-embed-dim 8", "--adaptive-softmax-cutoff"),
        (f"{LM} fconv_lm --decoder-layers [(8,3)] --decoder-attention False --decoder-embed-dim 8", "weight normalis"),
        (
            f"--task cross_lingual_lm --tokens-per-sample 16 --max-positions 16 --arch masked_lm {ENCODER}",
            "'<mask>' in row 4 .*expected 'w0'; .*specials",
        ),
        (
            FAMILIES["multilingual_shared"].replace("--share-encoders --share-decoders --share-all-embeddings", ""),
            "13 and 15 rows.*--share-all-embeddings",
        ),
    ],
)
def test_models_that_cannot_be_expanded(tmp_path, monkeypatch, flags, said):
    monkeypatch.setitem(FAMILIES, "bad", flags)
    with pytest.raises(EmbinitError, match=said):
        make(tmp_path, "bad").expand()


def test_checkpoints_that_are_none(lm):
    weights, cfg, extra = lm.state["model"], lm.state["cfg"], lm.state["extra_state"]
    pad, last = weights[TABLE].clone(), weights[TABLE].clone()
    pad[1, 0], last[12, 0] = math.nan, math.inf
    for said, change in {
        "sharded-state": {"fsdp_metadata": {}},
        "a row for every symbol": {"model": {"layer.weight": weights[OTHER]}},
        rf"{TABLE} and {TIED} are one tensor .* differ in the file": {"model": {**weights, TIED: weights[TIED] + 1}},
        rf"cannot be loaded .*{OTHER}": {"model": {key: value for key, value in weights.items() if key != OTHER}},
        rf"{TABLE} holds NaN or infinity; name an": {"model": {**weights, TABLE: last, TIED: last}},
        f"ema {TABLE} holds NaN or infinity": {"extra_state": {**extra, "ema": {TABLE: pad}}},
        "--arch of_nobody is unknown to .*--user-dir": {
            "cfg": {**cfg, "model": {**cfg["model"], "_name": "of_nobody"}}
        },
        "cannot be set up": {"cfg": {**cfg, "task": {**cfg["task"], "_name": "of_a_plugin"}}},
        "no 'cfg'": {"cfg": None},
        "no 'model' in it": {"model": {}},
    }.items():
        torch.save({**lm.state, **change}, lm.path)
        with pytest.raises(CheckpointError, match=rf"c\.pt\b.*{said}"):
            lm.expand()
    assert not lm.output.exists()


def test_an_optimizer_that_is_not_understood(lm):
    lm.state["last_optimizer_state"] = {"groups": {}}
    lm.save()
    with pytest.raises(CheckpointError, match="--reset-optimizer"):
        lm.expand()
    assert lm.expand(reset_optimizer=True)["optimizer"] is False
    assert "last_optimizer_state" not in lm.written()
