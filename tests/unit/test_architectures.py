"""What every architecture of ours must do; a new one joins by an entry in `ARCHITECTURES` (small_models.py)."""

import dataclasses
import io
import json
import math
from argparse import Namespace
from pathlib import Path

import fairseq.models
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from omegaconf import OmegaConf
from small_models import ARCHITECTURES, EOS, PAD, TIED, VARIANTS, batch_of, dictionary, plain, preset, save_checkpoint
from tupe_reference import randomise

from embinit_fairseq.embed_init import restore
from embinit_fairseq.embed_init.options import SECTION, EmbedInitOptions
from embinit_fairseq.embed_init.request import InitRequest, request_from
from embinit_fairseq.embed_init.slots import find_slots
from embinit_fairseq.errors import CheckpointError, DataError, OptionError

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS.values(), ids=VARIANTS)
#: the first variant of each architecture, and those with kernels of their own or layer norms before blocks
_OWN = {"attention_kernel", "encoder_normalize_before"}
KERNELS = {variant: (name, options) for variant, (name, options) in VARIANTS.items() if _OWN & {*options}}
KERNELS |= {name: (name, {}) for name in ARCHITECTURES}
TASK = {name: architecture.task for name, architecture in ARCHITECTURES.items()}
CLASSIFYING = [name for name, task in TASK.items() if task != "translation"]

SENTENCES = [[0, 4, 5, 6, 7, 8, EOS], [0, 9, 5, EOS], [0, 6, EOS]]
PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5], [EOS, 7, 7]]


def outputs(model, sentences=SENTENCES, previous=PREVIOUS, left=False, width=0):
    """What the model says of each sentence, computed in one batch: (numbers, ...) of real tokens only."""
    tokens = batch_of(sentences, left and hasattr(model, "decoder"), width)
    if hasattr(model, "decoder"):
        logits, _ = model(tokens, None, batch_of(previous, left))
        return [row[-len(p) :] if left else row[: len(p)] for row, p in zip(logits, previous)]
    if model.classification_heads:
        return list(model(tokens, features_only=True, classification_head_name="h")[0].split(1))
    masked = tokens.eq(5)
    if getattr(model, "generator", None) is None:
        return list(model(tokens, masked_tokens=masked)[0].split(masked.sum(1).tolist()))
    step = model(tokens, masked_tokens=masked, noise=torch.full(tokens.shape, 0.5, device=tokens.device))
    drawn = step.generator_logits.split(masked.sum(1).tolist())
    return [torch.cat([row[: len(s)], more.flatten()]) for row, s, more in zip(step.logits, sentences, drawn)]


def ready(name, options, kind="build", masking=None, **more):
    """A tiny model; one that classifies has its head."""
    architecture = ARCHITECTURES[name]
    model = getattr(architecture, kind)(architecture.task_of(masking=masking), **options, **more)
    if TASK[name] == "sentence_prediction" or masking is False:
        model.register_classification_head("h", num_classes=3)
        if kind == "randomised":
            randomise(model)
    return model.train(kind == "build")


def options_of(name):
    return [field.name for field in dataclasses.fields(ARCHITECTURES[name].config()) if field.name != "_name"]


def rates_of(name):
    return [option for option in options_of(name) if option.endswith("dropout")]


def tree_of(name, options):
    """Module -> name of a parameter -> shape; one layer of each kind, since all have the same."""
    one = {option: 1 for option in ARCHITECTURES[name].sizes if option.endswith("_layers")}
    model, tree = ARCHITECTURES[name].build(**{**options, **one}), {}
    if hasattr(model, "register_classification_head"):
        model.register_classification_head("h", num_classes=3)
    for parameter, value in model.state_dict().items():
        module, _, kind = parameter.rpartition(".")
        if kind != "_float_tensor":  # without a meaning, and not in fairseq's main branch
            tree.setdefault(module, {})[kind] = list(value.shape)
    return tree


@each_architecture
def test_parameters_have_the_names_and_shapes_of_the_golden_tree(name):
    """The whole tree of the first variant, and the differences of the others (null: missing)."""
    variants = ARCHITECTURES[name].variants
    trees = {variant: tree_of(name, variants[variant]) for variant in ARCHITECTURES[name].golden or variants}
    first, whole = next(iter(trees.items()))
    for variant, tree in trees.items():
        if variant != first:
            trees[variant] = {k: tree.get(k) for k in {**tree, **whole} if tree.get(k) != whole.get(k)}
    path = GOLDEN / f"{name}.json"
    expected = json.loads(path.read_text()) if path.is_file() else None
    assert trees == expected, f"if this is meant, {path.name} becomes:\n{json.dumps(trees, indent=1)}"


#: names that people type -> value of --position-encoding
FAMILIES = {"tupe": "untied", "bert_a": "added", "bert_r": "added_relative", "bert_ad": "four_terms"}
FAMILIES |= {"bert_rel": "relative", "bert_rope": "rope", "bert_alibi": "alibi", "bert_nope": "none"}
#: preset -> layers, dimension, dimension of the FFN, heads; TUPE's are BERT's, in every family
PRESETS = {
    **{f"{family}_base": (12, 768, 3072, 12) for family in FAMILIES},
    **{f"{family}_large": (24, 1024, 4096, 16) for family in FAMILIES},
    **{"electra_base": (12, 768, 3072, 12), "electra_tupe_base": (12, 768, 3072, 12)},
    **{"duo_transformer": (6, 512, 2048, 8), "duo_transformer_wmt_en_de": (8, 512, 2048, 8)},
    **{"duo_transformer_big": (6, 1024, 4096, 16), "duo_transformer_iwslt_de_en": (6, 512, 1024, 4)},
}


@pytest.mark.parametrize("arch", PRESETS)
def test_presets_are_those_of_the_papers(arch):
    cfg = preset(arch)
    for side in ("encoder", "decoder") if hasattr(cfg, "decoder_layers") else ("encoder",):
        names = [f"{side}_{name}" for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")]
        found = [getattr(cfg, name) or getattr(cfg, name.replace("decoder", "encoder")) for name in names]
        assert tuple(found) == PRESETS[arch]
    assert cfg.dropout == (0.3 if arch == "duo_transformer_big" else 0.1)
    if family := FAMILIES.get(arch.rpartition("_")[0]):
        assert (str(cfg.position_encoding), cfg.rel_pos, cfg.max_positions) == (family, False, 512)
    if arch.startswith("electra"):  # Clark et al. 2020, section 3.2
        names = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")
        assert [getattr(cfg, f"generator_{name}") for name in names] == [256, 1024, 12, 4]
        assert (str(cfg.position_encoding), cfg.rel_pos) == (("untied", True) if "tupe" in arch else ("added", False))


@each_variant
def test_every_parameter_is_there_once_and_learns(name, options):
    """Else training in several processes would have to look for idle ones (--find-unused-parameters) in every step."""
    for masking in (None, False) if TASK[name] == "masked_lm" else (None,):  # pre-training and fine-tuning
        model = ready(name, options, masking=masking)
        for parameter in model.parameters():  # the gradient of 0 may be 0
            parameter.data.add_(0.1)
        torch.cat([x.flatten() for x in outputs(model)]).square().sum().backward()
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        assert [n for n, p in trained.items() if p.grad is None] == []
        assert len({p.data_ptr() for p in model.parameters()}) == len(list(model.parameters())), "a copy"
        assert [n for n, p in trained.items() if "relative" not in n and not p.grad.any()] == []  # far buckets: unused


@each_variant
@torch.no_grad()
def test_a_loaded_model_computes_the_same_of_each_sentence_whatever_its_batch(name, options):
    """Whatever the neighbours, and the padding on either side of a translation. What is shared stays shared."""
    model, file = ready(name, options, "randomised"), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = ready(name, options).double().eval()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert len(list(fresh.parameters())) == len(list(model.parameters()))
    for one, other in zip(outputs(fresh), outputs(model)):
        assert torch.equal(one, other)
    alone = [outputs(model, [s], [p])[0] for s, p in zip(SENTENCES, PREVIOUS)]
    for left, width in ((False, 0), (False, 9), (True, 0), (True, 9)):
        for one, other in zip(outputs(model, left=left, width=width), alone):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), KERNELS.values(), ids=KERNELS)
def test_half_precision_and_autocast_are_near_single_precision(name, options):
    """Also with padding on both sides, where masked logits must not become infinite or NaN; with gradients."""
    fine_tuning = False if TASK[name] == "masked_lm" else None  # no generator, whose draws would be others
    found = []
    for dtype in (None, torch.bfloat16, torch.float16):
        model = ready(name, options, masking=fine_tuning, **dict.fromkeys(rates_of(name), 0.0))
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = torch.cat(outputs(model, left=True))
        logits.float().log_softmax(-1)[..., 2].sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        model = model.eval().requires_grad_(False).to(dtype or torch.float32)
        if TASK[name] == "masked_lm":
            found.append(model(batch_of(SENTENCES), features_only=True)[0][batch_of(SENTENCES).ne(PAD)])
        else:
            found.append(torch.cat(outputs(model, left=True)))
        assert found[-1].dtype == (dtype or torch.float32)
    for half, tolerance in zip(found[1:], (0.4, 0.04)):
        torch.testing.assert_close(half.float(), found[0], rtol=0, atol=tolerance * float(found[0].std()))


@each_architecture
def test_numbers_out_of_range_are_refused_by_their_flag(name):
    wrong = {("_layers", "_embed_dim", "_heads", "_dim_s", "_dim_p", "_ffn_dim"): 0, ("_positions",): 2}
    cases = [(end, value) for ends, value in wrong.items() for end in ends] + [("dropout", -0.1), ("dropout", math.nan)]
    options = options_of(name)
    for option, value in ((option, value) for end, value in cases for option in options if option.endswith(end)):
        with pytest.raises(OptionError, match=f"--{option.replace('_', '-')} {value}: must be "):
            ARCHITECTURES[name].build(**{option: value})
    for side in (option.partition("_")[0] for option in options if option.endswith("_attention_heads")):
        with pytest.raises(OptionError, match=f"--{side}-attention-heads 5 does not divide --{side}-embed-dim [68]"):
            ARCHITECTURES[name].build(**{f"{side}_attention_heads": 5})
    smallest = {"_layers": 1, "_ffn_embed_dim": 1, "_heads": 1, "_positions": 3}
    given = {o: n for end, n in smallest.items() for o in ARCHITECTURES[name].sizes if o.endswith(end)}
    for rate in (0, 1):
        ARCHITECTURES[name].build(**given, **dict.fromkeys(rates_of(name), rate))


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


@pytest.mark.parametrize("name", CLASSIFYING)
def test_heads_come_and_go_with_checkpoints(name, caplog):
    """Those that only a checkpoint has are made; with another number of classes the model's own is kept."""
    fine_tuned, architecture = ready(name, {}, masking=False), ARCHITECTURES[name]
    tokens, state = batch_of(SENTENCES), {key: value + 1 for key, value in fine_tuned.state_dict().items()}
    without = {key: value for key, value in state.items() if not key.startswith("classification_heads")}
    fine_tuned.load_state_dict(dict(state))
    fresh = architecture.build(architecture.task_of(masking=False))
    fresh.load_state_dict(dict(state))
    expected = fine_tuned.eval()(tokens, classification_head_name="h")[0]
    assert torch.equal(fresh.eval()(tokens, classification_head_name="h")[0], expected)
    with pytest.raises(OptionError, match="no classification head 'mood'; there are: h"):
        fresh(tokens, classification_head_name="mood")
    for classes, given in ((2, state), (3, without)):
        model = architecture.build(architecture.task_of(masking=False))
        model.register_classification_head("h", num_classes=classes)
        before = {key: value.clone() for key, value in model.classification_heads.state_dict().items()}
        model.load_state_dict(dict(given))
        assert all(torch.equal(value, before[key]) for key, value in model.classification_heads.state_dict().items())
        assert "head 'h' has 3 classes, the model's 2: the model's is kept" in caplog.text


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


@torch.no_grad()
@each_variant
def test_the_row_of_padding_reaches_no_word(name, options):
    """The output layer of a tied matrix trains it, as the row of any word: only its own logit may change."""
    if "electra" in name:
        pytest.skip("its generator draws words with this logit")
    model = ready(name, options, "randomised")
    before = outputs(model)
    for slot in find_slots(model, ARCHITECTURES[name].task_of()).values():
        slot.embedding.weight[PAD] += 3.0
    words = [row for row in range(len(dictionary())) if row != PAD]
    for old, new in zip(before, outputs(model)):
        keep = words if old.shape[-1] >= len(words) else slice(None)
        torch.testing.assert_close(new[..., keep], old[..., keep], rtol=0, atol=0)


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


def without_each(options):
    """Take out each option, then all of them."""
    names = [name for name in options if name != "_name"]
    for gone in (*([name] for name in names), names):
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
    for gone, rest in without_each(expected):
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
def test_criterions_and_optimizers_are_built_without_any_option(monkeypatch, part, name):
    """With all that fairseq's registries hold of this plugin."""
    registry = REGISTRIES[part]
    build = {"criterion": fairseq.criterions, "optimizer": fairseq.optim}[part]
    monkeypatch.setitem(registry["registry"], name, lambda cfg, *_: cfg)
    options = {**vars(registry["dataclass_registry"][name]()), "_name": name}
    expected = OmegaConf.to_container(in_a_tree(part, options), resolve=True)
    for gone, rest in without_each(options):
        found = getattr(build, f"build_{part}")(in_a_tree(part, rest), [])
        assert {option: found[option] for option in expected} == in_a_tree(part, expected), f"without {gone}"


def test_the_section_of_embed_init_is_read_without_any_option():
    options = vars(EmbedInitOptions())
    for _, rest in without_each(options):
        tree = OmegaConf.create({"embed_init": "xavier", SECTION: rest, "model": {"_name": "tupe_tiny"}})
        assert vars(request_from(tree.model).options) == options
