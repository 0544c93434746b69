"""config.json, model.safetensors and the modelling code of a Hugging Face directory."""

from __future__ import annotations

import ast
import errno
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.export.trained import Trained
from embinit_fairseq.files import write_json, write_text
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS
from embinit_fairseq.version import VERSION

if TYPE_CHECKING:
    from torch import Tensor


# ----------------------------------------------------------------------------------------------------------------------
# One Python file out of several: a source and, in place of its imports from this package, what it imports.
#
# So the exported model is made of the modules that fairseq trains, and there is no second statement of the equations.
# What is taken along is what is used: definitions are followed by name.

PACKAGE = __name__.partition(".")[0]
_WIDTH = 120


@dataclass
class _Part:
    """A module: its docstring, top-level definitions (name -> statement), statements that define nothing, imports."""

    docstring: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    statements: dict[int, str] = field(default_factory=dict)
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    inlined: list[ast.ImportFrom] = field(default_factory=list)


def bundle(source: str, stand_ins: Mapping[str, str], beside: Mapping[str, str]) -> str:
    """The text of module `source` without imports from this package.

    stand_ins: module -> the one that takes its place. beside: module -> name of the file that it becomes.
    """
    parts: dict[str, _Part] = {}
    _collect(source, stand_ins, beside, parts)
    owner: dict[str, str] = {}
    for module, part in parts.items():
        for name in part.definitions:
            if name in owner:
                raise RuntimeError(f"{name} is defined in {owner[name]} and in {module}: one file cannot hold both")
            owner[name] = module
    needed = _reachable(parts, owner, source)
    sections = []
    for module, part in parts.items():
        kept = [text for line, text in part.statements.items() if _names_at(part, line) & needed or module == source]
        if kept:
            sections.append(("" if module == source else _comment(part.docstring)) + "\n\n\n".join(kept))
    body = "\n\n\n".join(sections) + "\n"
    head = f'"""{parts[source].docstring}"""\n\nfrom __future__ import annotations\n'
    return "\n".join([head, _imports(parts, needed), "", body])


def _collect(module: str, stand_ins: Mapping[str, str], beside: Mapping[str, str], parts: dict[str, _Part]) -> None:
    """Read `module` behind everything it needs."""
    text = source_of(module)
    tree = ast.parse(text)
    part = _Part(ast.get_docstring(tree, clean=False) or "")
    lines, end = text.splitlines(), 0
    for node in tree.body:
        begin, end = end, node.end_lineno or 0
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _sort_import(node, part, stand_ins, beside, parts)
        elif begin or not isinstance(node, ast.Expr):  # the first expression is the docstring
            part.statements[node.lineno] = "\n".join(lines[begin:end]).strip("\n")
            part.definitions.update(dict.fromkeys(_defined(node), node))
    parts[module] = part


def _sort_import(
    node: ast.Import | ast.ImportFrom,
    part: _Part,
    stand_ins: Mapping[str, str],
    beside: Mapping[str, str],
    parts: dict[str, _Part],
) -> None:
    module = getattr(node, "module", None) or ""
    if module.partition(".")[0] != PACKAGE:
        part.imports.append(node)
        return
    if any(alias.asname for alias in node.names):
        raise RuntimeError(f"{module} is imported under another name, which one file cannot do")
    if module in beside:
        part.imports.append(ast.ImportFrom(beside[module], node.names, level=1))
        return
    module = stand_ins.get(module, module)
    if module not in parts:
        _collect(module, stand_ins, beside, parts)


def source_of(module: str) -> str:
    """The text of a module, which is not run."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None  # a file of this package
    return Path(spec.origin).read_text(encoding="utf-8")


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if not isinstance(target, ast.Name):
                raise RuntimeError(f"line {node.lineno}: an assignment to several names cannot be followed by name")
            yield target.id
    else:
        raise RuntimeError(f"line {node.lineno}: a {type(node).__name__} cannot be taken into one file")


def _names_at(part: _Part, line: int) -> set[str]:
    return {name for name, node in part.definitions.items() if node.lineno == line}


def _used(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def _reachable(parts: Mapping[str, _Part], owner: Mapping[str, str], source: str) -> set[str]:
    """Names that the definitions of `source` lead to, its own and those of imports included."""
    reachable: set[str] = set()
    waiting = list(parts[source].definitions)
    while waiting:
        name = waiting.pop()
        if name not in reachable:
            reachable.add(name)
            if name in owner:
                waiting += _used(parts[owner[name]].definitions[name])
    return reachable


def _imports(parts: Mapping[str, _Part], needed: set[str]) -> str:
    """Imports of all parts that are used, each once, in the order of isort."""
    plain: set[str] = set()
    names: dict[str, set[str]] = {}
    for part in parts.values():
        for node in part.imports:
            kept = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in needed]
            written = {alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in kept}
            if isinstance(node, ast.Import):
                plain |= {f"import {name}" for name in written}
            elif written and node.module != "__future__":
                names.setdefault("." * node.level + str(node.module), set()).update(written)
    lines = sorted(plain) + [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)]
    groups: list[list[str]] = [[], [], []]
    for line in lines:
        module = line.split()[1]
        groups[2 if module.startswith(".") else int(module.split(".")[0] in ("torch", "transformers"))].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def _comment(docstring: str) -> str:
    """A module's docstring as a comment above its section."""
    lines = [f"# {line}".rstrip() for line in docstring.strip().splitlines()]
    return "\n".join([f"# {'-' * (_WIDTH - 2)}", *lines, f"# {'-' * (_WIDTH - 2)}"]) + "\n\n\n"


# ----------------------------------------------------------------------------------------------------------------------

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
    known = POSITION_ENCODINGS[str(cfg.position_encoding)]
    settings = {
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
        "reset": str(cfg.tupe_reset) if known.resets and not cfg.tupe_tie_cls else None,
        "num_buckets": cfg.rel_pos_bins if known.has_buckets(cfg.rel_pos) else 0,
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
    return {**settings, **_classes(trained)}


def _classes(trained: Trained) -> dict[str, Any]:
    if trained.head is None:
        return {}
    head = trained.model.classification_head(trained.head)
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
    tensors = {f"{prefix}{name}": value for name, value in model.encoder.sentence_encoder.state_dict().items()}
    if trained.head is not None:
        head = model.classification_heads[trained.head]
        tensors.update({f"classifier.{name}": value for name, value in head.state_dict().items()})
    elif trained.lm_head is not None:
        lm_head = {name: value for name, value in trained.lm_head.state_dict().items() if name != "weight"}
        tensors.update({f"lm_head.{'decoder.bias' if name == 'bias' else name}": lm_head[name] for name in lm_head})
    return {name: value.detach().contiguous() for name, value in tensors.items()}


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
    """Write all three; returns the names. The model's parameters are of type `dtype` already."""
    names = ["config.json", "model.safetensors"]
    write_json(folder / names[0], configuration(trained, dtype))
    save_tensors(weights(trained), folder / names[1])
    shutil.copymode(folder / names[0], folder / names[1])  # safetensors would leave it to its owner alone
    for name, text in modelling_code().items():
        write_text(folder / name, text)
        names.append(name)
    return names
