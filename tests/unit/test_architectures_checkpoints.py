"""Checkpoints of every architecture of ours: continuing from them, loading them, and those of earlier revisions."""

import dataclasses
from argparse import Namespace
from pathlib import Path

import fairseq.models
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from omegaconf import OmegaConf
from small_models import (
    ARCHITECTURES,
    TASK,
    TIED,
    TIED_OUTPUT,
    dictionary,
    plain,
    preset,
    save_checkpoint,
    task_of,
)

from embinit_fairseq.embed_init import restore
from embinit_fairseq.embed_init.options import SECTION, EmbedInitOptions
from embinit_fairseq.embed_init.request import InitRequest, request_from
from embinit_fairseq.embed_init.slots import find_slots
from embinit_fairseq.errors import CheckpointError, DataError, OptionError

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


def check(name, path, task=None, how="restore_file", **options):
    """Build a model for a training that a checkpoint will be loaded into, and compare the two."""
    architecture = ARCHITECTURES[name]
    task = task or architecture.task_of()
    model, request = architecture.build(task, **options), InitRequest(None, save_dir="new")
    setattr(request, how, str(path))
    restore.check_fits(restore.find_checkpoint(request), model, model.cfg, find_slots(model, task))


HEADS = [(name, "encoder_attention_heads", 1, 2) for name in ARCHITECTURES if name != "duo_classifier"]


@pytest.mark.parametrize(
    ("name", "option", "theirs", "ours"),
    [
        *HEADS,
        ("tupe", "rotary", True, False),
        ("tupe", "position_encoding", "rope", "none"),
        ("tupe_transformer", "positions", "alibi", "rope"),
        ("duo_transformer", "no_scale_embedding", True, False),
    ],
)
def test_a_training_continues_with_the_options_of_its_checkpoint(tmp_path, name, option, theirs, ours):
    """With others the weights are another function, and no shape tells. A checkpoint that is older than an option had
    its default."""
    architecture, flag = ARCHITECTURES[name], f"--{option.replace('_', '-')}"
    path = save_checkpoint(tmp_path / "checkpoint_last.pt", architecture.config(**{option: theirs}), {})
    for how, place in (("restore_file", path), ("finetune_from_model", path), ("save_dir", tmp_path)):
        with pytest.raises(OptionError, match=rf"{path} was trained with {flag} {theirs}, here it is {ours}"):
            check(name, place, how=how, **{option: ours})
        check(name, place, how=how, **{option: theirs})
    if option not in architecture.sizes:
        old = architecture.config()
        default = getattr(old, option)
        delattr(old, option)
        save_checkpoint(path, old, {})
        check(name, path, **{option: default})
        with pytest.raises(OptionError, match=f"trained with {flag} {default}"):
            check(name, path, **{option: theirs if theirs != default else ours})
    Path(path).write_text("no checkpoint")  # without --embed-init fairseq will say so
    check(name, path)


@pytest.mark.parametrize("tied", [TIED, TIED_OUTPUT], ids=lambda options: next(iter(options)))
def test_matrices_that_are_tied_here_only(tied, tmp_path):
    """Of fairseq's own transformer, whose loader keeps the last of the values. Equal ones are one matrix."""
    task, path = task_of(), tmp_path / "a.pt"
    models = {}
    for name, options in {"apart": {}, "tied": tied}.items():
        args = Namespace(encoder_layers=1, decoder_layers=1, encoder_embed_dim=8, **options)
        ARCH_CONFIG_REGISTRY["transformer_tiny"](args)
        models[name] = (args, fairseq.models.transformer.TransformerModel.build_model(args, task))
    args, model = models["tied"]
    save_checkpoint(path, models["apart"][0], models["apart"][1].state_dict())
    for how in ("restore_file", "finetune_from_model"):
        request = InitRequest(None, save_dir="new")
        setattr(request, how, str(path))
        with pytest.raises(OptionError, match=r"a\.pt has two matrices, .* as at its training"):
            restore.check_fits(restore.find_checkpoint(request), model, args, {})
    save_checkpoint(path, args, model.state_dict())
    for args, model in models.values():
        restore.check_fits(restore.find_checkpoint(request), model, args, {})


@each_architecture
def test_data_of_another_dictionary(name, tmp_path):
    """The checkpoint has 10 words and 4 special symbols on either side, the data 8 words on one of them."""
    architecture, masks = ARCHITECTURES[name], TASK[name] == "masked_lm"
    cases = [({}, (8, None), "encoder", "--srcdict")]
    if TASK[name] == "translation":
        cases = [({}, (10, 8), "decoder", "--tgtdict"), ({}, (8, 10), "encoder", "--srcdict")]
        cases += [(TIED, (8, None), "encoder and decoder", "--joined-dictionary --srcdict")]
    for options, words, slots, remedy in cases:
        weights = architecture.build(architecture.task_of(10), **options).state_dict()
        path = save_checkpoint(tmp_path / "best.pt", architecture.config(**options), weights)
        said = rf"best.pt: .* {slots} has {14 + masks} rows, .* {12 + masks} symbols .*{remedy} DICT.txt"
        with pytest.raises(OptionError, match=said):
            check(name, path, architecture.task_of(*words), **options)
        check(name, path, architecture.task_of(10), **options)


HEAD = "sentence_classification_head"  # as fairseq's task calls it


def saved(folder, name):
    """A checkpoint c.pt and a folder with its dictionaries; the class and the model."""
    architecture, data = ARCHITECTURES[name], folder / "data"
    for file in ("dict.txt", "dict.de.txt", "dict.en.txt", "input0/dict.txt", "label/dict.txt"):
        dictionary(3 if "label" in file else 11).save(str(data / file))
    of_task = {
        "translation": {"source_lang": "de", "target_lang": "en"},
        "sentence_prediction": {"num_classes": 3, "regression_target": False, "classification_head_name": HEAD},
        "masked_lm": {"tokens_per_sample": 10},
    }[TASK[name]]
    model = architecture.build(architecture.task_of(masking=TASK[name] != "translation"))
    if TASK[name] == "sentence_prediction":  # whose dictionary has a <mask>, too
        model.register_classification_head(HEAD, num_classes=3)
    of_task |= {"_name": TASK[name], "data": str(data)}
    save_checkpoint(folder / "c.pt", architecture.config(), model.state_dict(), **of_task)
    return architecture.model, model


@each_architecture
def test_a_checkpoint_is_loaded_by_its_own_class_with_options_that_fit_its_weights(tmp_path, name):
    """From Python, and as fairseq-generate and -validate load; other options may be given."""
    own, model = saved(tmp_path, name)
    paths, load = (str(tmp_path), "c.pt", str(tmp_path / "data")), checkpoint_utils.load_model_ensemble_and_task
    hub = own.from_pretrained(*paths)
    inside = hub.models[0] if hasattr(hub, "models") else hub.model
    assert type(inside) is own
    assert all(torch.equal(value, inside.state_dict()[key]) for key, value in model.state_dict().items())
    other = ARCHITECTURES["duo_transformer" if name == "electra" else "electra"].model  # which is no other's base
    with pytest.raises(CheckpointError, match=rf"c\.pt: .*load it with {own.__name__}\.from_pretrained"):
        other.from_pretrained(*paths)
    (model,), _, _ = load([str(tmp_path / "c.pt")], {"dropout": 0.3})
    assert model.cfg.dropout == 0.3
    option, value = ("duo_attention", "linear") if name == "duo_classifier" else ("encoder_attention_heads", 1)
    wrong = {option: value}
    with pytest.raises(OptionError, match=rf"^{option}={wrong[option]!r} \(from_pretrained, --model-overrides\)"):
        own.from_pretrained(*paths, **wrong)
    with pytest.raises(OptionError, match=f"^{option}="):
        load([str(tmp_path / "c.pt")], wrong)


def test_paths_that_lead_nowhere(tmp_path):
    load, folder = saved(tmp_path, "tupe_transformer")[0].from_pretrained, str(tmp_path)
    for paths, error, message in (
        ((f"{folder}/nowhere", "c.pt", f"{folder}/data"), CheckpointError, "nowhere: not found"),
        ((folder, "c.pt:typo.pt", f"{folder}/data"), CheckpointError, r"typo\.pt: not found"),
        ((folder, "c.pt", f"{folder}/nodata"), DataError, "nodata: not found; give .* the data folder"),
        ((folder, "c.pt"), DataError, r"dict\.de\.txt: not found; give from_pretrained as third argument"),
    ):
        with pytest.raises(error, match=message):
            load(*paths)
    assert len(load(folder, "c.pt:c.pt", f"{folder}/data").models) == 2  # an ensemble


def test_a_head_that_would_be_random_is_not_used(tmp_path):
    """fairseq-validate --num-classes 5 on a model of three classes: the checkpoint's head would be left out."""
    saved(tmp_path, "embinit_classifier")
    for given, message in (({"num_classes": 5}, "--num-classes 3"), ({"classification_head_name": "mood"}, "'mood'")):
        with pytest.raises(OptionError, match=message):
            checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "c.pt")], given)


# ---- Checkpoints of earlier revisions lack the options that came later ----

OURS = [arch for arch, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("embinit_fairseq.")]
#: sections whose values other sections take
SECTIONS = {
    "task": {"max_source_positions": 300, "max_target_positions": 400},
    "common": {"seed": 7},
    "optimization": {"lr": [0.5], "sentence_avg": True},
}


def in_a_tree(part, options):
    """The section of a configuration, as a checkpoint has it."""
    return OmegaConf.create({**SECTIONS, part: options}, flags={"allow_objects": True})[part]


def without_each(options, singly=True):
    """Take out each option, then all of them."""
    names = [name for name in options if name != "_name"]
    for gone in (*([name] for name in names if singly), names):
        yield gone, {name: value for name, value in options.items() if name not in gone}


def received(monkeypatch, options):
    """The options with which fairseq builds a model for these."""
    arch = options._name if isinstance(options, Namespace) else options["_name"]
    monkeypatch.setattr(ARCH_MODEL_REGISTRY[arch], "build_model", lambda cfg, task: cfg)
    return fairseq.models.build_model(options, None, from_checkpoint=True)


@pytest.mark.parametrize("arch", OURS)
def test_an_option_that_a_checkpoint_lacks_has_the_default_of_the_architecture(monkeypatch, arch):
    """Whatever the kind of the options, and for the comparison with a checkpoint that a training continues from."""
    options = plain(preset(arch))
    linked = {name for name, value in options.items() if str(value).startswith("${task.")}
    expected = {**options, **{name: SECTIONS["task"][name] for name in linked}}
    for gone, rest in without_each(expected, singly=arch in {known.arch for known in ARCHITECTURES.values()}):
        flat = Namespace(**rest, **{name: expected[name] for name in linked & {*gone}})  # the task's, too
        for found in (received(monkeypatch, in_a_tree("model", rest)), received(monkeypatch, flat)):
            assert {name: getattr(found, name) for name in options} | {"_name": arch} == expected, f"without {gone}"
        restore.add_missing_options(rest)
        assert rest == {name: value for name, value in expected.items() if name in rest or name not in linked}


@pytest.mark.parametrize("arch", ["tupe_tiny", "duo_transformer_tiny"])
def test_options_of_a_namespace_have_the_defaults_of_the_architecture(arch):
    """`args` of a checkpoint; fairseq itself takes the dataclass's, with 12 layers for `tupe_tiny`."""
    args = Namespace(arch=arch, task="translation", data=".", criterion="cross_entropy", optimizer="adam")
    cfg, options = checkpoint_utils.convert_namespace_to_omegaconf(args).model, plain(preset(arch))
    for name, value in options.items():
        assert str(value).startswith("${") or getattr(cfg, name) == value, name


def test_architectures_of_other_plugins_have_the_defaults_of_their_model(monkeypatch):
    """An architecture of our model, and a model derived from it with an option of its own."""
    base = ARCH_MODEL_REGISTRY["tupe_tiny"]

    @dataclasses.dataclass
    class Options(getattr(base, "__dataclass")):
        theirs: int = 5

    derived = type("Derived", (base,), {"__module__": "elsewhere", "__dataclass": Options})
    for model, more in ((base, {}), (derived, {"theirs": 5})):
        monkeypatch.setitem(ARCH_MODEL_REGISTRY, "theirs", model)
        monkeypatch.setitem(ARCH_MODEL_NAME_REGISTRY, "theirs", "tupe")
        monkeypatch.setitem(ARCH_CONFIG_REGISTRY, "theirs", lambda args: setattr(args, "encoder_layers", 3))
        found = received(monkeypatch, in_a_tree("model", {"_name": "theirs", "rotary": True}))
        expected = {"encoder_layers": 3, "rotary": True, "encoder_embed_dim": 768, "tupe_reset": "official", **more}
        assert {name: found[name] for name in expected} == expected


@each_architecture
def test_a_checkpoint_loads_without_the_options_that_have_their_defaults(tmp_path, name):
    """As fairseq-validate and -generate load."""
    saved(tmp_path, name)
    content, defaults = torch.load(tmp_path / "c.pt", weights_only=True), preset(ARCHITECTURES[name].arch)
    options = content["cfg"]["model"]
    kept = {o: v for o, v in options.items() if o == "_name" or v != getattr(defaults, o)}
    assert len(options) - len(kept) > 3
    found = []
    for content["cfg"]["model"] in (options, kept):
        torch.save(content, tmp_path / "c.pt")
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "c.pt")])
        found.append({option: model.cfg[option] for option in options})
    assert found[0] == found[1]


def test_options_of_later_revisions_are_named(tmp_path, caplog):
    """The weights may be another function. An option that is off changes nothing."""
    for name in ("tupe", "duo_transformer"):
        saved(tmp_path, name)
        content = torch.load(tmp_path / "c.pt", weights_only=True)
        content["cfg"]["model"] |= {"spiral": True, "helix": False}
        torch.save(content, tmp_path / "c.pt")
        caplog.clear()
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "c.pt")])
        (said,) = [record.getMessage() for record in caplog.records if "spiral" in record.getMessage()]
        assert "spiral=True" in said
        assert "helix" not in said


OTHERS = {
    f"{part}: {name}": (part, name)
    for part, registry in REGISTRIES.items()
    for name, kind in registry["registry"].items()
    if kind.__module__.startswith("embinit_fairseq.") and name in registry["dataclass_registry"]
}


@pytest.mark.parametrize(("part", "name"), OTHERS.values(), ids=OTHERS)
def test_what_the_plugin_registers_is_built_without_any_option(monkeypatch, part, name):
    """With all that fairseq's registries hold of this plugin."""
    registry = REGISTRIES[part]
    rooms = {"criterion": fairseq.criterions, "optimizer": fairseq.optim, "tokenizer": fairseq.data.encoders}
    build = getattr(rooms[part], f"build_{part}")
    monkeypatch.setitem(registry["registry"], name, lambda cfg, *_: cfg)
    options = {**vars(registry["dataclass_registry"][name]()), "_name": name}
    expected = OmegaConf.to_container(in_a_tree(part, options), resolve=True)
    for gone, rest in without_each(options):
        found = build(in_a_tree(part, rest), [])
        assert {option: found[option] for option in expected} == in_a_tree(part, expected), f"without {gone}"


def test_the_section_of_embed_init_is_read_without_any_option():
    options = vars(EmbedInitOptions())
    for _, rest in without_each(options):
        tree = OmegaConf.create({"embed_init": "xavier", SECTION: rest, "model": {"_name": "tupe_tiny"}})
        assert vars(request_from(tree.model).options) == options
