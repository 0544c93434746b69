"""Compare translations of one text, plain files or output of fairseq-generate (`embinit compare A B --ref R`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs.comparison import TESTED, header, in_cell, tests_table
from embinit_fairseq.runs.metrics import DEFAULT_SCORES, SCORES, computed
from embinit_fairseq.runs.paired import randomisation_tests
from embinit_fairseq.runs.scoring import ScoreRequest, read_texts


def compare_outputs(places: Sequence[str], baseline: str | None, request: ScoreRequest) -> dict[str, Any]:
    """Return the scores of several outputs, and the paired test of each against one of them.

    Args:
        places: files or folders of runs; NAME=PATH gives a name.
        baseline: name of the output against which the others are tested; None: the first output.
        request: references and options of detokenisation; `place` is not used.

    Raises:
        DataError: a file is missing, or files do not belong together.
        OptionError: there are not two outputs, or none is called `baseline`.
    """
    paths = dict(map(_named, places))
    if len(paths) < 2 or len(paths) < len(places):
        raise OptionError(f"{' '.join(places)}: give two outputs or more, each with its own name (NAME=PATH)")
    base = baseline or next(iter(paths))
    if base not in paths:
        raise OptionError(f"--baseline {base}: no output has this name; there are: {', '.join(map(repr, paths))}")
    texts = {name: read_texts(replace(request, place=path)) for name, path in paths.items()}
    lang = next((text.lang for text in texts.values() if text.lang), "")
    metrics = {
        name: SCORES[name].metric(request.lowercase, lang, request.tokenize)
        for name in request.metrics or DEFAULT_SCORES
    }
    references = texts[base].references
    systems = [
        {"name": name, "scores": {key: computed(metrics[key], text.text, references) for key in metrics}}
        for name, text in texts.items()
    ]
    others = [name for name in texts if name != base]
    tests = randomisation_tests(texts[base].text, references, [texts[name].text for name in others], metrics)
    notes = dict.fromkeys(f"{name}: {note}" for name, text in texts.items() for note in text.notes)
    return {
        "references": list(request.refs),
        "baseline": base,
        "systems": systems,
        "tests": [{"row": name, **test} for name, test in zip(others, tests)],
        "warnings": list(notes),
    }


def _named(place: str) -> tuple[str, str]:
    name, _, path = place.partition("=")
    return (name, path) if name and path and not Path(place).exists() else (place, place)


def outputs_markdown(record: Mapping[str, Any]) -> str:
    """Return the page of `compare_outputs`."""
    lines = [line for note in record["warnings"] for line in (f"**Attention: {note}.**", "")]
    scores = {system["name"]: system["scores"] for system in record["systems"]}
    names = list(scores[record["baseline"]])
    lines += header(["", *(SCORES[name].title for name in names)])
    for system, of_system in scores.items():
        cells = [f"{of_system[name]['score']:.2f}" for name in names]
        lines.append(f"| {' | '.join([in_cell(system), *cells])} |")
    lines += ["", *tests_table(record["baseline"], record["tests"]), f"* {TESTED}"]
    lines += [f"* {SCORES[name].title}: `{record['tests'][0][name]['signature']}`" for name in names]
    return "\n".join([*lines, f"* references: {', '.join(record['references'])}", ""])
