"""The options of a training that has left no command: from the configuration in its log, or in its checkpoints."""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

#: no settings of the experiment: seeds, places, what is shown, how the processes find each other, and our own record of
#: how the tables were filled, which only checkpoints have
_NO_SETTINGS = frozenset(
    "seed save_dir user_dir log_file log_format log_interval no_progress_bar tensorboard_logdir wandb_project "
    "azureml_logging num_workers num_workers_valid data_buffer_size plasma_path suppress_crashes device_id "
    "distributed_port distributed_init_method distributed_rank distributed_num_procs embed_init_record".split()
)


def options_of_text(configuration: str) -> dict[str, str]:
    """Option -> value, as text, of what fairseq-train prints at its start; {} where that cannot be read."""
    try:
        tree = ast.parse(configuration, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a log that was cut off, or of something else
        return {}
    return _settings(_leaves(tree))


def _leaves(node: ast.expr, name: str = "") -> Iterator[tuple[str, str]]:
    """Dictionaries and Namespace(...), one in the other."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values):
            yield from _leaves(value, key.value if isinstance(key, ast.Constant) else name)
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            yield from _leaves(keyword.value, keyword.arg or name)
    else:
        yield name, ast.unparse(node)


def options_of_sections(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The same of the configuration in a checkpoint, a mapping of sections."""
    return _settings(_values(configuration))


def _values(node: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, Namespace):
        node = vars(node)
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _values(value, str(key))
    else:
        yield name, repr(node.value if isinstance(node, Enum) else node)


def _settings(found: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Sections may say the same option; all of them count."""
    joined: dict[str, list[str]] = {}
    for name, value in found:
        if name not in _NO_SETTINGS and name != "_name":
            joined.setdefault(name, [])
            if value not in joined[name]:
                joined[name].append(value)
    return {name: ", ".join(sorted(values)) for name, values in joined.items()}
