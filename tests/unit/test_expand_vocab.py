"""`expand_vocabulary` on every family of models. Oracles: fairseq loads the result; old rows and logits are the same to
the last bit; new rows are means taken with plain loops; the divergence is computed from both distributions."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from expand_checkpoints import (
    FAMILIES,
    NEW,
    WORDS,
    as_fairseq,
    before_and_after,
    dictionary,
    divergence,
    logits,
    lowered,
    make,
)

from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.expand.expansion import expand_vocabulary
from embinit_fairseq.expand.tables import languages_of

TABLE, TIED = "decoder.embed_tokens.weight", "decoder.output_projection.weight"


@pytest.fixture
def lm(tmp_path):
    """A language model whose table is the output's, too."""
    return make(tmp_path, "lm_tied")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family(family, tmp_path):
    """One expansion each: what is longer, its rows, old logits, the bound, the dictionary, the optimiser."""
    checkpoint = make(tmp_path, family)
    record = checkpoint.expand()
    size = len(checkpoint.task.target_dictionary if record["sides"] else checkpoint.task.source_dictionary)
    described, loaded = 4 + len(WORDS), as_fairseq(checkpoint)
    before, after = checkpoint.state["model"], checkpoint.written()["model"]
    longer = [name for name in before if before[name].shape != after[name].shape]
    assert sorted(longer) == sorted(name for names in record["tables"].values() for name in names)
    for name in longer:
        old, new = before[name].double(), after[name].double()
        assert len(new) == len(old) + 3 == size + 3
        mean = sum(old) / len(old)
        torch.testing.assert_close(new[:described], old[:described], rtol=0, atol=0)
        torch.testing.assert_close(new[described + 3 :], old[described:], rtol=0, atol=0)
        for row in range(described, described + 3):
            torch.testing.assert_close(new[row], mean, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(before[name], after[name]) for name in before if name not in longer)
    check_outputs(checkpoint, record, size, family, loaded)
    check_moments(checkpoint, record, described, loaded[0])


def check_outputs(checkpoint, record, size, family, loaded):
    assert [word["row"] for word in record["words"]] == [13, 14, 15]
    assert (record["n"], record["k"], record["rows_before"], record["rows_after"]) == (size, 3, size, size + 3)
    if "sentence_prediction" in FAMILIES[family]:
        assert (record["softmax"], record["bound"]) == (False, None)
        return
    assert record["bound"] == pytest.approx(math.log(1 + 3 / size))
    old, kept, new = before_and_after(checkpoint, loaded=loaded)
    # Duo multiplies its tables first, and sums of a longer product may be made in another order
    torch.testing.assert_close(kept, old, rtol=0, atol=1e-6 if family == "duo" else 0)
    assert divergence(old, torch.cat([kept, new], dim=1)).max() <= record["bound"] + 1e-6


def check_moments(checkpoint, record, described, model):
    """Every moment has the shape of its parameter in the new model; of a table it is the old one, and zeros."""
    over = {name for names in record["tables"].values() for name in names}
    before = checkpoint.state["last_optimizer_state"]["state"]
    after = checkpoint.written()["last_optimizer_state"]["state"]
    assert len(before) == len(after) == len(list(model.parameters()))
    for number, (name, parameter) in enumerate(model.named_parameters()):
        for key in ("exp_avg", "exp_avg_sq"):
            old, new = before[number][key], after[number][key]
            assert new.shape == parameter.shape
            if name in over:
                assert not new[described : described + 3].any()
                new = torch.cat([new[:described], new[described + 3 :]])
            torch.testing.assert_close(new, old, rtol=0, atol=0)


@pytest.mark.parametrize("family", ["roberta", "electra", "lstm_lm"])
def test_the_bound_with_a_bias_of_minus_20_everywhere(family, tmp_path):
    """It holds, and what libraries do breaks it."""
    checkpoint = make(tmp_path, family, tweak=lowered)
    highest = {}
    for method in ("avg", "gaussian", "zeros", "normal") if family == "roberta" else ("avg", "zeros"):
        record = checkpoint.expand(method, NEW, force=True)
        old, kept, new = before_and_after(checkpoint)
        highest[method] = float(divergence(old, torch.cat([kept, new], dim=1)).max())
        assert record["bound"] == (pytest.approx(math.log(1 + 3 / record["n"])) if method == "avg" else None)
    assert highest["avg"] <= math.log(1 + 3 / record["n"]) + 1e-6
    assert highest.get("gaussian", highest["avg"]) == pytest.approx(highest["avg"], abs=0.02)
    assert min(highest["zeros"], highest.get("normal", 16)) > 10


def test_the_bound_of_subword(lm):
    record = lm.expand("subword", ("x\tw0 w1", "y\tw2", "z\tw0 w0 w3"))
    assert record["bound"] == pytest.approx(math.log(1 + 1 / 2 + 1 + 2 / 3))
    assert [word["pieces"] for word in record["words"]] == [["w0", "w1"], ["w2"], ["w0", "w0", "w3"]]
    old, kept, new = before_and_after(lm)
    w0, w1, w2 = (old[:, lm.task.target_dictionary.index(word)] for word in ("w0", "w1", "w2"))
    torch.testing.assert_close(new[:, 0], (w0 + w1) / 2, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(new[:, 1], w2)
    assert divergence(old, torch.cat([kept, new], dim=1)).max() <= record["bound"]


# --- placing


def test_fillers_are_reused_the_mask_moves(tmp_path):
    """Two fillers, three words; KL is over the symbols that mean what they meant."""
    checkpoint = make(tmp_path, "roberta", fillers=2)
    record = checkpoint.expand()
    assert [word["row"] for word in record["words"]] == [13, 14, 15]
    assert record["moved"] == {"<mask>": 16}
    assert (record["reused_fillers"], record["n"], record["rows_before"], record["rows_after"]) == (2, 14, 16, 17)
    model, task = as_fairseq(checkpoint)
    assert [task.source_dictionary[row] for row in (12, 13, 14, 15, 16)] == ["w8", "x", "y", "z", "<mask>"]
    key = "encoder.lm_head.weight"
    old, new = checkpoint.state["model"][key], checkpoint.written()["model"][key]
    assert torch.equal(new[16], old[15])
    mean = torch.cat([old[:13], old[15:]]).double().mean(0)
    torch.testing.assert_close(new[13:16].double(), mean.expand(3, -1), rtol=1e-6, atol=1e-7)
    tokens = [0, 5, 15, 7, 2]
    before = logits(checkpoint.model, tokens, tokens)
    after = logits(model, tokens, [0, 5, 16, 7, 2])
    kept = [*range(13), 15]
    torch.testing.assert_close(after[:, [*range(13), 16]], before[:, kept], rtol=0, atol=0)
    renormalised = torch.cat([before[:, kept], after[:, 13:16]], dim=1)
    assert divergence(before[:, kept], renormalised).max() <= record["bound"] == math.log1p(3 / 14)


def test_more_fillers_than_words_leave_the_tables_as_long_as_they_are(tmp_path):
    checkpoint = make(tmp_path, "roberta", fillers=4)
    record = checkpoint.expand()
    assert (record["rows_before"], record["rows_after"], record["moved"]) == (18, 18, {})
    assert set(record["tables"]) == {"encoder.sentence_encoder.embed_tokens.weight", "encoder.lm_head.bias"}
    lines = (checkpoint.output / "dict.txt").read_text().splitlines()
    assert lines == [*(f"{word} 7" for word in WORDS), "x 1", "y 1", "z 1", "madeupword0003 0"]
    as_fairseq(checkpoint)


def test_language_tags_move(tmp_path, monkeypatch):
    """mBART: [de] [en] <mask> behind both dictionaries, which are one."""
    flags = "--task translation_from_pretrained_bart --langs de,en"
    family = FAMILIES["transformer_shared"].replace("--task translation", flags)
    monkeypatch.setitem(FAMILIES, "mbart_shared", family)
    checkpoint = make(tmp_path, "mbart_shared")
    record = checkpoint.expand()
    assert record["moved"] == {"[de]": 16, "[en]": 17, "<mask>": 18}
    assert record["sides"] == ["encoder", "decoder"]
    model, task = as_fairseq(checkpoint)
    assert task.source_dictionary.symbols[13:] == ["x", "y", "z", "[de]", "[en]", "<mask>"]
    assert task.target_dictionary.symbols == task.source_dictionary.symbols
    old, kept, _ = before_and_after(checkpoint, "w3 </s> [de]", "[en] w1 w2 </s>", (model, task))
    torch.testing.assert_close(kept, old, rtol=0, atol=0)


def test_average_over_words_only(tmp_path):
    checkpoint = make(tmp_path, "roberta", fillers=1)
    record = checkpoint.expand(average_over="words")
    assert record["n"] == len(WORDS)
    for key in ("encoder.lm_head.weight", "encoder.lm_head.bias"):
        old, new = checkpoint.state["model"][key].double(), checkpoint.written()["model"][key].double()
        torch.testing.assert_close(new[14], old[4:13].mean(0), rtol=1e-6, atol=1e-7)


# --- averages of the model, half precision, seeds, the rest of the checkpoint


def test_averages_of_the_model_and_half_precision(lm):
    average = {key: (value + 0.5) for key, value in lm.state["model"].items()}
    average[TIED] = average[TABLE]
    lm.state["extra_state"] |= {
        "ema": {key: value.half() for key, value in average.items()},
        "ema_fp32_params": average,
    }
    lm.state["model"] = {key: value.half() for key, value in lm.state["model"].items()}
    lm.save()
    record = lm.expand("gaussian", NEW, noise_scale=1.0)
    assert record["averages"] == ["ema", "ema_fp32_params"]
    written = lm.written()
    model, ema, fp32 = written["model"][TABLE], *(written["extra_state"][name][TABLE] for name in record["averages"])
    assert (model.dtype, ema.dtype, fp32.dtype) == (torch.float16, torch.float16, torch.float32)
    for longer in (ema, fp32):  # the same draw, so the same distance as the old rows have
        torch.testing.assert_close(longer.float() - model.float(), torch.full_like(fp32, 0.5), rtol=0, atol=4e-3)
    assert model[13:].std(0).min() > 1e-3
    as_fairseq(lm)


@pytest.mark.parametrize(("in_model", "in_average"), [((TABLE,), (TABLE, TIED)), ((TABLE, TIED), (TIED,))])
def test_averages_may_have_other_names_of_a_tied_table(lm, in_model, in_average):
    """What is no tensor of the model is left alone, as by fairseq."""
    weights = lm.state["model"]
    others = {name: value for name, value in weights.items() if name not in (TABLE, TIED)}
    average = {name: value + 0.5 for name, value in others.items()} | {"of nobody": torch.ones(3)}
    lm.state["extra_state"]["ema"] = {**average, **{name: weights[TABLE] + 0.5 for name in in_average}}
    lm.state["model"] = {**others, **{name: weights[TABLE] for name in in_model}}
    lm.save()
    lm.expand("gaussian", noise_scale=1.0)
    written = lm.written()
    ema = written["extra_state"]["ema"]
    assert {TABLE, TIED} & set(written["model"]) == set(in_model)
    assert {TABLE, TIED} & set(ema) == set(in_average)
    for name in in_average:
        torch.testing.assert_close(ema[name], written["model"][TABLE] + 0.5)
    assert torch.equal(ema["of nobody"], torch.ones(3))


def test_one_seed_one_result(lm):
    rows = []
    torch.manual_seed(5)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    for seed in (1, 1, 2):
        lm.expand("gaussian", force=True, seed=seed, noise_scale=1.0)
        rows.append(lm.written()["model"][TABLE][13:])
    assert torch.equal(rows[0], rows[1])
    assert (rows[0] - rows[2]).abs().mean() > 0.05
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (np.random.get_state()[1] == state[1]).all()


def test_the_record_and_what_else_is_in_the_checkpoint(lm, tmp_path):
    lm.state["extra_state"]["best"] = 1.5
    lm.save()
    record = lm.expand()
    assert json.loads((lm.output / "expansion.json").read_text()) == record
    assert (record["request"]["method"], record["optimizer"]) == ("avg", True)
    files = {"checkpoint": lm.path, "dictionary": lm.dictionary, "words": str(tmp_path / "new.txt")}
    assert record["sha256"] == {
        name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in files.items()
    }
    assert record["versions"]["fairseq"].startswith("0.12")
    assert record["versions"]["torch"] == torch.__version__
    written = lm.written()
    for name in ("extra_state", "cfg", "optimizer_history"):
        assert written[name] == lm.state[name]


def test_an_optimizer_that_is_not_understood_can_be_left_out(lm):
    lm.state["last_optimizer_state"] = {"groups": {}}
    lm.save()
    with pytest.raises(CheckpointError, match="--reset-optimizer"):
        lm.expand()
    assert not lm.output.exists()
    assert lm.expand(reset_optimizer=True)["optimizer"] is False
    assert "last_optimizer_state" not in lm.written()


# --- translation has two dictionaries: which one is meant, and what becomes of the other


def test_the_side_is_found_by_the_size(tmp_path):
    checkpoint = make(tmp_path, "transformer")
    folder = tmp_path / "data"
    record = checkpoint.expand()
    assert record["sides"] == ["decoder"]
    assert set(record["tables"]) == {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    source = checkpoint.expand(dictionary=str(folder / "dict.de.txt"), output=str(tmp_path / "other"))
    assert source["sides"] == ["encoder"]
    assert set(source["tables"]) == {"encoder.embed_tokens.weight"}
    assert (source["softmax"], source["bound"]) == (False, None)
    assert (tmp_path / "other" / "dict.en.txt").read_text() == (folder / "dict.en.txt").read_text()
    second = checkpoint.request(dictionary=str(tmp_path / "other" / "dict.en.txt"), words=("u",))
    twice = {**second.__dict__, "checkpoint": str(tmp_path / "other" / "model.pt"), "output": str(tmp_path / "third")}
    assert expand_vocabulary(type(second)(**twice))["rows_after"] == 14
    assert (tmp_path / "third" / "dict.de.txt").read_text().endswith("most 7\nx 1\ny 1\nz 1\n")


@pytest.mark.parametrize("beside", [None, dictionary(WORDS[:3])], ids=["none", "of other data"])
def test_without_the_other_dictionary_the_folder_has_one(tmp_path, beside):
    checkpoint = make(tmp_path, "transformer")
    (tmp_path / "data" / "dict.de.txt").unlink()
    if beside is not None:
        (tmp_path / "data" / "dict.de.txt").write_text(beside)
    record = checkpoint.expand()
    assert record["files"] == ["model.pt", "dict.en.txt", "expansion.json"]
    assert sorted(path.name for path in checkpoint.output.iterdir()) == ["dict.en.txt", "expansion.json", "model.pt"]


def test_two_tables_of_one_size_ask_for_the_side(tmp_path):
    checkpoint = make(tmp_path, "transformer", other=WORDS)
    with pytest.raises(OptionError, match=r"dict\.en\.txt: it fits the encoder and the decoder.*--side encoder"):
        checkpoint.expand()
    assert checkpoint.expand(side="decoder")["sides"] == ["decoder"]
    with pytest.raises(OptionError, match=r"by its name it is that of en, but the encoder.*give dict\.de\.txt"):
        checkpoint.expand(side="encoder", force=True)
    record = checkpoint.expand("gaussian", side="both", force=True, noise_scale=1.0)
    assert record["sides"] == ["encoder", "decoder"]
    rows = [checkpoint.written()["model"][key][13:].double() for key in record["tables"]]
    encoder, decoder = (checkpoint.state["model"][key].double() for key in list(record["tables"])[:2])
    deviations = torch.cat([encoder - encoder.mean(0), decoder - decoder.mean(0)], dim=1)
    drawn = torch.cat([rows[0] - encoder.mean(0), rows[1] - decoder.mean(0)], dim=1)
    outside = drawn @ (torch.eye(16).double() - torch.linalg.pinv(deviations) @ deviations)
    assert outside.abs().max() < 1e-5  # one z for both: 13 rows span less than 16 columns
    (tmp_path / "data" / "dict.de.txt").write_text(dictionary([f"v{i}" for i in range(9)]))
    with pytest.raises(OptionError, match=r"dict\.de\.txt beside it is another dictionary"):
        checkpoint.expand(side="both", force=True)


def test_a_shared_table_has_no_sides(tmp_path):
    checkpoint = make(tmp_path, "transformer_shared")
    with pytest.raises(OptionError, match=r"--side encoder: encoder and decoder of .* share one table"):
        checkpoint.expand(side="encoder")
    with pytest.raises(OptionError, match=r"--side decoder: .* has one dictionary for everything"):
        make(tmp_path, "lm").expand(side="decoder")


def test_languages_are_those_of_the_binarised_files(tmp_path):
    """As fairseq infers them: source-target, whichever of both the file is of."""
    (tmp_path / "train.de-en.en.idx").touch()
    unnamed = {"source_lang": None, "target_lang": None}
    assert languages_of(unnamed, str(tmp_path / "dict.en.txt")) == ("de", "en")
