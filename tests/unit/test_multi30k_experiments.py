"""scripts/multi30k: the lists of trainings, a transformer of Duo's size."""

import contextlib
import functools
import io
import shlex

import experiments
import pytest
from duo_reference import count

from embinit_fairseq.runs.command import parse_command
from embinit_fairseq.runs.grid_runner import read_lines

LAYERS, D, FFN, WORDS = 2, 12, 10, 60
SIZES = {"layers": LAYERS, "embed-dim": D, "attention-heads": 3}
SMALL = [word for side in ("encoder", "decoder") for name, n in SIZES.items() for word in (f"--{side}-{name}", str(n))]
SMALL += [word for flag in experiments.FFN for word in (flag, str(FFN))]
SMALL += ["--embed-init-seed", "3", "--embed-init-oov=mean"]  # no concern of the models that are counted
VECTORS = [
    "--vectors",
    *(f"{name}={name}.txt" for name in "de en de2 en2 de_a de_b en_a en_b de_oracle en_oracle".split()),
]


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """Name of a grid -> name -> words of each line, as `embinit grid` reads them."""
    data = tmp_path_factory.mktemp("data")
    (data / "bin").mkdir()
    for language in ("de", "en"):
        (data / f"bin/dict.{language}.txt").write_text("".join(f"w{n} 1\n" for n in range(WORDS - 4)))
    (data / "bin/train.de-en.en.bin").touch()

    @functools.cache
    def lines(grid: str, device: str = "cpu") -> dict[str, list[str]]:
        how = ["--device", device, "--precision", "bf16", "--", *SMALL]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            experiments.main([grid, "--data", str(data), "--output", "my runs", *VECTORS, *how])
        return {line.name: shlex.split(line.command) for line in read_lines(output.getvalue())}

    return lines


def options(words: list[str]) -> dict[str, list[str]]:
    """The options of the training."""
    end = words.index("&&") if "&&" in words else None
    return {flag: list(values) for flag, values in parse_command(words[:end]).options.items()}


@pytest.mark.parametrize(
    ("grid", "trainings"),
    [
        *(("scale", 78), ("positions", 30), ("step", 30), ("remedy", 36), ("content", 15)),
        *(("table1", 18), ("duo", 66), ("ladder", 6)),
    ],
)
def test_every_line_is_a_training_in_a_folder_of_its_name(listed, grid: str, trainings: int) -> None:
    lines = listed(grid)
    assert len(lines) == trainings
    for name, words in lines.items():
        assert words[:3] == ["embinit", "run", f"my runs/{name}"]
        assert ("fairseq-generate" in words) == ("score" in words) == (grid in ("table1", "duo", "ladder"))
        found = options(words)
        assert {"--cpu", "--amp"} <= set(found)
        assert name.endswith(f".seed{found['--seed'][0]}")
        assert all(width.isdigit() for flag in experiments.FFN for width in found[flag])


@pytest.mark.parametrize(("grid", "tables"), [("ladder", "three"), ("duo", "two")])
def test_the_two_models_have_as_many_parameters(listed, grid: str, tables: str) -> None:
    """By the formula of duo_reference, to half of what a wider layer adds.

    The width that is given is that of Duo, and must not take from the transformer what makes it as large.
    """
    seed = ".seed1" if grid == "ladder" else ".0.1.seed1"

    def widths(name: str) -> set[int]:
        found = options(listed(grid)[name + seed])
        return {int(found[flag][-1]) for flag in experiments.FFN}

    assert widths("duo" if grid == "ladder" else "duo_stream_decoder") == {FFN}
    (width,) = widths("transformer_equal")
    expected = count(LAYERS, D, FFN, WORDS, tables=tables, streams=2, shared=True, fusion=True)
    assert width > FFN
    assert abs(count(LAYERS, D, width, WORDS, tables=tables, streams=1) - expected) <= LAYERS * (2 * D + 1)


def test_a_name_says_what_is_trained(listed) -> None:
    """A label that says more than the options that it stands for would be a wrong row of docs/results."""
    duo = {name: options(words) for name, words in listed("duo").items()}
    for share in ("stream", "pair"):
        for norm in ("decoder", "encoder"):
            found = duo[f"duo_{share}_{norm}.0.3.seed2"]
            assert (found["--duo-share-weights"], found["--duo-norm"]) == ([share], [norm])
    paths = {
        "duo_two_sets": ["encoder=de.txt", "decoder=en.txt", "encoder_p=de2.txt", "decoder_p=en2.txt"],
        "transformer_avg": ["encoder=avg-l2:de.txt,de2.txt", "decoder=avg-l2:en.txt,en2.txt"],
        "transformer_concat": ["encoder=concat-l2:de_a.txt,de_b.txt", "decoder=concat-l2:en_a.txt,en_b.txt"],
    }
    assert {name: duo[f"{name}.0.1.seed1"]["--embed-init-path"] for name in paths} == paths
    scale = listed("scale")
    for place, arch in (("added", "transformer"), ("absent", "transformer"), ("untied", "tupe_transformer")):
        found = options(scale[f"xavier.8x.{place}.seed1"])
        assert (found["--arch"], found["--embed-init-std"]) == ([arch], ["8x"])
        assert ("--no-token-positional-embeddings" in found) == (place == "absent")
    step, remedy, content = (listed(grid) for grid in ("step", "remedy", "content"))
    for name, std, unscaled in (("1x.on", "1x", False), ("10x.off", "10x", True), ("100x.off", "100x", True)):
        found = options(step[f"{name}.added.seed3"])
        assert (found["--embed-init-std"], "--no-scale-embedding" in found) == ([std], unscaled)
        assert (found["--arch"], found["--max-epoch"]) == (["transformer"], ["5"])
    for name, words in remedy.items():
        rate = name.split(".")[1]
        assert options(words).get("--embed-init-lr-scale", ["one"]) == [rate]
    for name, strategy, vectors, std in (
        ("xavier", "xavier", None, None),
        ("own", "pretrained_xavier", ["encoder=de.txt", "decoder=en.txt"], None),
        ("own_shuffled", "shuffled", ["encoder=de.txt", "decoder=en.txt"], ["xavier"]),
        ("oracle_shuffled", "shuffled", ["encoder=de_oracle.txt", "decoder=en_oracle.txt"], ["xavier"]),
    ):
        found = options(content[f"{name}.seed1"])
        assert (found["--embed-init"], found.get("--embed-init-path")) == ([strategy], vectors)
        assert (found.get("--embed-init-std"), found["--patience"]) == (std, ["5"])
    steps = ("--duo-share-weights", "--duo-norm", "--duo-fusion")
    ladder = {name: [step for step in steps if step in options(words)] for name, words in listed("ladder").items()}
    expected = {"duo_meta": [*steps], "duo_shared": [*steps[1:]], "duo_norm": [*steps[2:]], "duo": []}
    assert {name: ladder[f"{name}.seed1"] for name in expected} == expected


def test_the_recipe_is_kims(listed) -> None:
    """Optimizer, batches and stopping of the paper, and the best checkpoint translated with its beam."""
    words = listed("table1", device="gpu")["none.seed1"]
    generate, found = words[words.index("fairseq-generate") :], options(words)
    recipe = {"--lr": "2e-4", "--adam-betas": "(0.9,0.98)", "--adam-eps": "1e-9", "--lr-scheduler": "fixed"}
    recipe |= {"--patience": "4", "--max-epoch": "20", "--batch-size": "64", "--dropout": "0.1"}
    assert {flag: found[flag][-1] for flag in recipe} == recipe
    assert not {"--clip-norm", "--weight-decay", "--warmup-updates", "--embed-init", "--cpu", "--amp"} & set(found)
    assert "--bf16" in found
    assert generate[generate.index("--path") + 1].endswith("/checkpoint_best.pt")
    assert generate[generate.index("--beam") + 1] == "5"
