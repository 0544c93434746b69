"""Wrap fairseq: building a model, loading a checkpoint, options of a training and their help, errors.

fairseq has no extension point between "the model is built" and "training starts". RoBERTa-type encoders redraw every
embedding after building it, so `build_embedding` is too early. Every task calls `fairseq.models.build_model`, with
`from_checkpoint=True` where the weights will come from a file. Some tasks (`sentence_prediction_adapters`) lack that
argument, so `fairseq.checkpoint_utils.load_model_ensemble_and_task` marks the loading of a checkpoint for use.
"""

from __future__ import annotations

import functools
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

import fairseq.checkpoint_utils
import fairseq.models
import fairseq.options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import FairseqTask

from embinit_fairseq.arguments import add_up
from embinit_fairseq.checkpoint_file import initialisation_record
from embinit_fairseq.checkpoints.defaults import add_missing_options, warn_of_unknown_options
from embinit_fairseq.checkpoints.loading import overrides
from embinit_fairseq.checkpoints.trained_preparation import OPTION, RECORDS, records_for_checkpoints, records_of_task
from embinit_fairseq.embed_init import raw_text
from embinit_fairseq.embed_init.fill import embed_init
from embinit_fairseq.embed_init.options import EMBED_INIT_REGISTRY, EmbedInitOptions, extend_config, flag_of
from embinit_fairseq.embed_init.request import check_request, request_from, store_record
from embinit_fairseq.embed_init.restore import check_dictionary, check_fits, check_overrides, find_checkpoint, recall
from embinit_fairseq.embed_init.slots import Slot, find_slots
from embinit_fairseq.errors import EmbinitError, SlotError

_MARK = "_embinit_wrapped"
#: while fairseq loads checkpoints for use: path -> the parts with their options
_loaded: ContextVar[dict[str, dict[str, Any]] | None] = ContextVar("loaded", default=None)


def wrap(module: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace `module.name` by `around(inner, *args, **kwargs)`; a second call changes nothing."""
    inner = getattr(module, name)
    if getattr(inner, _MARK, False):
        return

    @functools.wraps(inner)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(inner, *args, **kwargs)

    setattr(wrapped, _MARK, True)
    setattr(module, name, wrapped)


def _build_model(inner: Callable[..., Any], cfg: Any, task: Any, from_checkpoint: bool = False) -> Any:
    """Build fairseq's model; fill it unless its weights come from a checkpoint."""
    replaced = overrides.get()
    if replaced is not None or from_checkpoint:
        warn_of_unknown_options(cfg)
    add_missing_options(cfg)
    model = inner(cfg, task, from_checkpoint)
    if replaced is not None:
        check_overrides(model, replaced)
        record = initialisation_record({"args": cfg, "cfg": {"model": cfg}})
        if record is not None:
            check_dictionary(record, _slots(model, task), "this checkpoint")
    elif not from_checkpoint:
        prepare_training(model, task, cfg)
    return model


def prepare_training(model: Any, task: Any, cfg: Any) -> None:
    """Initialise a model that was built for training, or compare it with the checkpoint that it continues from."""
    request = request_from(cfg)
    check_request(cfg, request)
    checkpoint = find_checkpoint(request)
    if hasattr(model, "check_training"):
        model.check_training(checkpoint, request)
    if checkpoint is not None:
        check_fits(checkpoint, model, cfg, _slots(model, task))
    states = {} if checkpoint is None else {checkpoint.path: checkpoint.state}
    if (preparation := records_for_checkpoints(task, states)) is not None:
        store_record(cfg, preparation, OPTION)
    if request.strategy is not None:
        embed_init(find_slots(model, task), task, cfg, request, checkpoint)
    elif checkpoint is not None:
        recall(checkpoint, cfg)


def _slots(model: Any, task: Any) -> dict[str, Slot]:
    """Return the slots of any model; none if `--embed-init` cannot fill it."""
    try:
        return find_slots(model, task)
    except SlotError:
        return {}


def _load_model_ensemble_and_task(
    inner: Callable[..., Any], filenames: list[str], arg_overrides: dict[str, Any] | None = None, *args: Any, **kw: Any
) -> Any:
    states: dict[str, dict[str, Any]] = {}
    before = overrides.set(arg_overrides or {})
    before_states = _loaded.set(states)
    try:
        models, cfg, task = inner(filenames, arg_overrides, *args, **kw)
    finally:
        overrides.reset(before)
        _loaded.reset(before_states)
    # the steps that a user of `from_pretrained` states come first; commands that pass the content compare it themselves
    if states and "preparation" not in (arg_overrides or {}):
        setattr(task, RECORDS, records_of_task(task, states))
    return models, cfg, task


def _load_checkpoint_to_cpu(inner: Callable[..., Any], path: str, *args: Any, **kw: Any) -> Any:
    """Load a checkpoint; note its options if it is loaded for use."""
    state = inner(path, *args, **kw)
    if (loaded := _loaded.get()) is not None:
        loaded[str(path)] = {name: state.get(name) for name in ("cfg", "args")}
    return state


def _convert_namespace(inner: Callable[..., Any], args: Any) -> Any:
    """Convert the options of a checkpoint, `args`; fairseq gives missing options the dataclass's defaults."""
    add_missing_options(args)
    return inner(args)


# ---- `fairseq-train --help` lists the options -----------------------------------------------------------------------
# fairseq reads a command line twice: without the options of a strategy, then with them. `--help` ends the first
# reading, so the options of a registry are never shown; they are appended to the text of the help. Without a strategy
# the parser calls them unrecognized, and adds why.


def _add_model_args(inner: Callable[..., Any], parser: Any) -> Any:
    for action in parser._actions:
        if action.dest == "embed_init":
            action.help = "initial values of the token embeddings; its options are at the end of this help"
    own_help, own_error = parser.format_help, parser.error
    parser.format_help = lambda: f"{own_help()}\n{options_help(parser.formatter_class)}"
    parser.error = lambda message: own_error(with_remedy(message))
    return inner(parser)


def with_remedy(message: str) -> str:
    """Return argparse's message, with the remedy if it is about options of `--embed-init`."""
    flags = {word.partition("=")[0] for word in message.split()} & {flag_of(o.name) for o in fields(EmbedInitOptions)}
    if not message.startswith("unrecognized arguments") or not flags:
        return message
    return f"{message} ({', '.join(sorted(flags))}: needs --embed-init {{{','.join(EMBED_INIT_REGISTRY)}}})"


def options_help(formatter: Any) -> str:
    """Return the options as a section of a help text, in the layout of argparse's class `formatter`."""
    section = ArgumentParser(usage=SUPPRESS, add_help=False, formatter_class=formatter)
    EmbedInitOptions.add_args(
        section.add_argument_group(
            "options of --embed-init",
            "Available once --embed-init STRATEGY is given. Strategies, formats and examples: docs/embed_init.md",
        )
    )
    return section.format_help()


# ---- An option of this plugin that is given twice --------------------------------------------------------------------


def _parse_args_and_arch(
    inner: Callable[..., Any],
    parser: ArgumentParser,
    input_args: list[str] | None = None,
    parse_known: bool = False,
    suppress_defaults: bool = False,
    modify_parser: Callable[[ArgumentParser], None] | None = None,
) -> Any:
    """Parse as fairseq does; no value of an option of this plugin is lost, and of fairseq's options the last counts."""

    def modify(parser: ArgumentParser) -> None:  # fairseq calls it when the parser has all options
        if modify_parser is not None:
            modify_parser(parser)
        add_up(parser, plugin_flags())

    return inner(parser, input_args, parse_known, suppress_defaults, modify)


@functools.cache
def plugin_flags() -> set[str]:
    """Return the flags of this plugin's classes, without those that a class of fairseq has, such as --dropout."""
    flags: dict[bool, set[str]] = {True: set(), False: set()}
    registered = [ARCH_MODEL_REGISTRY, *(registry["registry"] for registry in REGISTRIES.values())]
    for kind in {kind for registry in registered for kind in registry.values() if hasattr(kind, "add_args")}:
        parser = ArgumentParser(allow_abbrev=False)
        kind.add_args(parser)
        flags[kind.__module__.startswith("embinit_fairseq.")].update(parser._option_string_actions)
    return {"--embed-init"} | flags[True] - flags[False]


# ---- Errors that a user of fairseq's commands can correct are one line ----------------------------------------------


def show_errors_as_lines() -> None:
    """Let the interpreter print an EmbinitError in a command of fairseq as one line instead of a traceback."""
    if getattr(sys.excepthook, "__module__", None) == __name__:
        return
    others = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        """Print an EmbinitError of a command of fairseq as argparse does; leave other errors to the hook before."""
        program = Path(sys.argv[0])
        of_fairseq = program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"
        if isinstance(error, EmbinitError) and of_fairseq:
            print(f"{program.name}: error: {error}", file=sys.stderr)
        else:
            others(kind, error, traceback)

    sys.excepthook = show


extend_config()
wrap(fairseq.models, "build_model", _build_model)
wrap(fairseq.checkpoint_utils, "load_model_ensemble_and_task", _load_model_ensemble_and_task)
wrap(fairseq.checkpoint_utils, "load_checkpoint_to_cpu", _load_checkpoint_to_cpu)
wrap(fairseq.checkpoint_utils, "convert_namespace_to_omegaconf", _convert_namespace)
wrap(fairseq.options, "add_model_args", _add_model_args)
wrap(fairseq.options, "parse_args_and_arch", _parse_args_and_arch)
wrap(FairseqTask, "build_tokenizer", raw_text.build_tokenizer)
wrap(FairseqTask, "build_bpe", raw_text.build_bpe)
wrap(FairseqTask, "get_interactive_tokens_and_lengths", raw_text.encode_lines)
show_errors_as_lines()
