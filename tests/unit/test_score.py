"""scripts/score.py: what is scored, and how unknown words count."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

pytest.importorskip("sacremoses", reason="detokenises; installed by scripts/setup.sh")
import score
from sacrebleu.metrics import BLEU


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """The scores of hypotheses (Moses tokens), and the prefix of the files that were written."""

    def run(hypotheses: list[str], references: list[str]) -> tuple[dict, str]:
        order = sorted(range(len(hypotheses)), key=lambda at: -len(hypotheses[at]))  # as fairseq-generate prints them
        log = "".join(f"S-{at}\tx\nH-{at}\t-0.5\t{hypotheses[at]}\nH-{at}\t-0.9\tworse\n" for at in order)
        (tmp_path / "log").write_text(log, encoding="utf-8")
        (tmp_path / "tokens").write_text("\n".join(line.lower() for line in references) + "\n", encoding="utf-8")
        raw = [line.replace(" .", ".").replace(" ,", ",") for line in references]
        (tmp_path / "raw").write_text("\n".join(raw) + "\n", encoding="utf-8")
        arguments = ["--log", "log", "--kind", "moses", "--lang", "en", "--reference", "raw"]
        arguments += ["--token-reference", "tokens", "--output", "test", "--beam", "5"]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["score.py", *arguments])
        score.main()
        return json.loads((tmp_path / "test.scores.json").read_text(encoding="utf-8")), str(tmp_path / "test")

    return run


REFERENCES = ["A man , in a hat , sings a song .", "Two dogs run over the green grass .", "He sleeps all day long ."]


def test_an_unknown_word_is_one_wrong_word(scored):
    """On simple sentences the detokenised figure is that of the tokens, however many words are unknown."""
    hypotheses = [
        "a man , in a <unk> , sings a song .",
        "two <unk> <unk> over a green <unk> .",
        "he sleeps all day .",
    ]
    scores, output = scored(hypotheses, REFERENCES)
    text = Path(f"{output}.hypothesis.text").read_text(encoding="utf-8").splitlines()
    assert text == ["a man, in a ⁇, sings a song.", "two ⁇ ⁇ over a green ⁇.", "he sleeps all day."]
    expected = BLEU(tokenize="none", force=True).corpus_score(hypotheses, [[line.lower() for line in REFERENCES]])
    assert scores["bleu_tokenized"]["score"] == pytest.approx(expected.score)
    assert scores["bleu"]["score"] == pytest.approx(expected.score)
    assert scores["bleu"]["details"] == scores["bleu_tokenized"]["details"]


def test_order_and_case(scored):
    """Hypotheses return to the order of the text, the first of each is meant, and case does not count."""
    scores, output = scored([line.lower() for line in REFERENCES], REFERENCES)
    assert [scores[name]["score"] for name in ("bleu", "bleu_tokenized", "chrf")] == pytest.approx([100.0] * 3)
    assert Path(f"{output}.reference.text").read_text(encoding="utf-8").startswith("A man, in a hat, sings")
    assert (scores["beam"], scores["sentences"]) == (5, 3)


def test_hypotheses_that_are_missing(tmp_path):
    log = tmp_path / "log"
    log.write_text("H-0\t-0.5\ta\nH-2\t-0.5\tb\n")
    with pytest.raises(SystemExit, match="not all hypotheses are in it: translate again"):
        score.read_hypotheses(log)
