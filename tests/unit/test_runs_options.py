"""Options of trainings that left no command: what embinit compare says of logs that do not agree."""

from __future__ import annotations

import json
from argparse import Namespace
from enum import Enum

import pytest

from embinit_fairseq.analysis.run import Run, Validation
from embinit_fairseq.analysis.runs_options import options_of_sections, options_of_text
from embinit_fairseq.cli.main import main


def configuration(**options: object) -> str:
    """As fairseq prints it: sections, some with a namespace of all options in them."""
    seed, lr, path = (options.get(name) for name in ("seed", "lr", "embed_init_path"))
    model = Namespace(arch="lstm", seed=seed, lr=lr, save_dir=f"runs/{seed}", no_progress_bar=False)
    sections = {
        "_name": None,
        "common": {"_name": None, "seed": seed, "log_interval": 10 * seed},
        "checkpoint": {"_name": None, "save_dir": f"runs/{seed}"},
        "model": model,
        "optimizer": {"_name": "adam", "lr": lr, "betas": "(0.9, 0.98)", "eps": float("inf")},
        "embed_init": {"_name": "pretrained", "embed_init_path": path},
    }
    return str(sections)


def write_log(path, **options: object) -> None:
    messages = [
        f"fairseq_cli.train | {configuration(**options)}",
        'valid | {"epoch": 1, "valid_loss": "2.5", "valid_num_updates": "10"}',
        "fairseq_cli.train | done training in 1 s",
    ]
    path.write_text("".join(f"2024-01-01 10:00:00 | INFO | {message}\n" for message in messages), encoding="utf-8")


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"seed": 2}, []),
        ({"seed": 2, "lr": [0.002]}, ["lr [0.001]: A; [0.002]: B"]),
        ({"seed": 2, "embed_init_path": ["b.txt"]}, ["embed_init_path ['a.txt']: A; ['b.txt']: B"]),
    ],
)
def test_logs_of_one_row_that_do_not_agree(tmp_path, capsys, second, named) -> None:
    first = {"seed": 1, "lr": [0.001], "embed_init_path": ["a.txt"]}
    write_log(tmp_path / "A.log", **first)
    write_log(tmp_path / "B.log", **{**first, **second})
    assert main(["compare", str(tmp_path), "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert len(table["rows"]) == 1
    said = [text.replace(f"{tmp_path}/", "").replace(".log", "") for text in table["warnings"]]
    assert [text for text in said if "different options" in text] == [
        f"{table['rows'][0]['name']}: runs with different options are averaged ({text})" for text in named
    ]


def test_a_log_and_a_checkpoint_agree() -> None:
    class Backend(Enum):
        GLOO = "gloo"

    sections = {"model": Namespace(arch="lstm", width=5), "common": {"seed": 1, "backend": Backend.GLOO, "_name": "x"}}
    sections["embed_init_options"] = {"embed_init_record": "{...}"}  # with seeds in it, and in no log
    text = "{'model': Namespace(arch='lstm', width=5), 'common': {'seed': 2, 'backend': 'gloo', '_name': 'x'}}"
    assert (
        options_of_sections(sections) == options_of_text(text) == {"arch": "'lstm'", "width": "5", "backend": "'gloo'"}
    )


def test_an_option_that_sections_say_differently_has_both_values() -> None:
    assert options_of_text("{'a': {'lr': [1], 'eps': inf}, 'b': {'lr': [2]}}") == {"lr": "[1], [2]", "eps": "inf"}


@pytest.mark.parametrize("text", ["", "{'_name': None, 'common': {'lr'", "{'lr': <Kind.A: 1>}", "{" * 5000])
def test_what_cannot_be_read_says_nothing(text) -> None:
    assert options_of_text(text) == {}


def test_many_differences_are_counted() -> None:
    from embinit_fairseq.analysis.comparison import compare
    from embinit_fairseq.analysis.comparison_warnings import SHOWN, warnings

    def run(name, value):
        record = {"labels": {"seed": name}, "scores": {}}
        options = {f"o{number}": value for number in range(SHOWN + 3)}
        return Run(name, None, record, (Validation(1, 1, {"valid_loss": 1.0}),), configuration=options)

    (table,) = compare([run("1", "x"), run("2", "y")])
    (text,) = warnings(table)
    assert text.count("x: 1; y: 2") == SHOWN
    assert text.endswith("; and 3 more)")
