"""config.json, model.safetensors, the settings of generation and the modelling code of a Hugging Face directory."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.files import write_json, write_text
from embinit_fairseq.version import VERSION

if TYPE_CHECKING:
    from torch import Tensor

    from embinit_fairseq.export.trained import Trained


#: an import from this package, of which the folder of an export has the module as a file
_IMPORT = re.compile(rf"^from {__name__.partition('.')[0]}\.(?:\w+\.)*(\w+) import", re.MULTILINE)


def code_files(*modules: str) -> dict[str, str]:
    """Modules of this package (`modules.heads`) as files of one folder: name -> text, which imports relatively."""
    return {f"{module.rpartition('.')[2]}.py": _IMPORT.sub(r"from .\1 import", source_of(module)) for module in modules}


def source_of(module: str) -> str:
    """The text of a module of this package, which is not run."""
    return Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; OSError if the disk does not allow it, for which safetensors has a class of its own."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(error), str(path)) from error


def write_files(trained: Trained, dtype: str, folder: Path) -> list[str]:
    """Write them; returns the names. The model's parameters are of type `dtype` already."""
    names = ["config.json", "model.safetensors"]
    write_json(folder / names[0], configuration(trained, dtype))
    save_tensors(trained.architecture.weights(trained), folder / names[1])
    shutil.copymode(folder / names[0], folder / names[1])  # safetensors would leave it to its owner alone
    generation = trained.architecture.generation(trained)
    if generation is not None:
        names.append("generation_config.json")
        write_json(folder / names[-1], generation)
    for name, text in code_files(*trained.architecture.CODE).items():
        write_text(folder / name, text)
        names.append(name)
    return names


def configuration(trained: Trained, dtype: str) -> dict[str, Any]:
    """The content of config.json: the architecture's settings and what all have. dtype: float32, say."""
    import transformers

    dictionary = trained.source.dictionary
    return {
        **trained.architecture.settings(trained),
        "vocab_size": len((trained.target or trained.source).symbols),
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "torch_dtype": dtype,
        "transformers_version": transformers.__version__,
        "embinit_fairseq_version": VERSION,
        **_classes(trained),
    }


def _classes(trained: Trained) -> dict[str, Any]:
    if trained.head is None:
        return {}
    outputs = trained.model.classification_heads[trained.head].out_proj.out_features
    names = trained.labels or [f"LABEL_{number}" for number in range(outputs)]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "regression" if trained.is_regression else "single_label_classification",
    }
