"""scripts/shards: an exchange, tasks that are done, engines of this machine."""

import argparse
import importlib
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import exchange
from shards.engines import Engine, alone
from shards.tasks import Step, Task, once, paragraphs, sum_stats

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import write_text

rows = st.lists(st.integers(0, 10**6), max_size=5)


@settings(max_examples=12)
@given(st.lists(rows, min_size=1, max_size=30), st.integers(1, 40))
def test_rows_reach_their_destination_in_the_order_of_the_sources(tmp_path_factory, sources, destinations: int) -> None:
    folder = tmp_path_factory.mktemp("exchange")
    paths = [folder / f"{number}.npy" for number in range(len(sources))]
    for path, values in zip(paths, sources):
        np.save(path, np.array([values], dtype=np.uint64))

    def destination(rows: np.ndarray, destinations: int) -> np.ndarray:
        return rows[0] % np.uint64(destinations)

    sent = exchange.Exchange(folder / "sent", lambda: paths, lambda: destinations, destination)
    Engine("pool", 1, folder / "work" / "logs", 1, {}).run([sent.step("send")])
    found = [exchange.rows_for(number, sent.inputs())[0].tolist() for number in range(destinations)]
    values = [value for source in sources for value in source]
    assert found == [[value for value in values if value % destinations == number] for number in range(destinations)]


@pytest.mark.parametrize("number", [1, 2, 8, 9, 1000, 10**6 + 1])
def test_a_task_opens_no_more_files_than_the_square_root(number: int) -> None:
    size = exchange.group_of(number)
    assert (size - 1) ** 2 < number <= size**2


def test_datatrove_runs_the_same_tasks_and_its_absence_is_named(tmp_path: Path, monkeypatch) -> None:
    parser = argparse.ArgumentParser()
    Engine.add_arguments(parser)
    with pytest.raises(OptionError, match=r"partition.*NAME=VALUE"):
        Engine.from_arguments(parser.parse_args("--executor-option partition".split()), tmp_path)
    arguments = parser.parse_args("--executor local --jobs 1 --ranks 2".split())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "datatrove.executor", None)
        with pytest.raises(OptionError, match=r"EXECUTOR=local needs datatrove: pip install"):
            Engine.from_arguments(arguments, tmp_path)
    pytest.importorskip("datatrove")
    paths = [tmp_path / str(number) for number in range(5)]
    tasks = [Task(path, write_text, (path, path.name)) for path in paths]
    joined = tmp_path / "joined"
    paths[0].write_text("done before ")
    steps = [Step("write", lambda: tasks), once("join", joined, join, paths, joined)]
    assert Engine.from_arguments(arguments, tmp_path / "work" / "logs").run(steps)
    assert joined.read_text() == "done before 1234"


def test_one_call_at_a_time(tmp_path: Path) -> None:
    with alone(tmp_path / "work" / "logs"), pytest.raises(OptionError, match=rf"{tmp_path}: another call"):
        Engine("pool", 1, tmp_path / "work" / "logs", 1, {}).run([])
    assert Engine("pool", 1, tmp_path / "work" / "logs", 1, {}).run([])


def test_the_reason_of_a_failed_step_is_that_of_the_part_that_failed(tmp_path: Path) -> None:
    """slurmstepd says with the name of its node that the limit of time was reached; part 0 has ended well."""
    pytest.importorskip("datatrove")
    from shards.slurm import _reason

    for path in ("completions/00000", "slurm_logs/7_0.out", "slurm_logs/7_1.out"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("0: ValueError: of a warning\n")
    limit = "slurmstepd-node12: error: *** JOB 7 ON node12 CANCELLED AT 2026-11-28T16:42:33 DUE TO TIME LIMIT ***"
    (tmp_path / "slurm_logs/7_1.out").write_text(f"+ srun\n{limit}\nsrun: forcing job termination\n")
    assert _reason({"folder": str(tmp_path)}) == (tmp_path / "slurm_logs" / "7_1.out", limit)


def join(paths: list[Path], output: Path) -> None:
    write_text(output, "".join(path.read_text() for path in paths))


@pytest.mark.parametrize("corpus", ["wikibooks", "wmt14"])
def test_at_most_twelve_steps_which_other_processes_can_import(corpus: str, tmp_path: Path) -> None:
    """A function of the module that is started has the name __main__ there, which another process does not find."""
    pytest.importorskip("sacremoses")
    pytest.importorskip("spacy")
    module = importlib.import_module(f"{corpus}.steps")
    options = {"input": [tmp_path], "duplicates": "lines", "frequent_types": 1.0, "bpe_words": 1, "bpe_merges": 1}
    options |= {"vocabulary": 9, "valid_every": 2, "shard_mb": 1, "part_gb": 1, "output": tmp_path, "pair": "en-de"}
    options |= {"tokens": "subword_nmt", "size": 1, "max_length": 9, "max_ratio": 2, "shard_pairs": 1, "limit": None}
    steps = module.steps(argparse.Namespace(**options))
    assert len(steps) <= 12
    content = pickle.dumps(steps)
    assert b"prepare" not in content
    assert [step.title for step in pickle.loads(content)] == [step.title for step in steps]


def test_sums_over_shards_and_paragraphs(tmp_path):
    for folder, numbers in (("00000", {"b": 1, "a": 2}), ("00001", {"a": 3}), ("exchange", {"a": 100})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "stats.json").write_text(json.dumps(numbers))
    assert list(sum_stats(tmp_path).items()) == [("a", 5), ("b", 1)]
    assert list(paragraphs(["", "a", "b", "", "", "c", ""])) == [["a", "b"], ["c"]]
