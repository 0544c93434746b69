"""Each fix cures its symptom; and without the fix the symptom is there, else the fix is no longer needed."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from fairseq_commands import PYTHON, run

fairseq_compat = pytest.importorskip("fairseq_compat")
pytest.importorskip("torch")
from fairseq_compat import runner  # noqa: E402

# the symptom of stopped_readers forks the process, and has to come before those that leave threads
FIXES = sorted(runner.fix_names(), key="stopped_readers".__ne__)
# nothing else can be looked at without these
FIRST = ["hashable_dataclasses", *(["optional_types"] if sys.version_info >= (3, 14) else [])]
# states that fixes must leave alone, in the order in which one process can look at all of them
UNTOUCHED = ["genuine_warnings", "registry_with_schema_of_its_own"]


def look_for(names: list[str], without: list[str]) -> dict[str, str | None]:
    """The symptoms that show with the fixes ``without`` switched off: name of the fix to error or None."""
    # a process that has imported fairseq already has all fixes
    command = [sys.executable if without else PYTHON, Path(__file__).with_name("symptoms.py"), *names]
    return json.loads(run(command, FAIRSEQ_COMPAT_DISABLE=",".join(without)).stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def with_fixes() -> dict[str, str | None]:
    return look_for([*FIXES, *UNTOUCHED], without=[])


@pytest.fixture(scope="module")
def without_fixes() -> dict[str, str | None]:
    others = [name for name in FIXES if name not in FIRST]
    return look_for(others, without=others)


@pytest.mark.parametrize("name", [*FIXES, *UNTOUCHED])
def test_symptom_is_cured(name: str, with_fixes: dict[str, str | None]) -> None:
    assert with_fixes[name] is None


@pytest.mark.parametrize("name", [name for name in FIXES if name not in FIRST])
def test_fix_is_still_needed(name: str, without_fixes: dict[str, str | None]) -> None:
    state = next(row for row in fairseq_compat.status() if row.fix == name)
    if not state.needed:
        assert without_fixes[name] is None, f"{name} says that it is not needed here, but its symptom shows"
        pytest.skip(state.reason)
    assert without_fixes[name] is not None, f"{name} can go for these versions: without it the symptom does not show"
    assert state.active, state.reason
    if name == "quiet_hydra":
        for message in runner.load_fix(name).EXPECTED:
            assert re.search(message, without_fixes[name]), f"{message!r} can go from its list"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="dataclass defaults are refused from Python 3.11 on")
def test_without_the_first_fix_fairseq_does_not_start(monkeypatch) -> None:
    configs = importlib.import_module("fairseq.dataclass.configs")
    spec = importlib.util.spec_from_file_location("configs_without_fix", configs.__file__)
    fresh = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, fresh)
    with pytest.raises(ValueError, match="mutable default"):
        spec.loader.exec_module(fresh)


def option_strings(add_args) -> set[str]:
    """Those that a task or a model adds to a parser."""
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    add_args(parser)
    return set(parser._option_string_actions)


def test_all_tasks_and_architectures_of_fairseq_can_be_used_together() -> None:
    """Those with an option of the same name are parsed."""
    from fairseq import options
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    architectures = {model: arch for arch, model in ARCH_MODEL_REGISTRY.items()}  # one of each model
    models = {arch: option_strings(model.add_args) for model, arch in architectures.items()}
    tasks = {task: option_strings(kind.add_args) for task, kind in TASK_REGISTRY.items()}
    both = {(task, arch): tasks[task] & models[arch] for task in tasks for arch in models}
    pairs = {(task, frozenset(common)): arch for (task, arch), common in both.items() if common}
    assert len(pairs) > 20
    for (task, _), arch in pairs.items():
        with contextlib.suppress(SystemExit):  # one of them has options that must be given
            options.parse_args_and_arch(options.get_training_parser(task), ["x", "--task", task, "--arch", arch])


#: choice -> the words that it needs
NEEDS = {
    "--tokenizer moses": "--source-lang de --target-lang en",
    "--bpe fastbpe": "--bpe-codes codes",  # a tokenizer of a plugin may have an option of this name, too
    "--lr-scheduler triangular": "--max-lr 1",
    "--criterion composite_loss": "--underlying-criterion cross_entropy",
    "--criterion ctc": "--post-process letter",
    "--task hubert_pretraining": "--labels ['ltr']",
    "--task sentence_prediction": "--criterion sentence_prediction",
    "--task sentence_prediction_adapters": "--criterion sentence_prediction",
}


def test_every_choice_of_every_registry_becomes_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse and compose one choice of each registry at a time, and each task, for a command without `--lr`."""
    from fairseq import options
    from fairseq.dataclass import utils
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    def compose(name, overrides, composed=utils.compose, **others):
        own = [word for word in overrides if re.split(r"[.=]", word)[0] in (*REGISTRIES, "task")]
        return composed(name, overrides=own, **others)

    monkeypatch.setattr(utils, "compose", compose)  # hydra needs a second for the other 200 options
    flags = [f"--{name.replace('_', '-')}" for name in REGISTRIES]
    rounds = [*itertools.zip_longest(*(registry["registry"] for registry in REGISTRIES.values()))]
    calls = [[word for word in zip(flags, choices) if word[1]] for choices in rounds]
    calls += [[("--task", task)] for task in TASK_DATACLASS_REGISTRY]
    assert len(calls) > 35
    for call in calls:
        given = ["data", "--path", "model.pt"]
        for flag, choice in call:
            given += [flag, choice, *NEEDS.get(f"{flag} {choice}", "").split()]
        parser = options.get_generation_parser()
        arguments, unread = options.parse_args_and_arch(parser, given, parse_known=True)
        config = utils.convert_namespace_to_omegaconf(arguments)
        values = {flag: config[flag[2:].replace("-", "_")] for flag, _ in call}
        assert {flag: getattr(value, "_name", value) for flag, value in values.items()} == dict(call)
        assert set(unread) <= {"data"}, given
