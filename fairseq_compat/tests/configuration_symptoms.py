"""Symptoms (see symptoms.py) of what goes wrong before a training: options, registries, warnings.

(No ``from __future__ import annotations`` here: fairseq reads the types of a dataclass from its annotations.)
"""

import contextlib
import importlib
import io
import os
import sys
import warnings
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, List, Optional  # noqa: UP035
from unittest import mock

from fairseq import checkpoint_utils, options, registry
from fairseq.data import encoders
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, gen_parser_from_dataclass
from fairseq.utils import import_user_module
from fairseq_cli import eval_lm, generate, interactive, train
from fairseq_compat.fixes.mismatched_choices import mismatch
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.experimental import compose, initialize_config_dir
from omegaconf import OmegaConf
from training_symptoms import in_folder, refused


def parsed(*arguments: str) -> Namespace:
    """The options of a command line of fairseq-train."""
    return options.parse_args_and_arch(options.get_training_parser(), ["data", *arguments])


def composed(*arguments: str):
    """fairseq's configuration for a command line of fairseq-train."""
    return convert_namespace_to_omegaconf(parsed("--arch", "lstm", *arguments))


def hashable_dataclasses() -> None:
    """``import fairseq``, and dataclasses of plugins."""

    @dataclass
    class Part(FairseqDataclass):
        sizes: list = field(default_factory=list)

    @dataclass
    class Whole(FairseqDataclass):
        part: Part = Part()

    @dataclass(unsafe_hash=True)
    class Adapted(Whole):
        width: int = 1

    if sys.version_info >= (3, 11):  # before, no default has to be hashable
        hash(Adapted())
    assert Adapted() == Adapted()
    assert Whole() == Whole()


def repeated_options() -> None:
    """The task of BART (which fairseq 0.12.3 mended) with BART, and with a model that has no such option; speech."""
    for task, arch, given, expected in (
        ("multilingual_denoising", "bart_base", [], 1024),
        ("multilingual_denoising", "bart_base", ["9"], 9),
        ("multilingual_denoising", "lstm", [], 1024),
        ("speech_to_speech", "insertion_transformer", ["9"], 9),
    ):
        given = given and ["--max-source-positions", *given]
        found = parsed("--task", task, "--arch", arch, *given).max_source_positions
        assert found == expected, f"{task}, {arch}: {found}"
    parser = options.get_training_parser()
    options.parse_args_and_arch(parser, ["data", "--arch", "lstm"])
    with refused("conflicting option string"):  # afterwards it is as strict as ever
        parser.add_argument("--lr")


def unnamed_tasks() -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        options.parse_args_and_arch(options.get_validation_parser(), ["data", "--path", "best.pt"])
        raise AssertionError("no error")
    assert "--task" in said.getvalue()
    assert options.parse_args_and_arch(options.get_validation_parser("translation"), ["data"]).task == "translation"


@in_folder
def empty_user_dirs(folder: Path) -> None:
    """The folder around a plugin."""
    package = folder / "clone" / "my_plugin"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    with refused(f"--user-dir {package.parent}: no plugin", f"did you mean {package}?"):
        import_user_module(Namespace(user_dir=str(package.parent)))
    import_user_module(Namespace(user_dir=str(package)))
    (folder / "plugin_of_colleague").mkdir()
    (folder / "plugin_of_colleague" / "__init__.py").touch()
    import_user_module(Namespace(user_dir=f"{package}{os.pathsep}{folder / 'plugin_of_colleague'}"))
    assert {"my_plugin", "plugin_of_colleague"} <= set(sys.modules)
    (folder / "third_plugin").mkdir()
    (folder / "third_plugin" / "__init__.py").touch()
    words = ["data", "--user-dir", str(folder / "third_plugin"), f"--user-dir={package}"]
    with mock.patch("sys.argv", ["fairseq-train", *words]):
        given = options.get_training_parser().parse_known_args(words)[0]
    assert given.user_dir == f"{folder / 'third_plugin'}{os.pathsep}{package}"
    assert "third_plugin" in sys.modules


def third_party_registries() -> None:
    """A plugin's registry with nothing chosen, a plain choice, and a choice that has a dataclass; plain segmenters."""

    @dataclass
    class FlavourConfig(FairseqDataclass):
        strength: int = field(default=3, metadata={"help": "how much of it"})

    _, register, _, _ = registry.setup_registry("--flavour", default=None)
    register("plain")(type("Plain", (), {"add_args": staticmethod(lambda parser: None)}))
    register("strong", dataclass=FlavourConfig)(type("Strong", (), {}))
    strong = {"_name": "strong", "strength": 5}
    try:
        for given, expected in (("", None), ("plain", "plain"), ("strong --strength 5", strong)):
            config = composed(*(given and f"--flavour {given}").split())
            assert config.flavour == expected, f"{config.flavour} instead of {expected}"
            assert config.task._name == "translation"
    finally:
        del registry.REGISTRIES["flavour"]  # or the other symptoms would meet it
    segmenters_without_dataclass()


def segmenters_without_dataclass() -> None:
    """fairseq's own, and that of a plugin, which reads its option."""

    class Numbered:
        add_args = staticmethod(lambda parser: parser.add_argument("--first", type=int, default=1))

        def __init__(self, args) -> None:
            self.first = args.first

    for name, segmented in (("characters", "ä ▁ b"), ("bytes", "Ã ¤ ▁ b")):
        assert encoders.build_bpe(composed("--bpe", name).bpe).encode("ä b") == segmented
    encoders.register_bpe("numbered")(Numbered)
    try:
        for given, first in ((), 1), (("--first", "5"), 5):
            assert encoders.build_bpe(composed("--bpe", "numbered", *given).bpe).first == first
    finally:
        del registry.REGISTRIES["bpe"]["registry"]["numbered"]


def registry_with_schema_of_its_own() -> None:
    """The same with a plugin that tells hydra about its key itself: the fix must not get in its way."""
    wider = make_dataclass("Wider", [("flavour", Any, None)], bases=(FairseqConfig,), unsafe_hash=True)
    ConfigStore.instance().store(name="config", node=wider)
    third_party_registries()


def optional_types() -> None:
    """A configuration with options that may be None."""

    @dataclass
    class Sizes(FairseqDataclass):
        width: int | None = field(default=None, metadata={"help": "of something"})
        old: Optional[List[int]] = field(default=None, metadata={"help": "of others"})  # noqa: UP006
        new: list[int] | None = field(default=None, metadata={"help": "of others"})
        either: Any = field(default=None, metadata={"help": "whatever"})

    parser = ArgumentParser()
    gen_parser_from_dataclass(parser, Sizes())
    given = parser.parse_args(["--width", "3", "--old", "1,2", "--new", "3,4", "--either", "x"])
    assert (given.width, given.old, given.new, given.either) == (3, [1, 2], [3, 4], "x")


def hydra_help() -> None:
    """The command line of fairseq-hydra-train."""
    importlib.import_module("fairseq_cli.hydra_train")
    assert get_args_parser().parse_args(["task=translation"]).overrides == ["task=translation"]


def hydra_words() -> None:
    """Overrides before and after options, of hydra's program and of fairseq's question for the name of the file."""
    importlib.import_module("fairseq_cli.hydra_train")
    words = ["task=translation", "--config-dir", "a=b", "common.cpu=true", "-m", "common.seed=1,2"]
    for module in ("hydra._internal.utils", "hydra.main"):
        try:
            given = importlib.import_module(module).get_args_parser().parse_args(words)
        except SystemExit as error:
            raise AssertionError("unrecognized arguments") from error
        assert given.overrides == ["task=translation", "common.cpu=true", "common.seed=1,2"]
        assert (given.multirun, given.config_dir) == (True, "a=b")


@contextlib.contextmanager
def shown_warnings():
    """A list that gets the text of every warning that a user would see."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as shown:
        yield texts
    texts += [str(warning.message) for warning in shown]


def quiet_hydra() -> None:
    """No warning of hydra's when fairseq composes its configuration and when its hydra command is imported."""
    with shown_warnings() as texts:
        composed()
        importlib.import_module("fairseq_cli.hydra_train")
    texts = [text for text in texts if "hydra" in text]
    assert not texts, "\n".join(texts)


@in_folder
def genuine_warnings(folder: Path) -> None:
    """What quiet_hydra must leave alone: warnings of a plugin, and of hydra about the user's own files and code."""

    def plugins_folder() -> str:
        warnings.warn("the folder of the plugin is old", UserWarning, stacklevel=1)
        return "checkpoints"

    OmegaConf.register_new_resolver("plugins_folder", plugins_folder)
    (folder / "mine.yaml").write_text("# @package _group_\nsize: 3\n")
    with shown_warnings() as texts:
        assert composed("--save-dir", "${plugins_folder:}").checkpoint.save_dir == "checkpoints"
        with initialize_config_dir(str(folder)):
            assert compose("mine", strict=False).size == 3
    for part in ("folder of the plugin", "compose() is no", "version_base", "In 'mine'", "The strict flag"):
        assert any(part in text for text in texts), f"{part} is not among {texts}"


#: --arch, --task and --criterion -> what to give instead; "" if they fit
CHOICES = {
    "levenshtein_transformer translation nat_loss": "--task translation_lev --criterion nat_loss",
    "levenshtein_transformer translation_lev cross_entropy": "--task translation_lev --criterion nat_loss",
    "transformer translation_lev nat_loss": "--arch such as cmlm_transformer",
    "roberta_base translation cross_entropy": "--task masked_lm",
    "bart_base masked_lm masked_lm": "--task translation or denoising, or an --arch such as roberta_base",
    "transformer_lm denoising cross_entropy": "--task language_modeling",
    "transformer translation masked_lm": "leave it out",
    "transformer translation adaptive_loss": "--adaptive-softmax-cutoff",
    "levenshtein_transformer translation_lev nat_loss": "",
    "transformer translation_lev cross_entropy": "",
    "roberta_base sentence_prediction sentence_prediction": "",
    "wav2vec2 masked_lm cross_entropy": "",
    "of_a_plugin translation masked_lm": "",
}


#: command, architecture of its checkpoint, what to do; the other errors are those of missing data
COMMANDS = [
    (eval_lm, "roberta_base", "fairseq-validate"),
    (eval_lm, "transformer_lm", "FileNotFoundError"),
    (generate, "roberta_base", "fairseq-validate"),
    (generate, "transformer_lm", "--task language_modeling"),
    (generate, "transformer", "FileNotFoundError"),
    (interactive, "of_a_plugin", "FileNotFoundError"),
]


@in_folder
def mismatched_choices(folder: Path) -> None:
    """Named after a failure, which here is that of missing data; other failures keep their error."""
    with refused("--task language_modeling"):
        composed("--arch", "transformer_lm")
    others = ["--max-tokens", "9", "--cpu", "--save-dir", str(folder)]
    with refused("ValueError", "--task translation or denoising"):
        train.main(composed("--arch", "transformer", "--task", "language_modeling", *others))
    with refused("ValueError", "--criterion adaptive_loss --ddp-backend legacy_ddp"):
        train.main(composed("--arch", "transformer", "--adaptive-softmax-cutoff", "9", *others))
    config = composed("--arch", "transformer", *others)
    with refused("KeyError"), mock.patch.object(train.tasks, "setup_task", side_effect=KeyError("its own")):
        train.main(config)
    config.common_eval.path = "model.pt"
    for command, arch, remedy in COMMANDS:
        state = {"cfg": {"model": Namespace(_name=arch)}}
        with refused(remedy), mock.patch.object(checkpoint_utils, "load_checkpoint_to_cpu", return_value=state):
            command.main(config)
    for choices, remedy in CHOICES.items():
        assert remedy in (reason := mismatch(*choices.split()) or "")
        assert bool(remedy) == bool(reason)
    assert mismatch("transformer_lm", "language_modeling", "adaptive_loss", "9") is None
