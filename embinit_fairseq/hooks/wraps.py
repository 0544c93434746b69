"""What the plugin does to fairseq when it is imported: `--embed-init` in all models, errors of ours as one line,
and the length of an epoch for learning-rate schedules."""

from __future__ import annotations

import functools
import sys
from argparse import SUPPRESS, ArgumentParser
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Optional

import fairseq.checkpoint_utils
import fairseq.models
import fairseq.options
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from fairseq.trainer import Trainer

from embinit_fairseq.errors import EmbinitError, OptionError, exhausted
from embinit_fairseq.hooks import registry
from embinit_fairseq.hooks.apply import embed_init
from embinit_fairseq.hooks.options import EmbedInitOptions, InitRequest, request_from, settle_spelling
from embinit_fairseq.hooks.registry import EMBED_INIT_REGISTRY
from embinit_fairseq.hooks.resume import check_training, recall, refuse_other_dictionary, refuse_overrides
from embinit_fairseq.hooks.slots import find_slots

# ---- What a user of fairseq's commands can mend is one line, not a page of traceback that ends in it ----------------


def show_errors_as_lines() -> None:
    """Set the interpreter's last word on our errors; nothing else, and nobody else's program, is touched."""
    if getattr(sys.excepthook, "__module__", None) == __name__:
        return
    others = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: Optional[TracebackType]) -> None:
        program = Path(sys.argv[0] if sys.argv else "")
        of_fairseq = program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"
        if isinstance(error, EmbinitError) and of_fairseq:
            print(f"{program.name}: error: {error}", file=sys.stderr)
        else:
            others(kind, error, traceback)

    sys.excepthook = show


# ---- Tells a learning-rate schedule how many batches an epoch has ---------------------------------------------------
# fairseq builds the schedule from its options and the optimizer alone, before there is a training iterator, and hands
# it no more than numbers of epochs and updates afterwards; the length of an epoch is known to the trainer only, and
# only inside `Trainer.get_train_iterator`. A task could learn it, but a schedule must not need a certain task. So that
# method is wrapped. Schedules without `set_batches_per_epoch` notice nothing.

_MARK = "_embinit_wrapped"


def tell_epoch_lengths() -> None:
    """Wrap the method; calling it again is harmless."""
    inner = Trainer.get_train_iterator
    if getattr(inner, _MARK, False):
        return

    @functools.wraps(inner)
    def get_train_iterator(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        """fairseq's iterator, after the schedule was told its length."""
        epoch_itr = inner(self, *args, **kwargs)
        name = getattr(self.cfg.lr_scheduler, "_name", None)
        # the class is asked, not the object: reading `lr_scheduler` builds the optimizer, for others too early
        if hasattr(LR_SCHEDULER_REGISTRY.get(name), "set_batches_per_epoch"):
            tell(self.lr_scheduler, epoch_itr, self)
        return epoch_itr

    setattr(get_train_iterator, _MARK, True)
    Trainer.get_train_iterator = get_train_iterator


def tell(schedule: Any, epoch_itr: Any, trainer: Trainer) -> None:
    """Give the schedule the length of an epoch; raises OptionError if it needs one and the data have none."""
    if not schedule.needs_epoch_length:
        return
    try:
        batches = len(epoch_itr)
    except (NotImplementedError, TypeError):
        raise OptionError(
            "the training data are a stream: an epoch has no known length; give --max-update instead of --max-epoch"
        ) from None
    if schedule.counted is not None and trainer.task.has_sharded_data("train"):
        batches = schedule.counted.batches  # shards differ; the first one's length counts
    schedule.set_batches_per_epoch(
        batches, lambda: (trainer.get_num_updates(), epoch_itr.epoch, epoch_itr.iterations_in_epoch)
    )


# ----------------------------------------------------------------------------------------------------------------------
# Where fairseq's work is touched from outside its extension points.
#
# fairseq has no hook between "the model is built" and "training starts", and RoBERTa-type encoders redraw every
# embedding after building it, so that `build_embedding` would be too early. `fairseq.models.build_model` is what every
# task calls, with `from_checkpoint=True` where the weights will come from a file. Tasks whose own `build_model` lacks
# that argument (older ones, and `sentence_prediction_adapters`) never get it, so loading is also marked where it
# begins, in `fairseq.checkpoint_utils.load_model_ensemble_and_task`.

#: while a checkpoint is loaded to be used: what it is loaded with instead of its own options
_overrides: ContextVar[Optional[dict[str, Any]]] = ContextVar("overrides", default=None)


def is_loaded_for_use() -> bool:
    """Is a checkpoint being loaded for anything but training: fairseq-validate, -generate, from_pretrained?"""
    return _overrides.get() is not None


def wrap_building() -> None:
    """Wrap the two functions; calling it again is harmless."""
    if not getattr(fairseq.models.build_model, _MARK, False):
        _wrap_build_model()
        _wrap_loading()


def _wrap_build_model() -> None:
    inner = fairseq.models.build_model

    @functools.wraps(inner)
    def build_model(cfg: Any, task: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's model, initialised as `--embed-init` says unless its weights come from a checkpoint."""
        model = inner(cfg, task, from_checkpoint)
        overrides = _overrides.get()
        if overrides is not None:
            refuse_overrides(model, overrides)
            record = request_from(cfg).record
            if record is not None:
                refuse_other_dictionary(record, lambda: find_slots(model, task), "this checkpoint")
        elif not from_checkpoint:
            settle_spelling(cfg)
            request = request_from(cfg)
            check_training(model, task, request)
            if request.strategy is None:
                recall(cfg, request, lambda: find_slots(model, task))
            else:
                _embed_init(model, task, cfg, request)
        return model

    setattr(build_model, _MARK, True)
    fairseq.models.build_model = build_model


def _embed_init(model: Any, task: Any, cfg: Any, request: InitRequest) -> None:
    """As `embed_init`; where memory runs out, an error that says so and names the flag."""
    try:
        embed_init(model, task, cfg, request)
    except (MemoryError, RuntimeError) as error:  # a RecursionError is a RuntimeError
        reason = exhausted(error)
        if reason is None:
            raise
        sources = " ".join(request.options.embed_init_path or ())
        raise EmbinitError(f"--embed-init {request.strategy} {sources}: {reason}") from error


def _wrap_loading() -> None:
    inner = fairseq.checkpoint_utils.load_model_ensemble_and_task

    @functools.wraps(inner)
    def load_model_ensemble_and_task(
        filenames: list[str], arg_overrides: Optional[dict[str, Any]] = None, *args: Any, **kwargs: Any
    ) -> Any:
        """fairseq's function; models that are built inside it are not initialised."""
        before = _overrides.set(arg_overrides or {})
        try:
            return inner(filenames, arg_overrides, *args, **kwargs)
        finally:
            _overrides.reset(before)

    fairseq.checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task


# ---- `fairseq-train --help` lists the options of `--embed-init` -----------------------------------------------------
# fairseq reads a command line twice: first without the options of what is chosen, then with them. `--help` ends the
# first reading, so that the options of a registry are never shown, with or without a choice. They are therefore
# appended to the text of the help; the parser itself gets them from `EmbedInit.add_args`, once a strategy is chosen.
# Without one it calls them unknown, and is made to say why.

_FLAGS = {"--" + option.name.replace("_", "-") for option in fields(EmbedInitOptions)}


def extend_help() -> None:
    """Wrap what completes the parser of a training; calling it again is harmless.

    Other parsers keep their help. `get_parser` would be too early: it is what imports `--user-dir`.
    """
    inner = fairseq.options.add_model_args
    if getattr(inner, _MARK, False):
        return

    @functools.wraps(inner)
    def add_model_args(parser: ArgumentParser) -> Any:
        """fairseq's function, after the options of `--embed-init` were added to the help."""
        describe(parser)
        return inner(parser)

    setattr(add_model_args, _MARK, True)
    fairseq.options.add_model_args = add_model_args


def describe(parser: Any) -> None:
    """Say in the parser's help what `--embed-init` is, append its options, and say what they need."""
    for action in parser._actions:
        if action.dest == "embed_init":
            action.help = "how the token embeddings start; its options stand at the end of this help"
    own_help, own_error = parser.format_help, parser.error
    parser.format_help = lambda: f"{own_help()}\n{options_help(parser.formatter_class)}"
    parser.error = lambda message: own_error(with_remedy(message))


def with_remedy(message: str) -> str:
    """argparse's message; where it does not know options of ours, for want of --embed-init, with what to do."""
    flags = {word.partition("=")[0] for word in message.split()} & _FLAGS
    if not message.startswith("unrecognized arguments") or not flags:
        return message
    return f"{message} ({', '.join(sorted(flags))}: needs --embed-init {{{','.join(EMBED_INIT_REGISTRY)}}})"


def options_help(formatter: Any) -> str:
    """The options as a section of a help text, laid out by argparse's class `formatter`."""
    section = ArgumentParser(usage=SUPPRESS, add_help=False, formatter_class=formatter)
    EmbedInitOptions.add_args(
        section.add_argument_group(
            "options of --embed-init",
            "Known as soon as --embed-init STRATEGY is given. Strategies, formats and examples: docs/embed_init.md",
        )
    )
    return section.format_help()


# ----------------------------------------------------------------------------------------------------------------------

registry.extend_config()
wrap_building()
extend_help()
show_errors_as_lines()
