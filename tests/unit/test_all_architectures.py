"""`--embed-init` on every architecture that fairseq registers: all tables of words are filled, or none and it is said.

Every name is built, for a preset may choose other tables than its class. One of a later fairseq is treated like its
relatives; where that is not enough the message says what is to be added here.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from dataclasses import MISSING, fields
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from fairseq import models, options, tasks
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from small_models import save_checkpoint
from torch import nn

from embinit_fairseq.checkpoints.reading import initialisation_record
from embinit_fairseq.embed_init.fill import embed_init
from embinit_fairseq.embed_init.request import EmbedInitOptions, InitRequest, check_request
from embinit_fairseq.embed_init.slots import find_slots
from embinit_fairseq.errors import OptionError, SlotError

#: lines of the dictionaries; lengths of all with specials, with <mask>, and of units: nothing else is as long
DICTIONARIES = {"de": 31, "nl": 31, "en": 37, "": 43, "ltr": 59}
SIZES = {35, 41, 47, 63, 36, 42, 48, 25, 75, 83, 89}
VECTOR = np.linspace(-1, 1, 8, dtype=np.float32)
OUTPUTS = r"output_projection|fc_out|fc3|lm_head|embed_out|learned_bias|label_embs|proj\."  # not looked up by tokens

MULTITASK = "--multitask-config-yaml multitask.yaml"
LANGUAGE_MODEL, TRANSLATION = "language_modeling --tokens-per-sample 16", "translation"
#: part of module.Class -> task and options; first come, first served
TASKS = {
    r"\.nat\.": "translation_lev",
    "fconv_self_att": TRANSLATION,
    "text_to_speech": "text_to_speech",
    "xm_transformer_unity": "speech_to_text --encoder-proj --adaptor-proj --w2v-path w2v.pt " + MULTITASK,
    "xm_transformer": "speech_to_text --encoder-proj --adaptor-proj --w2v-path w2v.pt",
    "speech_to_text": "speech_to_text",
    "S2SpecT2": "speech_to_speech " + MULTITASK,
    "Unity": "speech_to_speech --target-is-code --target-code-size 71 " + MULTITASK,
    "S2Spec": "speech_to_speech",
    "speech_to_speech": "speech_to_speech --target-is-code --target-code-size 71",
    "speech_dlm": "speech_dlm_task --channels de,nl --tokens-per-sample 16 --criterion speech_dlm_criterion",
    "transformer_ulm": "speech_unit_modeling",
    "Seq2Seq": "audio_finetuning --labels ltr --autoregressive",
    "Wav2VecCtc|Laser": "audio_finetuning --labels ltr",
    "HubertCtc": 'hubert_pretraining --labels ["ltr"] --fine-tuning',
    "hubert": 'hubert_pretraining --labels ["ltr"]',
    "wav2vec": "audio_pretraining",
    "roberta.enc_dec|bart": "denoising --tokens-per-sample 16",
    "roberta|xmod|masked_lm": "masked_lm --tokens-per-sample 16",
    "from_pretrained_xlm": "translation_from_pretrained_xlm --pretrained-xlm-checkpoint {data}/xlm.pt",
}
RELATIVES = {
    models.FairseqMultiModel: "multilingual_translation --lang-pairs de-en,en-de",
    models.FairseqLanguageModel: LANGUAGE_MODEL,
    models.FairseqEncoderDecoderModel: TRANSLATION,
}
#: part of the module -> the package it needs, or what else cannot be here
OPTIONAL = {
    "pipeline_parallel": "fairscale, whose pipelines are on GPUs only",
    "model_parallel": "fairseq.model_parallel.megatron",
    "huggingface": "transformers",
    "multires_hubert|wav2vec2_classification": "a model of speech of its own kind",
}
#: classes and names that cannot be filled; every other one must be
REFUSED = {
    # no table of words is called embed_tokens
    *"Wav2VecModel Wav2Vec2Model Wav2VecCtc Wav2VecLaser HubertModel HubertCtc".split(),
    *"S2SpecTTransformerModel S2SpecTConformerModel HuggingFaceGPT2LanguageModel DummyModel".split(),
    # there is another one: factors of the CRF; the encoder in a CompositeEncoder; the decoder of the first pass
    *"NACRFTransformerModel FConvModelSelfAtt S2SpecT2ConformerModel UnityConformerModel".split(),
    "XMTransformerModelUnitY",
    # fairseq fills it from a checkpoint
    "TransformerFromPretrainedXLMModel",
    # adaptive inputs
    *"transformer_lm_baevski_wiki103 transformer_lm_wiki103".split(),
}
#: what numbers of a preset become in a tiny model
SHRUNK = {"layers$|factor$": 1, "(heads|groups)$": 2, "(dim|hidden_size|channels)$": 8, "positions$": 64}
_tasks: dict = {}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Dictionaries and settings of all tasks, without any data, which no model needs to be built."""
    folder = tmp_path_factory.mktemp("data")
    for name, words in DICTIONARIES.items():
        (folder / f"dict.{name}.txt".replace("..", ".")).write_text("".join(f"w{n} 1\n" for n in range(words)))
    (folder / "train.de-en.de.idx").touch()  # what tells fairseq the languages
    features = dict.fromkeys(("sample_rate", "n_mels", "n_fft", "n_stft", "eps", "win_len_t", "hop_len_t"), 8)
    features |= {"pitch_min": 0, "pitch_max": 1, "energy_min": 0, "energy_max": 1}
    config = {"vocab_filename": "dict.en.txt", "input_feat_per_channel": 8, "features": features}
    letters = {"dict": f"{folder}/dict.ltr.txt", "is_first_pass_decoder": True, "decoder_args": {"decoder_layers": 1}}
    units = {"manifests": {}, "n_units": 79, "f0_vq_type": "naive", "f0_vq_n_units": 85}
    files = {"config.yaml": config, "multitask.yaml": {"target_letters": letters}, "units.json": units}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "v.txt").write_text("".join(f"{word} {' '.join(map(str, VECTOR))}\n" for word in ("w3", "3")))
    save_checkpoint(folder / "xlm.pt", Namespace(), {})
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
    task, *rest = [*task_of(arch).replace("{data}", str(data)).split(), *more]
    place = data / "units.json" if task == "speech_unit_modeling" else data
    argv = [str(place), "--task", task, "--arch", arch, *rest, "--max-tokens", "9", "--no-save"]
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
    if isinstance(value, str) and value.startswith("[("):  # convolutions: (channels, width, ...) of each
        return re.sub(r"^\[\(\d+(.*?)\).*", r"[(8\1)]", value)
    return value[:1] if name.endswith("kernel_size_list") else "[True]" if str(value).startswith("[True") else value


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
    if hasattr(args, "w2v_path"):  # stands for the configuration in a checkpoint of the pretrained model
        args.w2v_args = configured(parsed("hubert" if "hubert" in arch else "wav2vec2", data))._get_parent()
    key = (task_of(arch), *more, getattr(args, "source_lang", None))
    if key not in _tasks:
        _tasks[key] = tasks.setup_task(Namespace(**vars(args)))
    cfg = configured(args)
    return cfg, _tasks[key], _tasks[key].build_model(cfg)


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
        known = rf"--embed-init.*\b{type(model).__name__}\b.*drop --embed-init.*|--pretrained-xlm.*keep one of them.*"
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


@pytest.mark.parametrize("arch", [a for a, c in ARCH_MODEL_REGISTRY.items() if c.__module__.startswith("fairseq.")])
def test_all_tables_of_words_are_filled_or_none(arch, data):
    cls = ARCH_MODEL_REGISTRY[arch]
    missing = next((package for part, package in OPTIONAL.items() if re.search(part, cls.__module__)), None)
    if missing and find_spec(missing) is None:
        pytest.skip(f"--arch {arch} cannot be built without {missing}")
    refused = filled(arch, data) is None
    assert refused == bool({arch, cls.__name__} & REFUSED), f"{cls.__name__}: mend slots.py, or REFUSED and the docs"


@pytest.mark.parametrize(
    ("arch", "options", "slots"),
    [
        ("transformer_lm", "--adaptive-input --adaptive-input-cutoff 20", None),
        ("transformer_lm", "--character-embeddings", None),
        ("transformer", "--share-decoder-input-output-embed", "encoder decoder"),
        ("roberta_base", "--untie-weights-roberta", "encoder"),
        ("multilingual_transformer", "--lang-pairs de-nl,nl-de --share-encoders", "de-nl nl-de"),
        ("multilingual_transformer", "--lang-pairs de-nl,nl-de --share-all-embeddings", "de-nl nl-de"),
        ("transformer_ulm", "--discrete-duration", None),
        ("transformer_ulm", "--discrete-f0", None),
        ("s2ut_transformer", "--n-frames-per-step 2", "decoder"),
        ("s2ut_transformer", "--multitask-config-yaml multitask.yaml", None),
    ],
)
def test_options_that_change_the_tables(arch, options, slots, data):
    names = re.sub(r"(\w+-\w+)", r"\1.encoder \1.decoder", slots or "").split()
    assert filled(arch, data, *options.split()) == (set(names) or None)
