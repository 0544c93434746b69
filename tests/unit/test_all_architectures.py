"""`--embed-init` on every model of fairseq 0.12.2 that reads words: all matrices of words are filled, or none and it is
said. Models have one preset for each choice of their matrices (shared, adaptive, ...)."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import MISSING, fields

import numpy as np
import pytest
import torch
from fairseq import options, tasks
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from torch import nn

from embinit_fairseq.checkpoint_file import initialisation_record
from embinit_fairseq.embed_init.fill import embed_init
from embinit_fairseq.embed_init.request import EmbedInitOptions, InitRequest, check_request
from embinit_fairseq.embed_init.slots import find_slots
from embinit_fairseq.errors import OptionError, SlotError

#: words of the dictionaries; sizes of all with specials and with <mask>: nothing else in a model is as long
DICTIONARIES = {"de": 31, "nl": 31, "en": 37, "": 43}
SIZES = {35, 41, 47, 36, 42, 48}
VECTOR = np.linspace(-1, 1, 8, dtype=np.float32)
OUTPUTS = r"output_projection|fc_out|fc3|lm_head|embed_out|learned_bias|label_embs|proj\."  # not looked up by tokens

#: task and its options -> architectures, without models of speech and those that need other projects' packages
ARCHITECTURES = {
    "language_modeling --tokens-per-sample 16": "lstm_lm fconv_lm fconv_lm_dauphin_gbw fconv_lm_dauphin_wikitext103 "
    "lightconv_lm transformer_lm transformer_lm_big transformer_lm_gpt3_xl transformer_lm_wiki103",
    "masked_lm --tokens-per-sample 16": "xlm xlm_base masked_lm xmod_base",
    "denoising --tokens-per-sample 16": "bart_base roberta_enc_dec",
    "translation": "lstm fconv fconv_self_att lightconv transformer transformer_align",
    "translation_lev": "cmlm_transformer nacrf_transformer insertion_transformer levenshtein_transformer "
    "nonautoregressive_transformer iterative_nonautoregressive_transformer",
    "multilingual_translation --lang-pairs de-en,en-de": "multilingual_transformer",
}
#: they have another matrix of words, in a CRF or in an encoder inside the encoder, or adaptive inputs
REFUSED = {"nacrf_transformer", "fconv_self_att", "transformer_lm_wiki103"}
PRESETS = [(arch, task) for task, names in ARCHITECTURES.items() for arch in names.split()]
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


def shrunk(name, value):
    """An option of a tiny model: one small layer of each kind, however they are written."""
    if type(value) in (int, float) and value > 0:
        return next((small for part, small in SHRUNK.items() if re.search(part, name)), value)
    if name.endswith("cutoff") and value:
        return "10,20"
    if str(value).startswith("[("):  # convolutions: (channels, width, ...) of each
        return re.sub(r"^\[\(\d+(.*?)\).*", r"[(8\1)]", value)
    return value[:1] if name.endswith("kernel_size_list") else value


def parsed(data, arch, flags):
    """The options of a tiny model on a command line."""
    argv = [str(data), "--arch", arch, "--task", *flags.split(), "--max-tokens", "9", "--no-save"]
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


def filled(data, arch, flags):
    """Fill a model and look at every table; return the names of its slots, None if it was refused."""
    args = parsed(data, arch, flags)
    cfg, task = configured(args), tasks.setup_task(Namespace(**vars(args)))
    model = task.build_model(cfg)
    parameters = dict(model.named_parameters())
    before = {name: value.clone() for name, value in parameters.items()}
    words = {name for name, value in parameters.items() if set(value.shape) & SIZES}
    modules = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    tables = {name: modules[name] for name in words & {*modules}}

    def init(strategy, **options):
        request = InitRequest(strategy, EmbedInitOptions(**options), no_save=True)
        check_request(cfg, request)
        embed_init(find_slots(model, task), task, cfg, request)

    try:
        refusal = init("xavier")
    except (SlotError, OptionError) as error:
        refusal = str(error)
    if refusal:
        assert re.fullmatch(rf"--embed-init.*\b{type(model).__name__}\b.*drop --embed-init.*", refusal), "one line"
        assert all(torch.equal(value, before[name]) for name, value in parameters.items()), "half"
        return None
    assert {name for name, value in parameters.items() if not torch.equal(value, before[name])} == {*tables} != set()
    assert [name for name in words - set(tables) if not re.search(OUTPUTS, name)] == [], "looked up? then it is a table"
    slots = initialisation_record({"cfg": {"model": cfg} if isinstance(cfg, Namespace) else cfg._get_parent()})["slots"]
    shapes = [tuple(table.weight.shape) for table in tables.values()]
    assert sorted((slot["rows"], slot["dim"]) for slot in slots.values()) == sorted(shapes)
    for table in tables.values():
        weight, bound = table.weight.detach(), (6 / sum(table.weight.shape)) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound
        assert (weight == 0).all(1).nonzero().flatten().tolist() == [table.padding_idx]
    init("pretrained", embed_init_path=[f"{slot}={data / 'v.txt'}" for slot in slots])
    assert all(np.isclose(table.weight.detach(), VECTOR).all(1).sum() == 1 for table in tables.values())
    return {name for slot, record in slots.items() for name in (slot, *record["tied"])}


@pytest.mark.parametrize(("arch", "task"), PRESETS)
def test_all_tables_of_words_are_filled_or_none(data, arch, task):
    assert (filled(data, arch, task) is None) == (arch in REFUSED)


LANGUAGE_MODEL = "language_modeling --tokens-per-sample 16"


@pytest.mark.parametrize(
    ("arch", "flags", "slots"),
    [
        ("transformer_lm", f"{LANGUAGE_MODEL} --adaptive-input --adaptive-input-cutoff 20", None),
        ("transformer_lm", f"{LANGUAGE_MODEL} --character-embeddings", None),
        ("transformer", "translation --share-decoder-input-output-embed", {"encoder", "decoder"}),
        ("roberta_base", "masked_lm --tokens-per-sample 16 --untie-weights-roberta", {"encoder"}),
        (
            "multilingual_transformer",
            "multilingual_translation --lang-pairs de-nl,nl-de --share-all-embeddings",
            {"de-nl.encoder", "de-nl.decoder", "nl-de.encoder", "nl-de.decoder"},
        ),
    ],
)
def test_options_that_change_the_tables(data, arch, flags, slots):
    assert filled(data, arch, flags) == slots
