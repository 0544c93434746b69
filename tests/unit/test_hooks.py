"""What `--embed-init` does to a model and a run: slots, frozen rows, data of another dictionary than a checkpoint's."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import expand_checkpoints
import fairseq.models
import hf_exports
import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqMultiModel
from torch import nn

from embinit_fairseq.checkpoints.reading import check_dictionary, initialisation_record
from embinit_fairseq.errors import DataError, EmbinitError, OptionError, SlotError
from embinit_fairseq.expand.expansion import prepare
from embinit_fairseq.export.trained import open_trained
from embinit_fairseq.hooks import wraps
from embinit_fairseq.hooks.apply import _continue
from embinit_fairseq.hooks.freeze import Freeze, apply_freezes, parse_freeze
from embinit_fairseq.hooks.options import EmbedInitOptions, InitRequest
from embinit_fairseq.hooks.resume import check_optimizer_knows, checkpoint_to_restore, left_out, recall
from embinit_fairseq.hooks.slots import (
    Slot,
    find_slots,
    parse_formats,
    parse_paths,
    position_std,
    slot_named,
    vocabulary_of,
)
from embinit_fairseq.init.report import other_dictionaries, pack_rows, symbols_digest

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


@pytest.mark.parametrize(("scale", "expected"), [(None, 1.0), (2.0, 2.0), (torch.tensor(3.0), 3.0)])
def test_the_scale_of_a_slot(scale, expected):
    """xlm_base has one that is None."""
    slots = find_slots(model_of(Side(scale), Side(scale)), None)
    assert {name: slot.embed_scale for name, slot in slots.items()} == {"encoder": expected, "decoder": expected}


def test_tables_that_are_one_are_one_slot():
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
    for model, message in (
        (several, r"Several .*encoder\.embed_tokens"),
        (model_of(), "encoder.embed_tokens and decoder.embed_tokens"),
        (model_of(nn.Module()), "encoder.embed_tokens"),
        (model_of(Side(rows=5)), "'encoder' has 5 rows but a dictionary of 4"),
        (without, "no dictionary"),
        (model_of(Side(kind=nn.Linear)), "'encoder' .*Linear"),
    ):
        with pytest.raises(SlotError, match=rf"{message}.*drop --embed-init"):
            find_slots(model, SimpleNamespace(source_dictionary=None))


def test_special_rows_of_a_dictionary():
    dictionary = Dictionary(extra_special_symbols=["[x]"])
    for symbol in ("a", "<mask>"):
        dictionary.add_symbol(symbol)
    assert vocabulary_of(dictionary).roles == {0: "bos", 1: "pad", 2: "eos", 3: "unk", 4: "extra", 6: "mask"}
    assert vocabulary_of(dictionary).regular.tolist() == [False] * 5 + [True, False]


def test_the_sigma_of_positions():
    owner = nn.Module()
    assert position_std(owner) is None
    for padding, first in ((1, 2), (None, 0)):  # rows up to padding are never used
        owner.embed_positions = nn.Embedding(10, 4, padding_idx=padding)
        expected = float(owner.embed_positions.weight[first:].detach().double().std())
        assert position_std(owner) == pytest.approx(expected)
    owner.embed_positions = nn.Linear(1, 1)
    assert position_std(owner) is None
    sinusoidal = Mock(embedding_dim=2, max_positions=1e5, get_embedding=Mock(return_value=torch.eye(2)))
    for owner, length in ((SimpleNamespace(), 1024), (SimpleNamespace(max_positions=lambda: 7), 7)):
        owner.embed_positions = sinusoidal
        assert position_std(owner) == pytest.approx(3**-0.5)
        assert sinusoidal.get_embedding.call_args.args[0] == length


TWO = {name: Slot(name, nn.Embedding(5, 4), None, nn.Module()) for name in ("encoder", "decoder")}


def test_formats_are_of_paths():
    paths = parse_paths(["encoder=a", "decoder=b=c"], TWO)
    assert {slot: spec.paths for slot, spec in paths.items()} == {"encoder": ["a"], "decoder": ["b=c"]}
    assert parse_formats(["glove"], TWO, paths) == {"encoder": "glove", "decoder": "glove"}
    assert parse_formats(["decoder=npz", "encoder=glove"], TWO, paths) == {"decoder": "npz", "encoder": "glove"}
    for texts, given, message in (
        (["x"], paths, "x: .*there are: glove"),
        (["encoder=npz", "glove"], paths, "glove: .*'encoder': .*another format"),
        (["decoder=npz"], parse_paths(["encoder=a"], TWO), "decoder=npz: .*'decoder': .*--embed-init-path"),
    ):
        with pytest.raises(OptionError, match=rf"--embed-init-format {message}"):
            parse_formats(texts, TWO, given)


# ---- freezing, also where the optimizer steps a single-precision copy of half-precision parameters

KNOWN = np.array([False, False, True, True, False])


def test_values_of_the_flag():
    for text, expected in {
        "encoder": Freeze("encoder"),
        "encoder:known": Freeze("encoder", known=True),
        "encoder:200": Freeze("encoder", until=200),
        "encoder_p:known:0": Freeze("encoder_p", known=True, until=0),
    }.items():
        assert parse_freeze([text]) == [expected]
        assert str(expected) == text
        assert expected.whole == (":" not in text)
    for text in ("", ":known", "encoder:", "encoder:1.5", "encoder:²", "encoder:9:known", "e:known:1:2"):
        with pytest.raises(OptionError, match="SLOT:known"):
            parse_freeze([text])


class Half:
    """What fairseq's FP16Optimizer does: steps a single-precision copy, flat or not, and copies it back."""

    def __init__(self, params, flat):
        self.fp16_params = params
        self.fp32_params = [nn.Parameter(p.data.float()) for p in params]
        if flat:
            self.fp32_params = {0: nn.Parameter(torch.cat([p.data.view(-1) for p in self.fp32_params]))}

    def masters(self):
        if isinstance(self.fp32_params, list):
            return [master.data for master in self.fp32_params]
        parts = self.fp32_params[0].data.split([p.numel() for p in self.fp16_params])
        return [part.view_as(p) for part, p in zip(parts, self.fp16_params)]

    def step(self):
        for p, master in zip(self.fp16_params, self.masters()):
            master.mul_(0.9).sub_(0.1 * p.grad.float())  # decoupled weight decay
            p.data.copy_(master)


class Single:
    def __init__(self, params):
        self.params = params

    def step(self):
        for p in self.params:
            p.data.mul_(0.9).sub_(0.1 * p.grad)


def prepare_freeze(dtype):
    torch.manual_seed(0)
    first, embedding = nn.Parameter(torch.randn(3, 2, dtype=dtype)), nn.Embedding(5, 4, padding_idx=1).to(dtype)
    slot = Slot("encoder", embedding, SimpleNamespace(), nn.Module())
    task = SimpleNamespace(optimizer_step=lambda optimizer, model, update_num: optimizer.step())
    return first, embedding, {"encoder": slot}, task


@pytest.mark.parametrize("kind", ["single", "flat", "list"])
def test_known_rows_stay_until_the_update_and_move_after_it(kind):
    first, embedding, slots, task = prepare_freeze(torch.float32 if kind == "single" else torch.float16)
    done = apply_freezes([Freeze("encoder", True, 3)], slots, {"encoder": KNOWN}, task)
    assert done == {"encoder": "encoder:known:3"}
    params = [first, embedding.weight]
    optimizer = Single(params) if kind == "single" else Half(params, kind == "flat")
    begin, began = embedding.weight.detach().clone(), first.detach().clone()
    for update in range(5):
        embedding.set_num_updates(update)  # fairseq calls it before each forward
        for p in params:
            p.grad = None
        (embedding(torch.tensor([0, 2, 3, 4])).sum() + first.sum()).backward()
        assert bool(embedding.weight.grad[KNOWN].any()) == (update >= 3)
        task.optimizer_step(optimizer, model=None, update_num=update)
        same = (embedding.weight.detach() == begin).all(1).numpy()
        assert same[KNOWN].all() == (update < 3)
        assert not same[[0, 4]].any()
        if update == 2 and kind != "single":
            assert torch.equal(optimizer.masters()[1][KNOWN], begin[KNOWN].float())  # no jump when they thaw
    assert not torch.equal(first.detach(), began)


def test_whole_tables_are_left_out_of_training():
    for held, trained in (((), False), (("encoder",), True)):  # its optimizer knows it: the rows are held instead
        _, embedding, slots, task = prepare_freeze(torch.float32)
        apply_freezes([Freeze("encoder")], slots, {}, task, held)
        assert embedding.weight.requires_grad == trained
        if trained:
            embedding(torch.tensor([0, 2])).sum().backward()
            assert not embedding.weight.grad.any()


@pytest.mark.parametrize(
    ("freezes", "known", "message"),
    [
        ([Freeze("decoder")], {}, "no slot 'decoder'; it has: encoder"),
        ([Freeze("encoder", known=True)], {"encoder": None}, "--embed-init-path encoder=PATH"),
        ([Freeze("encoder", known=True)], {"encoder": ~KNOWN & KNOWN}, "--embed-init-path encoder=PATH"),
        ([Freeze("encoder"), Freeze("encoder", until=3)], {}, "named twice"),
    ],
)
def test_what_cannot_be_frozen_is_named(freezes, known, message):
    _, _, slots, task = prepare_freeze(torch.float32)
    with pytest.raises(EmbinitError, match=message):
        apply_freezes(freezes, slots, known, task)


def test_an_optimizer_knows_the_tables_that_it_has_trained():
    slots = {"a": {"freeze": "a"}, "b": {"freeze": "b:known"}, "c": {"freeze": None}}
    slots["d"] = {"freeze": "d", "in_optimizer": True}
    slots["e"] = {"freeze": "e:9", "in_optimizer": False}
    assert left_out({"slots": slots}) == {"a", "e"}
    check_optimizer_knows({"slots": slots}, {"b", "c", "d"}, "c.pt")
    with pytest.raises(OptionError, match=r"c\.pt .*--embed-init-freeze a e:9.*--reset-optimizer"):
        check_optimizer_knows({"slots": slots}, set(slots), "c.pt")


# ---- errors


@pytest.mark.parametrize(
    ("program", "error", "line"),
    [
        ("/bin/fairseq-train", OptionError("mend it"), "fairseq-train: error: mend it\n"),
        ("/x/fairseq_cli/train.py", OptionError("mend it"), "train.py: error: mend it\n"),
        ("/bin/fairseq-train", ValueError("not ours"), "others\n"),
        ("/bin/another", OptionError("mend it"), "others\n"),
        ("", OptionError("mend it"), "others\n"),
    ],
)
def test_a_mistake_is_one_line_in_fairseqs_commands(monkeypatch, capsys, program, error, line):
    """Not twenty lines of traceback; errors that are not ours keep it, and programs that are not fairseq's."""
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("others", file=sys.stderr))
    for _ in range(2):  # calling it again is harmless
        wraps.show_errors_as_lines()
    monkeypatch.setattr(sys, "argv", [program] if program else [])
    sys.excepthook(type(error), error, None)
    assert capsys.readouterr().err == line


# ---- which checkpoint is continued


def test_which_checkpoint_is_continued(tmp_path):
    """As fairseq.checkpoint_utils.load_checkpoint decides."""
    run, other = tmp_path / "run", tmp_path / "other.pt"
    run.mkdir()
    last = str(run / "checkpoint_last.pt")

    def restored(strategy="xavier", save_dir=str(run), restore_file="checkpoint_last.pt", **keywords):
        told = {"save_dir": save_dir, "restore_file": restore_file, **keywords}
        return checkpoint_to_restore(InitRequest(strategy, EmbedInitOptions(), 1, **told))

    assert restored() is restored(save_dir=None) is restored(restore_file=str(other)) is None
    other.touch()
    assert restored(restore_file=str(other)) == str(other)
    assert restored(continue_once=str(other)) == str(other)
    with pytest.raises(OptionError, match="--finetune-from-model"):
        restored(finetune_from_model=str(other))
    assert restored(None, finetune_from_model=str(other)) == str(other)
    (run / "checkpoint_last.pt").touch()
    assert restored(restore_file=None) == restored(continue_once=str(other)) == last
    assert restored(finetune_from_model=str(other)) == last
    assert restored(checkpoint_suffix="-shard0") is None
    (tmp_path / "other-shard0.pt").touch()
    assert restored(restore_file=str(other), checkpoint_suffix="-shard0") == str(tmp_path / "other-shard0.pt")


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
        return self.slots


class Pairs(nn.Module):
    """As a multilingual_transformer, which earlier versions filled in part."""

    def embedding_slots(self):
        raise SlotError("--embed-init: drop it")


def slots_of(words):
    return find_slots(Model(words), None)


def test_which_slots_have_another_dictionary():
    assert other_dictionaries(record_of(), {"encoder": OTHERS}) == ["encoder"]
    assert other_dictionaries(record_of(), {"encoder": WORDS}) == other_dictionaries(record_of(), {"d": OTHERS}) == []
    assert other_dictionaries(record_of(), {"encoder": [*OTHERS, "c"]}) == []  # fairseq refuses that
    for record in (record_of(rows=None), record_of(dictionary=None), {"slots": {"encoder": {}}}, {}):
        assert other_dictionaries(record, {"encoder": OTHERS}) == []


def saved(folder, record):
    path = folder / "checkpoint_last.pt"
    torch.save({"args": argparse.Namespace(embed_init_record=json.dumps(record)), "model": {}}, path)
    return str(path)


def request(folder, strategy=None):
    return InitRequest(strategy, EmbedInitOptions(), seed=1, save_dir=str(folder), reset_optimizer=True)


def test_a_run_that_is_continued(tmp_path, caplog):
    path, cfg = saved(tmp_path, record_of()), argparse.Namespace()
    with pytest.raises(OptionError, match=r"checkpoint_last.pt.*\(encoder\).*--srcdict"):
        recall(cfg, request(tmp_path), lambda: slots_of(OTHERS))
    assert vars(cfg) == {}
    for slots in (lambda: slots_of(WORDS), Pairs().embedding_slots):  # a model whose tables are not known goes on
        cfg = argparse.Namespace()
        recall(cfg, request(tmp_path), slots)
        assert json.loads(cfg.embed_init_record) == record_of()
    for asked, word in (("xavier", ""), ("normal", "was initialised with xavier")):
        with pytest.raises(OptionError, match=r"\(encoder\).*--srcdict"):
            _continue(slots_of(OTHERS), path, request(tmp_path, asked))
        caplog.clear()
        record, known = _continue(slots_of(WORDS), path, request(tmp_path, asked))
        assert (record, known["encoder"].tolist()) == (record_of(), [True] * 6)
        assert word in caplog.text
        assert any(record.levelno >= logging.WARNING for record in caplog.records) == bool(word)
    saved(tmp_path, record_of(dim=8))
    with pytest.raises(OptionError, match=r"'encoder' .* 8 numbers, .* of 4: .*--save-dir"):
        _continue(slots_of(WORDS), path, request(tmp_path, "xavier"))


@pytest.mark.parametrize(("model", "refused"), [(Model(WORDS), False), (Model(OTHERS), True), (Pairs(), False)])
def test_a_checkpoint_that_is_used(monkeypatch, model, refused):
    monkeypatch.setattr(fairseq.models, "build_model", lambda cfg, task, from_checkpoint: model)
    wraps._wrap_build_model()
    cfg = argparse.Namespace(embed_init="xavier", embed_init_record=json.dumps(record_of()))
    before = wraps._overrides.set({})
    with pytest.raises(OptionError, match=r"\(encoder\)") if refused else contextlib.nullcontext():
        assert fairseq.models.build_model(cfg, None, from_checkpoint=True) is model
    wraps._overrides.reset(before)


@pytest.mark.parametrize("text", ["[]", "{}", '{"slots": []}', '{"slots": {"encoder": 1}}', "{", "[" * 100_000])
def test_reports_that_nobody_here_wrote(text):
    assert initialisation_record({"args": argparse.Namespace(embed_init_record=text)}) is None
    assert initialisation_record({}) is initialisation_record({"cfg": {"model": argparse.Namespace()}}) is None


def test_commands_that_are_given_a_dictionary(tmp_path):
    exported, expanded = hf_exports.checkpoint_of(tmp_path / "tupe"), expand_checkpoints.make(tmp_path, "lm")
    for checkpoint, slot, job in (
        (exported, "encoder", lambda: open_trained(exported.path, exported.dictionary, None, None)),
        (expanded, "decoder", lambda: prepare(expanded.request())),
    ):
        symbols = checkpoint.task.source_dictionary.symbols
        for right in (True, False):
            record = {"slots": {slot: record_of(symbols if right else symbols[::-1])["slots"]["encoder"]}}
            checkpoint.state["cfg"]["embed_init_options"] = {"embed_init_record": json.dumps(record)}
            checkpoint.save()
            said = pytest.raises(DataError, match=rf"--dict .*\({slot}\).*dict\.txt of its training")
            with contextlib.nullcontext() if right else said:
                job()
    check_dictionary({}, "c.pt", "--dict d.txt", {"encoder": OTHERS})
