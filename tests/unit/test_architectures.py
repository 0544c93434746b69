"""What every architecture of ours must do; a new one joins by an entry in `ARCHITECTURES` (small_models.py)."""

import dataclasses
import io
import json
import math
from pathlib import Path

import pytest
import torch
from small_models import ARCHITECTURES, EOS, PAD, TASK, VARIANTS, batch_of, dictionary, preset
from tupe_reference import randomise

from embinit_fairseq.embed_init.slots import find_slots
from embinit_fairseq.errors import OptionError

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS.values(), ids=VARIANTS)
#: the first variant of each architecture, and those with kernels of their own or layer norms before blocks
_OWN = {"attention_kernel", "encoder_normalize_before"}
KERNELS = {variant: (name, options) for variant, (name, options) in VARIANTS.items() if _OWN & {*options}}
KERNELS |= {name: (name, {}) for name in ARCHITECTURES}
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
