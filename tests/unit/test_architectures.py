"""What every architecture of ours must do; a new one joins by an entry in `ARCHITECTURES` (small_models.py).

What is peculiar to a family (its equations, its presets) is in the file of that family.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq", reason="these are architectures of fairseq; install it with scripts/setup.sh")
from fairseq import checkpoint_utils, models, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from small_models import (
    ARCHITECTURES,
    BOS,
    EOS,
    PAD,
    TIED,
    TIED_OUTPUT,
    VARIANTS,
    batch_of,
    plain,
    save_checkpoint,
    task_of,
)
from tupe_reference import randomise

from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.hooks import resume
from embinit_fairseq.hooks.options import EmbedInitOptions, InitRequest

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS.values(), ids=VARIANTS)
CLASSIFYING = [name for name, architecture in ARCHITECTURES.items() if architecture.task != "translation"]
TRANSLATING = [name for name, architecture in ARCHITECTURES.items() if architecture.task == "translation"]

SENTENCES = [[BOS, 4, 5, 6, 7, 8, EOS], [BOS, 9, 5, EOS], [BOS, 6, EOS]]
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
    step = model(tokens, masked_tokens=masked, noise=torch.full(tokens.shape, 0.5))
    drawn = step.generator_logits.split(masked.sum(1).tolist())
    return [torch.cat([row[: len(s)], more.flatten()]) for row, s, more in zip(step.logits, sentences, drawn)]


def ready(name, options, kind="build", masking=None, **more):
    """A tiny model; one that classifies has its head."""
    architecture = ARCHITECTURES[name]
    model = getattr(architecture, kind)(architecture.task_of(masking=masking), **options, **more)
    if architecture.task == "sentence_prediction" or masking is False:
        model.register_classification_head("h", num_classes=3)
        if kind == "randomised":
            randomise(model)
    return model.train(kind == "build")


def options_of(name):
    return [field.name for field in dataclasses.fields(ARCHITECTURES[name].config()) if field.name != "_name"]


def rates_of(name):
    return [option for option in options_of(name) if option.endswith("dropout")]


# ---- Parameters -----------------------------------------------------------------------------------------------------


def tree_of(name, options):
    """Module -> name of a parameter -> shape; one layer of each kind, since all have the same."""
    one = {option: 1 for option in ARCHITECTURES[name].sizes if option.endswith("_layers")}
    model, tree = ARCHITECTURES[name].build(**{**options, **one}), {}
    if hasattr(model, "register_classification_head"):
        model.register_classification_head("h", num_classes=3)
    for parameter, value in model.state_dict().items():
        module, _, kind = parameter.rpartition(".")
        tree.setdefault(module, {})[kind] = list(value.shape)
    return tree


@each_architecture
def test_parameters_have_the_names_and_shapes_of_the_golden_tree(name):
    """The file holds the whole tree of the first variant, and what is different in the others (null: is not there).

    A changed name breaks everybody's checkpoints.
    """
    variants = ARCHITECTURES[name].variants
    trees = {variant: tree_of(name, variants[variant]) for variant in ARCHITECTURES[name].golden or variants}
    first, whole = next(iter(trees.items()))
    for variant, tree in trees.items():
        if variant != first:
            trees[variant] = {k: tree.get(k) for k in {**tree, **whole} if tree.get(k) != whole.get(k)}
    path = GOLDEN / f"{name}.json"
    expected = json.loads(path.read_text()) if path.is_file() else None
    assert trees == expected, f"if this is meant, {path.name} becomes:\n{text_of(trees)}"


def text_of(trees):
    """JSON with a line for every module."""
    lines = {
        v: ",\n".join(f"    {json.dumps(k)}: {json.dumps(of)}" for k, of in tree.items()) for v, tree in trees.items()
    }
    return "{\n" + ",\n".join(f"  {json.dumps(v)}: {{\n{text}\n  }}" for v, text in lines.items()) + "\n}\n"


@pytest.mark.parametrize("masking", [None, False], ids=["", "fine-tuning"])
@each_variant
def test_every_parameter_is_there_once_and_learns(name, options, masking):
    """Else training in several processes would have to look for idle ones (--find-unused-parameters) in every step."""
    model = ready(name, options, masking=masking if ARCHITECTURES[name].task == "masked_lm" else None).train()
    for parameter in model.parameters():  # the gradient of 0 may be 0
        parameter.data.add_(0.1)
    torch.cat([x.flatten() for x in outputs(model)]).square().sum().backward()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert [n for n, p in trained.items() if p.grad is None] == []
    assert len({p.data_ptr() for p in model.parameters()}) == len(list(model.parameters())), "a copy"
    assert [n for n, p in trained.items() if "relative" not in n and not p.grad.any()] == []  # far buckets are unused


# ---- What is computed -----------------------------------------------------------------------------------------------


@each_variant
@torch.no_grad()
def test_a_saved_model_computes_the_same_when_it_is_loaded(name, options):
    """And what its parts share they go on sharing: pickle knows nothing of the parts."""
    model, file = ready(name, options, "randomised"), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = ready(name, options).double().eval()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for one, other in zip(outputs(fresh), outputs(model)):
        assert torch.equal(one, other)
    assert len(list(fresh.parameters())) == len(list(model.parameters()))


@each_variant
@torch.no_grad()
def test_a_sentence_does_not_see_its_batch(name, options):
    """Neither its neighbours nor padding, and in a translation on whichever side that is."""
    model = ready(name, options, "randomised")
    alone = [outputs(model, [s], [p])[0] for s, p in zip(SENTENCES, PREVIOUS)]
    for left, width in ((False, 0), (False, 9), (True, 0), (True, 9)):
        for one, other in zip(outputs(model, left=left, width=width), alone):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@each_variant
def test_dropout_acts_in_training_only(name, options):
    """With rates of 0 training computes what use does; with others no two passes are the same."""
    rates = rates_of(name)
    model = ready(name, options, "randomised", **dict.fromkeys(rates, 0.0))
    for one, other in zip(outputs(model.train()), outputs(model.eval())):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    for rate in rates:
        if rate == "pooler_dropout" or (rate == "activation_dropout" and name == "embinit_classifier"):
            continue  # of heads that are not there; fairseq's layer
        model = ready(name, options, "randomised", **{**dict.fromkeys(rates, 0.0), rate: 0.5})
        assert torch.equal(torch.cat(outputs(model)), torch.cat(outputs(model))), rate
        model.train()
        assert not torch.equal(torch.cat(outputs(model)), torch.cat(outputs(model))), rate


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.4), (torch.float16, 0.04)], ids=str)
@each_variant
@torch.no_grad()
def test_half_precision_is_near_single_precision(name, options, dtype, tolerance):
    """Also with padding on both sides, where masked logits must not become infinite or NaN."""
    model = ready(name, options).eval()

    def found_by(model):
        if ARCHITECTURES[name].task == "masked_lm":  # not by a generator, whose draws would be others
            return model(batch_of(SENTENCES), features_only=True)[0][batch_of(SENTENCES).ne(PAD)]
        return torch.cat(outputs(model, left=True))

    expected = found_by(model)
    found = found_by(model.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=tolerance * float(expected.std()))


@each_variant
def test_gradients_under_autocast_are_near_those_in_single_precision(name, options):
    fine_tuning = False if ARCHITECTURES[name].task == "masked_lm" else None
    model = ready(name, options, masking=fine_tuning, **dict.fromkeys(rates_of(name), 0.0)).train()
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = torch.cat(outputs(model, left=True))
        found.float().log_softmax(-1)[..., 2].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[1].isfinite().all()
    assert (gradients[1] - gradients[0]).norm() < 0.1 * gradients[0].norm()


# ---- Options --------------------------------------------------------------------------------------------------------


def flag(option):
    return "--" + option.replace("_", "-")


@each_architecture
def test_every_option_is_described(name):
    for option, field in type(ARCHITECTURES[name].config()).__dataclass_fields__.items():
        inherited = option == "_name" or str(field.default).startswith("${task.")  # the task describes them
        assert inherited or len(field.metadata.get("help", "")) > 6, option


def numbers(ending, *values):
    return [
        (n, option, value)
        for n in ARCHITECTURES
        for option in options_of(n)
        if option.endswith(ending)
        for value in values
    ]


SIZES = numbers(("_layers", "_embed_dim", "_heads", "_dim_s", "_dim_p", "_ffn_dim"), 0, -8)


@pytest.mark.parametrize(
    ("name", "option", "value"), [*SIZES, *numbers("_positions", 2), *numbers("dropout", -0.1, 1.5, math.nan)]
)
def test_numbers_out_of_range_are_refused_by_their_flag(name, option, value):
    with pytest.raises(OptionError, match=f"{flag(option)} {value}: must be "):
        ARCHITECTURES[name].build(**{option: value})


@pytest.mark.parametrize(("name", "option"), [(name, option) for name, option, _ in numbers("_attention_heads", 0)])
def test_heads_must_divide_the_dimension(name, option):
    side = option.partition("_")[0]
    with pytest.raises(OptionError, match=f"{flag(option)} 5 does not divide --{side}-embed-dim [68]; .*do: 1, 2"):
        ARCHITECTURES[name].build(**{option: 5})


@each_architecture
def test_the_smallest_and_largest_numbers_are_accepted(name):
    smallest = {"_layers": 1, "_ffn_embed_dim": 1, "_heads": 1, "_positions": 3}
    given = {o: n for e, n in smallest.items() for o in ARCHITECTURES[name].sizes if o.endswith(e)}
    for rate in (0, 1):
        ARCHITECTURES[name].build(**given, **dict.fromkeys(rates_of(name), rate))


def restored(name, theirs, ours, task=None):
    """Build a model over which a checkpoint with the options `theirs` is to be loaded."""
    architecture = ARCHITECTURES[name]
    model = architecture.build(task, **ours)
    model.check_training("run/checkpoint_last.pt", plain(architecture.config(**theirs)))


@pytest.mark.parametrize(("name", "option"), [(n, option) for n, a in ARCHITECTURES.items() for option in a.matters])
def test_a_training_begins_with_the_options_of_its_checkpoint(name, option):
    """With others the weights are another function, and fairseq compares names and shapes only."""
    value, more = ARCHITECTURES[name].matters[option]
    usual, other = plain(ARCHITECTURES[name].config(**more))[option], {**more, option: value}
    if isinstance(value, bool):
        said, reverse = f"{flag(option)} (here without)", f"no {flag(option)} (here with it)"
    elif usual is None:  # as large as something else
        said = reverse = f"{flag(option)} "
    else:
        said, reverse = f"{flag(option)} {value} (here {usual})", f"{flag(option)} {usual} (here {value})"
    for theirs, ours, expected in ((other, more, said), (more, other, reverse)):
        with pytest.raises(OptionError) as error:
            restored(name, theirs, ours)
        assert str(error.value).startswith("run/checkpoint_last.pt ")
        assert expected in str(error.value)
        assert "--restore-file, --finetune-from-model, or checkpoint_last.pt in --save-dir" in str(error.value)
    restored(name, other, other)


@each_architecture
def test_other_options_may_differ_from_the_checkpoints(name):
    """Every option is either compared or free."""
    free = {"dropout": 0.3, "attention_dropout": 0.3, "activation_dropout": 0.3, "pooler_dropout": 0.3}
    free |= {"pooler_activation_fn": "relu", "attention_kernel": "sdpa", "checkpoint_activations": True}
    free |= {"train_embeddings": True} | ({"max_positions": 9} if name == "duo_classifier" else {})
    there = set(options_of(name))
    free = {option: value for option, value in free.items() if option in there}
    assert there == {*free, *ARCHITECTURES[name].matters}
    restored(name, free, {})
    restored(name, {}, free)


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("tupe", {"rel_pos_bins": 16, "tupe_reset": "paper"}, {}),  # without effect
        ("tupe", {"position_encoding": "relative", "max_positions": 9}, {"position_encoding": "relative"}),  # no table
        ("embinit_classifier", {"max_positions": 9}, {}),
        ("embinit_classifier", {"encoder_attention_heads": None}, {"encoder_attention_heads": 8}),  # the default's name
        ("tupe_transformer", {"rel_pos_bins": 16}, {"decoder_embed_dim": 8}),
        ("tupe_transformer", TIED, {**TIED, **TIED_OUTPUT}),
        ("duo_transformer", {}, {"max_source_positions": 20, "decoder_embed_dim": 8, "encoder_dim_s": 8}),
        ("duo_transformer", {"duo_streams": 1, "duo_norm": "all"}, {"duo_streams": 1, "duo_norm": "off"}),
        ("duo_transformer", {"duo_share_weights": "on"}, {"duo_share_weights": "stream"}),  # what it was called
        ("duo_transformer", {"duo_share_weights": "stream"}, {"duo_share_weights": "on"}),
    ],
    ids=str,
)
def test_what_is_the_same_function_is_accepted(name, theirs, ours):
    restored(name, theirs, ours)


def test_a_fine_tuning_does_not_ask_about_the_generator():
    restored("electra", {"generator_attention_heads": 2}, {}, ARCHITECTURES["electra"].task_of(masking=False))


def test_another_architecture_is_named_and_what_says_little_is_left_to_fairseq():
    model = ARCHITECTURES["tupe"].build()
    for arch in ("electra_tiny", "roberta"):
        with pytest.raises(
            OptionError, match=f"^x.pt holds a model of --arch {arch}, .*tupe_tiny .*give --arch {arch}"
        ):
            model.check_training("x.pt", {"_name": arch})
    model.check_training("x.pt", {"_name": "nobody_knows"})
    model.check_training("x.pt", {})
    base = {
        "encoder_layers": 12,
        "encoder_embed_dim": 768,
        "encoder_ffn_embed_dim": 3072,
        "encoder_attention_heads": 12,
    }
    with torch.device("meta"):  # options younger than the checkpoint had their defaults
        ARCHITECTURES["tupe"].build(**base, max_positions=512).check_training("x.pt", {"_name": "tupe"})
        with pytest.raises(OptionError, match=r"--max-positions 512 \(here 500\)"):
            ARCHITECTURES["tupe"].build(**base, max_positions=500).check_training("x.pt", {"_name": "tupe"})


@pytest.mark.parametrize("how", ["restore_file", "finetune_from_model", "save_dir"])
def test_every_way_to_begin_with_a_checkpoint_is_looked_at(how, tmp_path):
    architecture, file = ARCHITECTURES["tupe"], tmp_path / "checkpoint_last.pt"
    save_checkpoint(file, architecture.config(encoder_attention_heads=4), {})
    where = {"save_dir": str(tmp_path / "new"), how: str(tmp_path if how == "save_dir" else file)}
    request = InitRequest(None, EmbedInitOptions(), 1, **where)
    with pytest.raises(OptionError, match=rf"{file} .*--encoder-attention-heads 4 \(here 2\)"):
        resume.check_training(architecture.build(), architecture.task_of(), request)
    file.write_text("no checkpoint")
    resume.check_training(architecture.build(), architecture.task_of(), request)  # fairseq will say so


def test_fairseqs_own_way_to_a_model_asks_it(tmp_path):
    path = save_checkpoint(tmp_path / "best.pt", ARCHITECTURES["tupe"].config(rel_pos=True), {})
    sizes = [text for o, v in ARCHITECTURES["tupe"].sizes.items() for text in (flag(o), str(v))]
    command = ["data", "--task", "masked_lm", "--arch", "tupe_tiny", *sizes, "--finetune-from-model", path]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    assert {o: cfg.model[o] for o in plain(ARCHITECTURES["tupe"].config())} == plain(ARCHITECTURES["tupe"].config())
    with pytest.raises(OptionError, match=r"--rel-pos \(here without\)"):
        models.build_model(cfg.model, task_of(masking=True))


@pytest.mark.parametrize(
    ("name", "options", "words", "slots", "remedy"),
    [
        *((name, {}, (8, None), "encoder", "--srcdict") for name in CLASSIFYING),
        *((name, {}, (10, 8), "decoder", "--tgtdict") for name in TRANSLATING),
        *((name, {}, (8, 10), "encoder", "--srcdict") for name in TRANSLATING),
        *((name, TIED, (8, None), "encoder and decoder", "--joined-dictionary --srcdict") for name in TRANSLATING),
    ],
    ids=str,
)
def test_data_of_another_dictionary(name, options, words, slots, remedy, tmp_path):
    """The checkpoint has 10 words and 4 special symbols on either side, the data 8 words on one of them."""
    architecture = ARCHITECTURES[name]
    masks = architecture.task == "masked_lm"
    weights = architecture.build(architecture.task_of(10), **options).state_dict()
    path = save_checkpoint(tmp_path / "best.pt", architecture.config(**options), weights)
    request = InitRequest(None, EmbedInitOptions(), 1, save_dir=str(tmp_path), finetune_from_model=path)
    task = architecture.task_of(*words)
    said = rf"best.pt .* {14 + masks} symbols \({slots}, special .*, the data have {12 + masks}: .*{remedy} DICT.txt"
    with pytest.raises(OptionError, match=said):
        resume.check_training(architecture.build(task, **options), task, request)
    task = architecture.task_of(10)
    resume.check_training(architecture.build(task, **options), task, request)


# ---- Checkpoints in use ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSIFYING)
def test_heads_come_and_go_with_checkpoints(name, caplog):
    """Those that only a checkpoint has are made; with another number of classes the model's own is kept."""
    fine_tuned, architecture = ready(name, {}, masking=False), ARCHITECTURES[name]
    tokens, state = batch_of(SENTENCES), {key: value + 1 for key, value in fine_tuned.state_dict().items()}
    without = {key: value for key, value in state.items() if not key.startswith("classification_heads")}
    fine_tuned.load_state_dict(dict(state))
    fresh, half = (architecture.build(architecture.task_of(masking=False)) for _ in range(2))
    with pytest.raises(OptionError, match="no classification head 'mood'; it has none"):
        fresh(tokens, classification_head_name="mood")
    fresh.load_state_dict(dict(state))
    expected = fine_tuned.eval()(tokens, classification_head_name="h")[0]
    assert torch.equal(fresh.eval()(tokens, classification_head_name="h")[0], expected)
    with pytest.raises(OptionError, match="no classification head 'mood'; there are: h"):
        fresh(tokens, classification_head_name="mood")
    if architecture.task == "masked_lm":
        half.bfloat16().load_state_dict(dict(state))
        assert {parameter.dtype for parameter in half.classification_heads.parameters()} == {torch.bfloat16}
    for classes, given in ((2, state), (3, without)):
        model = architecture.build(architecture.task_of(masking=False))
        model.register_classification_head("h", num_classes=classes)
        before = {key: value.clone() for key, value in model.classification_heads.state_dict().items()}
        model.load_state_dict(dict(given))
        assert all(torch.equal(value, before[key]) for key, value in model.classification_heads.state_dict().items())
        assert "head 'h' has 3 classes, the model's 2: the model's is kept" in caplog.text


HEAD = "sentence_classification_head"  # as fairseq's task calls it


def saved(folder, name, **task):
    """A checkpoint c.pt beside a folder with its dictionaries."""
    architecture, words = ARCHITECTURES[name], "".join(f"w{number} 1\n" for number in range(11))
    for file in ("dict.txt", "dict.de.txt", "dict.en.txt", "input0/dict.txt", "label/dict.txt"):
        (folder / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / file).write_text("a 1\nb 1\nc 1\n" if "label" in file else words)
    task = {"_name": architecture.task, "data": str(folder / "data"), **task}
    if architecture.task == "translation":
        task |= {"source_lang": "de", "target_lang": "en"}
    elif architecture.task == "sentence_prediction":
        task |= {"num_classes": 3, "regression_target": False, "classification_head_name": HEAD}
    else:
        task |= {"tokens_per_sample": 10}
    model = architecture.build(architecture.task_of(masking=architecture.task != "translation"))
    if architecture.task == "sentence_prediction":  # whose dictionary has a <mask>, too
        model.register_classification_head(HEAD, num_classes=3)
    save_checkpoint(folder / "c.pt", architecture.config(), model.state_dict(), **task)
    return architecture.model, model


@each_architecture
def test_a_checkpoint_is_loaded_by_its_own_class(tmp_path, name):
    own, model = saved(tmp_path, name)
    hub = own.from_pretrained(str(tmp_path), "c.pt", str(tmp_path / "data"))
    inside = hub.models[0] if hasattr(hub, "models") else hub.model
    assert type(inside) is own
    assert all(torch.equal(value, inside.state_dict()[key]) for key, value in model.state_dict().items())
    other = ARCHITECTURES["duo_transformer" if name == "electra" else "electra"].model  # which is no other's base
    with pytest.raises(CheckpointError, match=rf"c\.pt: .*load it with {own.__name__}\.from_pretrained"):
        other.from_pretrained(str(tmp_path), "c.pt", str(tmp_path / "data"))


@each_architecture
def test_options_that_decide_what_weights_mean_are_not_overridden(tmp_path, name):
    """From Python, and as fairseq-generate and -validate load. Others may be."""
    own, _ = saved(tmp_path, name)
    load = checkpoint_utils.load_model_ensemble_and_task
    (model,), _, _ = load([str(tmp_path / "c.pt")], {"dropout": 0.3})
    assert model.cfg.dropout == 0.3
    option = "duo_attention" if name == "duo_classifier" else "encoder_attention_heads"
    wrong = {option: ARCHITECTURES[name].matters[option][0]}
    with pytest.raises(OptionError, match=rf"^{option}={wrong[option]!r} \(from_pretrained, --model-overrides\)"):
        own.from_pretrained(str(tmp_path), "c.pt", str(tmp_path / "data"), **wrong)
    with pytest.raises(OptionError, match=f"^{option}="):
        load([str(tmp_path / "c.pt")], wrong)


@pytest.mark.parametrize("name", ["tupe", "tupe_transformer", "embinit_classifier"])
def test_paths_that_lead_nowhere(tmp_path, name):
    load, folder = saved(tmp_path, name)[0].from_pretrained, str(tmp_path)
    with pytest.raises(CheckpointError, match=r"nowhere: no such folder; give the one in which c\.pt lies"):
        load(f"{folder}/nowhere", "c.pt", f"{folder}/data")
    with pytest.raises(CheckpointError, match=r"typo\.pt: no such checkpoint"):
        load(folder, "typo.pt", f"{folder}/data")
    with pytest.raises(DataError, match="nodata: no such folder; give the data folder"):
        load(folder, "c.pt", f"{folder}/nodata")
    if name != "tupe_transformer":
        with pytest.raises(DataError, match=r"dict\.txt: not found; give from_pretrained as third argument"):
            load(folder, "c.pt")


def test_several_checkpoints_are_an_ensemble(tmp_path):
    own, _ = saved(tmp_path, "duo_transformer")
    assert len(own.from_pretrained(str(tmp_path), "c.pt:c.pt", str(tmp_path / "data")).models) == 2


def test_a_head_that_would_be_random_is_not_used(tmp_path):
    """fairseq-validate --num-classes 5 on a model of three classes: the checkpoint's head would be left out."""
    saved(tmp_path, "embinit_classifier")
    with pytest.raises(OptionError, match=r"head' has 3 classes, the task 5: give --num-classes 3"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "c.pt")], {"num_classes": 5})
    with pytest.raises(OptionError, match="the checkpoint has no classification head 'mood': fine-tune it first"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "c.pt")], {"classification_head_name": "mood"})
