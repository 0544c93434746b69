"""`expand_vocabulary` on every family of models. Oracles: fairseq loads the result; old rows and logits are the same to
the last bit; new rows are means taken with plain loops; the divergence is computed from both distributions."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from expand_checkpoints import (
    DECODER,
    ENCODER,
    FAMILIES,
    NEW,
    WORDS,
    argv,
    as_fairseq,
    dictionary,
    divergence,
    logits,
    make,
    text_of,
)

from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.expand.evaluation import read_text
from embinit_fairseq.expand.tables import languages_of

TABLE, TIED = "decoder.embed_tokens.weight", "decoder.output_projection.weight"


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


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family(family, tmp_path):
    """One expansion each: what is longer, its rows, old logits, the bound, the dictionary, the optimiser."""
    checkpoint = make(tmp_path, family)
    record, loaded = checkpoint.expand(), as_fairseq(checkpoint)
    symbols = (checkpoint.task.target_dictionary if record["sides"] else checkpoint.task.source_dictionary).symbols
    size, described = len(symbols), 4 + len(WORDS)
    before, after = checkpoint.state["model"], checkpoint.written()["model"]
    longer = [name for name in before if before[name].shape != after[name].shape]
    assert sorted(longer) == sorted(name for names in record["tables"].values() for name in names)
    for name in longer:
        old, new = before[name].double(), after[name].double()
        assert len(new) == len(old) + 3 == size + 3
        assert torch.equal(torch.cat([new[:described], new[described + 3 :]]), old)
        for row in range(described, described + 3):
            torch.testing.assert_close(new[row], sum(old) / len(old), rtol=1e-6, atol=1e-7)
    assert all(torch.equal(before[name], after[name]) for name in before if name not in longer)
    check_moments(checkpoint, longer, described, loaded[0])
    assert record["moved"] == {symbol: row + 3 for row, symbol in enumerate(symbols) if row >= described}  # [de] __de__
    assert (record["n"], record["k"], record["rows_before"], record["rows_after"]) == (size, 3, size, size + 3)
    if "sentence_prediction" in FAMILIES[family]:
        assert (record["softmax"], record["bound"]) == (False, None)
        return
    assert record["bound"] == pytest.approx(math.log(1 + 3 / size))
    old, kept, new = before_and_after(checkpoint, *loaded)
    torch.testing.assert_close(kept, old, rtol=0, atol=1e-6)  # sums of a longer product may be made in another order
    assert divergence(old, torch.cat([kept, new], dim=1)).max() <= record["bound"] + 1e-6


def check_moments(checkpoint, longer, described, model):
    """Every moment has the shape of its parameter in the new model; of a table it is the old one, and zeros."""
    before, after = (state["last_optimizer_state"]["state"] for state in (checkpoint.state, checkpoint.written()))
    assert len(before) == len(after) == len(list(model.parameters()))
    for number, (name, parameter) in enumerate(model.named_parameters()):
        for key in ("exp_avg", "exp_avg_sq"):
            new = after[number][key]
            assert new.shape == parameter.shape
            if name in longer:
                assert not new[described : described + 3].any()
                new = torch.cat([new[:described], new[described + 3 :]])
            assert torch.equal(new, before[number][key])


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
    assert checkpoint.expand(average_over="words", force=True)["n"] == len(WORDS)
    record = checkpoint.expand(words=("x",), force=True)  # and a filler is left: tables are as long as they were
    assert (record["rows_before"], record["rows_after"], record["moved"]) == (16, 16, {})
    assert as_fairseq(checkpoint)[1].source_dictionary.symbols[12:] == ["w8", "x", "madeupword0001", "<mask>"]


@pytest.mark.parametrize(("in_model", "in_average"), [((TABLE,), (TABLE, TIED)), ((TABLE, TIED), (TIED,))])
def test_averages_of_a_model_in_half_precision(lm, in_model, in_average):
    """They may have other names of a tied table. What is no tensor of the model is left alone, as by fairseq."""
    weights = {name: value.half() for name, value in lm.state["model"].items()}
    others = {name: value for name, value in weights.items() if name not in (TABLE, TIED)}
    average = {name: value + 0.5 for name, value in others.items()} | {"of nobody": torch.ones(3)}
    average |= dict.fromkeys(in_average, weights[TABLE] + 0.5)
    fp32 = {name: value.float() for name, value in average.items()}
    lm.state["extra_state"] |= {"ema": average, "ema_fp32_params": fp32}
    lm.state["model"] = {**others, **{name: weights[TABLE] for name in in_model}}
    lm.save()
    assert lm.expand("gaussian", noise_scale=1.0)["averages"] == ["ema", "ema_fp32_params"]
    written = lm.written()
    model = written["model"][TABLE]
    assert model[13:].std(0).min() > 1e-3
    assert {TABLE, TIED} & set(written["model"]) == set(in_model)
    for name, precision in (("ema", torch.float16), ("ema_fp32_params", torch.float32)):
        found = written["extra_state"][name]
        assert {TABLE, TIED} & set(found) == set(in_average)
        assert torch.equal(found["of nobody"], torch.ones(3))
        for key in in_average:  # the same draw, so the same distance as the old rows have
            assert found[key].dtype == precision
            torch.testing.assert_close(found[key].float() - model.float(), torch.full((16, 8), 0.5), rtol=0, atol=4e-3)
    as_fairseq(lm)


def test_the_seed_the_record_and_what_else_is_in_the_checkpoint(lm, tmp_path):
    lm.state["extra_state"]["best"] = 1.5
    lm.save()
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
    written = lm.written()
    assert all(written[name] == lm.state[name] for name in ("extra_state", "cfg", "optimizer_history"))


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

    for beside in ("", dictionary(WORDS[:3])):  # none, and one of other data
        (data / "dict.de.txt").write_text(beside)
        files = ["model.pt", "dict.en.txt", "expansion.json"]
        assert checkpoint.expand(force=True)["files"] == files
        assert {path.name for path in checkpoint.output.iterdir()} == {*files}


def test_two_tables_of_one_size_ask_for_the_side(tmp_path):
    checkpoint = make(tmp_path, "transformer", other=WORDS)
    with pytest.raises(OptionError, match=r"dict\.en\.txt: it fits the encoder and the decoder.*--side encoder"):
        checkpoint.expand()
    assert checkpoint.expand(side="decoder")["sides"] == ["decoder"]
    with pytest.raises(OptionError, match=r"dict\.en\.txt: by its name .* encoder.*give dict\.de\.txt"):
        checkpoint.expand(side="encoder", force=True)
    record = checkpoint.expand(side="both", force=True)
    assert (record["sides"], len(record["tables"])) == (["encoder", "decoder"], 3)
    (tmp_path / "data" / "dict.de.txt").write_text(dictionary([f"v{i}" for i in range(9)]))
    with pytest.raises(OptionError, match=r"dict\.de\.txt beside it is another dictionary"):
        checkpoint.expand(side="both", force=True)


def test_a_shared_table_has_no_sides(tmp_path):
    for family, side, part in (("transformer_shared", "encoder", "share one"), ("lm", "decoder", "one dictionary")):
        with pytest.raises(OptionError, match=rf"--side {side}: .*{part}"):
            make(tmp_path, family).expand(side=side)


def test_a_dictionary_of_many_languages_is_that_of_each(tmp_path):
    """It is written for all; a model with dictionaries of their own is refused, and its divergence not measured."""
    checkpoint = make(tmp_path, "multilingual_shared")
    assert checkpoint.expand()["sides"] is None
    names = ["dict.de.txt", "dict.en.txt", "dict.nl.txt"]
    assert sorted(path.name for path in checkpoint.output.glob("dict*")) == names
    assert len({(checkpoint.output / name).read_text() for name in names}) == 1
    (tmp_path / "text").write_text("w0\n")
    with pytest.raises(OptionError, match=r"--verify: MultilingualTransformerModel .*leave it out"):
        read_text(checkpoint.model, True, 20, checkpoint.task, checkpoint.task, [str(tmp_path / "text")] * 2)
    (tmp_path / "data" / "dict.nl.txt").write_text(dictionary([f"v{i}" for i in range(9)]))
    with pytest.raises(OptionError, match=r"dict\.nl\.txt beside it is another dictionary"):
        checkpoint.expand(force=True)


def test_languages_with_tables_of_their_own_are_refused_wherever_the_dictionary_lies(tmp_path, monkeypatch):
    options = "--share-encoders --share-decoders --share-all-embeddings"
    monkeypatch.setitem(FAMILIES, "multilingual", FAMILIES["multilingual_shared"].replace(options, ""))
    checkpoint = make(tmp_path, "multilingual")
    for language in ("de", "en"):
        (tmp_path / "alone.txt").write_bytes((tmp_path / "data" / f"dict.{language}.txt").read_bytes())
        with pytest.raises(CheckpointError, match=r"13, 15 rows.*--share-all-embeddings"):
            checkpoint.expand(dictionary=str(tmp_path / "alone.txt"))


#: what a task is told -> the dictionaries that the result has, and the sides that change
TASKS = {
    "translation_multi_simple_epoch --lang-pairs de-en,de-nl": ("dict.de.txt dict.en.txt dict.nl.txt", ["decoder"]),
    "translation_multi_simple_epoch --lang-pairs de-en --source-dict d/dict.de.txt --target-dict d/dict.en.txt": (
        "dict.de.txt dict.en.txt",
        ["decoder"],
    ),
    "translation_multi_simple_epoch --lang-pairs nl-en --fixed-dictionary d/dict.txt": ("dict.txt", None),
    "translation --source-lang en --target-lang en": ("dict.en.txt", None),
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


def test_the_source_may_be_speech(tmp_path, monkeypatch, refused):
    """Its configuration is beside the data; it has no dictionary, so that --verify has nothing to read."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.yaml").write_text("vocab_filename: dict.txt\n")
    flags = f"--task speech_to_text --arch s2t_transformer_xs --conv-channels 8 {ENCODER} {DECODER}"
    monkeypatch.setitem(FAMILIES, "speech", flags)
    checkpoint = make(tmp_path, "speech")
    text = text_of(checkpoint)
    assert "--verify: the source of S2TTransformerModel" in refused(*argv(checkpoint, "--verify", text, text))
    record = checkpoint.expand()
    assert (record["softmax"], record["rows_before"], record["rows_after"]) == (True, 13, 16)


def test_a_task_with_specials_of_its_own_is_refused(tmp_path, monkeypatch):
    flags = f"--task cross_lingual_lm --tokens-per-sample 16 --max-positions 16 --arch masked_lm {ENCODER}"
    monkeypatch.setitem(FAMILIES, "xlm", flags)
    with pytest.raises(DataError, match=r"--dict .*'<mask>' in row 4 .*expected 'w0'; .*specials"):
        make(tmp_path, "xlm").expand()


@pytest.mark.parametrize("averaged", [True, False])
def test_what_is_said_of_moments_is_true(tmp_path, shown, averaged):
    """An averaged checkpoint has none, nor has plain gradient descent."""
    checkpoint = make(tmp_path, "lm_tied")
    assert checkpoint.expand()["optimizer"] is True
    plain = torch.optim.SGD(checkpoint.model.parameters(), lr=0.1).state_dict()
    checkpoint.state["last_optimizer_state"] = None if averaged else plain
    checkpoint.state["extra_state"]["ema"] = {}
    checkpoint.save()
    assert "also expanded  nothing: no average" in shown(*argv(checkpoint, "--force"))
    record = checkpoint.expand(force=True)
    assert (record["optimizer"], record["averages"]) == (False, [])


def test_languages_are_those_of_the_binarised_files(tmp_path):
    (tmp_path / "train.de-en.en.idx").touch()
    unnamed = {"source_lang": None, "target_lang": None}
    assert languages_of(unnamed, str(tmp_path / "dict.en.txt")) == ("de", "en")
