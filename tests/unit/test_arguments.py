"""An option that is given twice, on all parsers: values add up where several are meant, else it is an error."""

import argparse
from pathlib import Path

import pytest
from fairseq import options as fairseq_options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES

import embinit_fairseq  # noqa: F401 - registers its options
from embinit_fairseq.arguments import ArgumentParser, read_pairs, split_at_dashes
from embinit_fairseq.cli.main import build_parser
from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs.command import ADD_UP

REPOSITORY = Path(__file__).resolve().parents[2]


def given_twice(action: argparse.Action) -> object:
    """Return what an option has after two values, or two lists of values; None if the second one is refused."""
    namespace = argparse.Namespace(**{action.dest: action.default})
    first, second = (["a"], ["b"]) if action.nargs in ("+", "*") else ("a", "b")
    action(argparse.ArgumentParser(), namespace, first, action.option_strings[0])
    assert getattr(namespace, action.dest) == first  # not the default and the value
    try:
        action(argparse.ArgumentParser(), namespace, second, action.option_strings[0])
    except argparse.ArgumentError:
        return None
    return getattr(namespace, action.dest)


def options_of(parser: argparse.ArgumentParser):
    """Yield all options with values of a parser and of its sub-commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options_of(command)
        elif action.option_strings and action.nargs != 0:
            yield action


def test_no_command_loses_a_value():
    for action in options_of(build_parser(complete=True)):
        expected = ["a", "b"] if action.nargs in ("+", "*") else None
        assert given_twice(action) == expected, action.option_strings


def training_options(*words: str) -> dict[str, argparse.Action]:
    """Return flag -> option of fairseq-train with these words."""
    parser = fairseq_options.get_training_parser()
    fairseq_options.parse_args_and_arch(parser, ["bin", *words])
    return {action.option_strings[0]: action for action in options_of(parser)}


def test_fairseq_train_loses_no_value_of_this_plugin_and_takes_the_last_of_its_own():
    fairseqs = {}
    for words in (
        ("--arch=transformer", "--criterion=label_smoothed_cross_entropy"),
        ("--arch=roberta", "--task=masked_lm", "--criterion=sentence_prediction"),
        ("--arch=transformer", "--bpe=subword_nmt"),
        ("--arch=transformer", "--bpe=sentencepiece"),
    ):
        fairseqs |= training_options(*words, "--optimizer=adam")
    archs = {kind: arch for arch, kind in ARCH_MODEL_REGISTRY.items() if kind.__module__.startswith("embinit_fairseq")}
    ours = {}
    for arch in archs.values():
        ours |= training_options(f"--arch={arch}", "--embed-init=xavier", "--task=masked_lm")
    for name, registry in REGISTRIES.items():
        for choice, kind in registry["registry"].items():
            if kind.__module__.startswith("embinit_fairseq") and name != "embed_init":
                ours |= training_options(f"--{name}={choice}", "--arch=transformer")
    assert {"--embed-init-path", "--duo-streams", "--position-encoding", "--glue-metrics"} <= ours.keys()
    several = set()
    for flag, action in ours.items():
        if flag in fairseqs and flag != "--embed-init":  # recipes rely on it: "$@" at the end replaces options
            # several plugins are one value (fairseq_compat)
            assert given_twice(action) in ("b", ["b"]) or (flag, given_twice(action)) == ("--user-dir", "a:b"), flag
        elif action.nargs in ("+", "*"):
            several.add(flag)
            assert given_twice(action) == ["a", "b"], flag
        else:
            assert given_twice(action) is None, flag
    assert several == ADD_UP  # what `embinit run` records


def test_scripts_have_these_parsers():
    for path in (*REPOSITORY.glob("scripts/**/*.py"), *REPOSITORY.glob("benchmarks/*.py")):
        of_argparse = path.read_text(encoding="utf-8").count("argparse.ArgumentParser(")
        assert of_argparse == (path.name == "model_options.py"), path  # which reads the options of an architecture


def test_a_parser_counts_each_call_by_itself(capsys):
    parser = ArgumentParser()
    parser.add_argument("words", nargs="*", default=["default"])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--several", nargs="+", default=["default"])
    parser.add_argument("--any", nargs="*")
    parser.add_argument_group("group").add_argument("--one", type=int, default=1, choices=(1, 2))
    parser.add_argument("--switch", action="store_true")
    default = parser.parse_args([])
    for _ in range(2):
        args = parser.parse_args("--several a b --any d --any e --any --switch --one 1 --several c --switch".split())
        assert (args.several, args.any, args.one, args.switch) == (["a", "b", "c"], ["d", "e"], 1, True)
    assert (default.several, parser.parse_args([]).several) == (["default"], ["default"])
    assert parser.parse_args(["a", "b"]).words == ["a", "b"]
    for words in ("--one 1 --one 2", "--one 1 --one 1"):
        with pytest.raises(SystemExit):
            parser.parse_args(words.split())
        assert f"argument --one: given twice, 1 and {words[-1]}" in capsys.readouterr().err


def test_keys_are_given_once(refused, tmp_path, monkeypatch):
    assert read_pairs("--label", ["a=1", "b=", "c=x=y"], "KEY=VALUE, such as a=1") == {"a": "1", "b": "", "c": "x=y"}
    for texts, message in ((["a"], "--label a: .*a=1"), (["=a"], "--label =a"), (["a=1", "a=1"], "a=1 and a=1")):
        with pytest.raises(OptionError, match=message):
            read_pairs("--label", texts, "KEY=VALUE, such as a=1")
    (tmp_path / "list").write_text("a: true\n")
    grid = ("grid", tmp_path / "list", "--logs", tmp_path / "logs", "--print", "--sbatch", "time=1")
    monkeypatch.setenv("EMBINIT_SBATCH", "time=2")
    assert "time=1 and time=3" in refused(*grid, "--sbatch", "time=3")
    assert "--sbatch partition=" in refused(*grid, "partition=")


def test_the_first_dashes_end_the_words_of_a_command():
    assert split_at_dashes(["a", "--", "b", "--", "c"]) == (["a"], ["b", "--", "c"])
    assert split_at_dashes(["a", "--b"]) == (["a", "--b"], [])
