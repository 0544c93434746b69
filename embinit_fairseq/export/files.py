"""config.json, model.safetensors and the modelling code of a Hugging Face directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.export.bundle import bundle, source_of
from embinit_fairseq.export.trained import Trained
from embinit_fairseq.version import VERSION

if TYPE_CHECKING:
    from torch import Tensor

_REMOTE = f"{__name__.rpartition('.')[0]}.remote"
_STAND_INS = {"embinit_fairseq.modules.attention_kernels": f"{_REMOTE}.attention"}
_AUTO_MAP = {
    "AutoConfig": "configuration_tupe.TupeConfig",
    "AutoModel": "modeling_tupe.TupeModel",
    "AutoModelForMaskedLM": "modeling_tupe.TupeForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_tupe.TupeForSequenceClassification",
}


def modelling_code() -> dict[str, str]:
    """Names and texts of the Python files: torch and transformers are all they need."""
    beside = {f"{_REMOTE}.configuration_tupe": "configuration_tupe"}
    return {
        "configuration_tupe.py": source_of(f"{_REMOTE}.configuration_tupe"),
        "modeling_tupe.py": bundle(f"{_REMOTE}.modeling_tupe", _STAND_INS, beside),
    }


def configuration(trained: Trained, dtype: str) -> dict[str, Any]:
    """The content of config.json. dtype: float32, say."""
    import transformers

    cfg, dictionary = trained.model.cfg, trained.model.encoder.dictionary
    untied = str(cfg.position_encoding) == "untied"
    relative = str(cfg.position_encoding) == "relative" or (untied and cfg.rel_pos)
    found = {
        "architectures": [_AUTO_MAP[trained.auto_class].rpartition(".")[2]],
        "auto_map": _AUTO_MAP,
        "model_type": "tupe",
        "vocab_size": len(trained.symbols),
        "hidden_size": cfg.encoder_embed_dim,
        "num_hidden_layers": cfg.encoder_layers,
        "num_attention_heads": cfg.encoder_attention_heads,
        "intermediate_size": cfg.encoder_ffn_embed_dim,
        "hidden_act": str(cfg.activation_fn),
        "hidden_dropout_prob": cfg.dropout,
        "attention_probs_dropout_prob": cfg.attention_dropout,
        "activation_dropout": cfg.activation_dropout,
        "max_position_embeddings": cfg.max_positions,
        "position_encoding": str(cfg.position_encoding),
        "reset": str(cfg.tupe_reset) if untied and not cfg.tupe_tie_cls else None,
        "num_buckets": cfg.rel_pos_bins if relative else 0,
        "max_distance": cfg.max_rel_pos,
        "normalize_before": cfg.encoder_normalize_before,
        "embedding_normalize": cfg.embedding_normalize,
        "classifier_activation": str(cfg.pooler_activation_fn),
        "classifier_dropout": cfg.pooler_dropout,
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        "transformers_version": transformers.__version__,
        "embinit_fairseq_version": VERSION,
    }
    return {**found, **_classes(trained)}


def _classes(trained: Trained) -> dict[str, Any]:
    if trained.head is None:
        return {}
    head = trained.model.classification_heads[trained.head]
    names = trained.labels or [f"LABEL_{number}" for number in range(head.out_proj.out_features)]
    return {
        "classifier_size": head.dense.out_features,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "regression" if trained.is_regression else "single_label_classification",
    }


def weights(trained: Trained) -> dict[str, Tensor]:
    """The model's tensors under their exported names; the head's tied matrix is the embeddings and not named again."""
    model, prefix = trained.model, "" if trained.auto_class == "AutoModel" else "tupe."
    found = {f"{prefix}{name}": value for name, value in model.encoder.sentence_encoder.state_dict().items()}
    if trained.head is not None:
        head = model.classification_heads[trained.head]
        found.update({f"classifier.{name}": value for name, value in head.state_dict().items()})
    elif trained.lm_head is not None:
        head = {name: value for name, value in trained.lm_head.state_dict().items() if name != "weight"}
        found.update({f"lm_head.{'decoder.bias' if name == 'bias' else name}": head[name] for name in head})
    return {name: value.detach().contiguous() for name, value in found.items()}


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; OSError if the disk does not allow it, for which safetensors has a class of its own."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def write_files(trained: Trained, dtype: str, folder: Path) -> list[str]:
    """Write all three; returns the names. The model's parameters are of type `dtype` already."""
    names = ["config.json", "model.safetensors"]
    (folder / names[0]).write_text(json.dumps(configuration(trained, dtype), indent=2) + "\n", encoding="utf-8")
    save_tensors(weights(trained), folder / names[1])
    shutil.copymode(folder / names[0], folder / names[1])  # safetensors would leave it to its owner alone
    for name, text in modelling_code().items():
        (folder / name).write_text(text, encoding="utf-8")
        names.append(name)
    return names
