"""What `--embed-init` does to a model and a run: slots, frozen rows, data of another dictionary than a checkpoint's."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from types import SimpleNamespace

import fairseq.models
import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqMultiModel
from omegaconf import OmegaConf
from torch import nn

from embinit_fairseq.errors import EmbinitError, OptionError, SlotError
from embinit_fairseq.hooks import wraps
from embinit_fairseq.hooks.apply import _continue, _write_report, embed_init
from embinit_fairseq.hooks.freeze import Freeze, apply_freezes, parse_freeze
from embinit_fairseq.hooks.options import SECTION, EmbedInitOptions, InitRequest, request_from, settle_spelling
from embinit_fairseq.hooks.resume import (
    check_optimizer_knows,
    checkpoint_to_restore,
    left_out,
    recall,
    restores_optimizer,
)
from embinit_fairseq.hooks.slots import (
    Slot,
    find_slots,
    slot_named,
)
from embinit_fairseq.init.report import other_dictionaries, pack_rows, symbols_digest

# ---- fairseq-hydra-train


def hydra(told):
    cfg = OmegaConf.create({"model": {"_name": "transformer"}, "embed_init": None, "seed": 3, **told})
    settle_spelling(cfg.model)
    settle_spelling(cfg.model)  # of a second model
    return cfg


@pytest.mark.parametrize(
    "told",
    [
        {
            "embed_init": "xavier",
            "embed_init_options": {"embed_init_freeze": ["encoder:known:5"], "embed_init_std": "2"},
        },
        {"embed_init_options": {"embed_init": "xavier", "embed_init_freeze": "encoder:known:5", "embed_init_std": 2}},
        {"embed_init": "xavier", "embed_init_freeze": {"encoder": "known:5"}, "model": {"embed_init_std": 2}},
        {"embed_init": {"_name": "xavier", "embed_init_std": 2, "embed_init_freeze": ["encoder:known:5"]}},
        {"model": {"embed_init": {"_name": "xavier", "embed_init_std": 2}}, "embed_init_freeze": ["encoder:known:5"]},
        {"model": {SECTION: {"embed_init": "xavier", "embed_init_std": 2, "embed_init_freeze": "encoder:known:5"}}},
        {"common": {"embed_init": "xavier", "embed_init_std": 2}, "embed_init_freeze": {"encoder": "known:5"}},
    ],
)
def test_all_spellings_for_hydra_mean_one(told):
    cfg = hydra(told)
    request = request_from(cfg.model)
    assert request == InitRequest(
        "xavier", EmbedInitOptions(embed_init_freeze=["encoder:known:5"], embed_init_std="2"), 1
    )
    assert set(cfg) <= {"model", "embed_init", "seed", "embed_init_options", "common"}
    assert set(cfg.model) <= {"_name"}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"embed_init_options": {"seed": 5}}, r"embed_init_options.seed: .* embed_init_seed"),
        ({"embed_init_sed": 5}, "^embed_init_sed: .* embed_init_seed"),
        ({"embed_init_seed": 5}, "embed_init_seed: .* embed_init=xavier"),
        ({"embed_init": "xavier", "model": {"embed_init": "normal"}}, "model.embed_init=normal: .*xavier"),
        ({"embed_init": "xavier", "embed_init_oov": "zero"}, "--embed-init-oov: .*zeros"),
        (
            {"embed_init": "xavier", "embed_init_oov": "xavier", "embed_init_options": {"embed_init_oov": "zeros"}},
            "embed_init_oov=zeros: .* xavier",
        ),
        ({"embed_init": "xavier", "embed_init_freeze": True}, "--embed-init-freeze"),
        ({SECTION: "xavier"}, "^embed_init_options: no such option"),
    ],
)
def test_nothing_that_hydra_was_told_is_ignored(told, message):
    with pytest.raises(OptionError, match=message):
        hydra(told)


def test_a_configuration_without_our_options_is_left_alone():
    given = {"embed_init_options": {"embed_init_oov": "xavier", "embed_init_strict": False}, "model": {"_name": "x"}}
    assert hydra(given) == {"embed_init": None, "seed": 3, **given}


# ---- slots


class Side(nn.Module):
    def __init__(self, scale=2.0, rows=None, kind=nn.Embedding) -> None:
        super().__init__()
        self.dictionary = Dictionary()
        self.embed_tokens = kind(rows or len(self.dictionary), 4)
        self.embed_scale = scale


def model_of(encoder=None, decoder=None, kind=nn.Module):
    """kind: a class of modules; its encoder and decoder are found by their names."""
    model = kind.__new__(kind)
    nn.Module.__init__(model)
    model.encoder, model.decoder = encoder, decoder
    return model


def test_tables_that_are_one_are_one_slot():
    for scale, expected in ((None, 1.0), (torch.tensor(3.0), 3.0)):  # xlm_base has one that is None
        slots = find_slots(model_of(Side(scale), Side(2.0)), None)
        assert {name: slot.embed_scale for name, slot in slots.items()} == {"encoder": expected, "decoder": 2.0}
    encoder, decoder = Side(), Side()
    decoder.embed_tokens.weight = encoder.embed_tokens.weight
    slots = find_slots(model_of(encoder, decoder), None)
    assert {name: slot.names for name, slot in slots.items()} == {"encoder": ["encoder", "decoder"]}
    assert slot_named("decoder", slots, "--flag") is slots["encoder"]
    with pytest.raises(SlotError, match=r"--flag: .*'x'; it has: encoder, decoder"):
        slot_named("x", slots, "--flag")
    inside = model_of(nn.Module())
    inside.encoder.sentence_encoder = Side()
    task = SimpleNamespace(source_dictionary=Dictionary())
    assert find_slots(inside, task)["encoder"].owner is inside.encoder.sentence_encoder


def test_models_that_cannot_be_filled_are_refused():
    class Several(FairseqMultiModel):
        encoder = decoder = None

    several, without = model_of(kind=Several), model_of(Side())
    several.models = nn.ModuleDict({"de-en": nn.Module(), "en-de": nn.Module()})
    without.encoder.dictionary = None
    half = model_of(Side())
    half.further = nn.Embedding(4, 4)
    for model, message in (
        (several, r"Several .*encoder\.embed_tokens"),
        (model_of(nn.Module()), "encoder.embed_tokens"),
        (model_of(Side(rows=5)), "'encoder' has 5 rows but a dictionary of 4"),
        (without, "no dictionary"),
        (half, "a matrix of words, further, .*encoder"),
        (model_of(Side(kind=nn.Linear)), "'encoder' .*Linear"),
    ):
        with pytest.raises(SlotError, match=rf"{message}.*drop --embed-init"):
            find_slots(model, SimpleNamespace(source_dictionary=None))


TWO = {name: Slot(name, nn.Embedding(5, 4), None, nn.Module()) for name in ("encoder", "decoder")}


# ---- freezing, also where the optimizer steps a single-precision copy of half-precision parameters

KNOWN = np.array([False, False, True, True, False])


def prepare_freeze(dtype):
    torch.manual_seed(0)
    first, embedding = nn.Parameter(torch.randn(3, 2, dtype=dtype)), nn.Embedding(5, 4, padding_idx=1).to(dtype)
    slot = Slot("encoder", embedding, SimpleNamespace(), nn.Module())
    task = SimpleNamespace(optimizer_step=lambda optimizer, model, update_num: optimizer.step())
    return first, embedding, {"encoder": slot}, task


@pytest.mark.parametrize(
    ("text", "known", "until"),
    [("encoder", False, None), ("encoder:known", True, None), ("encoder:200", False, 200), ("e_p:known:0", True, 0)],
)
def test_values_of_the_freeze_flag(text, known, until):
    (freeze,) = parse_freeze([text])
    assert freeze == Freeze(text.split(":")[0], known, until)
    assert (str(freeze), freeze.whole) == (text, ":" not in text)
    for wrong in ("", ":known", "encoder:", "encoder:1.5", "encoder:²", "encoder:9:known", "e:known:1:2"):
        with pytest.raises(OptionError, match="SLOT:known"):
            parse_freeze([wrong])


class Optimizer:
    """Decoupled weight decay of the parameters, or, as fairseq's FP16Optimizer, of single-precision copies of them."""

    def __init__(self, params, kind):
        self.kind, self.params, self.copies = kind, params, [p.detach().float() for p in params]
        if kind != "single":
            self.fp16_params, self.fp32_params = params, [nn.Parameter(copy) for copy in self.copies]
        if kind == "flat":
            flat = torch.cat([copy.view(-1) for copy in self.copies])
            self.fp32_params = {0: nn.Parameter(flat)}
            self.copies = [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in params]), params)]

    def step(self):
        for p, copy in zip(self.params, self.copies):
            stepped = p.data if self.kind == "single" else copy
            stepped.mul_(0.9).sub_(0.1 * p.grad)
            p.data.copy_(stepped)


@pytest.mark.parametrize("kind", ["single", "flat", "list"])
def test_known_rows_stay_until_the_update_and_move_after_it(kind):
    first, embedding, slots, task = prepare_freeze(torch.float32 if kind == "single" else torch.float16)
    done = apply_freezes([Freeze("encoder", True, 3)], slots, {"encoder": KNOWN}, task)
    assert done == {"encoder": "encoder:known:3"}
    optimizer = Optimizer([first, embedding.weight], kind)
    begin, began = embedding.weight.detach().clone(), first.detach().clone()
    for update in range(5):
        embedding.set_num_updates(update)  # fairseq calls it before each forward
        first.grad = embedding.weight.grad = None
        (embedding(torch.tensor([0, 2, 3, 4])).sum() + first.sum()).backward()
        assert bool(embedding.weight.grad[KNOWN].any()) == (update >= 3)
        task.optimizer_step(optimizer, model=None, update_num=update)
        same = (embedding.weight.detach() == begin).all(1).numpy()
        assert same[KNOWN].all() == (update < 3)
        assert not same[[0, 4]].any()
        if update == 2 and kind != "single":
            assert torch.equal(optimizer.copies[1][KNOWN], begin[KNOWN].float())  # no jump when they thaw
    assert not torch.equal(first.detach(), began)


def test_whole_tables_are_left_out_of_training():
    for held, trained in (((), False), (("encoder",), True)):  # its optimizer knows it: the rows are held instead
        _, embedding, slots, task = prepare_freeze(torch.float32)
        apply_freezes([Freeze("encoder")], slots, {}, task, held)
        assert embedding.weight.requires_grad == trained
        if trained:
            embedding(torch.tensor([0, 2])).sum().backward()
            assert not embedding.weight.grad.any()
    for freezes, known, message in (
        ([Freeze("encoder", known=True)], {"encoder": ~KNOWN & KNOWN}, "--embed-init-path encoder=PATH"),
        ([Freeze("encoder"), Freeze("encoder", until=3)], {}, "named twice"),
    ):
        with pytest.raises(EmbinitError, match=message):
            apply_freezes(freezes, slots, known, task)
    slots = {"a": {"freeze": "a"}, "b": {"freeze": "b:known"}, "c": {"freeze": None}}
    slots["d"] = {"freeze": "d", "in_optimizer": True}
    slots["e"] = {"freeze": "e:9", "in_optimizer": False}
    assert left_out({"slots": slots}) == {"a", "e"}
    check_optimizer_knows({"slots": slots}, {"b", "c", "d"}, "c.pt")
    with pytest.raises(OptionError, match=r"c\.pt .*--embed-init-freeze a e:9.*--reset-optimizer"):
        check_optimizer_knows({"slots": slots}, set(slots), "c.pt")


# ---- errors


@pytest.mark.parametrize("program", ["/bin/fairseq-train", "/x/fairseq_cli/train.py", "/bin/another", ""])
def test_a_mistake_is_one_line_in_fairseqs_commands(monkeypatch, capsys, program):
    """Not twenty lines of traceback; errors that are not ours keep it, and programs that are not fairseq's."""
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("others", file=sys.stderr))
    for _ in range(2):  # calling it again is harmless
        wraps.show_errors_as_lines()
    monkeypatch.setattr(sys, "argv", [program] if program else [])
    for error in (OptionError("mend it"), ValueError("not ours")):
        sys.excepthook(type(error), error, None)
        ours = "fairseq" in program and isinstance(error, OptionError)
        said = f"{program.split('/')[-1]}: error: mend it\n" if ours else "others\n"
        assert capsys.readouterr().err == said


# ---- which checkpoint is continued


@pytest.mark.parametrize(
    ("expected", "strategy", "told"),
    [
        (None, "xavier", {}),
        (None, "xavier", {"save_dir": None}),
        ("other", "xavier", {"restore_file": "other"}),
        ("other", "xavier", {"continue_once": "other"}),
        (OptionError, "xavier", {"finetune_from_model": "other"}),
        ("other", None, {"finetune_from_model": "other"}),
        ("run/checkpoint_last", "xavier", {"restore_file": None}),
        ("run/checkpoint_last", "xavier", {"continue_once": "other"}),
        ("run/checkpoint_last", "xavier", {"finetune_from_model": "other"}),
        ("other-shard0", "xavier", {"restore_file": "other", "checkpoint_suffix": "-shard0"}),
    ],
)
def test_which_checkpoint_is_continued(tmp_path, monkeypatch, expected, strategy, told):
    """As fairseq.checkpoint_utils.load_checkpoint decides."""
    (tmp_path / "run").mkdir()
    for name in ("other.pt", "other-shard0.pt", *([f"{expected}.pt"] if "run" in str(expected) else [])):
        (tmp_path / name).touch()
    paths = {key: str(tmp_path / "other.pt") if value == "other" else value for key, value in told.items()}
    told = {"save_dir": str(tmp_path / "run"), "restore_file": "checkpoint_last.pt", **paths}
    request = InitRequest(strategy, EmbedInitOptions(), 1, **told)
    with pytest.raises(OptionError, match="--finetune") if expected is OptionError else contextlib.nullcontext():
        assert checkpoint_to_restore(request) == (expected and str(tmp_path / f"{expected}.pt"))


def test_whose_optimizer_is_restored_and_where_no_report_is_written(tmp_path, monkeypatch):
    path = str(tmp_path / "checkpoint.pt")
    torch.save({"last_optimizer_state": {}}, path)
    for told, expected in (({}, True), ({"finetune_from_model": path}, False), ({"reset_optimizer": True}, False)):
        assert restores_optimizer(path, InitRequest(None, EmbedInitOptions(), 1, **told)) == expected
    for no_save in (True, False):
        _write_report({}, InitRequest("xavier", EmbedInitOptions(), 1, save_dir=str(tmp_path / "run"), no_save=no_save))
        assert (tmp_path / "run").exists() != no_save
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (1, 0):  # of several processes the first writes it
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        _write_report({}, InitRequest("xavier", EmbedInitOptions(), 1, save_dir=str(tmp_path / f"rank{rank}")))
        assert (tmp_path / f"rank{rank}").exists() == (rank == 0)


# ---- data of another dictionary of the same size: refused wherever a checkpoint with a report is continued or used

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "a", "b"]
OTHERS = ["<s>", "<pad>", "</s>", "<unk>", "b", "a"]


def record_of(symbols=WORDS, **changes):
    known = pack_rows(np.ones(len(symbols), dtype=bool))
    slot = {"rows": len(symbols), "dim": 4, "dictionary": symbols_digest(symbols), "known_rows": known}
    return {"strategy": "xavier", "slots": {"encoder": {**slot, **changes}}}


class Model(nn.Module):
    def __init__(self, words=WORDS) -> None:
        super().__init__()
        dictionary = Dictionary()
        for word in words[4:]:
            dictionary.add_symbol(word)
        self.slots = {"encoder": (nn.Embedding(len(dictionary), 4), dictionary, self)}

    def embedding_slots(self):
        if not self.slots:  # as a multilingual_transformer, which earlier versions filled in part
            raise SlotError("--embed-init: drop it")
        return self.slots


PAIRS = Model()


PAIRS.slots = None


def saved(folder, record):
    path = folder / "checkpoint_last.pt"
    torch.save({"args": argparse.Namespace(embed_init_record=json.dumps(record)), "model": {}}, path)
    return str(path)


def test_a_run_that_is_continued(tmp_path, caplog):
    def request(strategy=None):
        return InitRequest(strategy, EmbedInitOptions(), seed=1, save_dir=str(tmp_path), reset_optimizer=True)

    right, wrong = (find_slots(Model(words), None) for words in (WORDS, OTHERS))
    path, cfg = saved(tmp_path, record_of()), argparse.Namespace()
    with pytest.raises(OptionError, match=r"checkpoint_last.pt.*\(encoder\).*--srcdict"):
        recall(cfg, request(), lambda: wrong)
    assert vars(cfg) == {}
    for slots in (lambda: right, PAIRS.embedding_slots):  # a model whose tables are not known goes on
        recall(cfg := argparse.Namespace(), request(), slots)
        assert json.loads(cfg.embed_init_record) == record_of()
    for asked, word in (("xavier", ""), ("normal", "was initialised with xavier")):
        with pytest.raises(OptionError, match=r"\(encoder\).*--srcdict"):
            _continue(wrong, path, request(asked))
        caplog.clear()
        record, known = _continue(right, path, request(asked))
        assert (record, known["encoder"].tolist()) == (record_of(), [True] * 6)
        assert word in caplog.text
        assert any(record.levelno >= logging.WARNING for record in caplog.records) == bool(word)
    saved(tmp_path, record_of(dim=8))
    with pytest.raises(OptionError, match=r"'encoder' .* 8 numbers, .* of 4: .*--save-dir"):
        _continue(right, path, request("xavier"))
    assert other_dictionaries(record_of(), {"encoder": [*OTHERS, "c"]}) == []  # fairseq refuses that
    for record in (record_of(rows=None), record_of(dictionary=None), {"slots": {"encoder": {}}}, {}):
        assert other_dictionaries(record, {"encoder": OTHERS}) == []


@pytest.mark.parametrize(("updates", "frozen"), [(4, True), (5, False)])
def test_a_freeze_that_has_run_out_is_not_warned_of(tmp_path, caplog, updates, frozen):
    """With --embed-init again, and without."""

    def go_on(strategy, *freeze):
        request = InitRequest(strategy, EmbedInitOptions(embed_init_freeze=freeze), 1, save_dir=str(tmp_path))
        cfg, task, model = argparse.Namespace(), SimpleNamespace(optimizer_step=None), Model()
        if strategy is None:
            recall(cfg, request, lambda: find_slots(model, task))
        else:
            embed_init(model, task, cfg, request)
        return cfg

    begun = {"args": go_on("xavier", "encoder:5"), "model": {}, "optimizer_history": [{"num_updates": updates}]}
    torch.save(begun, tmp_path / "checkpoint_last.pt")
    for strategy in ("xavier", None):
        caplog.clear()
        go_on(strategy)
        assert ("--embed-init-freeze encoder:5" in caplog.text) == frozen


@pytest.mark.parametrize(("model", "refused"), [(Model(WORDS), False), (Model(OTHERS), True), (PAIRS, False)])
def test_a_checkpoint_that_is_used(monkeypatch, model, refused):
    monkeypatch.setattr(fairseq.models, "build_model", lambda cfg, task, from_checkpoint: model)
    wraps._wrap_build_model()
    cfg = argparse.Namespace(embed_init="xavier", embed_init_record=json.dumps(record_of()))
    before = wraps._overrides.set({})
    with pytest.raises(OptionError, match=r"\(encoder\)") if refused else contextlib.nullcontext():
        assert fairseq.models.build_model(cfg, None, from_checkpoint=True) is model
    wraps._overrides.reset(before)
