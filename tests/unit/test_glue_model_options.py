"""scripts/glue/model_options.py: a checkpoint's model is built again with the same options."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import embinit_fairseq  # noqa: F401
from embinit_fairseq.errors import CheckpointError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from glue import model_options

COMMON = ["data", "--task", "sentence_prediction", "--num-classes", "2", "--criterion", "sentence_prediction_metrics"]
MODELS = {
    "roberta": ["--encoder-layers", "2", "--layernorm-embedding", "--dropout", "0.25", "--max-positions", "17"],
    "tupe_tiny": ["--rel-pos", "--embedding-normalize", "--tupe-reset", "paper", "--dropout", "0.0"],
    "embinit_classifier": ["--pooling", "cls", "--encoder-embed-dim", "30", "--encoder-attention-heads", "3"],
}


def configuration(words):
    """What fairseq makes of a command line."""
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [*COMMON, *words]))


def saved_model(cfg):
    """The model's options as fairseq's trainer saves them: plain data, or the flat namespace of an old architecture."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)["model"]


def as_dict(model):
    values = model if isinstance(model, dict) else vars(model)
    return {key: value for key, value in values.items() if key not in ("warmup_updates", "lr")}


@pytest.mark.parametrize("arch", list(MODELS))
def test_the_same_options_come_back(arch, tmp_path, capsys, monkeypatch):
    first = saved_model(configuration(["--arch", arch, *MODELS[arch]]))
    path = tmp_path / "checkpoint.pt"
    torch.save({"cfg": {"model": first}, "model": {}, "optimizer_history": [{"num_updates": 321}]}, path)
    monkeypatch.setattr(sys, "argv", ["model_options", str(path)])
    model_options.main()
    updates, *words = capsys.readouterr().out.splitlines()
    assert updates == "321"
    assert words[:2] == ["--arch", arch]
    assert as_dict(saved_model(configuration(words))) == as_dict(first)
    # the options were not lost on the way to both sides
    assert as_dict(saved_model(configuration(["--arch", arch]))) != as_dict(first)


def test_models_of_other_tasks_are_refused(tmp_path, monkeypatch):
    """Before their options are looked at: one of them may have no words of a command line."""
    path = tmp_path / "c.pt"
    torch.save({"cfg": {"model": {"_name": "transformer_iwslt_de_en", "decoder_output_dim": "50"}}, "model": {}}, path)
    monkeypatch.setattr(sys, "argv", ["model_options", str(path)])
    refused = f"error: {path}: a model of --arch transformer_iwslt_de_en, which is not one for sentence_prediction; "
    with pytest.raises(SystemExit, match=re.escape(refused) + r"give .*\(tupe_\*, .*roberta_\*, "):
        model_options.main()
    monkeypatch.setattr(sys, "argv", ["model_options", str(path), "--arch", "lstm"])
    with pytest.raises(SystemExit, match="error: --arch lstm: a model, which is not one for sentence_prediction"):
        model_options.main()


@pytest.mark.parametrize(
    "arch",
    ["tupe_tiny", "bert_a_base", "bert_r_tiny", "bert_ad_base", "electra_tupe_base", "roberta_base", "bart_base"],
)
def test_models_that_classify_sentences(arch):
    assert arch in model_options.ARCH_MODEL_REGISTRY
    model_options.check_architecture(arch, None)


def test_a_dictionary_of_another_size_is_refused(tmp_path):
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("a 1\nb 1\n")  # and <s>, <pad>, </s>, <unk>, <mask>
    name = "encoder.sentence_encoder.embed_tokens.weight"
    model_options.check_dictionary({"model": {name: torch.zeros(7, 2)}}, tmp_path / "c.pt", dictionary)
    for rows in (6, 8):
        message = rf"dict.txt has 7 symbols .with <mask>., the model in .*c.pt {rows}: .*--dict FILE"
        with pytest.raises(CheckpointError, match=message):
            model_options.check_dictionary({"model": {name: torch.zeros(rows, 2)}}, tmp_path / "c.pt", dictionary)


def test_what_cannot_be_written_as_words_is_an_error():
    with pytest.raises(CheckpointError, match=r"no command line gives these options: --encoder-layers=2.5"):
        model_options.architecture_options("roberta", {"encoder_layers": 2.5})
    with pytest.raises(CheckpointError, match=r"gives encoder_layers_to_keep = \[0, 1\]"):
        model_options.architecture_options("roberta", {"encoder_layers_to_keep": [0, 1]})
    with pytest.raises(CheckpointError, match="nowhere is not registered"):
        model_options.architecture_options("nowhere", {})


def test_a_file_without_a_configuration(tmp_path):
    with pytest.raises(CheckpointError, match="give --arch and its options yourself"):
        model_options.model_configuration({"model": {}}, tmp_path / "c.pt")
    old = {"args": argparse.Namespace(arch="roberta_base", dropout=0.1)}
    assert model_options.model_configuration(old, tmp_path / "c.pt") == {"arch": "roberta_base", "dropout": 0.1}
