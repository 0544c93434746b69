"""scripts/multi30k: the lists of trainings, a transformer of Duo's size."""

from __future__ import annotations

import shlex
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("fairseq", reason="it builds models; install fairseq with scripts/setup.sh")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "multi30k"))

import experiments
from duo_reference import count

from embinit_fairseq.runs.command import parse_command
from embinit_fairseq.runs.grid import read_lines

LAYERS, D, FFN, WORDS = 2, 12, 10, 60
SMALL = [
    *(f"--{side}-{name}={size}" for side in ("encoder", "decoder") for name, size in (("layers", 1), ("embed-dim", 6))),
    *("--encoder-attention-heads=2", "--decoder-attention-heads=2"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "bin").mkdir(parents=True)
    for language in ("de", "en"):
        (folder / f"bin/dict.{language}.txt").write_text("".join(f"w{n} 1\n" for n in range(WORDS - 4)))
    (folder / "bin/train.de-en.en.bin").touch()
    return folder


@pytest.mark.parametrize(("grid", "trainings"), [("scale", 78), ("table1", 18), ("duo", 44), ("ladder", 6)])
def test_every_line_is_a_training_in_a_folder_of_its_name(capsys, data, grid: str, trainings: int) -> None:
    vectors = ["--vectors", *(f"{name}={name}.txt" for name in "de en de2 en2 de_a de_b en_a en_b".split())]
    how = ["--device", "cpu", "--precision", "bf16", "--", *SMALL]
    experiments.main([grid, "--data", str(data), "--output", "my runs", *vectors, *how])
    # read as `embinit grid` does, which refuses names that are not unique
    lines = {line.name: shlex.split(line.command) for line in read_lines(capsys.readouterr().out)}
    assert len(lines) == trainings
    seeds = defaultdict(set)
    for name, words in lines.items():
        assert words[:3] == ["embinit", "run", f"my runs/{name}"]
        assert ("fairseq-generate" in words) == ("score" in words) == (grid != "scale")
        options = parse_command(words[: words.index("&&") if "&&" in words else None]).options
        assert {"--cpu", "--amp"} <= set(options)
        assert name.endswith(f".seed{options['--seed'][0]}")
        assert all(width.isdigit() for flag in experiments.FFN for width in options[flag])
        seeds[options["--max-epoch"][0], options.get("--embed-init-std", [""])[0]].add(options["--seed"][0])
    if grid == "scale":  # the ends and the middle have more epochs and more seeds
        long = {("12", factor): {"1", "2", "3"} for factor in ("0.125x", "1x", "8x")}
        assert seeds == {**long, **{("6", factor): {"1"} for factor in ("0.25x", "0.5x", "2x", "4x")}}


PAPER = {"streams": 2, "shared": True, "fusion": True}


@pytest.mark.parametrize(
    ("ties", "tables", "duo", "told"),
    [
        ("", "three", "--duo-share-weights off", {**PAPER, "shared": False}),
        ("--share-decoder-input-output-embed", "two", "--duo-share-weights pair --duo-norm encoder", PAPER),
        ("--share-all-embeddings", "one", "--encoder-dim-p 5", {**PAPER, "dims": [D, 5]}),
    ],
)
def test_the_two_models_have_as_many_parameters(data, ties, tables, duo, told) -> None:
    """By the formula of test_duo_parameters, to half of what a wider layer adds."""
    sizes = {"layers": LAYERS, "embed-dim": D, "ffn-embed-dim": FFN, "attention-heads": 3}
    flags = " ".join(f"--{side}-{name} {value}" for side in ("encoder", "decoder") for name, value in sizes.items())
    plugin = f"--user-dir {experiments.PLUGIN} --task translation -s de -t en --cpu"
    command = f"fairseq-train {data}/bin {plugin} --arch transformer {flags} {ties}".split()
    width = experiments.equal_width(tuple(command), tuple(duo.split()))
    expected = count(LAYERS, D, FFN, WORDS, tables=tables, **told)
    assert width > FFN
    assert abs(count(LAYERS, D, width, WORDS, tables=tables, streams=1) - expected) <= LAYERS * (2 * D + 1)


def test_a_smaller_inner_width_is_that_of_duo(capsys, data) -> None:
    """It stands behind the grid's own options, and must not take from the transformer what makes it as large."""
    smaller = [word for flag in experiments.FFN for word in (flag, "8")]
    vectors = ["--vectors", "de=de.txt", "en=en.txt"]
    further = [*smaller, "--embed-init-seed", "3", "--embed-init-oov=mean"]  # no concern of the models that are counted
    experiments.main(["duo", "--data", str(data), "--output", "runs", *vectors, "--", *SMALL, *further])
    widths = {}
    for line in read_lines(capsys.readouterr().out):
        words = shlex.split(line.command)
        widths[line.name] = {parse_command(words[: words.index("&&")]).options[flag][-1] for flag in experiments.FFN}
    assert widths["duo_stream_decoder.0.1.seed1"] == {"8"}
    (equal,) = widths["transformer_equal.0.1.seed1"]
    assert int(equal) > 8


def test_what_a_name_says_is_what_is_trained(capsys, data) -> None:
    """A label that says more than the options behind it would be a wrong row of docs/results."""
    vectors = ["--vectors", *(f"{name}={name}.txt" for name in "de en de2 en2 de_a de_b en_a en_b".split())]

    def options(grid: str) -> dict[str, dict[str, list[str]]]:
        experiments.main([grid, "--data", str(data), "--output", "runs", *vectors, "--device", "cpu", "--", *SMALL])
        commands = {line.name: shlex.split(line.command) for line in read_lines(capsys.readouterr().out)}
        ends = {name: words.index("&&") if "&&" in words else None for name, words in commands.items()}
        found = {name: parse_command(words[: ends[name]]).options for name, words in commands.items()}
        return {name: {flag: list(values) for flag, values in each.items()} for name, each in found.items()}

    duo = options("duo")
    assert all("--share-decoder-input-output-embed" in each for each in duo.values())
    for share in ("stream", "pair"):
        for norm in ("decoder", "encoder"):
            found = duo[f"duo_{share}_{norm}.0.3.seed2"]
            assert (found["--duo-share-weights"], found["--duo-norm"]) == ([share], [norm])
    plain = ["encoder=de.txt", "decoder=en.txt"]
    paths = {
        "transformer_equal": plain,
        "duo_two_sets": [*plain, "encoder_p=de2.txt", "decoder_p=en2.txt"],
        "transformer_equal_avg": ["encoder=avg-l2:de.txt,de2.txt", "decoder=avg-l2:en.txt,en2.txt"],
        "transformer_equal_concat": ["encoder=concat-l2:de_a.txt,de_b.txt", "decoder=concat-l2:en_a.txt,en_b.txt"],
        "transformer_avg": ["encoder=avg-l2:de.txt,de2.txt", "decoder=avg-l2:en.txt,en2.txt"],
        "transformer_concat": ["encoder=concat-l2:de_a.txt,de_b.txt", "decoder=concat-l2:en_a.txt,en_b.txt"],
    }
    assert {name: duo[f"{name}.0.1.seed1"]["--embed-init-path"] for name in paths} == paths

    scale = options("scale")
    for place, arch in (("added", "transformer"), ("absent", "transformer"), ("untied", "tupe_transformer")):
        found = scale[f"xavier.8x.{place}.seed1"]
        assert (found["--arch"], found["--embed-init-std"]) == ([arch], ["8x"])
        assert ("--no-token-positional-embeddings" in found) == (place == "absent")

    table = options("table1")
    assert table["shuffled_xavier.seed1"]["--embed-init-std"] == ["xavier"]
    assert not any("--embed-init-std" in found for name, found in table.items() if "shuffled_x" not in name)

    steps = ("--duo-share-weights", "--duo-norm", "--duo-fusion")
    ladder = {name: [step for step in steps if step in found] for name, found in options("ladder").items()}
    assert [ladder[f"{name}.seed1"] for name in ("duo_meta", "duo_shared", "duo_norm", "duo")] == [
        [*steps],
        [*steps[1:]],
        [*steps[2:]],
        [],
    ]


def test_the_recipe_is_kims(capsys, data) -> None:
    """Optimizer, batches and stopping of the paper, and the best checkpoint translated with its beam."""
    line = ["table1", "--data", str(data), "--output", "runs", "--vectors", "de=de.txt", "en=en.txt", "--", *SMALL]
    experiments.main(line)
    words = shlex.split(next(iter(read_lines(capsys.readouterr().out))).command)
    train, generate = words[: words.index("&&")], words[words.index("fairseq-generate") :]
    options = parse_command(train).options
    recipe = {"--lr": "2e-4", "--adam-betas": "(0.9,0.98)", "--adam-eps": "1e-9", "--lr-scheduler": "fixed"}
    recipe |= {"--patience": "4", "--max-epoch": "20", "--batch-size": "64", "--dropout": "0.1"}
    assert {flag: options[flag][-1] for flag in recipe} == recipe
    assert not {"--clip-norm", "--weight-decay", "--warmup-updates"} & set(options)
    assert generate[generate.index("--path") + 1].endswith("/checkpoint_best.pt")
    assert generate[generate.index("--beam") + 1] == "5"
    assert [experiments.machine_options("gpu", how) for how in ("bf16", "fp32")] == [["--bf16"], []]
