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
from embinit_fairseq.expand.source import open_model
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
        *((program, OptionError("mend it"), "others\n") for program in ("/bin/another", "")),
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


@pytest.mark.parametrize(("model", "refused"), [(Model(WORDS), False), (Model(OTHERS), True), (PAIRS, False)])
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
        (expanded, "decoder", lambda: open_model(expanded.path, expanded.dictionary, None, None)),
    ):
        symbols = checkpoint.task.source_dictionary.symbols
        said = pytest.raises(DataError, match=rf"--dict .*\({slot}\).*dict\.txt of its training")
        for words, outcome in ((symbols, contextlib.nullcontext()), (symbols[::-1], said)):
            record = {"slots": {slot: record_of(words)["slots"]["encoder"]}}
            checkpoint.state["cfg"]["embed_init_options"] = {"embed_init_record": json.dumps(record)}
            checkpoint.save()
            with outcome:
                job()
    check_dictionary({}, "c.pt", "--dict d.txt", {"encoder": OTHERS})
