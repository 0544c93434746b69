"""scripts/wikibooks on about a hundred made-up documents, through bash and the real fairseq commands."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from programs import VENV
from recipes import SCRIPTS, TRAINS, environment, killed, refused, rows, stamps, succeed

pytest.importorskip("sacremoses")
pytest.importorskip("spacy")

sys.path.insert(0, str(SCRIPTS))

from wikibooks import clean_shards, synthetic
from wikibooks.encode_shards import Encoder
from wikibooks.split import PASSAGE_LINES

from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_options import written
from embinit_fairseq.vocab.preparation_record import read_preparation

pytestmark = TRAINS
PREPARE, RUN = "wikibooks/prepare.sh", "wikibooks/run.sh"
EVERY = 7
HOW = {"BPE_MERGES": 150, "VOCABULARY": 160, "FREQUENT_TYPES": 0.5, "VALID_EVERY": EVERY, "SHARD_MB": 0.02}
SHORT = {"MODELS": "tupe_r", "SIZE": "tiny", "UPDATES": 4, "SAVE_EVERY": 2, "BATCH": 8, "DEVICE_BATCH": 4, "JOBS": 1}
MODEL = "--tokens-per-sample 32 --lr 0.01 --encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8".split()
MODEL += ["--encoder-attention-heads", "2"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 60 kB with repeated lines, addresses, and one document of several passages."""
    lines = list(itertools.islice(synthetic.lines(seed=1), 230))
    lines[:0] = ["See http://www.example.org/a?b=1, or write to joe@example.org.", "Read notes.txt and www.x.org!", ""]
    lines[58:178] = [line or "No blank line here." for line in lines[58:178]]
    path = tmp_path_factory.mktemp("a corpus") / "text"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared in two processes, stopped by kill -9, continued in one."""
    folder = tmp_path_factory.mktemp("pre pared") / "data"
    killed(PREPARE, corpus, once=lambda: [*folder.glob("work/clean/0000[0-9]")], OUTPUT=folder, **HOW, JOBS=2)
    before = stamps([next(folder.glob("work/clean/0*/train.txt"))])
    succeed(PREPARE, corpus, OUTPUT=folder, **HOW, JOBS=1)
    assert stamps(before) == before
    assert "ready before" in succeed(PREPARE, corpus, OUTPUT=folder, **HOW)
    assert "name another folder" in refused(PREPARE, corpus, OUTPUT=folder, **{**HOW, "VOCABULARY": 170})
    return folder


def joined(folder: Path, name: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"[0-9]*/{name}")))


def test_the_text_is_that_of_a_plain_loop(corpus: Path, prepared: Path) -> None:
    sentences_of, seen, passage = clean_shards.cleaner().sentences, set(), 0
    expected = {"train": "", "valid": ""}
    for document in corpus.read_text(encoding="utf-8").strip("\n").split("\n\n"):
        lines, before = document.split("\n"), ""
        for begin in range(0, len(lines), PASSAGE_LINES):
            split = "valid" if passage % EVERY == EVERY - 1 else "train"
            sentences = []
            for line in lines[begin : begin + PASSAGE_LINES]:
                key = " ".join(line.lower().split())
                sentences += [] if key in seen else [" ".join(sentence) for sentence in sentences_of(line)]
                seen.add(key)
            text = "\n".join(sentences) + "\n\n"
            # neighbouring passages of one document are one document, unless validation lies between them
            if split == before == "train":
                expected[split] = expected[split][:-1] + text
            elif len(text) > 20:
                expected[split] += text
            before, passage = split, passage + 1
    for split, text in expected.items():
        assert joined(prepared / "work" / "clean", f"{split}.txt") == text
    report = json.loads((prepared / "report.json").read_text())
    lines = [line for line in corpus.read_text(encoding="utf-8").split("\n") if line]
    assert report["clean"]["duplicate_lines"] == len(lines) - len(seen) > 5
    assert report["clean"]["<url>"] >= 2
    recorded = read_preparation(prepared / "bin" / "dict.txt")
    assert written(recorded.steps) == "cleaned,lowercase,moses:no-escape,bpe"
    assert recorded.lines == {"tried": 20, "equal": 20}
    prepare = recorded.preparation(read_dictionary(prepared / "bin" / "dict.txt").symbols)
    assert prepare("Read notes.txt!")[-2:] == ["<file>", "!"]


def test_data_are_what_fairseq_preprocess_makes_of_the_whole_text(prepared: Path, tmp_path: Path) -> None:
    """Sub-words of all words but the rare ones, the words of every document in their order."""
    clean, encoded, known = prepared / "work/clean", prepared / "work/encoded", prepared / "work/words/frequent.npy"
    assert len(list(encoded.glob("0*"))) > 1  # shards
    encoder = Encoder(prepared / "bpe.codes", known)
    for split in ("train", "valid"):
        (tmp_path / split).write_text(joined(encoded, f"{split}.txt"), encoding="utf-8")
        pieces = map(encoder, joined(clean, f"{split}.txt").split())
        assert joined(encoded, f"{split}.txt").split() == " ".join(pieces).split()
    dictionary = prepared / "bin" / "dict.txt"
    command = [VENV / "bin" / "fairseq-preprocess", "--only-source", "--srcdict", dictionary]
    command += ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid", "--destdir", tmp_path / "bin"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, env=environment())
    for name in ("train.bin", "train.idx", "valid.bin", "valid.idx"):
        assert (prepared / "bin" / name).read_bytes() == (tmp_path / "bin" / name).read_bytes()
    counts = {symbol: int(n) for symbol, n in (line.split() for line in dictionary.read_text().splitlines())}
    assert list(counts)[:3] == ["<file>", "<email>", "<url>"]
    assert len(counts) + 4 == 160
    found = Counter((tmp_path / "train").read_text().split())
    assert all(n == found[symbol] for symbol, n in counts.items() if symbol[:6] != "madeup")
    report = json.loads((prepared / "report.json").read_text())
    encoded, binary = report["encoded"], report["binary"]["train"]
    assert [encoded["train_tokens"], encoded["train_unknown"]] == [sum(found.values()), found["<unk>"]]
    cut = sum(n for symbol, n in found.items() if symbol not in counts)  # by the dictionary's size
    assert [binary["tokens"], binary["unknown"]] == [sum(found.values()), cut]


def test_the_grid_ends_in_a_table(prepared: Path, tmp_path: Path) -> None:
    output = tmp_path / "a grid"
    for name, value in (("SIZE", "tinny"), ("UPDATES", "1e3"), ("MODELS", "tupe_r bert")):
        assert name in refused(RUN, **{**SHORT, "DATA": prepared, "OUTPUT": output, name: value})
    assert not output.exists()
    succeed(RUN, *MODEL, DATA=prepared, OUTPUT=output, **SHORT)
    assert len(rows(output / "results.md")) == 1
    result = json.loads((output / "runs/tupe_r.seed1/result.json").read_text())
    words = result["command"].split()
    assert (result["labels"]["model"], result["labels"]["arch"]) == ("tupe_r", "tupe_tiny")
    assert {"--rel-pos", "--embedding-normalize"} <= set(words)
    for option, value in {"--adam-eps": "1e-6", "--update-freq": "2", "--max-update": "4"}.items():
        assert words[words.index(option) + 1] == value


def test_a_killed_process_of_a_step_is_reported(tmp_path: Path) -> None:
    program = "import os\nfrom pathlib import Path\nfrom shards.engines import Engine\n"
    program += "from shards.tasks import Step, Task\n"
    program += "tasks = [Task(Path(name), os.abort, ()) for name in 'ab']\nif __name__ == '__main__':\n"
    program += f"    Engine('pool', 2, Path({str(tmp_path)!r}), 1, {{}}).run([Step('tasks', lambda: tasks)])\n"
    paths = environment(PYTHONPATH=f"{SCRIPTS}:{SCRIPTS.parent}")
    done = subprocess.run([sys.executable, "-c", program], env=paths, capture_output=True, text=True)
    assert done.returncode == 1
    assert "fewer JOBS" in done.stderr
