"""scripts/textcls on a few hundred made-up texts: data, trainings as fairseq-train's own, resuming, errors."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from programs import VENV

pytest.importorskip("sklearn")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "textcls"
WORDS = ["good", "fine", "lovely", "bad", "dull", "awful", "film", "story", "the", "a", "is", "was", "rather", "it"]

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: Path, *arguments: object, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
    variables = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "DATA": "", **environment}
    result = subprocess.run(["bash", str(script), *map(str, arguments)], env=variables, capture_output=True, text=True)
    if check and result.returncode != 0:
        pytest.fail(f"{script} {arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


def bash_together(*commands: list[object], **environment: str) -> list[str]:
    """What is said by commands that start at the same time; all must succeed."""
    variables = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "DATA": "", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen(["bash", *map(str, command)], env=variables, **pipes) for command in commands]
    said = [process.communicate(timeout=240)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), said
    return said


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 training and 80 test texts; the label is whether the judgement in it is a good one."""
    generator = np.random.default_rng(3)
    lines = ["split\tlabel\ttext"]
    for number in range(320):
        judgement, length = generator.integers(6), generator.integers(1, 12)
        words = [WORDS[at] for at in generator.integers(6, len(WORDS), size=length)]
        words.insert(generator.integers(length + 1), WORDS[judgement])
        label = "positive" if judgement < 3 else "negative"
        lines.append(f"{'test' if number % 4 == 3 else 'train'}\t{label}\t{' '.join(words).capitalize()}!")
    lines[4] += " onlyinthetest"  # a test text
    path = tmp_path_factory.mktemp("texts") / "toy.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two files of different dimensions, as --vectors takes them; judgements lie on two sides."""
    folder, generator = tmp_path_factory.mktemp("vectors"), np.random.default_rng(5)
    for dim in (5, 8):
        rows = generator.normal(0, 0.4, (len(WORDS), dim))
        rows[:3, 0], rows[3:6, 0] = 1, -1
        lines = [f"{word} {' '.join(f'{value:.4f}' for value in row)}" for word, row in zip(WORDS, rows)]
        (folder / f"v{dim}.txt").write_text("\n".join(lines) + "\n")
    return [f"v5={folder}/v5.txt", f"v8={folder}/v8.txt"]


SETTINGS = ["--min-count", "1", "--stop-words", "none"]
QUICK = ["--epochs", "6", "--lr", "2e-2", "--batch", "32", "--jobs", "2"]


@pytest.fixture(scope="module")
def finished(texts: Path, vectors: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kinds of models with one seed; checkpoints are kept."""
    output = tmp_path_factory.mktemp("finished") / "out"
    models = ["couples", "transformer:own", "transformer", "tfidf_lr", "mlp"]
    options = ["--vectors", *vectors, "--own-vectors", "own=4", "--models", *models, "--seeds", "1"]
    bash(SCRIPTS / "run.sh", "--output", output, *SETTINGS, *options, *QUICK, "--keep-checkpoints", DATA=str(texts))
    return output


def results(output: Path) -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text()) for path in output.rglob("result.json")}


def test_every_model_is_trained_tested_and_in_the_table(finished: Path) -> None:
    found = results(finished / "runs")
    couples = ["v5+v5", "v5+v8", "v5+own", "v8+v8", "v8+own", "own+own"]
    others = ["transformer=own.1", "transformer.1", "tfidf_lr.1", "mlp.1"]
    assert set(found) == {*(f"{couple}.softmax.1" for couple in couples), *others}
    for name in ("v5+v8.softmax.1", "tfidf_lr.1", "mlp.1"):
        assert found[name]["scores"]["test_accuracy"] > 80, name
    couple = found["v5+v8.softmax.1"]
    assert couple["parameters"]["trained"] == 13 + 13 * 600 + 600 * 2
    assert couple["labels"] == {
        "task": "toy",
        "protocol": "textgcn",
        "words": "clean kim, stop_words none, min_count 1",
        "model": "v5+v8",
        "attention": "softmax",
        "seed": "1",
        "training": "learning rate 2e-2, batch 32, patience 10, at most 6 epochs",
    }
    assert [couple["init"]["slots"][slot]["dim"] for slot in ("encoder", "encoder_p")] == [5, 8]
    table = (finished / "results.md").read_text()
    assert len(re.findall(r"^\| Duo \(softmax\)", table, re.MULTILINE)) == 6
    assert f"| {couple['scores']['test_accuracy']:.2f} |" in table


def test_data_are_split_as_the_protocol_says(finished: Path, texts: Path) -> None:
    folder = finished / "data" / "textgcn"
    sizes = {
        name: len((folder / f"seeds/1/text/{name}.input0").read_text().splitlines())
        for name in ("train", "valid", "test")
    }
    assert sizes == {"train": 216, "valid": 24, "test": 80}
    dictionary = (folder / "seeds/1/bin/input0/dict.txt").read_text()
    assert "onlyinthetest" in dictionary
    assert (folder / "corpus/test.input0").read_text().splitlines()[0].endswith(" ! onlyinthetest")
    labels = (folder / "seeds/1/bin/label/dict.txt").read_text().split()[::2]
    assert labels == ["negative", "positive"]


def test_the_test_accuracy_is_that_of_the_kept_checkpoint(finished: Path) -> None:
    """From Python, text by text, with the model of the lowest validation loss."""
    from embinit_fairseq.models.duo_classifier import DuoClassifier

    run, text = finished / "runs/textgcn/v5+v8.softmax.1", finished / "data/textgcn/seeds/1/text"
    data = finished / "data/textgcn/seeds/1/bin"
    hub = DuoClassifier.from_pretrained(str(run / "checkpoints"), "checkpoint_best.pt", data=str(data))
    result, lines = results(run)[run.name], {}
    for name in ("valid", "test"):
        columns = ((text / f"{name}.{column}").read_text().split("\n")[:-1] for column in ("input0", "label"))
        lines[name] = list(zip(*columns))
    predicted = [(hub.predict(words), label) for words, label in lines["test"]]
    right = [max(found, key=found.get) == label for found, label in predicted]
    assert result["scores"]["test_accuracy"] == round(100 * sum(right) / len(right), 2)
    loss = -np.mean([np.log2(hub.predict(words)[label]) for words, label in lines["valid"]])
    assert result["best"]["valid_loss"] == pytest.approx(loss, abs=0.001)
    assert result["best"]["valid_loss"] == min(epoch["valid_loss"] for epoch in result["epochs"].values())


def test_a_run_is_what_fairseq_train_makes(finished: Path, tmp_path: Path) -> None:
    """Kept batches, the fork and the common process change nothing: the recorded command gives the same losses."""
    result = results(finished / "runs")["v5+v8.softmax.1"]
    command = shlex.split(result["command"])
    command[command.index("--save-dir") + 1] = str(tmp_path)
    command[0] = str(Path(sys.prefix) / "bin" / command[0])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    losses = [json.loads(line)["valid_loss"] for line in re.findall(r"\| valid \| (.*)", done.stdout + done.stderr)]
    assert [float(loss) for loss in losses] == [epoch["valid_loss"] for epoch in result["epochs"].values()]
    assert len(losses) == 6


def test_finished_runs_are_kept_and_stopped_ones_begin_anew(
    finished: Path, texts: Path, vectors: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    data, runs = finished / "data/textgcn", output / "runs"
    options = ["--data", data, "--output", runs, "--vectors", *vectors, "--models", "v5+v8", "tfidf_lr", *QUICK]
    bash(SCRIPTS / "train.sh", *options)
    first = {path: path.stat().st_mtime_ns for path in runs.rglob("result.json")}
    before = results(runs)["v5+v8.softmax.1"]
    assert len(first) == 2
    assert not list(runs.rglob("checkpoints"))  # not asked for
    assert bash(SCRIPTS / "train.sh", *options).stderr == ""
    assert {path: path.stat().st_mtime_ns for path in first} == first
    run = runs / "v5+v8.softmax.1"
    (run / "result.json").unlink()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "checkpoint_last.pt").write_text("half a checkpoint")
    done = bash(SCRIPTS / "train.sh", *options)
    assert "[1/1] v5+v8.softmax.1: test accuracy " in done.stderr
    after = results(runs)["v5+v8.softmax.1"]
    assert (after["scores"], after["best"]) == (before["scores"], before["best"])
    refused = bash(SCRIPTS / "train.sh", *options, "--lr", "3e-2", check=False)
    assert refused.returncode != 0
    assert "v5+v8.softmax.1 holds a run with other options" in refused.stderr


def test_inductive_protocol_and_more_seeds(texts: Path, vectors: list[str], tmp_path: Path) -> None:
    options = ["--output", tmp_path, *SETTINGS, "--vectors", *vectors, "--models", "v5+v8", *QUICK]
    options += ["--protocols", "inductive", "--attentions", "linear"]
    for seeds in (["2"], ["2", "3"]):
        bash(SCRIPTS / "run.sh", *options, "--seeds", *seeds, "--", "--dropout", "0.3", DATA=str(texts))
    found = results(tmp_path / "runs")
    assert set(found) == {"v5+v8.linear.2", "v5+v8.linear.3"}
    for result in found.values():
        assert result["labels"]["protocol"] == "inductive"
        assert shlex.split(result["command"])[-2:] == ["--dropout", "0.3"]
    folders = [tmp_path / f"data/inductive/seeds/{seed}/text/valid.input0" for seed in (2, 3)]
    assert folders[0].read_text() != folders[1].read_text()
    dictionary = (tmp_path / "data/inductive/seeds/2/bin/input0/dict.txt").read_text()
    assert "onlyinthetest" not in dictionary
    assert "protocol inductive" in (tmp_path / "results.md").read_text()


def test_two_scripts_in_one_folder_do_every_run_once(finished: Path, vectors: list[str], tmp_path: Path) -> None:
    command = [SCRIPTS / "train.sh", "--data", finished / "data/textgcn", "--output", tmp_path, "--vectors", *vectors]
    command += ["--models", "v5+v8", "v8+v8", "mlp", *QUICK[:-1], "1"]
    said = bash_together(command, command)
    found = results(tmp_path)
    assert set(found) == {"v5+v8.softmax.1", "v8+v8.softmax.1", "mlp.1"}
    for name in found:
        assert sum(f"{name}: test accuracy" in text for text in said) == 1
        assert sum(f"{name}: done by another program" in text for text in said) == 1
    for name in ("v5+v8.softmax.1", "v8+v8.softmax.1"):
        alone = results(finished / "runs")[name]
        assert (found[name]["scores"], found[name]["best"]) == (alone["scores"], alone["best"])
        assert (tmp_path / name / "train.log").read_text().count("| valid |") == 6


def test_two_scripts_prepare_one_folder(texts: Path, tmp_path: Path) -> None:
    command = [SCRIPTS / "prepare.sh", "--output", tmp_path / "out", *SETTINGS, "--seeds", "1", "2"]
    left = f"out/seeds/.2.{platform.node().replace('.', '-')}.99999999.tmp"  # of a script that was killed
    (tmp_path / left).mkdir(parents=True)
    said = bash_together(command, command, DATA=str(texts))
    assert sum("waiting for another script" in text for text in said) == 1
    assert {path.name for path in (tmp_path / "out/seeds").iterdir()} == {"1", "2", "dict.txt"}
    bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "alone", *SETTINGS, "--seeds", "2", DATA=str(texts))
    for file in ("bin/input0/train.bin", "bin/label/valid.bin"):
        assert (tmp_path / "out/seeds/2" / file).read_bytes() == (tmp_path / "alone/seeds/2" / file).read_bytes()


def test_own_vectors_of_another_dimension_are_other_vectors(texts: Path, tmp_path: Path) -> None:
    options = ["--output", tmp_path, *SETTINGS, "--models", "own+own", *QUICK, "--seeds", "1", "--own-vectors"]
    bash(SCRIPTS / "run.sh", *options, "own=4", DATA=str(texts))
    done = bash(SCRIPTS / "run.sh", *options, "own=6", check=False, DATA=str(texts))
    assert done.returncode != 0
    assert "own+own.softmax.1 holds a run with other options" in done.stderr
    shutil.rmtree(tmp_path / "runs")
    bash(SCRIPTS / "run.sh", *options, "own=6", DATA=str(texts))
    assert results(tmp_path)["own+own.softmax.1"]["init"]["slots"]["encoder"]["dim"] == 6


def test_vectors_that_have_changed_are_refused(finished: Path, vectors: list[str], tmp_path: Path) -> None:
    file, runs = tmp_path / "v.txt", tmp_path / "runs"
    file.write_bytes(Path(vectors[0].partition("=")[2]).read_bytes())
    options = ["--data", finished / "data/textgcn", "--output", runs, "--vectors", f"v={file}", *QUICK]
    bash(SCRIPTS / "train.sh", *options, "--models", "v+v")
    with file.open("a") as lines:
        lines.write("another 1 2 3 4 5\n")
    for models in (["v+v"], ["transformer:v"]):  # the run itself, and one beside it
        done = bash(SCRIPTS / "train.sh", *options, "--models", *models, check=False)
        assert done.returncode != 0
        message = f"--vectors v={file}: {runs}/v+v.softmax.1 holds a run with these vectors, and the file has changed"
        assert message in done.stderr
    assert [path.name for path in runs.iterdir()] == ["v+v.softmax.1"]
    record = json.loads((runs / "v+v.softmax.1/result.json").read_text())
    del record["vectors"]  # as older versions wrote it
    (runs / "v+v.softmax.1/result.json").write_text(json.dumps(record))
    bash(SCRIPTS / "train.sh", *options, "--models", "v+v")


def test_stop_words_of_a_file_are_those_of_the_first_time(texts: Path, tmp_path: Path) -> None:
    def prepare(folder: Path, check: bool = True) -> subprocess.CompletedProcess:
        program = f'cd "{folder}" && exec bash "{SCRIPTS}/prepare.sh" "$@"'
        words = ["--output", tmp_path / "out", "--min-count", "1", "--seeds", "1", "--stop-words", "stop.txt"]
        variables = {**os.environ, "VENV": str(VENV), "DATA": str(texts)}
        command = ["bash", "-c", program, "-", *map(str, words)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stderr
        return done

    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stop.txt").write_text("the\n")
    prepare(tmp_path / "here")
    prepare(tmp_path / "here")
    done = prepare(tmp_path / "there", check=False)
    assert done.returncode != 0
    assert "was made with other options (task=toy data=" in done.stderr
    (tmp_path / "here/stop.txt").write_text("the a\n")
    done = prepare(tmp_path / "here", check=False)
    assert done.returncode != 0
    assert (
        f"--stop-words {tmp_path}/here/stop.txt: the file is not the one that {tmp_path}/out was made with"
        in done.stderr
    )
    settings = tmp_path / "out/settings"
    settings.write_text(re.sub("stop_words_sha256=.*\n", "", settings.read_text()))  # as older versions wrote them
    prepare(tmp_path / "here")


def is_gone(group: int) -> bool:
    """Within ten seconds, which init may need to remove an orphan that has ended."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_stopping_the_script_stops_its_runs(texts: Path, vectors: list[str], tmp_path: Path) -> None:
    command = ["bash", SCRIPTS / "run.sh", "--output", tmp_path, *SETTINGS, "--seeds", "1", "--models", "v5+v8"]
    command += ["--vectors", *vectors, "--epochs", "2000", "--patience", "2000"]
    variables = {**os.environ, "VENV": sys.prefix, "DATA": str(texts)}
    process = subprocess.Popen(
        list(map(str, command)), env=variables, start_new_session=True, text=True, stderr=subprocess.PIPE
    )
    log = tmp_path / "runs/textgcn/v5+v8.softmax.1/train.log"
    for _ in range(600):
        if log.is_file() and "| valid |" in log.read_text():
            break
        time.sleep(0.2)
    process.terminate()  # the script only, not its group
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "stopped; start again to continue" in said
    assert not list(tmp_path.rglob("result.json"))
    assert is_gone(process.pid)


def test_a_learning_rate_that_ends_in_nan_is_the_reason(finished: Path, tmp_path: Path) -> None:
    options = ["--data", finished / "data/textgcn", "--output", tmp_path, "--models", "transformer", *QUICK]
    done = bash(SCRIPTS / "train.sh", *options, "--lr", "1e30", check=False)
    assert done.returncode != 0
    assert "transformer.1: FAILED (FloatingPointError: gradients are Nan/Inf)" in done.stderr


def test_a_run_that_fails_is_named_and_the_others_go_on(finished: Path, vectors: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("anders 1 2 3\nganz 4 5 6\n")
    options = ["--data", finished / "data/textgcn", "--output", tmp_path / "runs", *QUICK]
    vectors = ["--vectors", f"none={other}", *vectors]
    done = bash(SCRIPTS / "train.sh", *options, *vectors, "--models", "none+v5", "v5+v5", check=False)
    assert done.returncode != 0
    assert re.search(r"none\+v5\.softmax\.1: FAILED \(.*none of the .* words", done.stderr)
    assert "2 runs, 2 at a time: none+v5 (softmax) x 1, v5+v5 (softmax) x 1" in done.stderr
    assert "1 of 2 runs failed (none+v5.softmax.1); start again to continue" in done.stderr
    assert set(results(tmp_path / "runs")) == {"v5+v5.softmax.1"}


def test_a_vector_file_that_was_cut_short_is_found_before_any_run(
    finished: Path, vectors: list[str], tmp_path: Path
) -> None:
    """Its head is whole; and vectors that no run needs are not read."""
    cut, whole = tmp_path / "cut.txt", Path(vectors[0].partition("=")[2]).read_text()
    cut.write_text(whole.rstrip("\n").rpartition(" ")[0])
    options = ["--data", finished / "data/textgcn", "--output", tmp_path / "runs", *QUICK, "--vectors", f"cut={cut}"]
    done = bash(SCRIPTS / "train.sh", *options, vectors[0], "--models", "v5+v5", "cut+v5", check=False)
    assert done.returncode != 0
    assert f"error: --vectors cut={cut}: {cut}:" in done.stderr
    assert "at a time" not in done.stderr
    bash(SCRIPTS / "train.sh", *options, "--models", "tfidf_lr")


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("prepare.sh", ["--protocol", "other"], "--protocol other: not known"),
        ("prepare.sh", ["--min-count", "0"], "--min-count 0: must be a whole number from 1"),
        ("prepare.sh", ["--stop-words", "elsewhere"], "--stop-words elsewhere: no such file"),
        ("run.sh", [], "--output is needed"),
        ("run.sh", ["--output", "out", "--own-vectors", "a"], "--own-vectors a: NAME=DIMENSION is needed"),
        ("run.sh", ["--output", "out", "--vectors", "a=typo.txt"], "--vectors a=typo.txt: no such file"),
        (
            "run.sh",
            ["--output", "out", "--vectors", "/dev/null"],
            "--vectors /dev/null: its name in tables is missing",
        ),
        ("run.sh", ["--output", "out", "--protocols", "other"], "--protocols other: not known"),
        ("train.sh", [], "--data and --output are needed"),
        ("train.sh", ["--data", "x", "--output", "out", "--lr", "0"], "--lr 0: must be a number above 0"),
        (
            "train.sh",
            ["--data", "x", "--output", "out", "--lr", "1e400"],
            "--lr 1e400: must be a number above",
        ),
        ("train.sh", ["--data", "x", "--output", "out", "--batch", "9" * 15], f"--batch {'9' * 15}: must be at most"),
        ("train.sh", ["--data", "x", "--output", "out"], "not prepared; run prepare.sh"),
    ],
)
def test_wrong_options_are_refused(
    script: str, arguments: list[str], message: str, texts: Path, tmp_path: Path
) -> None:
    (tmp_path / "scratch").mkdir()
    variables = {**os.environ, "VENV": str(VENV), "DATA": str(texts)}
    command = ["bash", str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=tmp_path / "scratch")
    assert done.returncode != 0
    assert message in done.stderr


def test_missing_and_malformed_data_are_named(texts: Path, tmp_path: Path) -> None:
    done = bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", check=False)
    assert "DATA is not set" in done.stderr
    broken = tmp_path / "broken.tsv"
    shutil.copy(texts, broken)
    with broken.open("a") as file:
        file.write("train\tpositive\n")
    done = bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", *SETTINGS, check=False, DATA=str(broken))
    assert done.returncode != 0
    assert f"error: {broken}, line 322: 2 fields, but 3 columns in line 1" in done.stderr
    assert not (tmp_path / "out/corpus").exists()
    bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", *SETTINGS, "--seeds", "1", DATA=str(texts))  # mended
    done = bash(SCRIPTS / "train.sh", "--data", tmp_path, "--output", tmp_path / "r", "--vectors", "a=/x", check=False)
    assert done.returncode != 0
