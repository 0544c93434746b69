"""embinit score: tokens put back together, what is scored, how unknown words count, what is kept, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import configuration, json_line, write_log, write_run
from sacrebleu.metrics import BLEU, CHRF, TER

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError
from embinit_fairseq.runs.metrics import SCORES, TEXT_SCORES
from embinit_fairseq.runs.record import check_record
from embinit_fairseq.runs.score import read_translations
from embinit_fairseq.runs.tokens import detokenizer, join_bpe, join_sentencepiece, unescape_moses

REFERENCES = ["A man , in a hat , sings a song .", "Two dogs run over the green grass .", "He sleeps all day long ."]
RAW = [line.replace(" .", ".").replace(" ,", ",") for line in REFERENCES]
TOKENS = [line.lower() for line in REFERENCES]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def generate_log(path: Path, hypotheses: list[str], decoded: list[str] | None = None, data: object = "bin") -> None:
    """As fairseq-generate prints it: sorted by length, with several hypotheses each."""
    head = "{'_name': None, 'common': {'_name': None}, 'common_eval': {'path': 'run/best.pt'}, 'generation': "
    task = f"Namespace(data='{data}', target_lang='en')"
    lines = [f"... | INFO | fairseq_cli.generate | {head}{{'beam': 5, 'lenpen': 0.6}}, 'task': {task}}}"]
    for at in sorted(range(len(hypotheses)), key=lambda at: -len(hypotheses[at])):
        lines += [f"S-{at}\tx", f"H-{at}\t-0.5\t{hypotheses[at]}", f"D-{at}\t-0.5\t{(decoded or hypotheses)[at]}"]
        lines += [f"P-{at}\t-0.1", f"H-{at}\t-0.9\tworse", f"D-{at}\t-0.9\tworse"]
    write_lines(path, lines)


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch) -> Path:
    """A folder with references beside it: raw, tokens; the current folder is theirs."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "raw", RAW)
    write_lines(tmp_path / "tokens", TOKENS)
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def scored(run, printed):
    """A call about hypotheses in a log of run."""

    def call(hypotheses: list[str], *options: str) -> dict:
        generate_log(run / "test.generate.log", hypotheses)
        return printed("score", "run", "--ref", "raw", *options)

    return call


MOSES = ["--detokenize", "moses", "--lowercase", "--tokenized", "tokens"]


def test_an_unknown_word_is_one_wrong_word(scored, run) -> None:
    """On simple sentences the detokenised figure is that of the tokens, however many words are unknown."""
    pytest.importorskip("sacremoses")
    hypotheses = ["a man , in a <unk> , sings a song .", "two <unk> <unk> over a green <unk> .", "he sleeps all day ."]
    scores = scored(hypotheses, *MOSES)
    text = ["a man, in a ⁇, sings a song.", "two ⁇ ⁇ over a green ⁇.", "he sleeps all day."]
    assert read_lines(run / "test.hypothesis.text") == text
    expected = BLEU(tokenize="none", force=True).corpus_score(hypotheses, [TOKENS]).score
    assert scores["bleu_tokenized"]["score"] == pytest.approx(expected)
    assert scores["bleu"]["score"] == pytest.approx(expected)
    assert scores["bleu"]["details"] == scores["bleu_tokenized"]["details"]


def test_order_case_and_settings(scored, run) -> None:
    """Hypotheses return to the order of the text, and the first of each is meant."""
    pytest.importorskip("sacremoses")
    scores = scored(TOKENS, *MOSES)
    assert [scores[name]["score"] for name in ("bleu", "bleu_tokenized", "chrf")] == pytest.approx([100.0] * 3)
    assert read_lines(run / "test.reference.text") == RAW
    assert read_lines(run / "test.hypothesis.tokens") == TOKENS
    assert scores.items() >= {"beam": 5, "lenpen": 0.6, "checkpoint": "run/best.pt", "sentences": 3}.items()
    assert scored(TOKENS)["chrf"]["score"] < 100, "upper and lower case are not the same"


def test_all_scores_are_those_of_sacrebleu(scored) -> None:
    text = ["A man in a hat sings a song.", "Two dogs run.", "He sleeps all day long, all day long, all day long."]
    scores = scored(text, "--metrics", *TEXT_SCORES)
    for name, metric in {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}.items():
        found = metric.corpus_score(text, [RAW])
        expected = {"score": found.score, "signature": str(metric.get_signature()), "details": str(found)}
        assert scores[name].items() >= expected.items()
    for name, score in SCORES.items():  # a perfect translation has the best value
        best = score.metric().corpus_score(RAW, [RAW]).score
        assert best == pytest.approx(score.most if score.higher else 0.0), name
        assert (score.in_range(best), score.in_range(-1.0)) == (True, False)


def test_ter_above_100_and_intervals(scored) -> None:
    scores = scored(["x " * 40] * 3, "--metrics", "ter", "bleu", "--confidence")
    assert scores["ter"]["score"] > 100
    assert scores["ter"]["interval_95"] >= 0
    assert "bs:" not in scores["ter"]["signature"], "the score itself does not depend on the bootstrap"
    check_record({"labels": {}, "scores": scores}, Path("result.json"))
    with pytest.raises(DataError, match="bleu"):
        check_record({"labels": {}, "scores": {"bleu": {"score": scores["ter"]["score"]}}}, Path("result.json"))


def test_tokens_only_and_the_tokenisers_of_sacrebleu(run, printed) -> None:
    write_lines(run.parent / "hyp", TOKENS)
    scores = printed("score", "hyp", "--ref", "tokens", "--tokenized")
    assert (scores["bleu_tokenized"]["score"], "bleu" in scores) == (pytest.approx(100.0), False)
    for flag, name in (("--lang", "zh"), ("--tokenize", "intl")):
        assert f"tok:{name}" in printed("score", "hyp", "--ref", "raw", flag, name)["bleu"]["signature"]


@settings(max_examples=50)
@given(st.lists(st.text("ab@▁", min_size=1, max_size=5), min_size=1, max_size=6), st.data())
def test_bpe_is_undone(words, data) -> None:
    """Words cut anywhere come back, but for those that hold the mark themselves."""
    words = [word.replace("@", "c") for word in words]
    pieces = []
    for word in words:
        cuts = sorted(data.draw(st.sets(st.integers(1, len(word) - 1)))) if len(word) > 1 else []
        parts = [word[a:b] for a, b in zip([0, *cuts], [*cuts, len(word)])]
        pieces += [f"{part}@@" for part in parts[:-1]] + parts[-1:]
    assert join_bpe(" ".join(pieces)) == " ".join(words)
    assert join_bpe(" ".join([*pieces, "g@@"])) == " ".join([*words, "g"])  # stopped inside a word


def test_steps_in_their_order(tmp_path) -> None:
    pytest.importorskip("sacremoses")
    assert join_sentencepiece("▁The ▁do g ▁s leeps .") == "The dog sleeps."
    assert unescape_moses("a &apos;s &quot; &amp;lt; &#91; R&amp;D &copy; &not") == "a 's \" &lt; [ R&D &copy; &not"
    write_lines(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "dog", "##s", "the", "."])
    for steps, tokens, text in (
        (["bpe", "moses"], "it &apos;s a do@@ g .", "it's a dog."),
        (["spacy"], "R &amp;D is gr@@ een .", "R &amp;D is gr@@ een."),
        ([], "as it is .", "as it is ."),
        ([f"huggingface={tmp_path}"], "the dog ##s .", "the dogs."),
    ):
        assert detokenizer(steps, "en")(tokens) == text


def test_text_that_fairseq_has_decoded_is_taken_as_it_is(run, printed) -> None:
    generate_log(run / "generate-test.txt", ["a@@ b", "c", "d"], decoded=RAW)  # --results-path
    assert printed("score", "run", "--ref", "raw")["bleu"]["score"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"S-1\tx\nH-1\t-0.1\ta .\nP-1\t-0.1\nH-0\t-0.2\twhy ?\nH-0\t-0.9\tsecond\n", ["why ?", "a ."]),
        ("a\u2028b\r\nc\rd\n\n".encode(), ["a\u2028b", "c\rd", ""]),  # lines end at line feeds only
        (b"H-0\t-0.5\ta\nH-2\t-0.5\tb\n", "1 sentence missing, the first is number 1"),
        (b"2024 | {'_name': None, 'common': {}}\n", "1 sentence missing, the first is number 0"),
        (b"", "empty"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_translations_that_are_whole_missing_or_damaged(tmp_path, content, expected) -> None:
    (tmp_path / "hyp").write_bytes(content)
    if isinstance(expected, list):
        assert read_translations(tmp_path / "hyp").tokens == expected
    else:
        with pytest.raises(DataError, match=f"{tmp_path / 'hyp'}.*{expected}"):
            read_translations(tmp_path / "hyp")


def test_scores_of_the_test_set_go_to_the_result(scored, run, shown) -> None:
    run.rmdir()
    write_run(run, {"seed": "1"}, [2.0], scores={"ter": {"score": 5.0}, "mismatched": {"accuracy": 1.0}, "beam": 2})
    before = (run / "result.json").read_bytes()
    generate_log(run / "valid.generate.log", RAW)
    shown("score", "run", "--ref", "raw", "--subset", "valid")
    assert (run / "result.json").read_bytes() == before
    assert (run / "valid.hypothesis.text").exists()
    assert scored(RAW)["bleu"]["score"] == pytest.approx(100.0)
    record = json.loads((run / "result.json").read_text())
    assert (record["scores"]["beam"], record["scores"]["mismatched"]) == (5, {"accuracy": 1.0})
    assert "ter" not in record["scores"], "of earlier translations"
    assert record["epochs"]


def test_a_training_that_has_ended_gets_its_result_and_one_that_goes_on_has_none(scored, run, capsys) -> None:
    run.rmdir()
    write_run(run, {"seed": "1"}, [], finished=False)
    generate_log(run / "test.generate.log", RAW)
    assert main(["score", "run", "--ref", "raw"]) == 0
    assert "has not come to its end" in capsys.readouterr().err
    assert not (run / "result.json").exists()
    assert json.loads((run / "test.scores.json").read_text())["sentences"] == 3
    write_log(run / "train.log", [("valid", json_line("valid", 1, 10, loss=4.0))], configuration())
    scored(RAW)
    record = json.loads((run / "result.json").read_text())
    assert (record["best"]["epoch"], record["scores"]["sentences"]) == (1, 3)


def test_dictionaries_must_be_those_of_the_training(run, shown, refused) -> None:
    run.rmdir()
    write_run(run, {"seed": "1"}, [2.0], finished=False, data={"all": "x", "dict.en.txt": "0" * 64})
    generate_log(run / "test.generate.log", RAW, data=run.parent / "data")
    shown("score", "run", "--ref", "raw")  # the data are elsewhere
    (run.parent / "data").mkdir()
    write_lines(run.parent / "data/dict.en.txt", ["a 1"])
    message = refused("score", "run", "--ref", "raw")
    assert f"{run.parent / 'data'}/dict.en.txt" in message
    assert "translate again" in message


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["run", "--ref", "raw"], ["run: no translations", "fairseq-generate DATA", "run/test.generate.log"]),
        (["nowhere", "--ref", "raw"], ["nowhere: no such"]),
        (["hyp", "--ref", "nowhere"], ["nowhere: no such file"]),
        (["hyp", "--ref", "short"], ["short has 1 line", "3 translations in hyp"]),
        (["hyp", "--ref", "raw", "--src", "short"], ["short has 1 line"]),
        (["hyp", "--ref", "raw", "--tokenized", "short"], ["short has 1 line"]),
        (["hyp", "--ref", "raw", "--detokenize", "moses"], ["--detokenize moses", "--lang"]),
        (["hyp", "--ref", "raw", "--detokenize", "letters"], ["--detokenize letters", "bpe"]),
        (["hyp", "--ref", "raw", "--detokenize", "bpe=x"], ["--detokenize bpe=x"]),
        (["hyp", "--ref", "raw", "--detokenize", "huggingface"], ["huggingface=DIR"]),
        (["hyp", "--ref", "raw", "--detokenize", "sentencepiece=nowhere"], ["sentencepiece=nowhere: no such file"]),
        (["hyp", "--ref", "raw", "--tokenize", "martian"], ["--tokenize martian"]),
        (["hyp", "--ref", "raw", "--tokenized", "--metrics", "ter"], ["--metrics", "--tokenized"]),
    ],
)
def test_wrong_calls(run, refused, arguments, messages) -> None:
    write_lines(run.parent / "hyp", RAW)
    write_lines(run.parent / "short", ["one"])
    before = sorted(run.parent.rglob("*"))
    message = refused("score", *arguments)
    assert all(text in message for text in messages), message
    assert sorted(run.parent.rglob("*")) == before


def test_left_over_pieces_are_said(run, capsys) -> None:
    write_lines(run.parent / "hyp", ["a do@@ g", "b", "c"])
    assert main(["score", "hyp", "--ref", "raw"]) == 0
    captured = capsys.readouterr()
    assert "1 translation of 3 still in pieces: add --detokenize bpe" in captured.err
    assert "BLEU" in captured.out
