"""Data of another dictionary of the same size: refused wherever a checkpoint with a report is continued or used."""

from __future__ import annotations

import argparse
import json

import expand_checkpoints
import fairseq.models
import hf_exports
import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from embinit_fairseq.checkpoints.reading import check_dictionary, initialisation_record
from embinit_fairseq.errors import DataError, OptionError, SlotError
from embinit_fairseq.expand.expansion import prepare
from embinit_fairseq.export.trained import open_trained
from embinit_fairseq.hooks import wraps as build_model
from embinit_fairseq.hooks.apply import _continue
from embinit_fairseq.hooks.options import EmbedInitOptions, Request
from embinit_fairseq.hooks.resume import recall
from embinit_fairseq.hooks.slots import find_slots
from embinit_fairseq.init.report import other_dictionaries, pack_rows, symbols_digest

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "a", "b"]
OTHERS = ["<s>", "<pad>", "</s>", "<unk>", "b", "a"]


def record_of(symbols=WORDS, **changes):
    slot = {
        "rows": len(symbols),
        "dim": 4,
        "dictionary": symbols_digest(symbols),
        "known_rows": pack_rows(np.ones(len(symbols), dtype=bool)),
    }
    return {"strategy": "xavier", "slots": {"encoder": {**slot, **changes}}}


class Model(torch.nn.Module):
    def __init__(self, words=WORDS) -> None:
        super().__init__()
        dictionary = Dictionary()
        for word in words[4:]:
            dictionary.add_symbol(word)
        self.slots = {"encoder": (torch.nn.Embedding(len(dictionary), 4), dictionary, self)}

    def embedding_slots(self):
        return self.slots


class Pairs(torch.nn.Module):
    """As a multilingual_transformer, which earlier versions filled in part."""

    def embedding_slots(self):
        raise SlotError("--embed-init: drop it")


def slots_of(words):
    return find_slots(Model(words), None)


def no_slots():
    raise SlotError("--embed-init: drop it")


@pytest.mark.parametrize(
    ("record", "symbols", "expected"),
    [
        (record_of(), {"encoder": WORDS}, []),
        (record_of(), {"encoder": OTHERS}, ["encoder"]),
        (record_of(), {"decoder": OTHERS}, []),
        (record_of(), {"encoder": [*OTHERS, "c"]}, []),  # fairseq refuses that
        (record_of(rows=None), {"encoder": OTHERS}, []),
        (record_of(dictionary=None), {"encoder": OTHERS}, []),
        ({"slots": {"encoder": {}}}, {"encoder": OTHERS}, []),
        ({}, {"encoder": OTHERS}, []),
    ],
)
def test_which_slots_have_another_dictionary(record, symbols, expected):
    assert other_dictionaries(record, symbols) == expected


def saved(folder, record):
    path = folder / "checkpoint_last.pt"
    torch.save({"args": argparse.Namespace(embed_init_record=json.dumps(record)), "model": {}}, path)
    return str(path)


def request(folder, strategy=None):
    return Request(strategy, EmbedInitOptions(), seed=1, save_dir=str(folder), reset_optimizer=True)


def test_a_run_that_is_continued_without_the_flag(tmp_path):
    path, cfg = saved(tmp_path, record_of()), argparse.Namespace()
    with pytest.raises(OptionError, match=r"\(encoder\).*--srcdict") as error:
        recall(cfg, request(tmp_path), lambda: slots_of(OTHERS))
    assert path in str(error.value)
    assert vars(cfg) == {}
    recall(cfg, request(tmp_path), lambda: slots_of(WORDS))
    assert json.loads(cfg.embed_init_record) == record_of()


def test_a_run_that_is_continued_with_the_flag(tmp_path):
    path = saved(tmp_path, record_of())
    with pytest.raises(OptionError, match=r"\(encoder\).*--srcdict"):
        _continue(slots_of(OTHERS), path, request(tmp_path, "xavier"))
    assert _continue(slots_of(WORDS), path, request(tmp_path, "xavier"))[0] == record_of()


def test_a_model_whose_tables_are_not_known_goes_on_without_the_flag(tmp_path):
    saved(tmp_path, record_of())
    cfg = argparse.Namespace()
    recall(cfg, request(tmp_path), no_slots)
    assert json.loads(cfg.embed_init_record) == record_of()


@pytest.mark.parametrize(
    ("model", "record", "refused"),
    [(Model(WORDS), record_of(), False), (Model(OTHERS), record_of(), True), (Pairs(), record_of(), False)],
)
def test_a_checkpoint_that_is_used(monkeypatch, model, record, refused):
    monkeypatch.setattr(fairseq.models, "build_model", lambda cfg, task, from_checkpoint: model)
    build_model._wrap_build_model()
    cfg = argparse.Namespace(embed_init="xavier", embed_init_record=json.dumps(record))
    before = build_model._overrides.set({})
    try:
        if refused:
            with pytest.raises(OptionError, match=r"\(encoder\)"):
                fairseq.models.build_model(cfg, None, from_checkpoint=True)
        else:
            assert fairseq.models.build_model(cfg, None, from_checkpoint=True) is model
    finally:
        build_model._overrides.reset(before)


def test_the_dictionary_that_a_command_is_given():
    state = {"args": argparse.Namespace(embed_init_record=json.dumps(record_of()))}
    with pytest.raises(DataError, match=r"--dict d\.txt: .*c\.pt.*\(encoder\).*dict\.txt of its training"):
        check_dictionary(state, "c.pt", "--dict d.txt", {"encoder": OTHERS})
    check_dictionary(state, "c.pt", "--dict d.txt", {"encoder": WORDS})
    check_dictionary({}, "c.pt", "--dict d.txt", {"encoder": OTHERS})


@pytest.mark.parametrize("text", ["[]", "{}", '{"slots": []}', '{"slots": {"encoder": 1}}', "{", "[" * 100_000])
def test_reports_that_nobody_here_wrote(text):
    assert initialisation_record({"args": argparse.Namespace(embed_init_record=text)}) is None


@pytest.mark.parametrize("right", [True, False])
def test_commands_that_are_given_a_dictionary(tmp_path, right):
    exported, expanded = hf_exports.checkpoint_of(tmp_path / "tupe"), expand_checkpoints.make(tmp_path, "lm")
    jobs = (
        (exported, "encoder", lambda: open_trained(exported.path, exported.dictionary, None, None)),
        (expanded, "decoder", lambda: prepare(expanded.request())),
    )
    for checkpoint, slot, job in jobs:
        symbols = checkpoint.task.source_dictionary.symbols
        record = {"slots": {slot: record_of(symbols if right else symbols[::-1])["slots"]["encoder"]}}
        checkpoint.state["cfg"]["embed_init_options"] = {"embed_init_record": json.dumps(record)}
        checkpoint.save()
        if right:
            job()
        else:
            with pytest.raises(DataError, match=rf"--dict .*\({slot}\)"):
                job()
