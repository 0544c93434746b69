"""`--embed-init` on every model that fairseq registers: all matrices of words are filled, or none and it is said.

Of each model a preset is built for every choice of its matrices (shared, adaptive, ...). A model of a later fairseq is
treated like its relatives; where that is not enough the message says what is to be added here.
"""

from __future__ import annotations

import contextlib
import re
from argparse import Namespace
from dataclasses import MISSING, fields

import numpy as np
import pytest
import torch
from fairseq import models, options, tasks
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
)
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from torch import nn

from embinit_fairseq.checkpoints.reading import initialisation_record
from embinit_fairseq.embed_init.fill import embed_init
from embinit_fairseq.embed_init.request import EmbedInitOptions, InitRequest, check_request
from embinit_fairseq.embed_init.slots import find_slots
from embinit_fairseq.errors import OptionError, SlotError

#: words of the dictionaries; sizes of all with specials and with <mask>: nothing else in a model is as long
DICTIONARIES = {"de": 31, "nl": 31, "en": 37, "": 43}
SIZES = {35, 41, 47, 36, 42, 48}
VECTOR = np.linspace(-1, 1, 8, dtype=np.float32)
OUTPUTS = r"output_projection|fc_out|fc3|lm_head|embed_out|learned_bias|label_embs|proj\."  # not looked up by tokens

LANGUAGE_MODEL, TRANSLATION = "language_modeling --tokens-per-sample 16", "translation"
#: part of module.Class -> task and options; the first that matches
TASKS = {
    r"\.nat\.": "translation_lev",
    "fconv_self_att": TRANSLATION,
    "roberta.enc_dec|bart": "denoising --tokens-per-sample 16",
    "roberta|xmod|masked_lm": "masked_lm --tokens-per-sample 16",
}
RELATIVES = {
    models.FairseqMultiModel: "multilingual_translation --lang-pairs de-en,en-de",
    models.FairseqLanguageModel: LANGUAGE_MODEL,
    models.FairseqEncoderDecoderModel: TRANSLATION,
}
#: models of speech, and models that need packages or checkpoints of other projects
OTHERS = "speech|wav2vec|hubert|ulm|parallel|huggingface|xlm|benchmark"
#: classes and names that cannot be filled; every other one must be
REFUSED = {
    # there is another matrix of words: factors of the CRF; the encoder in a CompositeEncoder
    *"NACRFTransformerModel FConvModelSelfAtt".split(),
    # adaptive inputs
    *"transformer_lm_baevski_wiki103 transformer_lm_wiki103".split(),
}
#: what numbers of a preset become in a tiny model
SHRUNK = {"layers$|factor$": 1, "(heads|groups)$": 2, "(dim|hidden_size|channels)$": 8, "positions$": 64}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Dictionaries without any data, which no model needs to be built."""
    folder = tmp_path_factory.mktemp("data")
    for name, words in DICTIONARIES.items():
        (folder / f"dict.{name}.txt".replace("..", ".")).write_text("".join(f"w{n} 1\n" for n in range(words)))
    (folder / "train.de-en.de.idx").touch()  # what tells fairseq the languages
    (folder / "v.txt").write_text("".join(f"{word} {' '.join(map(str, VECTOR))}\n" for word in ("w3", "3")))
    return folder


def task_of(arch):
    """Task and options that fit an architecture."""
    cls = ARCH_MODEL_REGISTRY[arch]
    fitting = (told for part, told in TASKS.items() if re.search(part, f"{cls.__module__}.{cls.__name__}"))
    told = next(fitting, None) or next((told for base, told in RELATIVES.items() if issubclass(cls, base)), None)
    assert told, f"--arch {arch}, {cls.__module__}.{cls.__name__}, is new: add a line to TASKS"
    return told


def parsed(arch, data, *more):
    """The options of a tiny model on a command line."""
    task, *rest = [*task_of(arch).split(), *more]
    argv = [str(data), "--task", task, "--arch", arch, *rest, "--max-tokens", "9", "--no-save"]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    dataclass = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(arch))
    for option in fields(dataclass) if dataclass else ():
        if not hasattr(args, option.name) and option.default is not MISSING:
            other = str(option.default).startswith("${")  # the value of another option, which this task lacks
            setattr(args, option.name, False if other else option.default)
    for name, value in vars(args).items():
        setattr(args, name, shrunk(name, value))
    if getattr(args, "share_all_embeddings", False) and not hasattr(args, "lang_pairs"):
        args.source_lang = args.target_lang = "de"
    return args


def shrunk(name, value):
    """An option of a tiny model: one small layer of each kind, however they are written."""
    if type(value) in (int, float) and value > 0:
        return next((small for part, small in SHRUNK.items() if re.search(part, name)), value)
    if name.endswith("cutoff") and value:
        return "10,20"
    if str(value).startswith("[("):  # convolutions: (channels, width, ...) of each
        return re.sub(r"^\[\(\d+(.*?)\).*", r"[(8\1)]", value)
    return value[:1] if name.endswith("kernel_size_list") else value


def configured(args):
    """The options as fairseq hands them to a model: flat, or a node of a tree for one with a dataclass."""
    model = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(args.arch))
    if model is None:
        return args
    tree = {"criterion": None, "lr_scheduler": None}
    for part, name, dataclass in (("model", args.arch, model), ("task", args.task, TASK_DATACLASS_REGISTRY[args.task])):
        known = {option.name for option in fields(dataclass)} & set(vars(args))
        tree[part] = {key: getattr(vars(args)[key], "value", vars(args)[key]) for key in known} | {"_name": name}
    return OmegaConf.create(tree, flags={"allow_objects": True}).model


def built(arch, data, *more):
    """(options, task, model) as fairseq-train builds them."""
    args = parsed(arch, data, *more)
    cfg, task = configured(args), tasks.setup_task(Namespace(**vars(args)))
    return cfg, task, task.build_model(cfg)


def filled(arch, data, *more):
    """Fill a model and look at every table; returns the names of its slots, None if it was refused."""
    cfg, task, model = built(arch, data, *more)
    parameters = dict(model.named_parameters())
    before = {name: value.clone() for name, value in parameters.items()}
    embeddings = {
        f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, nn.Embedding)
    }
    words = {name for name, value in parameters.items() if set(value.shape) & SIZES}
    tables = {name: embeddings[name] for name in words if name in embeddings}

    def init(strategy, **told):
        request = InitRequest(strategy, EmbedInitOptions(**told), no_save=True)
        check_request(cfg, request)
        embed_init(find_slots(model, task), task, cfg, request)

    try:
        refusal = init("xavier")
    except (SlotError, OptionError) as error:
        refusal = str(error)
    changed = {name for name, value in parameters.items() if not torch.equal(value, before[name])}
    if refusal:
        known = rf"--embed-init.*\b{type(model).__name__}\b.*drop --embed-init.*"
        assert re.fullmatch(known, refusal), "not one line"
        assert changed == set(), "half"
        return None
    assert changed == set(tables) != set()
    assert [name for name in words - set(tables) if not re.search(OUTPUTS, name)] == [], "looked up? then it is a table"
    slots = initialisation_record({"cfg": {"model": cfg} if isinstance(cfg, Namespace) else cfg._get_parent()})["slots"]
    assert sorted((slot["rows"], slot["dim"]) for slot in slots.values()) == sorted(
        tuple(table.weight.shape) for table in tables.values()
    )
    for table in tables.values():
        weight, bound = table.weight.detach(), (6 / sum(table.weight.shape)) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound
        assert (weight == 0).all(1).nonzero().flatten().tolist() == [table.padding_idx]
    init("pretrained", embed_init_path=[f"{slot}={data / 'v.txt'}" for slot in slots])
    assert all(np.isclose(table.weight.detach(), VECTOR).all(1).sum() == 1 for table in tables.values())
    return {name for slot, told in slots.items() for name in (slot, *told["tied"])}


def presets():
    """One preset for each model and choice of its matrices of words."""
    chosen = {}
    for arch, cls in sorted(ARCH_MODEL_REGISTRY.items(), key=lambda item: len(item[0])):
        options = Namespace()
        with contextlib.suppress(AttributeError):  # presets that look at other options
            ARCH_CONFIG_REGISTRY[arch](options)
        tables = {name: value for name, value in vars(options).items() if re.search("share|adaptive|tie|char", name)}
        if cls.__module__.startswith("fairseq.") and not re.search(OTHERS, cls.__module__):
            chosen.setdefault((cls, str(sorted(tables.items()))), arch)
    return list(chosen.values())


@pytest.mark.parametrize("arch", presets())
def test_all_tables_of_words_are_filled_or_none(arch, data):
    cls = ARCH_MODEL_REGISTRY[arch]
    refused = filled(arch, data) is None
    assert refused == bool({arch, cls.__name__} & REFUSED), f"{cls.__name__}: mend slots.py, or REFUSED and the docs"


@pytest.mark.parametrize(
    ("arch", "options", "slots"),
    [
        ("transformer_lm", "--adaptive-input --adaptive-input-cutoff 20", None),
        ("transformer_lm", "--character-embeddings", None),
        ("transformer", "--share-decoder-input-output-embed", "encoder decoder"),
        ("roberta_base", "--untie-weights-roberta", "encoder"),
        ("multilingual_transformer", "--lang-pairs de-nl,nl-de --share-all-embeddings", "de-nl nl-de"),
    ],
)
def test_options_that_change_the_tables(arch, options, slots, data):
    names = re.sub(r"(\w+-\w+)", r"\1.encoder \1.decoder", slots or "").split()
    assert filled(arch, data, *options.split()) == (set(names) or None)
