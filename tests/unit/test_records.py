"""scripts/records.py: what an arm costs against another, over seeds."""

import csv
import os
from pathlib import Path

import claims
import pytest
import records

LOSSES = {  # row -> seed -> losses of its epochs
    ("xavier", "added"): {1: [3.0, 2.0], 2: [2.5, 2.1], 3: [2.2, 2.4]},
    ("raw", "added"): {1: [3.0, 2.5], 2: [2.8, 3.0], 3: [2.6, 2.9], 4: [9.0, 9.0]},
    ("raw", "untied"): {2: [2.0, 2.05]},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "runs.csv"
    with open(path, "w", encoding="utf-8", newline="") as output:
        table = csv.DictWriter(output, ["run", "init", "positions", "seed", *records.EPOCH, *records.FACTS])
        table.writeheader()
        for (init, positions), seeds in LOSSES.items():
            for seed, losses in seeds.items():
                run = {"run": f"{init}.{positions}.{seed}", "init": init, "positions": positions, "seed": seed}
                for epoch, loss in enumerate([None, *losses]):
                    table.writerow({**run, "epoch": epoch, "valid_loss": loss})
    return path


def rows(capsys, *words) -> list[list[str]]:
    records.main([str(word) for word in words])
    return [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]


def test_differences_of_the_seeds_that_both_have_and_their_interval(file, capsys) -> None:
    """By hand: 0.5, 0.7, 0.4; mean 0.5333, sd 0.15275, t(2) = 4.3027."""
    found = rows(capsys, "contrast", file, "--by", "init", "positions", "--baseline", "xavier", "added")
    assert found == [
        ["raw", "added", "+0.500, +0.700, +0.400", "+0.533", "+0.154 to +0.913"],
        ["raw", "untied", "-0.100", "-0.100", "-"],
    ]
    first = rows(capsys, "contrast", file, "--by", "init", "positions", "--baseline", "xavier", "added", "--epochs", 1)
    assert first[0][2] == "+0.000, +0.300, +0.400"
    with pytest.raises(SystemExit, match="--baseline normal"):
        rows(capsys, "contrast", file, "--by", "init", "--baseline", "normal")


#: a page of results, what it has, and the same with a wrong digit
WRONG = [
    ("README.md", "2.404 and 2.402", "2.404 and 2.412"),
    ("multi30k.md", "+0.35 ± 0.26", "+0.35 ± 0.28"),
    ("multi30k.md", "| 2.477 |", "| 2.471 |"),
    ("scale.md", "| 0.256 |", "| 0.265 |"),
    ("scale.md", "43 %", "34 %"),
    ("mlm.md", "6.38 [bits]", "6.36 [bits]"),
    ("mlm.md", "*7.184*", "7.184"),
    ("duo_multi30k.md", "by 0.19 bits (one", "by 0.18 bits (one"),
    ("duo_multi30k.md", "33.4 (0.911)", "33.4 (0.919)"),
    ("expansion.md", "1,606.5", "1,605.6"),
    ("expansion.md", "-18.7 ± 1.6 |", "-18.7 ± 1.8 |"),
    ("controls.md", "2.799, 2.774", "2.799, 2.747"),
    ("controls.md", "2.563 (11)", "2.536 (11)"),
    ("README.md", "gain 0.217", "gain 0.271"),
    ("controls.md", "| omp | 425.4", "| omp | 424.5"),
    ("controls.md", "2.1 ± 0.2 times", "2.1 ± 0.1 times"),
    ("controls.md", "perplexity of 1,311", "perplexity of 1,131"),
    ("controls.md", "503 updates", "500 updates"),
    ("README.md", "subwords gain 14.9", "subwords gain 19.4"),
    ("README.md", "zeros 9.4 ± 1.9", "zeros 9.4 ± 1.6"),
    ("README.md", "differs by -0.7", "differs by +0.7"),
    ("README.md", "ones are 30.8", "ones are 38.0"),
    ("../expand_vocab.md", "| 0.651, 0.210 |", "| 0.651, 0.021 |"),
    ("transfer.md", "has 30 to 32", "has 31 to 32"),
    ("transfer.md", "| 4.093, 4.067 |", "| 4.093, 4.061 |"),
]


def test_the_pages_claim_what_the_records_hold():
    """A digit that does not follow from the records is noticed on every page, wherever its lines are broken."""
    root = Path(__file__).parents[2]
    texts = {name: claims.plain(text) for name, text in claims.texts(root).items()}
    expected = [claim for part in claims.PARTS for claim in part(root / claims.RECORDS)]
    assert not claims.missing(expected, texts)
    for page, right, wrong in WRONG:
        name = os.path.normpath(f"docs/results/{page}")
        right, wrong = claims.plain(right), claims.plain(wrong)
        assert texts[name].count(right) == 1, (page, right)
        assert claims.missing(expected, {**texts, name: texts[name].replace(right, wrong)}), (page, wrong)
