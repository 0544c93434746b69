"""The model of a checkpoint, built and loaded by fairseq itself with dictionaries of our choice.

fairseq knows best: which symbols a task appends, in which order an optimiser counts parameters, which tensors are tied,
and which of them have a row a symbol (they grow with the dictionary).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoints.reading import options_of
from embinit_fairseq.errors import CheckpointError, EmbinitError, OptionError
from embinit_fairseq.files import temporary_folder

if TYPE_CHECKING:
    from torch import nn

_HEAVY = ("model", "last_optimizer_state", "criterion")
#: what a model would read from files when it is built, though its weights come from the checkpoint
_NO_FILES = {"encoder_embed_path": None, "decoder_embed_path": None, "embed_init": None}
#: the report of an initialisation, by which a model notices another dictionary: callers check that, since here the
#: symbols of a side may be made up
_NO_RECORD = {"embed_init_record": None}


@dataclass(frozen=True)
class Texts:
    """The texts of `dict.txt` of a model's two sides; of one dictionary, twice the same."""

    source: str
    target: str


class Builder:
    """Builds what a checkpoint holds. languages: (source, target) of a task with two dictionaries, else None.

    Every method raises CheckpointError, naming the file, where fairseq cannot do it.
    """

    def __init__(self, path: str, state: dict[str, Any], languages: tuple[str, str] | None) -> None:
        self.path, self.languages = path, languages
        self.options = options_of(state, "task")
        self._state = {key: value for key, value in state.items() if key not in _HEAVY}
        self._state["extra_state"] = {
            key: value for key, value in (state.get("extra_state") or {}).items() if not key.startswith("ema")
        }

    def set_up(self, texts: Texts) -> Any:
        """The task."""
        with self._prepared(texts) as cfg:
            return self._set_up(cfg)

    def build(self, texts: Texts) -> nn.Module:
        """The model, with weights as they are drawn."""
        with self._prepared(texts) as cfg, self._explained("built"):
            self._check_arch(cfg.model)
            task = self._set_up(cfg)
            if "from_checkpoint" in inspect.getfullargspec(task.build_model).args:
                return task.build_model(cfg.model, from_checkpoint=True)
            return task.build_model(cfg.model)

    def load(self, texts: Texts, weights: Mapping[str, Any], file: str | None = None) -> tuple[Any, Any]:
        """(model, task) as fairseq-generate has them: every tensor in `weights` fits, none is missing."""
        from fairseq import checkpoint_utils

        file = file or self.path
        with self._prepared(texts) as cfg, self._explained("loaded", file):
            self._check_arch(cfg.model)
            state = {**self._state, "args": None, "cfg": cfg, "model": dict(weights)}
            models, _, task = checkpoint_utils.load_model_ensemble_and_task([file], state=state)
        return models[0].eval(), task

    def _set_up(self, cfg: Any) -> Any:
        from fairseq import tasks

        with self._explained("set up for a dictionary"):
            return tasks.setup_task(cfg.task)

    def _check_arch(self, options: Any) -> None:
        """fairseq itself says KeyError: '_name'."""
        from fairseq.models import ARCH_MODEL_REGISTRY

        arch = getattr(options, "_name", None) or getattr(options, "arch", None)
        if arch and arch not in ARCH_MODEL_REGISTRY:
            raise CheckpointError(
                f"{self.path}: a model of --arch {arch}, which neither fairseq nor this plugin has; name the plugin it "
                "was trained with (--user-dir)"
            )

    @contextlib.contextmanager
    def _prepared(self, texts: Texts) -> Iterator[Any]:
        """The checkpoint's configuration over a folder with these dictionaries; no log, no trace in random states."""
        import torch

        with temporary_folder() as folder, torch.random.fork_rng(devices=[]), _quiet():
            write_dictionaries(folder, self.options, texts, self.languages)
            yield self._cfg(str(folder))

    def _language_options(self) -> dict[str, str]:
        return {} if self.languages is None else dict(zip(("source_lang", "target_lang"), self.languages))

    def _cfg(self, data: str) -> Any:
        """A copy, since tasks and models change theirs."""
        with self._explained("read as a configuration of fairseq"):
            cfg = copy.deepcopy(self._upgraded)
            for part in (cfg.task, cfg.model):
                if isinstance(part, Namespace) or (part is not None and "data" in part):
                    part.data = data
        return cfg

    @functools.cached_property
    def _upgraded(self) -> Any:
        """As `fairseq.checkpoint_utils.load_checkpoint_to_cpu` makes it; there is no other way to hand it options."""
        from fairseq import checkpoint_utils
        from fairseq.dataclass.utils import overwrite_args_by_name
        from omegaconf import OmegaConf

        state = copy.deepcopy(self._state)
        if state.get("cfg") is not None:
            state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        cfg = checkpoint_utils._upgrade_state_dict(state)["cfg"]
        overwrite_args_by_name(cfg, {**self._language_options(), **_NO_FILES, **_NO_RECORD})
        return cfg

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


def write_dictionaries(
    folder: Path, options: dict[str, Any], texts: Texts, languages: tuple[str, str] | None
) -> dict[str, str]:
    """Write the files in which a task of fairseq looks for its dictionaries; returns name -> text."""
    pairs = paired_languages(options) if texts.source == texts.target else []
    if languages is not None or pairs:
        files = {f"dict.{language}.txt": text for language, text in zip(languages or (), (texts.source, texts.target))}
        files |= {f"dict.{language}.txt": texts.source for language in pairs}
    elif str(options.get("_name") or options.get("task")).startswith("sentence_"):
        classes = "".join(f"class{number} 1\n" for number in range(options.get("num_classes") or 0))
        files = {"dict.txt": texts.source, "input0/dict.txt": texts.source, "label/dict.txt": classes}
    else:
        files = {"dict.txt": texts.source}
        for language in _language_folders(options):
            (folder / language).mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-8"))
    return files


def paired_languages(options: dict[str, Any]) -> list[str]:
    """Of `--lang-pairs de-en,nl-en`, a text or a list; none of a task without it."""
    given = options.get("lang_pairs") or ()
    pairs = given.split(",") if isinstance(given, str) else given
    names = [name for pair in pairs if isinstance(pair, str) for name in pair.split("-")]
    return [name for name in dict.fromkeys(names) if name and Path(name).name == name]


def _language_folders(options: dict[str, Any]) -> list[str]:
    """Some multilingual tasks append a tag for every folder they find in the data."""
    given, data = options.get("langs"), str(options.get("data") or "").split(os.pathsep)[0]
    names = given.split(",") if isinstance(given, str) and given else []
    if not names and "langs" in options and os.path.isdir(data):
        names = [entry.name for entry in os.scandir(data) if entry.is_dir()]
    return [name for name in dict.fromkeys(names) if Path(name).name == name and not name.startswith(".")]


def import_plugin(folder: str | None) -> None:
    """`--user-dir`: register what another plugin brings; OptionError if there is none."""
    if folder is None:
        return
    from fairseq.utils import import_user_module

    try:
        import_user_module(Namespace(user_dir=folder))
    except (FileNotFoundError, ImportError) as error:
        raise OptionError(f"--user-dir {folder}: no plugin of fairseq ({_reason(error)}); give its folder") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """fairseq and we tell of every model that is loaded; here only warnings are heard."""
    loggers = [logging.getLogger(name) for name in ("fairseq", "embinit_fairseq")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def _reason(error: Exception) -> str:
    """torch begins with a line that says nothing but the class of the model."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines[1:] if len(lines) > 1 and lines[0].startswith("Error(s) in loading") else lines
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
