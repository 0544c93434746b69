"""`embinit export-hf` of fairseq's own RoBERTa: transformers' classes; GPT-2's BPE; what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from expand_checkpoints import make
from hf_exports import CLASSES, MLM, checkpoint_of, export_hf, read_back_here

pytest.importorskip("transformers")
import transformers
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode, get_encoder

from embinit_fairseq.export import roberta, verify
from embinit_fairseq.models.tupe import TupeModel

IDS = torch.tensor([[0, 5, 6, 14, 7, 8, 4, 2], [0, 9, 2, 1, 1, 1, 1, 1], [0, 3, 12, 4, 10, 2, 1, 1]])
REAL = IDS != 1
HEAD = "sentence_classification_head"
REGRESSION = f"{CLASSES} --num-classes 1 --regression-target --best-checkpoint-metric loss"
FILES = {"README.md", "config.json", "dict.txt", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(autouse=True)
def opened_here(monkeypatch):
    monkeypatch.setattr(verify.subprocess, "run", read_back_here)


def refused(capsys, checkpoint, *flags, code=2) -> str:
    assert export_hf(checkpoint, *flags) == code
    assert not checkpoint.output.exists()
    return capsys.readouterr().err.strip().splitlines()[-1]


@torch.no_grad()
@pytest.mark.parametrize(
    ("task", "flags", "half"),
    [
        (MLM, "", False),
        (MLM, "--untie-weights-roberta", False),
        (MLM, "", True),  # an fp16 checkpoint
        (
            f"{CLASSES} --num-classes 3",
            "--activation-fn relu --dropout 0.2 --attention-dropout 0.3 --pooler-dropout 0.4",
            False,
        ),
        (REGRESSION, "--activation-fn gelu_accurate", False),
    ],
)
def test_transformers_own_classes_compute_what_fairseq_does(tmp_path, capsys, task, flags, half):
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", flags, task=task, fillers=2)
    if half:
        checkpoint.state["model"] = checkpoint.model.half().state_dict()
        checkpoint.save()
    assert export_hf(checkpoint) == 0
    assert {path.name for path in checkpoint.output.iterdir()} == FILES
    assert "trust_remote_code" not in (checkpoint.output / "README.md").read_text()
    name = "AutoModelForMaskedLM" if task == MLM else "AutoModelForSequenceClassification"
    model = getattr(transformers, name).from_pretrained(checkpoint.output).eval()
    assert type(model).__module__ == "transformers.models.roberta.modeling_roberta"
    config, args = model.config, checkpoint.model.args
    dropouts = config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.classifier_dropout
    assert dropouts == (args.dropout, args.attention_dropout, args.pooler_dropout)  # for who trains on
    found, expected = model(IDS, attention_mask=REAL.long()).logits, checkpoint.model.float()
    if task == MLM:
        found, expected = found[REAL], expected(IDS)[0][REAL]
    else:
        expected = expected(IDS, classification_head_name=HEAD)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    words = transformers.AutoTokenizer.from_pretrained(checkpoint.output)
    assert words("w1 <mask> nothing")["input_ids"] == [0, 5, words.mask_token_id, 3, 2]
    assert (words.mask_token_id, words.model_max_length) == (15, 12)


def test_a_regression_says_its_units_and_nothing_of_labels(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", "", task=REGRESSION)
    labels = checkpoint.folder / "data" / "label"
    for file, text, said in (
        ("train.label", "0.5\n0.04\n1\n0.2\n", "which are 0.04 to 1\n"),
        ("scale", "0.2\n", "which are 0.04 to 1 (those of the data set times 0.2)\n"),
    ):
        (labels / file).write_text(text)
        assert export_hf(checkpoint, "--force") == 0
        text = capsys.readouterr().out
        assert f"{HEAD}: a number in the units of the labels of the training, {said}" in text
        assert "label" not in text.replace("labels of the training", "")
        assert said.strip() in (checkpoint.output / "README.md").read_text()
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert (config["problem_type"], len(config["id2label"])) == ("regression", 1)
    checkpoint = checkpoint_of(tmp_path / "d", "roberta_base", "", task=REGRESSION)
    (tmp_path / "d" / "data" / "label" / "train.label").write_text("good\n")
    assert "train.label" in refused(capsys, checkpoint)


def test_a_wrong_table_of_names_is_noticed(tmp_path, capsys, monkeypatch):
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", "")
    other = {"self_attn.q_proj": "attention.self.key", "self_attn.k_proj": "attention.self.query"}
    monkeypatch.setattr(roberta, "_PARTS", {**roberta._PARTS, **other})
    assert "in float32 (allowed: " in refused(capsys, checkpoint, code=1)


@pytest.mark.parametrize(
    ("arch", "task", "flags", "named"),
    [
        ("roberta_prenorm", MLM, "", "--encoder-normalize-before"),
        ("roberta_base", MLM, "--activation-fn relu", "--activation-fn relu"),
        ("roberta_base", MLM, "--quant-noise-pq 0.1 --quant-noise-pq-block-size 2", "--quant-noise-pq"),
        ("roberta_base", f"{CLASSES} --num-classes 3", "--pooler-activation-fn relu", "--pooler-activation-fn relu"),
    ],
)
def test_what_transformers_roberta_has_no_counterpart_of(tmp_path, capsys, arch, task, flags, named):
    error = refused(capsys, checkpoint_of(tmp_path / "c", arch, flags, task=task))
    assert all(part in error for part in (f"--arch {arch}", named, "stays in fairseq"))


def test_a_dictionary_or_a_tokenizer_of_another_model(tmp_path, capsys):
    checkpoint, other = checkpoint_of(tmp_path / "c", "roberta_base", ""), make(tmp_path / "d", "roberta", words=["x"])
    error = refused(capsys, checkpoint, "--dict", other.dictionary)
    assert f"--dict {other.dictionary}: the checkpoint has 14 symbols, the dictionary 6" in error
    assert export_hf(other) == 0
    assert f"--tokenizer {other.output}: " in refused(capsys, checkpoint, "--tokenizer", other.output)


@pytest.mark.parametrize(
    ("family", "arch"),
    [
        ("duo", "duo_transformer_tiny"),
        ("lstm", "lstm"),
        ("lm", "transformer_lm"),
    ],
)
def test_other_architectures_are_refused_by_name(tmp_path, capsys, family, arch):
    error = refused(capsys, make(tmp_path / "c", family))
    assert f"--arch {arch}" in error
    assert "docs/ctranslate2.md" in error


# --- GPT-2's BPE


@pytest.fixture
def pieces(tmp_path):
    """(folder of encoder.json and vocab.bpe, their numbers as words of a dictionary, in another order)."""
    merges = ["t h", "th e", "\u0120 the", "o w", "l ow", "\u0120 low"]
    names = [*bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "encoder.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return folder, [str(number * 7 % len(names)) for number in range(len(names))]


def test_text_is_cut_as_by_fairseqs_gpt2_bpe(tmp_path, pieces, capsys):
    folder, words = pieces
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", "", words=words, fillers=2)
    (tmp_path / "text").write_text("the lower <mask>\nth\n")
    assert export_hf(checkpoint, "--gpt2-bpe", folder, "--verify-text", tmp_path / "text") == 0
    assert "GPT-2's byte-level BPE" in capsys.readouterr().out
    opened = transformers.AutoTokenizer.from_pretrained(checkpoint.output)
    encoder = get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    line = " ".join(map(str, encoder.encode("the  lówer, 12!")))
    expected = checkpoint.task.source_dictionary.encode_line(line, append_eos=False).tolist()
    assert opened("the  lówer, 12!")["input_ids"] == [0, *expected, 2]
    assert len(expected) == 14
    assert opened.decode(expected) == "the  lówer, 12!"
    assert opened("the <mask>")["input_ids"][2:] == [opened.mask_token_id, 2]
    (tmp_path / "text").write_text(line)
    for flags, said in ((["--gpt2-bpe", folder], "before it was cut"), ([], "after it was cut")):
        error = refused(
            capsys,
            fresh := checkpoint_of(tmp_path / f"d{len(flags)}", "roberta_base", "", words=words),
            *flags,
            "--verify-text",
            tmp_path / "text",
        )
        assert "--verify-text" in error
        assert said in error
        (tmp_path / "text").write_text("the lower\n")
    assert export_hf(fresh) == 0


def test_the_hub_and_the_export_give_gpt2s_pieces_the_same_ids(tmp_path, pieces):
    folder, words = pieces
    checkpoint = checkpoint_of(tmp_path / "c", words=words)
    files = {"gpt2_encoder_json": str(folder / "encoder.json"), "gpt2_vocab_bpe": str(folder / "vocab.bpe")}
    places = str(checkpoint.folder), "c.pt", str(checkpoint.folder / "data")
    hub = TupeModel.from_pretrained(*places, bpe="gpt2", **files)
    assert export_hf(checkpoint, "--gpt2-bpe", folder) == 0
    opened = transformers.AutoTokenizer.from_pretrained(checkpoint.output)
    for text in ("the lower <mask> the", "<mask> low", "the"):
        assert hub.encode(text).tolist() == opened(text)["input_ids"]
    assert hub.decode(hub.encode("the low")) == "the low"


def test_gpt2_files_that_do_not_fit(tmp_path, pieces, capsys):
    folder, words = pieces
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", "", words=words[1:])
    assert export_hf(checkpoint) == 0
    assert "--gpt2-bpe" in capsys.readouterr().out  # words of a dictionary of numbers: is that meant?
    checkpoint = checkpoint_of(tmp_path / "d", "roberta_base", "", words=words[1:])
    error = refused(capsys, checkpoint, "--gpt2-bpe", folder)
    assert all(part in error for part in ("1 piece ", f"--gpt2-bpe {folder}", "--dict ", "leave --gpt2-bpe out"))
    assert "--gpt2-bpe and --tokenizer" in refused(capsys, checkpoint, "--gpt2-bpe", folder, "--tokenizer", folder)
    whole = checkpoint_of(tmp_path / "e", "roberta_base", "", words=words)
    (folder / "vocab.bpe").write_text("#version: 0.2\nx y\n")
    assert "do not belong together" in refused(capsys, whole, "--gpt2-bpe", folder)
    (folder / "encoder.json").write_text("[]")
    assert "encoder.json" in refused(capsys, whole, "--gpt2-bpe", folder)
    (folder / "encoder.json").unlink()
    assert "encoder.json or vocab.bpe" in refused(capsys, whole, "--gpt2-bpe", folder)
