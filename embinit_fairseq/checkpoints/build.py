"""Build and load the model of a checkpoint by fairseq itself, with dictionaries of the caller's choice.

fairseq knows best which symbols a task appends, in which order an optimizer counts parameters, which tensors are tied,
and which of them have one row per symbol (they grow with the dictionary).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import io
import logging
import os
import pickle
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoint_file import options_of
from embinit_fairseq.errors import CheckpointError, EmbinitError, OptionError
from embinit_fairseq.io import temporary_folder

if TYPE_CHECKING:
    from torch import nn

#: translation has a dictionary for the source (encoder) and one for the target (decoder); other tasks have one
SIDES = ("encoder", "decoder")
#: languages of a translation if neither the checkpoint nor file names have them
UNKNOWN_LANGUAGES = ("source", "target")
_HEAVY = ("model", "last_optimizer_state", "criterion")
#: options that are reset: the weights come from the checkpoint, not from vector files; and by its record of
#: `--embed-init` a model would refuse another dictionary (callers check that, since a side's symbols may be made up)
_RESET = dict.fromkeys(("encoder_embed_path", "decoder_embed_path", "embed_init", "embed_init_record"))
_ONE_WORD = "word 1\n"


@dataclass(frozen=True)
class Texts:
    """Hold the texts of `dict.txt` of both sides of a model; the same text twice if it has one dictionary."""

    source: str
    target: str

    def of(self, sides: Collection[str]) -> str:
        """Return the text of a dictionary that these sides use; one line for labels, which no side uses."""
        if not sides:
            return _ONE_WORD
        return self.source if "encoder" in sides else self.target

    def replaced(self, sides: Collection[str], text: str) -> Texts:
        """Return the texts with `text` on these sides."""
        return Texts(text if "encoder" in sides else self.source, text if "decoder" in sides else self.target)


class Builder:
    """Build the task and the model of a checkpoint, with dictionaries from `Texts` instead of files.

    The task itself says which files it wants: while it is set up, fairseq's reading of dictionaries is replaced.
    Every method raises CheckpointError, naming the file, if fairseq fails.

    Args:
        path: the checkpoint, for messages.
        state: its content.
        languages: (source, target) for a task with two dictionaries, else None; see `languages_of`.
    """

    def __init__(self, path: str, state: dict[str, Any], languages: tuple[str, str] | None) -> None:
        self.path, self.languages = path, languages
        self.options = options_of(state, "task")
        self._state = {key: value for key, value in state.items() if key not in _HEAVY}
        self._state["extra_state"] = {
            key: value for key, value in (state.get("extra_state") or {}).items() if not key.startswith("ema")
        }

    @functools.cached_property
    def files(self) -> dict[str, set[str]]:
        """Return name of each dictionary that the task reads, relative to its data -> its sides (labels: none)."""
        with self._prepared(None) as (cfg, read):
            dictionaries = dictionaries_of(self._set_up(cfg))
        files: dict[str, set[str]] = {name: set() for name, _ in read}
        for name, dictionary in read:
            files[name] |= {side for side, of_side in zip(SIDES, dictionaries) if of_side is dictionary}
        pairs = self.options.get("lang_pairs") or ()  # a task with pairs shows the dictionaries of its first pair only
        for pair in pairs.split(",") if isinstance(pairs, str) else pairs:
            for side, language in zip(SIDES, pair.split("-")):
                files.get(f"dict.{language}.txt", set()).add(side)
        if not any(files.values()):
            raise CheckpointError(f"{self.path}: its task reads no dictionary; name a checkpoint of a model of text")
        return files

    @property
    def two_sided(self) -> bool:
        """Return True if encoder and decoder have dictionaries of their own."""
        return sorted({tuple(sides) for sides in self.files.values() if sides}) == [("decoder",), ("encoder",)]

    def set_up(self, texts: Texts) -> Any:
        """Return the task."""
        with self._prepared(texts) as (cfg, _):
            return self._set_up(cfg)

    def build(self, texts: Texts) -> nn.Module:
        """Return the model with freshly drawn weights."""
        with self._prepared(texts) as (cfg, _), self._explained("built"):
            task = self._set_up(cfg)
            if "from_checkpoint" in inspect.getfullargspec(task.build_model).args:
                return task.build_model(cfg.model, from_checkpoint=True)
            return task.build_model(cfg.model)

    def load(self, texts: Texts, weights: Mapping[str, Any], file: str | None = None) -> tuple[Any, Any]:
        """Return (model, task) as fairseq-generate has them; every tensor of `weights` fits and none is missing."""
        from fairseq import checkpoint_utils

        file = file or self.path
        with self._prepared(texts) as (cfg, _), self._explained("loaded", file):
            state = {**self._state, "args": None, "cfg": cfg, "model": dict(weights)}
            models, _, task = checkpoint_utils.load_model_ensemble_and_task([file], state=state)
        return models[0].eval(), task

    def _set_up(self, cfg: Any) -> Any:
        from fairseq import tasks

        with self._explained("set up for a dictionary"):
            return tasks.setup_task(cfg.task)

    @contextlib.contextmanager
    def _prepared(self, texts: Texts | None) -> Iterator[tuple[Any, list[tuple[str, Any]]]]:
        """Yield the checkpoint's configuration, and (name, dictionary) of every dictionary that fairseq reads.

        texts: None to find out which dictionaries are read. Log and random states stay untouched.
        """
        import torch
        from fairseq.data import Dictionary

        files = {} if texts is None else self.files
        read: list[tuple[str, Any]] = []
        add_from_file = Dictionary.add_from_file

        def add_from_text(dictionary: Any, file: Any) -> None:
            if isinstance(file, str):
                name = os.path.relpath(file, data)
                name = os.path.basename(file) if name.startswith(os.pardir) else name  # --fixed-dictionary
                read.append((name, dictionary))
                file = io.StringIO(_ONE_WORD if texts is None else texts.of(files.get(name, ())), newline=None)
            add_from_file(dictionary, file)

        with temporary_folder() as folder, torch.random.fork_rng(devices=[]):
            data, disabled = data_folder(self.options, folder), logging.root.manager.disable
            Dictionary.add_from_file = add_from_text
            logging.disable(logging.WARNING)  # messages about every model that is loaded
            try:
                yield self._cfg(data), read
            finally:
                Dictionary.add_from_file = add_from_file
                logging.disable(disabled)

    def _cfg(self, data: str) -> Any:
        """Return a copy of the configuration, since tasks and models change theirs."""
        with self._explained("read as a configuration of fairseq"):
            cfg = pickle.loads(self._upgraded)  # a third of the time of copy.deepcopy
            for part in (cfg.task, cfg.model):
                if isinstance(part, Namespace) or (part is not None and "data" in part):
                    part.data = data
        return cfg

    @functools.cached_property
    def _upgraded(self) -> bytes:
        """Return the configuration, pickled, as fairseq's `load_checkpoint_to_cpu` upgrades it."""
        from fairseq import checkpoint_utils
        from fairseq.dataclass.utils import overwrite_args_by_name
        from omegaconf import OmegaConf

        state = copy.deepcopy(self._state)
        if state.get("cfg") is not None:
            state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        cfg = checkpoint_utils._upgrade_state_dict(state)["cfg"]
        languages = dict(zip(("source_lang", "target_lang"), self.languages or ()))
        overwrite_args_by_name(cfg, {**languages, **_RESET})
        return pickle.dumps(cfg)

    @contextlib.contextmanager
    def _explained(self, done: str, file: str | None = None) -> Iterator[None]:
        try:
            yield
        except EmbinitError:
            raise
        except Exception as error:  # whatever a task or a model of any fairseq plugin may raise
            task = self.options.get("_name") or self.options.get("task")
            raise CheckpointError(
                f"{file or self.path} (task {task}): cannot be {done} ({_reason(error)}); check that --dict belongs "
                "to it, and name the plugin it was trained with (--user-dir) if there was another than this one"
            ) from error


# ---- Input of a task: dictionaries, languages, data -----------------------------------------------------------------


def dictionaries_of(task: Any) -> tuple[Any, Any]:
    """Return fairseq's dictionaries of source and target; a task's only dictionary twice."""
    source = target = None
    with contextlib.suppress(NotImplementedError):
        source = task.source_dictionary
    with contextlib.suppress(NotImplementedError):
        target = task.target_dictionary
    return source or target, target or source


def languages_of(options: dict[str, Any], path: str) -> tuple[str, str] | None:
    """Return (source, target) for a task that needs two languages; None for other tasks, also with --lang-pairs.

    If the checkpoint does not name the languages (fairseq inferred them from its data), they are inferred from the
    names of the binarised files next to `path`, else in the folder of the training's data, else UNKNOWN_LANGUAGES.

    Args:
        options: the task's options in the checkpoint.
        path: the dictionary.
    """
    if options.get("lang_pairs") or "source_lang" not in options or "target_lang" not in options:
        return None
    if options["source_lang"] and options["target_lang"]:
        return options["source_lang"], options["target_lang"]
    data = str(options.get("data") or "").split(os.pathsep)[0]
    for folder in (Path(path).parent, *([Path(data)] if data else ())):
        for file in sorted(folder.glob("*.*-*.*")) if folder.is_dir() else ():
            pair = file.name.split(".")[1].split("-")
            if len(pair) == 2 and all(pair):
                return pair[0], pair[1]
    return UNKNOWN_LANGUAGES


def data_folder(options: dict[str, Any], temporary: Path) -> str:
    """Return the folder of the training's data, or `temporary` if it is gone.

    Some tasks look into the folder for a configuration, or for folders of languages, for which they append tags.
    Folders for `--langs` are made in `temporary`.
    """
    langs, data = options.get("langs"), str(options.get("data") or "").split(os.pathsep)[0]
    languages = langs.split(",") if isinstance(langs, str) else []
    for language in dict.fromkeys(languages):
        if Path(language).name == language:
            (temporary / language).mkdir()
    return str(temporary) if languages or not os.path.isdir(data) else data


def import_plugin(folder: str | None) -> None:
    """Import the plugin of `--user-dir`, which registers its models and tasks; raise OptionError if there is none."""
    if folder is None:
        return
    from fairseq.utils import import_user_module

    try:
        import_user_module(Namespace(user_dir=folder))
    except (FileNotFoundError, ImportError) as error:
        raise OptionError(f"--user-dir {folder}: no plugin of fairseq ({_reason(error)}); give its folder") from error


def _reason(error: Exception) -> str:
    """Return an error's type and first line, without torch's first line, which names only the class of the model."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines[1:] if len(lines) > 1 and lines[0].startswith("Error(s) in loading") else lines
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
