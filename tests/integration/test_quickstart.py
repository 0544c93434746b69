"""scripts/quickstart.sh from an empty folder to the table, much shortened, and again; the pages on one's own text."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from programs import VENV
from recipes import SCRIPTS, TRAINS, call, lines, rows, run_page, stamps

from embinit_fairseq.runs.scoring import ScoreRequest, read_texts

pytestmark = TRAINS
REPOSITORY = SCRIPTS.parent
SHORT = {"TRAIN": 60, "TEST": 20, "MONOLINGUAL": 600, "DIM": 8}
#: name of the row -> --embed-init
STRATEGIES = {"xavier": "xavier", "shuffled_xavier": "shuffled"}
#: what has learned nothing translates up to the greatest length
SHORT_TEXT = ["--max-source-positions", "40", "--max-target-positions", "40"]
SMALL = "--max-epoch 5 --cpu --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16"
SMALL += f" --decoder-ffn-embed-dim 16 --encoder-layers 1 --decoder-layers 1 {' '.join(SHORT_TEXT)}"


def test_quickstart_makes_a_table_curves_and_records_and_nothing_twice(tmp_path: Path) -> None:
    options = "quickstart.sh", "--max-epoch", 1, *SHORT_TEXT
    variables = {**SHORT, "OUTPUT": "the output", "INITS": " ".join(STRATEGIES), "cwd": tmp_path}
    first = call(*options, **variables)
    assert first.returncode == 0, first.stdout + first.stderr
    output = tmp_path / "the output"
    table = (output / "results.md").read_text(encoding="utf-8")
    cells = [line.split() for line in first.stdout.splitlines()]
    said = {name: float(ratio) for name, *_, ratio in filter(None, cells) if name in STRATEGIES}
    assert list(said) == list(STRATEGIES)
    assert "results.md" in first.stdout.splitlines()[-1]
    assert rows(output / "results.md")[:2] == list(STRATEGIES)  # a table of differences follows
    assert "`nrefs:1|case:mixed" in table
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
    ratios = {}
    for name, strategy in STRATEGIES.items():
        result = json.loads((output / "runs" / name / "result.json").read_text(encoding="utf-8"))
        assert (result["labels"]["direction"], result["labels"]["init"]) == ("de-en", name)
        slots = result["init"]["slots"]
        assert {slot["strategy"] for slot in slots.values()} == {strategy}
        assert name == "xavier" or all(slot["coverage_tokens"] > 0.5 for slot in slots.values())
        ratios[name] = [slots[side]["absorption_ratio"] for side in ("encoder", "decoder")]
        assert result["scores"]["sentences"] == 20
        assert "interval_95" in result["scores"]["bleu"]
    assert said == pytest.approx({name: encoder for name, (encoder, _) in ratios.items()}, abs=0.0051)
    assert ratios["shuffled_xavier"] == pytest.approx(ratios["xavier"], rel=0.1)
    assert not list(output.rglob("*.part"))

    made = stamps(path for path in output.rglob("*") if path.suffix in (".pt", ".txt", ".bin"))
    assert call(*options, **variables).stderr.count("done before") == len(STRATEGIES)
    assert stamps(made) == made
    other = call(*options, **variables, SEED=2)
    assert other.returncode != 0
    assert "SEED=1" in other.stderr
    assert "name another folder" in other.stderr


#: of docs/own_data.md and others -> in small
CHANGES = {"--max-epoch 30": SMALL, "--beam 5": "--beam 1 --cpu"}


def write_text(toy_translation: Path, folder: Path) -> None:
    """Write the text and nothing else; every English sentence ends with `it's`."""
    for file in toy_translation.parent.glob("*.??"):
        text = file.read_text()
        (folder / file.name).write_text(text.replace("\n", " it's\n") if file.suffix == ".en" else text)


def check_run(folder: Path) -> list[str]:
    """Return the translations of a page's training."""
    result = json.loads((folder / "run1/result.json").read_text())
    assert len(result["epochs"]) == 5
    assert 0 <= result["scores"]["bleu"]["score"] <= 100
    hypotheses = lines(folder / "run1/test.hypothesis.text")
    assert len(hypotheses) == 20
    return hypotheses


def test_a_page_goes_from_text_to_bleu_and_others_use_the_model(toy_translation, tmp_path, monkeypatch) -> None:
    """The commands of own_data.md, use_a_model.md and trim_vocab.md: raw text is translated as prepared text."""
    write_text(toy_translation, tmp_path)
    run_page("own_data.md#", {**CHANGES, "--bpe-size 8000": "--bpe-size 50"}, tmp_path)
    hypotheses = check_run(tmp_path)
    # what Moses writes for 's is one piece: BPE was learned on what it splits
    assert all(line.split()[-1] == "&apos;s" for line in lines(tmp_path / "data/text/test.en"))
    run_page("use_a_model.md", {"--beam 5": "--beam 1 --cpu"}, tmp_path)
    # the converted model has no limit of its length
    changes = (
        {"beam_size=5, max_decoding_length=200": "beam_size=1, max_decoding_length=8"}
        if importlib.util.find_spec("ctranslate2")
        else {}
    )
    said = run_page("use_a_model.md", changes, tmp_path, "python", IN_TRANSFORMERS).splitlines()
    for again in ("translated.en", "run1/test.hypothesis.text"):
        assert lines(tmp_path / again) == hypotheses
    if importlib.util.find_spec("transformers"):
        found, references = json.loads(said.pop())
        assert found == hypotheses, "an exported model puts its output together, too"
        assert references == lines(tmp_path / "test.en")
    if importlib.util.find_spec("ctranslate2"):
        (first,) = re.findall(r"^H-0\t\S+\t(.*)$", (tmp_path / "run1/test.generate.log").read_text(), re.MULTILINE)
        assert said[-1] == str(first.split()[:8])
        compare = [VENV / "bin/python", REPOSITORY / "benchmarks/ct2.py", "--checkpoint", "run1/averaged.pt"]
        compare += "--data data/bin --beam 1 --longest 8 --repeats 1".split()
        done = subprocess.run(compare, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["equal"] == found["sentences"] == 20
        assert found["distinct"] > 2

    said = run_page("trim_vocab.md", {"-n 2000": "-n 4", "--beam 5": "--beam 1 --cpu"}, tmp_path, more=BY_CODES)
    monkeypatch.chdir(tmp_path)  # the log names the data
    trimmed = read_texts(ScoreRequest("small.log", ["test.en"]))
    assert lines(tmp_path / "small.en") == trimmed.text, "raw text through fairseq-interactive is prepared text"
    assert "raw text       moses,bpe" in said
    assert "undone: moses,bpe" in said
    symbols = {line.split()[0] for line in lines(tmp_path / "small/dict.de.txt")}
    assert symbols < {line.split()[0] for line in lines(tmp_path / "data/bin/dict.de.txt")}
    assert {*" ".join(lines(tmp_path / "small-data/text/test.de")).split()} <= symbols


#: raw text by the codes of the trimmed dictionary, next to which is their vocabulary (fix `bpe_vocabularies`)
BY_CODES = """
fairseq-interactive small-data/bin --user-dir embinit_fairseq --path small/model.pt --beam 1 --cpu -s de -t en \\
  --tokenizer moses --moses-no-dash-splits --bpe subword_nmt --bpe-codes small/bpe.codes \\
  < test.de | grep ^D- | cut -f 3 > small.en
"""
#: after the blocks of use_a_model.md, where they have opened the exported folder
IN_TRANSFORMERS = """
if "AutoTokenizer" in globals():
    import json

    texts = [source([line.strip()], return_tensors="pt") for line in open("test.de")]
    ids = [model.generate(**text, num_beams=1)[0] for text in texts]
    references = [target.convert_tokens_to_ids(line.split()) for line in open("data/text/test.en")]
    print(json.dumps([target.batch_decode(rows, skip_special_tokens=True) for rows in (ids, references)]))
"""


def test_the_first_training_of_the_readme(toy_translation: Path, tmp_path: Path) -> None:
    """Its lines from raw text and vectors to BLEU, with vectors for half of the English words."""
    write_text(toy_translation, tmp_path)
    numbers = np.random.default_rng(1).normal(0, 0.4, (30, 16))
    glove = "".join(f"e{2 * word} {' '.join(f'{x:.4f}' for x in row)}\n" for word, row in enumerate(numbers))
    (tmp_path / "glove.6B.300d.txt").write_text(glove)
    changes = {"scripts/train_vectors.py": str(SCRIPTS / "train_vectors.py"), "--dim 300": "--dim 16 --min-count 1"}
    run_page(
        "../README.md",
        {**changes, "--max-epoch 20": SMALL, "-dim 300": "-dim 16", "--beam 5": "--beam 1 --cpu"},
        tmp_path,
    )
    assert len(check_run(tmp_path)) == 20
    slots = json.loads((tmp_path / "run1/result.json").read_text())["init"]["slots"]
    assert {slot["strategy"] for slot in slots.values()} == {"pretrained_xavier"}
    assert (slots["decoder"]["found"], slots["encoder"]["coverage_tokens"] > 0.9) == (30, True)


def test_vectors_of_subwords_from_text_to_training(toy_translation: Path, tmp_path: Path) -> None:
    """A joined dictionary: the one matrix has a vector for every subword that occurs twice in the text of both."""
    write_text(toy_translation, tmp_path)
    changes = {
        "scripts/train_vectors.py": str(SCRIPTS / "train_vectors.py"),
        "--dim 300": "--dim 16",
        "-dim 300": "-dim 16",
        "--bpe-size 8000": "--bpe-size 50",
        "--max-epoch 30": SMALL.replace("--max-epoch 5", "--max-epoch 1"),
    }
    run_page("own_data.md#With vectors", changes, tmp_path)
    (slot,) = json.loads((tmp_path / "vectors/result.json").read_text())["init"]["slots"].values()
    texts = [(tmp_path / f"joined/text/train.{lang}").read_text().split() for lang in ("de", "en")]
    assert {*texts[0]} - {*texts[1]}, "vectors of one language lack subwords"
    frequent = [symbol for symbol, count in Counter(texts[0] + texts[1]).items() if count > 1]
    assert (slot["strategy"], slot["tied"], slot["found"]) == ("pretrained_xavier", ["decoder"], len(frequent))


def test_sentencepiece_from_text_to_bleu(toy_translation: Path, tmp_path: Path) -> None:
    """The section's training, then the commands of the pages: raw text is translated as prepared text."""
    write_text(toy_translation, tmp_path)
    run_page("own_data.md#Sentencepiece", {"--max-epoch 30": SMALL}, tmp_path, more=WITH_SENTENCEPIECE)
    hypotheses = check_run(tmp_path)
    assert lines(tmp_path / "translated.en") == hypotheses  # of raw text and of what was segmented before
    changes = {
        'tokenizer="moses",\n    moses_no_dash_splits=True,\n    bpe="subword_nmt"': 'bpe="sentencepiece"',
        'bpe_codes="data/bpe.codes"': 'sentencepiece_model="data/sentencepiece.model"',
        "beam=5": "beam=1",
        "Ein Hund läuft durch den Schnee.": "d1 d2",
    }
    more = """
for text, pieces in zip(open("test.de"), open("data/text/test.de")):
    assert model.encode(text).tolist() == model.src_dict.encode_line(pieces, add_if_not_exist=False).tolist()
print(model.translate(open("test.de").readline(), beam=1))"""
    said = run_page("use_a_model.md#Python", changes, tmp_path, "python", more)
    assert said.splitlines()[-1:] == hypotheses[:1]


#: what own_data.md says of a model of sentencepiece: as above
WITH_SENTENCEPIECE = """
embinit average run1 --last 5 --output run1/averaged.pt
fairseq-generate data/bin --user-dir embinit_fairseq --path run1/averaged.pt --beam 1 --cpu \\
  > run1/test.generate.log 2>&1
embinit score run1 --ref test.en
fairseq-interactive data/bin --user-dir embinit_fairseq --path run1/averaged.pt --beam 1 --cpu --tokenizer recorded \\
  < test.de | grep ^D- | cut -f 3 > translated.en
"""
