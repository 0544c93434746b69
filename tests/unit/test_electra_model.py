"""ELECTRA's model: what is shared, what fine-tuning leaves behind, presets, the tree of parameters."""

from __future__ import annotations

import json
import logging
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from electra_models import BOS, EOS, PAD, SIZES, batch_of, criterion_for, model_for, task_for
from fairseq.models import ARCH_CONFIG_REGISTRY

from embinit_fairseq.errors import OptionError
from embinit_fairseq.hooks.slots import find_slots
from embinit_fairseq.models.electra import ElectraConfig, ElectraModel
from embinit_fairseq.models.tupe import TupeConfig, TupeModel

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ARCHITECTURES = ["electra_base", "electra_tupe_base", "electra_tiny", "electra_tupe_tiny"]
ENCODINGS = [
    {"position_encoding": "added"},
    {"position_encoding": "added", "embedding_normalize": True},
    {"position_encoding": "relative"},
    {"position_encoding": "four_terms"},
    {"position_encoding": "untied"},
    {"position_encoding": "untied", "rel_pos": True},
]


def preset(arch, **given):
    args = Namespace(**given)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ElectraConfig(**vars(args))


@pytest.mark.parametrize("options", ENCODINGS, ids=str)
def test_generator_and_discriminator_share_their_embeddings(options):
    model = model_for(**options)
    discriminator, generator = model.encoder.sentence_encoder, model.generator.sentence_encoder
    table = discriminator.embed_tokens.weight
    assert generator.embed_tokens.weight is table
    assert model.generator.lm_head.weight is table
    added = options["position_encoding"] == "added"
    assert (generator.positions is discriminator.positions) == added
    assert generator.emb_layer_norm is discriminator.emb_layer_norm
    assert (generator.emb_layer_norm is not None) == options.get("embedding_normalize", False)
    sharing = [table, *(discriminator.positions.parameters() if added else ())]
    sharing += discriminator.emb_layer_norm.parameters() if generator.emb_layer_norm is not None else ()
    parts = [sum(p.numel() for p in part.parameters()) for part in (model.encoder, model.generator)]
    assert sum(p.numel() for p in model.parameters()) == sum(parts) - sum(p.numel() for p in sharing)


def test_own_positions_have_the_generators_width_and_heads():
    positions = model_for(rel_pos=True).generator.sentence_encoder.positions
    assert positions.absolute.embed_positions.weight.shape == (13, 6)
    assert positions.relative.embed_buckets.weight.shape == (33, 3)


def test_options_of_positions_reach_both_networks():
    model = model_for(tupe_tie_cls=True, rel_pos=True)
    for part in (model.encoder, model.generator):
        assert not part.sentence_encoder.positions.untie_cls
    model = model_for(tupe_reset="paper", rel_pos=True)
    for part in (model.encoder, model.generator):
        assert part.sentence_encoder.positions.reset == "paper"
    with pytest.raises(OptionError, match="--rel-pos belongs to"):
        model_for(position_encoding="added", rel_pos=True)


def test_a_generator_of_the_same_width_needs_no_projection():
    assert model_for(generator_embed_dim=8, generator_attention_heads=2).generator.sentence_encoder.embed_proj is None


@pytest.mark.parametrize("options", ENCODINGS, ids=str)
def test_the_discriminator_is_the_encoder_of_tupe(options):
    """With the same weights the same features; TUPE's have oracles of their own."""
    model, task = model_for(**options).eval(), task_for()
    sizes = {name: value for name, value in SIZES.items() if not name.startswith("generator")}
    tupe = TupeModel.build_model(TupeConfig(**{**sizes, **options}), task).double().eval()
    weights = {k: v for k, v in model.encoder.state_dict().items() if not k.startswith("rtd_head")}
    missing, unexpected = tupe.encoder.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(key.startswith("lm_head.") for key in missing)
    tokens = torch.tensor([[BOS, 4, 5, EOS], [BOS, 6, EOS, PAD]])
    assert torch.equal(model(tokens, features_only=True)[0], tupe(tokens, features_only=True)[0])


def test_a_generator_alone_is_the_model_of_tupe():
    """A generator as large as the discriminator is a TUPE with its language-model head."""
    same = {f"generator_{name}": SIZES[f"encoder_{name}"] for name in ("layers", "embed_dim", "ffn_embed_dim")}
    model = model_for(**same, generator_attention_heads=2, rel_pos=True).eval()
    sizes = {name: value for name, value in SIZES.items() if not name.startswith("generator")}
    tupe = TupeModel.build_model(TupeConfig(**sizes, rel_pos=True), task_for()).double().eval()
    tupe.encoder.load_state_dict(model.generator.state_dict())
    tokens, masked = torch.tensor([[BOS, 14, 5, EOS]]), torch.tensor([[False, True, False, False]])
    assert torch.equal(model(tokens, masked_tokens=masked)[0], tupe(tokens, masked_tokens=masked)[0])
    (logits, extra), features = model(tokens, return_all_hiddens=True), model.generator(tokens, features_only=True)[0]
    assert logits.shape == (1, 4, 15)
    assert len(extra["inner_states"]) == 2
    assert torch.equal(extra["inner_states"][-1], features)


def test_embed_init_sees_one_table():
    model, task = model_for(), task_for()
    slots = find_slots(model, task)
    assert list(slots) == ["encoder"]
    with torch.no_grad():
        slots["encoder"].embedding.weight.fill_(0.5)
    assert (model.generator.lm_head.weight == 0.5).all()


def test_shared_tables_stay_shared_through_a_checkpoint():
    state = model_for(position_encoding="added").state_dict()
    fresh = ElectraModel.build_model(ElectraConfig(**SIZES, position_encoding="added"), task_for()).double()
    fresh.load_state_dict(state)
    assert fresh.generator.lm_head.weight is fresh.encoder.sentence_encoder.embed_tokens.weight
    assert all(torch.equal(value, state[key]) for key, value in fresh.state_dict().items())


def test_fine_tuning_leaves_the_generator_behind(caplog):
    state = model_for().state_dict()
    model = model_for(task_for(masking=False))
    model.register_classification_head("h", num_classes=3)
    model.double()
    with caplog.at_level(logging.INFO):
        model.load_state_dict(dict(state))
    said = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    left = sum(key.startswith(("generator.", "encoder.rtd_head.")) for key in state)
    assert said == [f"{left} tensors of the pre-training are left out: generator, replaced-token head"]
    assert not [key for key in model.state_dict() if key.startswith("generator") or "rtd_head" in key]
    for key, value in model.encoder.state_dict().items():
        assert torch.equal(value, state[f"encoder.{key}"])
    caplog.clear()
    model.load_state_dict(model.state_dict())  # a fine-tuned checkpoint
    assert "left out" not in caplog.text


def test_fine_tuning_uses_every_parameter():
    """So that several workers need no --find-unused-parameters."""
    model = model_for(task_for(masking=False), rel_pos=True)
    model.register_classification_head("h", num_classes=3)
    model.double()
    tokens = torch.tensor([[BOS, 4, 5, EOS], [BOS, 6, EOS, PAD]])
    model(tokens, classification_head_name="h")[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_without_a_generator_its_jobs_are_refused():
    model = model_for(task_for(masking=False))
    batch = batch_of([[BOS, 4, EOS]], [[1]])
    for call in (lambda: model(batch["net_input"]["src_tokens"]), lambda: criterion_for()(model, batch)):
        with pytest.raises(OptionError, match=r"no generator.*--task masked_lm"):
            call()


def test_the_kernel_is_said_once_for_both_networks(caplog):
    model, batch = model_for(), batch_of([[BOS, 4, EOS]], [[1]])
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            criterion_for()(model.train(), batch)
            with torch.no_grad():
                criterion_for()(model.eval(), batch)
    said = [r.getMessage().split(" (")[0] for r in caplog.records if "attention in" in r.getMessage()]
    assert said == ["attention in training on cpu: eager", "attention in evaluation on cpu: sdpa"]


def test_pre_training_needs_what_fine_tuning_leaves_behind():
    state = model_for(task_for(masking=False)).state_dict()
    with pytest.raises(OptionError, match="has no generator, replaced-token head, which fine-tuning leaves behind"):
        model_for().load_state_dict(state)


def test_training_with_another_criterion_is_said_once(caplog):
    model, tokens = model_for(), torch.tensor([[BOS, 4, EOS]])
    model.eval()(tokens)
    assert "--criterion electra" not in caplog.text
    for _ in range(2):
        model.train()(tokens)
    assert caplog.text.count("only the generator is trained: pre-training needs --criterion electra") == 1


def test_a_replaced_bos_is_allowed():
    """Both networks: in one <mask> stands in its place, in the other whatever was drawn."""
    _, _, log = criterion_for()(model_for(), batch_of([[BOS, 4, EOS]], [[0]]))
    assert log["masked"] == 1


def test_blocks_longer_than_the_positions_are_refused():
    with pytest.raises(OptionError, match="--tokens-per-sample 512 is more than --max-positions 12"):
        model_for(task_for(tokens_per_sample=512))


def test_presets_are_those_of_the_papers():
    """Clark et al. 2020, Table 6, and section 3.2 for the generator; Ke et al. 2021, appendix C: TUPE-R."""
    for arch in ("electra_base", "electra_tupe_base"):
        cfg = preset(arch)
        assert (cfg.encoder_layers, cfg.encoder_embed_dim) == (12, 768)
        assert (cfg.encoder_ffn_embed_dim, cfg.encoder_attention_heads) == (3072, 12)
        assert (cfg.generator_layers, cfg.generator_embed_dim) == (12, 256)
        assert (cfg.generator_ffn_embed_dim, cfg.generator_attention_heads) == (1024, 4)
    assert (preset("electra_base").position_encoding, preset("electra_base").rel_pos) == ("added", False)
    assert (preset("electra_tupe_base").position_encoding, preset("electra_tupe_base").rel_pos) == ("untied", True)
    given = preset("electra_base", position_encoding="untied", generator_layers=3)
    assert (given.position_encoding, given.generator_layers) == ("untied", 3)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_tree_of_parameters(arch):
    """Checkpoints depend on these names and shapes; 15 symbols in the dictionary."""
    with torch.device("meta"):
        model = ElectraModel.build_model(preset(arch), task_for())
    tree = {name: list(value.shape) for name, value in model.state_dict().items()}
    golden = GOLDEN / f"{arch}.json"
    expected = json.loads(golden.read_text()) if golden.is_file() else None
    assert tree == expected, f"if this is meant, {golden.name} becomes:\n{dumped(tree)}"


def dumped(tree):
    """One parameter a line."""
    return "{\n" + ",\n".join(f'  "{name}": {json.dumps(shape)}' for name, shape in tree.items()) + "\n}\n"
