"""Exported models compute what fairseq's do."""

from __future__ import annotations

import functools

import pytest
import torch
import tupe_reference
from fairseq.sequence_generator import SequenceGenerator
from hf_exports import (
    CLASSES,
    GENERATOR,
    MLM,
    POSITIONS,
    REGRESSION,
    VARIANTS,
    checkpoint_of,
    export_hf,
    exported,
    exported_code,
    refused,
    seq2seq_checkpoint,
    trained,
)
from hf_exports import opened_here as opened_here
from torch.nn import functional as F

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[0, 5, 6, 14, 7, 8, 4, 2], [0, 9, 2, 1, 1, 1, 1, 1], [0, 3, 12, 4, 10, 2, 1, 1]])
REAL = IDS != 1
HEAD = "sentence_classification_head"


def close(ours, expected, tolerance=1e-12):
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Trained models in double precision, each built once; a test may read them only."""
    return functools.cache(lambda *given, **more: trained(tmp_path_factory.mktemp("c"), *given, fillers=2, **more))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_equals_fairseq(make, variant):
    """Logits, hidden states and gradients of a padded batch; fairseq's equal the equations in test_sentence_encoder."""
    original = make("tupe_tiny", VARIANTS[variant])
    original.model.eval().zero_grad()
    logits, extra = original.model(IDS, return_all_hiddens=True)
    labels = torch.where(REAL & (IDS != 0), IDS, -100)
    loss = F.cross_entropy(logits[labels != -100], labels[labels != -100])
    loss.backward()
    theirs = dict(original.model.encoder.sentence_encoder.named_parameters())
    for kernel in ("sdpa", "eager") if variant in ("TUPE-R", "BERT-A^d, sdpa") else ("sdpa",):
        model = exported(original, kernel)
        output = model(IDS, attention_mask=REAL, labels=labels, output_hidden_states=True)
        close(output.logits[REAL], logits[REAL])
        assert len(output.hidden_states) == len(extra["inner_states"]) == 3
        for one, other in zip(output.hidden_states, extra["inner_states"]):
            close(one[REAL], other[REAL])
        close(output.loss.double(), loss, 1e-6)  # in single precision, as transformers does
        output.loss.backward()
        for name, parameter in model.tupe.named_parameters():
            expected = theirs[name].grad
            assert (parameter.grad - expected).abs().max() <= 1e-6 * (1 + expected.abs().max()), name


def test_masks_embeddings_attentions_and_more_words(make):
    """No mask means padding symbols; attentions are probabilities; after `resize_token_embeddings` old logits stay."""
    model = exported(make())
    logits = model(IDS).logits[REAL]
    close(model(IDS, attention_mask=REAL.long()).logits[REAL], logits)
    close(model(inputs_embeds=model.get_input_embeddings()(IDS), attention_mask=REAL).logits[REAL], logits)
    output = model(IDS, output_attentions=True)
    close(output.logits[REAL], logits)
    for weights in output.attentions:
        close((weights * REAL[:, None, None]).sum(-1), torch.ones(3, 2, 8, dtype=torch.float64))
    model.resize_token_embeddings(20)
    close(model(IDS).logits[REAL][:, : logits.shape[-1]], logits)
    assert model.lm_head.decoder.weight is model.tupe.embed_tokens.weight


def test_dropout_acts_where_it_does_in_fairseq(make, monkeypatch):
    """In the place of dropout a factor that tells its rate: hidden, attention, activation."""
    tupe_reference.visible_dropout(monkeypatch)
    rates = "--dropout 0.2 --attention-dropout 0.3 --activation-dropout 0.4"
    original = make("tupe_tiny", f"--rel-pos --attention-kernel eager {rates}")
    model = exported(original, "eager").train()
    close(model(IDS).logits[REAL], original.model.train()(IDS)[0][REAL])


def test_classes_and_regression(make):
    original = make("tupe_tiny", "--pooler-activation-fn relu", task=f"{CLASSES} --num-classes 3")
    model, labels = exported(original), torch.tensor([2, 0, 1])
    expected, _ = original.model(IDS, classification_head_name=HEAD)
    output = model(IDS, attention_mask=REAL, labels=labels)
    close(output.logits, expected)
    close(output.loss.double(), F.cross_entropy(expected, labels), 1e-6)
    assert (model.config.id2label, model.config.label2id) == ({0: "a", 1: "b", 2: "c"}, {"a": 0, "b": 1, "c": 2})
    model.config.problem_type = "multi_label_classification"
    several = torch.tensor([[1.0, 0, 1]] * 3, dtype=torch.float64)
    loss, _ = model(IDS, labels=several, return_dict=False)
    close(loss.double(), F.binary_cross_entropy_with_logits(expected, several), 1e-6)
    original = make("electra_tiny", "", task=f"{REGRESSION} {GENERATOR}")
    model, numbers = exported(original), torch.tensor([0.5, -1.0, 2.0])
    expected, _ = original.model(IDS, classification_head_name=HEAD)
    output = model(IDS, labels=numbers)
    close(output.logits, expected)
    close(output.loss.double(), ((expected[:, 0] - numbers) ** 2).mean(), 1e-6)
    assert (model.config.problem_type, model.config.num_labels) == ("regression", 1)


def test_labels_of_tokens(tmp_path, opened_here):
    """The exported folder with a new head: logits, loss, gradient, and the same again after saving."""
    checkpoint = checkpoint_of(tmp_path / "c", fillers=2)
    assert export_hf(checkpoint) == 0
    opened = functools.partial(
        transformers.AutoModelForTokenClassification.from_pretrained, trust_remote_code=True, dtype=torch.float64
    )
    model = opened(str(checkpoint.output), num_labels=3, classifier_dropout=0.25).eval()
    features, _ = checkpoint.model.double().eval()(IDS, features_only=True)
    labels = torch.where(REAL, IDS % 3, -100)
    output = model(IDS, attention_mask=REAL, labels=labels)
    assert output.logits.shape == (3, 8, 3)
    close(output.logits[REAL], features[REAL] @ model.classifier.weight.T + model.classifier.bias)
    close(output.loss.double(), F.cross_entropy(output.logits[REAL], IDS[REAL] % 3), 1e-6)
    output.loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.classifier.parameters())
    assert model.tupe.embed_tokens.weight.grad.abs().sum() > 0
    assert model.train().dropout.p == 0.25
    model.save_pretrained(str(tmp_path / "saved"))
    again = opened(str(tmp_path / "saved")).eval()
    close(again(IDS, attention_mask=REAL).logits[REAL], output.logits[REAL])


def test_a_discriminator_is_a_backbone(make):
    original = make("electra_tupe_tiny", "", task=f"{MLM} {GENERATOR}")
    assert (original.auto_class, original.left_out) == ("AutoModel", ["generator", "replaced-token head"])
    close(exported(original)(IDS).last_hidden_state[REAL], original.model(IDS, features_only=True)[0][REAL])


def test_inputs_and_configurations_that_cannot_be(make):
    model = exported(make())
    for ids, mask, expected in (
        (IDS[2:, :7].flip(1), None, "padding_side='right'"),
        (torch.zeros(1, 13, dtype=torch.long), None, "an input has 13 tokens, the model has 12 positions"),
        (IDS, torch.ones(3, 1, 8, 8), r"give \(batch, length\)"),
    ):
        with pytest.raises(ValueError, match=expected):
            model(ids, attention_mask=mask)
    configurations, models = exported_code()
    for wrong in ({"reset": "none"}, {"tie_word_embeddings": False}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            models.TupeModel(configurations.TupeConfig(**wrong))
    with pytest.raises(ValueError, match="and not both"):
        model(IDS, inputs_embeds=model.get_input_embeddings()(IDS))


def test_gradient_checkpointing_changes_no_gradient(make):
    model = exported(make("tupe_tiny", "--rel-pos --dropout 0 --attention-dropout 0")).train()
    gradients = []
    for use_reentrant in (None, False, True):
        if use_reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model.zero_grad()
        model(IDS, labels=IDS).loss.backward()  # reentrant checkpoints know no torch.autograd.grad
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for others in gradients[1:]:
        close(others, gradients[0], 1e-9)


@torch.no_grad()
def test_one_graph_for_the_compiler(make):
    model = exported(make())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    close(compiled(IDS, attention_mask=REAL).logits[REAL], model(IDS).logits[REAL])


# ---- transformers' own classes: RoBERTa, FSMT, BART -----------------------------------------------------------------

MASKED = torch.tensor([[4, 5, 6, 7, 8, 2], [9, 10, 2, 1, 1, 1], [12, 2, 1, 1, 1, 1], [3, 12, 4, 12, 2, 1]])
TARGET = torch.tensor([[2, 5, 6, 1, 1], [2, 1, 1, 1, 1], [2, 4, 4, 3, 11], [2, 7, 1, 1, 1]])
RATES = "--dropout 0.2 --attention-dropout 0.3"


@torch.no_grad()
@pytest.mark.parametrize(
    ("task", "flags", "half"),
    [
        (MLM, "", True),  # an fp16 checkpoint
        (MLM, "--untie-weights-roberta", False),
        (f"{CLASSES} --num-classes 3", f"--activation-fn relu {RATES} --pooler-dropout 0.4", False),
    ],
)
def test_roberta_equals_fairseq(tmp_path, opened_here, task, flags, half):
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", flags, task=task, fillers=2)
    if half:
        checkpoint.state["model"] = checkpoint.model.half().state_dict()
        checkpoint.save()
    assert export_hf(checkpoint) == 0
    name = "AutoModelForMaskedLM" if task == MLM else "AutoModelForSequenceClassification"
    model = getattr(transformers, name).from_pretrained(checkpoint.output).eval()
    assert type(model).__module__ == "transformers.models.roberta.modeling_roberta"
    config, args = model.config, checkpoint.model.args
    dropouts = config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.classifier_dropout
    assert dropouts == (args.dropout, args.attention_dropout, args.pooler_dropout)  # for further training
    logits, fairseqs = model(IDS, attention_mask=REAL.long()).logits, checkpoint.model.float()
    if task == MLM:
        close(logits[REAL], fairseqs(IDS)[0][REAL], 1e-5)
    else:
        close(logits, fairseqs(IDS, classification_head_name=HEAD)[0], 1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("transformer", f"--decoder-layers 2 --max-target-positions 12 {RATES} --activation-dropout 0.4"),
        (
            "transformer_shared",
            "--no-scale-embedding --activation-fn gelu_accurate --decoder-ffn-embed-dim 6 --encoder-layerdrop 0.5",
        ),
        ("bart_denoising", ""),
    ],
)
def test_transformer_and_bart_equal_fairseq(tmp_path, opened_here, family, flags):
    checkpoint = seq2seq_checkpoint(tmp_path / "c", family, flags)
    assert export_hf(checkpoint) == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint.output).eval()
    assert type(model).__module__.split(".")[1] == "models"
    folder = {path.name for path in checkpoint.output.iterdir()}
    assert folder == {"README.md", "config.json", "dict.txt", "generation_config.json", "model.safetensors"} | {
        *("tokenizer.json", "tokenizer_config.json"),
        *(() if family in ("transformer_shared", "bart_shared", "bart_denoising") else ("target",)),
    }
    card = (checkpoint.output / "README.md").read_text()
    assert "trust_remote_code" not in card
    size = sum(parameter.numel() for parameter in checkpoint.model.parameters())  # as the log of the training says
    assert f" {size:,} parameters, " in card
    config, cfg = model.config, checkpoint.model.cfg
    rates = config.dropout, config.attention_dropout, config.activation_dropout, config.encoder_layerdrop
    assert rates == (cfg.dropout, cfg.attention_dropout, cfg.activation_dropout, cfg.encoder_layerdrop)
    source = MASKED
    if family.startswith("transformer"):  # padding in front, as fairseq has sources in training
        source = torch.stack([row.roll(int((row == 1).sum())) for row in MASKED])
    logits = model(source, attention_mask=(source != 1).long(), decoder_input_ids=TARGET).logits
    expected = checkpoint.model(source, (MASKED != 1).sum(1), TARGET)[0]
    close(logits[TARGET != 1], expected[TARGET != 1], 1e-5)


@torch.no_grad()
def test_translations_are_those_of_fairseq_generate(tmp_path, opened_here):
    """Tokens and scores, with the defaults of `generation_config.json` and with other options.

    The model is trained to reverse sentences, so that few hypotheses are nearly as good as the best.
    """
    checkpoint = seq2seq_checkpoint(tmp_path / "c", "transformer")
    with torch.enable_grad():
        learn_to_reverse(checkpoint)
    assert export_hf(checkpoint) == 0
    model, mask = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint.output).eval(), (MASKED != 1).long()
    defaults = {"num_beams": 5, "early_stopping": True, "length_penalty": 1.0, "min_length": 2}
    defaults |= {"suppress_tokens": [1], "max_length": 21}  # an empty translation and <pad> are forbidden; 20 positions
    assert model.generation_config.to_diff_dict().items() >= defaults.items()
    for ours, theirs in (({"beam_size": 5}, {}), ({"beam_size": 2, "len_penalty": 0.3}, {"length_penalty": 0.3})):
        search = SequenceGenerator([checkpoint.model], checkpoint.task.target_dictionary, **ours)
        inputs = {"src_tokens": MASKED, "src_lengths": mask.sum(1)}
        expected = [best[0] for best in search.generate([checkpoint.model], {"net_input": inputs})]
        options = {**theirs, "num_beams": ours["beam_size"], "return_dict_in_generate": True, "output_scores": True}
        generated = model.generate(MASKED, attention_mask=mask, **options)
        rows = [row[1:][row[1:] != 1].tolist() for row in generated.sequences]
        assert rows == [best["tokens"].tolist() for best in expected]
        close(generated.sequences_scores, torch.stack([best["score"] for best in expected]), 1e-4)


def learn_to_reverse(checkpoint):
    checkpoint.model.train()
    optimizer, generator = torch.optim.Adam(checkpoint.model.parameters(), 1e-2), torch.Generator().manual_seed(3)
    end = torch.full((32, 1), 2)
    for _ in range(100):
        source = torch.randint(4, 13, (32, 4), generator=generator)
        target = torch.cat([end, source.flip(1), end], 1)
        logits = checkpoint.model(torch.cat([source, end], 1), torch.full((32,), 5), target[:, :-1])[0]
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
        optimizer.step()
    checkpoint.state["model"] = checkpoint.model.eval().state_dict()
    checkpoint.save()


PRE_LN = "--encoder-normalize-before --decoder-normalize-before"
#: model, flags, all that the message names
REFUSALS = [
    (
        "transformer",
        f"{PRE_LN} --encoder-learned-pos --layernorm-embedding --cross-self-attention --adaptive-softmax-cutoff 6",
        [
            *("--encoder-normalize-before", "--encoder-learned-pos", "--layernorm-embedding"),
            *("--adaptive-softmax-cutoff", "--cross-self-attention"),
        ],
    ),
    (
        "transformer",
        "--encoder-embed-dim 12 --decoder-output-dim 6 --quant-noise-scalar 0.1",
        ["--decoder-output-dim, --encoder-embed-dim 12 with --decoder-embed-dim 8, --quant-noise-scalar"],
    ),
    (
        "bart_shared",
        f"--arch mbart_base_wmt20 --max-source-positions 24 {PRE_LN}",
        ["--decoder-normalize-before", "--max-source-positions 24 with --max-target-positions 20", "no --layernorm-em"],
    ),
    ("mbart_shared", "", ["--task translation_from_pretrained_bart"]),
    ("lm", "", ["docs/ctranslate2.md"]),  # another architecture
    ("roberta_prenorm", "", ["--encoder-normalize-before (roberta_prenorm)"]),
    ("roberta_base", "--activation-fn relu", ["a language-model head with --activation-fn relu"]),
    (
        "roberta_classes",
        "--pooler-activation-fn relu --quant-noise-pq 0.1 --quant-noise-pq-block-size 2",
        ["--quant-noise-pq, --pooler-activation-fn relu"],
    ),
]


@pytest.mark.parametrize(("model", "flags", "named"), REFUSALS)
def test_what_transformers_cannot_have_is_named(tmp_path, capsys, model, flags, named):
    if model.startswith("roberta"):
        arch, task = (model, MLM) if model != "roberta_classes" else ("roberta_base", f"{CLASSES} --num-classes 3")
        checkpoint = checkpoint_of(tmp_path / "c", arch, flags, task=task)
    else:
        checkpoint = seq2seq_checkpoint(tmp_path / "c", model, flags, positions="" if model == "lm" else POSITIONS)
    error = refused(capsys, checkpoint)
    assert all(part in error for part in named), error
    assert "such a model stays in fairseq" in error or model in ("lm", "mbart_shared")
