"""`--embed-init` and the rest of a run: hydra, the slots of a model, frozen rows, checkpoints that are continued."""

import argparse
import contextlib
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqMultiModel
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torch import nn

from embinit_fairseq.embed_init import plugin
from embinit_fairseq.embed_init.fill import _write_report, sources_of
from embinit_fairseq.embed_init.freeze import apply_freezes, freezes_of
from embinit_fairseq.embed_init.options import SECTION
from embinit_fairseq.embed_init.request import EmbedInitOptions, Freeze, InitRequest, check_request, request_from
from embinit_fairseq.embed_init.restore import Checkpoint, check_optimizer, find_checkpoint, path_to_restore
from embinit_fairseq.embed_init.slots import find_slots, position_std, slot_named
from embinit_fairseq.errors import EmbinitError, OptionError, SlotError
from embinit_fairseq.init.init_report import other_dictionaries, pack_rows, symbols_digest
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_record import symbols_hash

# ---- fairseq-hydra-train


def hydra(**nodes):
    cfg = OmegaConf.create({"model": {"_name": "transformer"}, "common": {"seed": 3}, "embed_init": None, **nodes})
    request = request_from(cfg.model)
    check_request(cfg.model, request)
    return request


def test_hydra_has_one_spelling(monkeypatch):
    options = {"embed_init_freeze": ["encoder:known:5"], "embed_init_std": "2", "_name": None}
    expected = EmbedInitOptions(embed_init_freeze=["encoder:known:5"], embed_init_std="2")
    assert hydra(embed_init="xavier", embed_init_options=options) == InitRequest("xavier", expected, 3)
    assert hydra(embed_init_options={"embed_init_oov": "xavier"}) == InitRequest(None, seed=3)
    for nodes, message in (
        ({"embed_init_seed": 5}, "^embed_init_seed: .*embed_init_options.NAME"),
        ({"model": {"embed_init": "xavier"}}, "^model.embed_init: .*embed_init=STRATEGY"),
        ({"embed_init": "xavier", SECTION: {"seed": 5}}, "^embed_init_options.seed: .*embed_init_seed"),
        ({SECTION: {"embed_init_seed": 5}}, "embed_init_seed: .* embed_init=xavier"),
        ({"embed_init": {"_name": "xavier"}}, "--embed-init .*no such strategy; there are: normal, xavier"),
        ({"embed_init": "xavier", SECTION: {"embed_init_oov": "zero"}}, "--embed-init-oov zero: .*zeros"),
    ):
        with pytest.raises(OptionError, match=message):
            hydra(**nodes)
    words = [
        "embed_init=xavier",
        "a=1",
        "a=2",
        f"+{SECTION}.embed_init_path=[encoder=a]",
        f"{SECTION}.embed_init_path=[]",
    ]
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: OmegaConf.create({"overrides": {"task": words}}))
    with pytest.raises(OptionError, match=r"_path=\[encoder=a\] and .*_path=\[\]: .*\[A,B\]"):
        hydra(embed_init="xavier")
    del words[-1]
    assert hydra(embed_init="xavier") == InitRequest("xavier", seed=3)


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


def test_slots_of_a_model():
    for scale, expected in ((None, 1.0), (torch.tensor(3.0), 3.0)):  # xlm_base has one that is None
        slots = find_slots(model_of(Side(scale), Side(2.0)), None)
        assert {name: slot.embed_scale for name, slot in slots.items()} == {"encoder": expected, "decoder": 2.0}
    slots = find_slots(model_of(Side(), Side()), None)
    for options, message in (
        ({"path": ["encoder=a", "decoder=b", "encoder=a"]}, "encoder=a encoder=a: .*encoder=avg:A,B"),
        ({"path": ["encoder=a"], "format": ["glove", "encoder=glove", "encoder=npz"]}, "encoder=npz: .* glove, "),
        ({"path": ["encoder=a"], "format": ["glove", "npz"]}, "format npz: .* glove, "),
    ):
        with pytest.raises(OptionError, match=message):
            sources_of(EmbedInitOptions(**{f"embed_init_{name}": values for name, values in options.items()}), slots)
    encoder, decoder = Side(), Side()
    decoder.embed_tokens.weight = encoder.embed_tokens.weight  # one matrix is one slot
    slots = find_slots(model_of(encoder, decoder), None)
    assert {name: slot.names for name, slot in slots.items()} == {"encoder": ["encoder", "decoder"]}
    assert slot_named("decoder", slots, "--flag") is slots["encoder"]
    with pytest.raises(SlotError, match=r"--flag: .*'x'; it has: encoder, decoder"):
        slot_named("x", slots, "--flag")
    inside = model_of(nn.Module())
    inside.encoder.sentence_encoder = Side()
    task = SimpleNamespace(source_dictionary=Dictionary())
    assert find_slots(inside, task)["encoder"].owner is inside.encoder.sentence_encoder
    learned = nn.Embedding(9, 4, padding_idx=1)  # its rows up to that of the padding are never looked up
    expected = learned.weight[2:].double().std().item()
    assert position_std(SimpleNamespace(embed_positions=learned)) == pytest.approx(expected)


def test_models_that_cannot_be_filled_are_refused():
    class Several(FairseqMultiModel):
        encoder = decoder = None

    several, without, half, third = model_of(kind=Several), model_of(Side()), model_of(Side()), model_of(Side())
    several.models = nn.ModuleDict({"de-en": nn.Module(), "en-de": nn.Module()})
    without.encoder.dictionary = None
    half.further, third.further = nn.Embedding(4, 4), nn.Embedding(5, 4)
    other = Dictionary()
    other.add_symbol("a")
    for model, message in (
        (several, r"Several .*encoder\.embed_tokens"),
        (model_of(nn.Module()), "encoder.embed_tokens"),
        (model_of(Side(rows=5)), "'encoder' has 5 rows but a dictionary of 4"),
        (without, "no dictionary"),
        (half, "a further matrix of words, further, .*encoder"),
        (third, "a further matrix of words, further, .*encoder"),  # of a dictionary of the task
        (model_of(Side(kind=nn.Linear)), "'encoder' .*Linear"),
    ):
        with pytest.raises(SlotError, match=rf"{message}.*drop --embed-init"):
            find_slots(model, SimpleNamespace(source_dictionary=None, dicts={"third": other}))
    assert set(find_slots(third, None)) == {"encoder"}


# ---- freezing, also where the optimizer steps a single-precision copy of half-precision parameters

KNOWN = np.array([False, True, True, False])


def prepare_freeze(dtype=torch.float32):
    torch.manual_seed(0)
    first, side = nn.Parameter(torch.randn(3, 2, dtype=dtype)), Side()
    embedding = side.embed_tokens.to(dtype)
    task = SimpleNamespace(optimizer_step=lambda optimizer, model, update_num: optimizer.step())
    return first, embedding, find_slots(model_of(side), None), task


@pytest.mark.parametrize(
    ("text", "known", "until"),
    [("encoder", False, None), ("encoder:known", True, None), ("encoder:200", False, 200), ("e_p:known:0", True, 0)],
)
def test_values_of_the_freeze_flag(text, known, until):
    freeze = Freeze.parse(text)
    assert freeze == Freeze(text.split(":")[0], known, until)
    assert (str(freeze), freeze.whole) == (text, ":" not in text)


@pytest.mark.parametrize("wrong", ["", ":known", "encoder:", "encoder:1.5", "encoder:²", "encoder:9:known"])
def test_other_values_of_the_freeze_flag_are_refused(wrong):
    with pytest.raises(OptionError, match="SLOT:known"):
        Freeze.parse(wrong)


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
    apply_freezes(freezes_of([Freeze("encoder", True, 3)], slots), slots, {"encoder": KNOWN}, task)
    optimizer = Optimizer([first, embedding.weight], kind)
    begin, began = embedding.weight.detach().clone(), first.detach().clone()
    for update in range(5):
        embedding.set_num_updates(update)  # fairseq calls it before each forward
        first.grad = embedding.weight.grad = None
        (embedding(torch.arange(4)).sum() + first.sum()).backward()
        assert bool(embedding.weight.grad[KNOWN].any()) == (update >= 3)
        task.optimizer_step(optimizer, model=None, update_num=update)
        same = (embedding.weight.detach() == begin).all(1).numpy()
        assert same[KNOWN].all() == (update < 3)
        assert not same[~KNOWN].any()
        if update == 2 and kind != "single":
            assert torch.equal(optimizer.copies[1][KNOWN], begin[KNOWN].float())  # no jump when they thaw
    assert not torch.equal(first.detach(), began)


def test_whole_matrices_are_left_out_of_training():
    for held, trained in (((), False), (("encoder",), True)):  # its optimizer knows it: the rows are held instead
        _, embedding, slots, task = prepare_freeze()
        apply_freezes({"encoder": Freeze("encoder")}, slots, {}, task, held)
        assert embedding.weight.requires_grad == trained
        if trained:
            embedding(torch.tensor([0, 2])).sum().backward()
            assert not embedding.weight.grad.any()
    for freezes, known, message in (
        ([Freeze("encoder", known=True)], {"encoder": ~KNOWN & KNOWN}, "--embed-init-path encoder=PATH"),
        ([Freeze("encoder"), Freeze("encoder", until=3)], {}, "--embed-init-freeze encoder encoder:3: .*one of them"),
    ):
        with pytest.raises(EmbinitError, match=message):
            apply_freezes(freezes_of(freezes, slots), slots, known, task)
    slots = {"a": {"freeze": "a"}, "b": {"freeze": "b:known"}, "c": {"freeze": None}}
    slots["d"] = {"freeze": "d", "in_optimizer": True}
    slots["e"] = {"freeze": "e:9", "in_optimizer": False}
    checkpoint = Checkpoint("c.pt", {}, {"slots": slots}, restores_optimizer=True)
    assert checkpoint.untrained() == {"a", "e"}
    check_optimizer(checkpoint, {"b", "c", "d"})
    with pytest.raises(OptionError, match=r"c\.pt .*--embed-init-freeze a e:9.*--reset-optimizer"):
        check_optimizer(checkpoint, set(slots))
    check_optimizer(Checkpoint("c.pt", {}, {"slots": slots}, restores_optimizer=False), set(slots))


# ---- errors


@pytest.mark.parametrize("program", ["/bin/fairseq-train", "/x/fairseq_cli/train.py", "/bin/another"])
def test_a_mistake_is_one_line_in_fairseqs_commands(monkeypatch, capsys, program):
    """Other errors keep their traceback, and so do other programs."""
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("others", file=sys.stderr))
    for _ in range(2):  # calling it again is harmless
        plugin.show_errors_as_lines()
    monkeypatch.setattr(sys, "argv", [program])
    for error in (OptionError("correct it"), ValueError("not ours")):
        sys.excepthook(type(error), error, None)
        is_ours = "fairseq" in program and isinstance(error, OptionError)
        said = f"{program.split('/')[-1]}: error: correct it\n" if is_ours else "others\n"
        assert capsys.readouterr().err == said


# ---- which checkpoint is continued


@pytest.mark.parametrize(
    ("expected", "strategy", "options"),
    [
        (None, "xavier", {}),
        (None, "xavier", {"save_dir": None}),
        ("other", "xavier", {"restore_file": "other"}),
        ("other", "xavier", {"continue_once": "other"}),
        ("other", "xavier", {"finetune_from_model": "other"}),
        ("run/checkpoint_last", "xavier", {"restore_file": None}),
        ("run/checkpoint_last", "xavier", {"continue_once": "other"}),
        ("run/checkpoint_last", "xavier", {"finetune_from_model": "other"}),
        ("other-shard0", "xavier", {"restore_file": "other", "checkpoint_suffix": "-shard0"}),
        (OptionError, "xavier", {"restore_file": "missing.pt"}),
        (None, None, {"restore_file": "missing.pt"}),
    ],
)
def test_which_checkpoint_is_continued(tmp_path, expected, strategy, options):
    """As fairseq.checkpoint_utils.load_checkpoint decides."""
    (tmp_path / "run").mkdir()
    for name in ("other.pt", "other-shard0.pt", *([f"{expected}.pt"] if "run" in str(expected) else [])):
        (tmp_path / name).touch()
    paths = {key: str(tmp_path / "other.pt") if value == "other" else value for key, value in options.items()}
    request = InitRequest(
        strategy, **{"save_dir": str(tmp_path / "run"), "restore_file": "checkpoint_last.pt", **paths}
    )
    with (
        pytest.raises(OptionError, match=r"--restore-file missing\.pt")
        if expected is OptionError
        else contextlib.nullcontext()
    ):
        assert path_to_restore(request) == (expected and str(tmp_path / f"{expected}.pt"))


def test_whose_optimizer_is_restored_and_where_no_report_is_written(tmp_path, monkeypatch):
    path = str(tmp_path / "checkpoint.pt")
    torch.save({"last_optimizer_state": {}}, path)
    for options, expected in (({}, True), ({"finetune_from_model": path}, False), ({"reset_optimizer": True}, False)):
        request = InitRequest(None, restore_file=path, **options)
        assert find_checkpoint(request).restores_optimizer == expected
    _write_report({}, InitRequest("xavier", save_dir=str(tmp_path / "unsaved"), no_save=True))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (1, 0):  # of several processes the first writes it
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        _write_report({}, InitRequest("xavier", save_dir=str(tmp_path / f"rank{rank}")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt", "rank0"]


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
        self.table = nn.Embedding(len(dictionary), 4)
        self.slots = {"encoder": (self.table, dictionary, self)}

    def embedding_slots(self):
        if not self.slots:  # as a multilingual_transformer, which earlier versions filled in part
            raise SlotError("--embed-init: drop it")
        return self.slots


PAIRS = Model()
PAIRS.slots = None


def continued(folder, strategy=None, model=None, **options):
    """Build a model for a training that continues in `folder`; return its configuration."""
    cfg = argparse.Namespace(embed_init=strategy, save_dir=str(folder), reset_optimizer=True, **options)
    plugin.prepare_training(model or Model(), SimpleNamespace(optimizer_step=None), cfg)
    return cfg


def test_a_run_that_is_continued_keeps_how_its_text_was_prepared(tmp_path):
    """Its data have no record; a fresh run has none, then."""
    (tmp_path / "dict.txt").write_text("a 1\nb 1\n")
    symbols = symbols_hash(read_dictionary(tmp_path / "dict.txt").symbols)
    entry = {"symbols": symbols, "steps": [{"step": "lowercase"}], "files": {}, "examples": []}
    cfg = argparse.Namespace(preparation_record=json.dumps({"dict.txt": entry}))
    torch.save({"args": cfg, "model": {}}, tmp_path / "checkpoint_last.pt")
    task = SimpleNamespace(optimizer_step=None, cfg=SimpleNamespace(data=str(tmp_path)))
    for folder, expected in ((tmp_path, ["dict.txt"]), (tmp_path / "fresh", None)):
        cfg = argparse.Namespace(embed_init=None, save_dir=str(folder), reset_optimizer=True, preparation_record=None)
        plugin.prepare_training(Model(), task, cfg)
        assert (cfg.preparation_record and list(json.loads(cfg.preparation_record))) == expected


def test_a_run_that_is_continued(tmp_path, caplog):
    last = tmp_path / "checkpoint_last.pt"
    torch.save({"args": argparse.Namespace(embed_init_record=json.dumps(record_of())), "model": {}}, last)
    for strategy in (None, "xavier"):
        with pytest.raises(OptionError, match=r"checkpoint_last.pt.*\(encoder\).*--srcdict"):
            continued(tmp_path, strategy, Model(OTHERS))
    for model in (Model(), PAIRS):  # a model whose matrices are not known goes on
        assert json.loads(continued(tmp_path, None, model).embed_init_record) == record_of()
    with pytest.raises(SlotError):
        continued(tmp_path, "xavier", PAIRS)
    assert other_dictionaries(record_of(), {"encoder": [*OTHERS, "c"]}) == []  # of another size, which shapes show
    for record in (record_of(rows=None), record_of(dictionary=None), {"slots": {"encoder": {}}}, {}):
        assert other_dictionaries(record, {"encoder": OTHERS}) == []
    model, checked = Model(), []
    model.check_training = lambda checkpoint, request: checked.append((checkpoint, request.strategy))
    begun = continued(tmp_path / "new", "xavier", model)
    assert checked == [(None, "xavier")]
    torch.save({"args": begun, "model": {}}, last)
    caplog.clear()
    assert continued(tmp_path, "xavier").embed_init_record == begun.embed_init_record
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
    with pytest.raises(OptionError, match=r"--embed-init normal: .*--save-dir.*--embed-init xavier"):
        continued(tmp_path, "normal")
    torch.save({"args": argparse.Namespace(), "model": {}}, last)
    with pytest.raises(OptionError, match=r"--embed-init xavier: .*--save-dir.*leave the flag out"):
        continued(tmp_path, "xavier")
    begun = continued(tmp_path / "new", "xavier", embed_init_freeze=["encoder:5"])
    for updates, frozen in ((4, True), (5, False)):  # a freeze that is over
        torch.save({"args": begun, "model": {}, "optimizer_history": [{"num_updates": updates}]}, last)
        for strategy in ("xavier", None):
            caplog.clear()
            continued(tmp_path, strategy)
            assert ("--embed-init-freeze encoder:5" in caplog.text) == frozen


@pytest.mark.parametrize(("model", "refused"), [(Model(WORDS), False), (Model(OTHERS), True), (PAIRS, False)])
def test_a_checkpoint_that_is_used(model, refused):
    cfg = argparse.Namespace(embed_init="xavier", embed_init_record=json.dumps(record_of()))
    before = plugin.overrides.set({})
    with pytest.raises(OptionError, match=r"\(encoder\)") if refused else contextlib.nullcontext():
        assert plugin._build_model(lambda *_: model, cfg, None, from_checkpoint=True) is model
    plugin.overrides.reset(before)


@pytest.mark.parametrize(
    ("strategy", "then", "now", "flag"),
    [
        ("xavier", {"std": "2x"}, {"std": "2x"}, None),
        ("xavier", {}, {"std": "xavier"}, None),
        ("xavier", {}, {"std": "2x"}, "--embed-init-std"),
        ("xavier", {"std": "2x"}, {}, "--embed-init-std"),
        ("shuffled", {"std": "xavier"}, {"std": "xavier"}, None),
        ("shuffled", {"std": "xavier"}, {}, "--embed-init-std"),
        ("shuffled", {}, {"std": "xavier"}, "--embed-init-std"),
        ("shuffled", {"shuffle": "elements"}, {}, "--embed-init-shuffle"),
        ("pretrained", {"oov": "mean"}, {"oov": "mean"}, None),
        ("pretrained", {"oov": "mean"}, {}, "--embed-init-oov"),
        ("pretrained", {}, {"path": ["encoder=moved/vectors.txt"]}, None),
        ("pretrained", {}, {"path": ["encoder=others.txt"]}, "--embed-init-path"),
        ("pretrained", {}, {"path": ["encoder=vectors.txt", "decoder=vectors.txt"]}, "--embed-init-path decoder"),
        ("normal", {"seed": 3}, {"seed": 3}, None),
        ("normal", {"seed": 3}, {}, None),
        ("normal", {}, {"seed": 3}, "--embed-init-seed"),
    ],
)
def test_options_that_a_run_which_continues_would_ignore_are_refused(tmp_path, monkeypatch, strategy, then, now, flag):
    """The vectors themselves are not opened: those of `now` do not exist."""
    monkeypatch.chdir(tmp_path)
    Path("vectors.txt").write_text("a 1 2 3 4\nb 2 1 0 5\n")

    def begin(folder, options):
        vectors = {"path": ["encoder=vectors.txt"]} if strategy in ("pretrained", "shuffled") else {}
        named = {f"embed_init_{name}": value for name, value in {**vectors, **options}.items()}
        model = Model()
        model.decoder = nn.Embedding(len(WORDS), 4)
        model.slots["decoder"] = (model.decoder, model.slots["encoder"][1], model)
        return continued(folder, strategy, model, **named)

    torch.save({"args": begin("new", then), "model": {}}, "checkpoint_last.pt")
    Path("vectors.txt").unlink()
    with pytest.raises(OptionError, match=f"{flag}.*--save-dir") if flag else contextlib.nullcontext():
        begin(tmp_path, now)
