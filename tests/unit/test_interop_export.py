"""`embinit export-hf`: what it writes and prints, that a wrong model is noticed, what is refused.

The export is opened in this process (`hf_exports.read_back_here`); the integration tests open it in another one.
"""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from expand_checkpoints import WORDS
from hf_exports import CLASSES, REGRESSION, checkpoint_of, export_hf, refused, seq2seq_checkpoint
from hf_exports import opened_here as opened_here

pytest.importorskip("transformers")
from safetensors.torch import load_file

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.interop import export, verify_export
from embinit_fairseq.interop.architectures import TUPE
from embinit_fairseq.interop.open_trained import open_trained
from embinit_fairseq.interop.remote import code_files

FILES = {"README.md", "config.json", "dict.txt", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
HEAD = "sentence_classification_head"
pytestmark = pytest.mark.usefixtures("opened_here")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A pre-trained TUPE-R over w0 ... w8 and two fillers. Tests leave nothing in its folder."""
    return checkpoint_of(tmp_path_factory.mktemp("c"), fillers=2)


def files_of(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_pre_trained_model(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", fillers=2)
    (tmp_path / "text").write_text("w1 w2 <unk>\nw3\n")
    assert export_hf(checkpoint, "--json", "--verify-text", tmp_path / "text", "--language", "en", "de") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text_lines"] == 205  # 203 made up
    assert files_of(checkpoint.output) == {*record["files"]} == FILES | {*code_files(*TUPE.code)}
    assert record["dictionary"] == checkpoint.dictionary  # in the data folder of the training
    differences = record["verified"]["differences"]
    assert differences["float64"]["difference"] <= 1e-12 < differences["float64"]["allowed"]
    assert differences["float32"]["difference"] <= 1e-5 * differences["float32"]["scale"]
    names, parameters = set(load_file(checkpoint.output / "model.safetensors")), list(checkpoint.model.parameters())
    assert "lm_head.decoder.weight" not in names  # tied: stored once
    assert (len(names), record["parameters"]) == (len(parameters), sum(value.numel() for value in parameters))
    card = (checkpoint.output / "README.md").read_text()
    assert all(part in card for part in ("# TUPE-R", 'AutoModelForMaskedLM.from_pretrained("', "| float64 |"))
    assert "an input begins with `<s>`." in card
    data = metadata_of(checkpoint.output)
    assert (data["pipeline_tag"], data["language"], data["tags"]) == ("fill-mask", ["en", "de"], ["tupe", "fairseq"])
    assert {"license", "model-index"}.isdisjoint(data)


def metadata_of(folder) -> dict:
    """The YAML at the head of the card, as the Hub reads it."""
    from huggingface_hub import ModelCard

    return ModelCard.load(folder / "README.md").data.to_dict()


def test_the_card_says_language_task_license_and_scores(tmp_path, capsys):
    """Scores are those of this checkpoint, from the record of its run."""
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"
    (tmp_path / "run").mkdir()
    checkpoint = seq2seq_checkpoint(tmp_path / "run/checkpoints", "transformer")
    checkpoint.state["cfg"]["task"].update(source_lang=None, target_lang=None)  # a training without -s and -t
    checkpoint.save()
    assert "--dict and --target-dict" in refused(capsys, checkpoint)
    (checkpoint.folder / "data" / "train.de-en.de.idx").touch()  # its data say the languages

    def record(**changes):
        bleu = {"score": 34.4321, "signature": signature, "details": "BLEU = 34.43 68.1/42.0 (BP = 1.0)"}
        scores = {"bleu": bleu, "beam": 5, "checkpoint": "elsewhere/c.pt", "mismatched": {"accuracy": 1.0}, **changes}
        (tmp_path / "run/result.json").write_text(json.dumps({"labels": {}, "scores": scores}))

    record()
    assert export_hf(checkpoint, "--license", "mit") == 0
    assert "scores         BLEU = 34.43 68.1/42.0" in capsys.readouterr().out
    data = metadata_of(checkpoint.output)
    assert (data["language"], data["license"], data["pipeline_tag"]) == (["de", "en"], "mit", "translation")
    (model,) = data["model-index"]
    (result,) = model["results"]
    metric = {"type": "bleu", "name": "BLEU", "value": 34.43, "args": {"signature": signature}}
    assert (model["name"], result["task"], result["metrics"]) == ("out", {"type": "translation"}, [metric])
    assert str(checkpoint.folder / "data") in result["dataset"]["name"]
    (tmp_path / "run/tuned").mkdir()  # another model in the folder of the run
    assert export.recorded_scores(str(tmp_path / "run/tuned/c.pt")) == {}
    record(checkpoint="elsewhere/checkpoint_last.pt")
    assert export.recorded_scores(checkpoint.path) == {}
    for others in ([], {"scores": [1]}):  # files of other programs
        (tmp_path / "run/result.json").write_text(json.dumps(others))
        assert export.recorded_scores(str(tmp_path / "run/c.pt")) == {}


def test_half_precision_of_a_fine_tuned_model(tmp_path, capsys):
    """Of two heads the usual one is exported, of three labels the names; the training had no `--init-token`."""
    task = f"{CLASSES.partition('--init-token')[0]} --num-classes 3"
    checkpoint = checkpoint_of(tmp_path / "c", "bert_ad_tiny", "", task=task)
    weights = checkpoint.state["model"]
    of_head = [name for name in weights if HEAD in name]
    checkpoint.state["model"] = {**weights, **{name.replace(HEAD, "other"): 2 * weights[name] for name in of_head}}
    checkpoint.save()
    (tmp_path / "labels.txt").write_text("no 4\nyes 3\nwell 1\nmadeupword0000 0\n")
    labels = "--label-dict", tmp_path / "labels.txt"
    assert export_hf(checkpoint, "--dtype", "bfloat16", "--dict", checkpoint.dictionary, *labels) == 0
    text = capsys.readouterr().out
    parts = [f"{HEAD}: no, yes, well", "parameters in bfloat16", "bfloat16: differs", "float64: differs"]
    assert all(part in text for part in [*parts, "head 'other'"]), text
    assert "an input begins with its first word." in (checkpoint.output / "README.md").read_text()
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "yes", "2": "well"}
    assert (config["problem_type"], config["torch_dtype"]) == ("single_label_classification", "bfloat16")
    stored = load_file(checkpoint.output / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    words = weights["encoder.sentence_encoder.embed_tokens.weight"]
    assert torch.equal(stored["tupe.embed_tokens.weight"], words.bfloat16())
    assert torch.equal(stored["classifier.dense.weight"], weights[of_head[0]].bfloat16())
    other = open_trained(checkpoint.path, head="other")
    assert (other.head, other.left_out, other.labels) == ("other", [f"head '{HEAD}'"], ["a", "b", "c"])
    assert torch.equal(TUPE.weights(other)["classifier.dense.weight"], 2 * weights[of_head[0]])


def test_a_regression_says_its_units_and_nothing_of_labels(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", "--activation-fn gelu_accurate", task=REGRESSION)
    labels = checkpoint.folder / "data" / "label"
    (labels / "train.label").write_text("0.5\n0.04\n1\n0.2\n")
    assert open_trained(checkpoint.path).numbers.endswith("of the training, which are 0.04 to 1")
    (labels / "scale").write_text("0.2\n")
    assert export_hf(checkpoint) == 0
    text, units = capsys.readouterr().out, "which are 0.04 to 1 (the labels of the data set times 0.2)"
    assert f"{HEAD}: a number in the units of the labels of the training, {units}\n" in text
    assert "label" not in text.replace("labels of the training", "").replace(units, "")
    assert units in (checkpoint.output / "README.md").read_text()
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert (config["problem_type"], len(config["id2label"])) == ("regression", 1)
    with pytest.raises(OptionError, match=r"--label-dict l\.txt"):
        open_trained(checkpoint.path, label_dictionary="l.txt")
    (labels / "train.label").write_text("good\n")
    with pytest.raises(DataError, match=r"train\.label"):
        open_trained(checkpoint.path)


# ---- A wrong model is noticed


SCALE = "self.scale = (num_terms * cfg.head_dim) ** -0.5"
#: part of the exported code -> the part broken, --dtype, exit code, part of the message
BROKEN = [
    (SCALE, f"{SCALE} * 1.001", "bfloat16", 1, " in float64 (allowed: "),  # hidden in the rounding of bfloat16
    ("masked_fill(padding_mask[:", "masked_fill(False & padding_mask[:", "float32", 1, " in float32 (allowed: "),
    ("import math\nfrom typing", "import math\nimport fairseq\nfrom typing", "float32", 2, "transformers cannot open"),
]


@pytest.mark.parametrize(("right", "wrong", "dtype", "status", "message"), BROKEN)
def test_broken_code_is_not_written(checkpoint, capsys, monkeypatch, right, wrong, dtype, status, message):
    def changed(*names):
        texts = code_files(*names)
        assert any(right in text for text in texts.values())
        return {name: text.replace(right, wrong) for name, text in texts.items()}

    monkeypatch.setattr(export, "code_files", changed)
    assert message in refused(capsys, checkpoint, "--dtype", dtype, code=status)


def test_wrong_names_are_noticed(checkpoint, capsys, monkeypatch):
    """transformers would draw the bias that is missing."""
    names = [(r"encoder\.sentence_encoder\.(?!layers\.0\.fc1\.bias)", "tupe."), *TUPE.names[1:]]
    monkeypatch.setattr(f"{open_trained.__module__}.ARCHITECTURES", (replace(TUPE, names=names),))
    assert "fc1" in refused(capsys, checkpoint, code=1)


def test_numbers_beyond_half_precision():
    """In a trained model they overflow on their way, not in the weights."""
    fine, overflown = (torch.ones(1), torch.ones(1)), (torch.ones(2), torch.tensor([1.0, float("nan")]))
    for pairs in ([fine, overflown], [overflown, fine]):
        with pytest.raises(verify_export.DifferentOutput, match=r"nan in float16 .*--dtype float32"):
            verify_export.check_difference("c.pt", "float16", pairs)
    pairs = [(torch.tensor([-100.0]), torch.tensor([-98.5])), fine]
    assert verify_export.check_difference("c.pt", "float16", pairs) == {
        "difference": 1.5,
        "scale": 100.0,
        "allowed": 2.0,
    }


# ---- Refused


def test_wrong_options_and_files(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("w0 1\n")
    Path("empty.txt").write_text(" \n")
    state = copy.deepcopy(checkpoint.state)
    state["model"]["encoder.lm_head.bias"][3] = float("nan")
    torch.save(state, "bad.pt")
    state["model"]["encoder.lm_head.bias"][3] = 0.0
    state["cfg"]["task"]["data"] = "elsewhere"
    torch.save(state, "moved.pt")
    for flags, message in (
        ("--checkpoint bad.pt", "encoder.lm_head.bias holds NaN or infinity"),
        ("--checkpoint moved.pt", "--dict"),
        ("--dict short.txt", "give the dict.txt of its training"),
        ("--head x", "choose one by --head"),
        ("--label-dict short.txt", "--label-dict short.txt: "),
        ("--bpe-codes short.txt --tokenizer x", "--bpe-codes and --tokenizer"),
        ("--tokenizer x --lowercase yes", "leave --lowercase out"),
        ("--verify-text empty.txt", "--verify-text empty.txt: no text in it"),
        ("--tokenizer none", "--tokenizer none: "),
        ("--target-dict short.txt", "--target-dict short.txt: "),
    ):
        assert message in refused(capsys, checkpoint, *flags.split())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        assert "export-hf needs transformers: pip install transformers safetensors" in refused(capsys, checkpoint)


def test_labels_and_dictionaries_of_another_model(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "tupe_tiny", "", task=f"{CLASSES} --num-classes 2")
    assert f"3 labels, the head '{HEAD}' has 2 classes" in refused(capsys, checkpoint)
    checkpoint = seq2seq_checkpoint(tmp_path / "d", "transformer")
    german, english = checkpoint.folder / "data" / "dict.de.txt", checkpoint.folder / "data" / "dict.en.txt"
    for flags, message in (
        (("--dict", english), "check that --dict belongs to it"),
        (("--target-dict", german), "check that --dict belongs to it"),
        (("--sentencepiece-model", english), f"--sentencepiece-model {english}: "),
    ):
        assert message in refused(capsys, checkpoint, *flags)
    english.unlink()
    error = refused(capsys, checkpoint)
    assert all(part in error for part in ("no dict.en.txt in ", "--target-dict"))
    english = checkpoint.folder / "dict.en.txt"  # next to the checkpoint
    english.write_text("".join(f"{word} 1\n" for word in WORDS))
    assert open_trained(checkpoint.path).target.path == str(english)


def test_labels_of_the_checkpoint_come_before_a_file_that_is_found(tmp_path):
    """A label/dict.txt that was made again, of other text, has another order."""
    checkpoint = checkpoint_of(tmp_path / "c", "tupe_tiny", "", task=f"{CLASSES} --num-classes 3")
    file = str(checkpoint.folder / "data/label/dict.txt")
    assert open_trained(checkpoint.path).labels == ["a", "b", "c"], "of an earlier checkpoint"
    torch.save({**checkpoint.state, "task_state": {"labels": ["c", "a", "b"]}}, checkpoint.path)
    assert open_trained(checkpoint.path).labels == ["c", "a", "b"]
    assert open_trained(checkpoint.path, label_dictionary=file).labels == ["a", "b", "c"]


def test_a_preset_of_another_plugin(tmp_path, capsys):
    """`--user-dir` names the plugin; what is known of the model that it is a preset of, is known of it."""
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", "")
    state = copy.deepcopy(checkpoint.state)
    state["cfg"]["model"].arch = state["cfg"]["model"]._name = "preset_of_a_plugin"
    torch.save(state, checkpoint.path)
    assert "--user-dir" in refused(capsys, checkpoint)
    assert "--user-dir nowhere: " in refused(capsys, checkpoint, "--user-dir", "nowhere")
    plugin = tmp_path / "plugin_with_a_preset"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(
        "from fairseq.models import register_model_architecture\n"
        "register_model_architecture('roberta', 'preset_of_a_plugin')(lambda args: None)\n"
    )
    assert export_hf(checkpoint, "--user-dir", plugin) == 0
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert (config["architectures"], config["hidden_size"]) == (["RobertaForMaskedLM"], 8)
