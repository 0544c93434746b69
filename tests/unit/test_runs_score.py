"""embinit score: tokens put back together, what is scored, how unknown words count, what is kept, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import configuration, json_line, refused, write_log, write_run
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


def generate_log(path: Path, hypotheses: list[str], decoded: list[str] | None = None, data: str = "bin") -> Path:
    """As fairseq-generate prints it: sorted by length, with several hypotheses each."""
    order = sorted(range(len(hypotheses)), key=lambda at: -len(hypotheses[at]))
    head = "{'_name': None, 'common': {'_name': None}, 'common_eval': {'path': 'run/best.pt'}, 'generation': "
    task = f"Namespace(data='{data}', target_lang='en')"
    lines = [f"... | INFO | fairseq_cli.generate | {head}{{'beam': 5, 'lenpen': 0.6}}, 'task': {task}}}"]
    for at in order:
        lines += [f"S-{at}\tx", f"H-{at}\t-0.5\t{hypotheses[at]}", f"D-{at}\t-0.5\t{(decoded or hypotheses)[at]}"]
        lines += [f"P-{at}\t-0.1", f"H-{at}\t-0.9\tworse", f"D-{at}\t-0.9\tworse"]
    return write_lines(path, lines)


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A folder with references beside it: raw, tokens; the current folder is theirs."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "raw", RAW)
    write_lines(tmp_path / "tokens", TOKENS)
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def scored(run, capsys):
    """A call of embinit score --json about hypotheses in a log of run."""

    def call(hypotheses: list[str], *options: str) -> dict:
        generate_log(run / "test.generate.log", hypotheses)
        assert main(["score", "run", "--ref", "raw", *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


# ---- figures --------------------------------------------------------------------------------------------------------

MOSES = ["--detokenize", "moses", "--lowercase", "--tokenized", "tokens"]


def test_an_unknown_word_is_one_wrong_word(scored, run) -> None:
    """On simple sentences the detokenised figure is that of the tokens, however many words are unknown."""
    pytest.importorskip("sacremoses")
    hypotheses = [
        "a man , in a <unk> , sings a song .",
        "two <unk> <unk> over a green <unk> .",
        "he sleeps all day .",
    ]
    scores = scored(hypotheses, *MOSES)
    text = (run / "test.hypothesis.text").read_text(encoding="utf-8").splitlines()
    assert text == ["a man, in a ⁇, sings a song.", "two ⁇ ⁇ over a green ⁇.", "he sleeps all day."]
    expected = BLEU(tokenize="none", force=True).corpus_score(hypotheses, [TOKENS])
    assert scores["bleu_tokenized"]["score"] == pytest.approx(expected.score)
    assert scores["bleu"]["score"] == pytest.approx(expected.score)
    assert scores["bleu"]["details"] == scores["bleu_tokenized"]["details"]


def test_order_case_and_settings(scored, run) -> None:
    """Hypotheses return to the order of the text, and the first of each is meant."""
    pytest.importorskip("sacremoses")
    scores = scored(TOKENS, *MOSES)
    assert [scores[name]["score"] for name in ("bleu", "bleu_tokenized", "chrf")] == pytest.approx([100.0] * 3)
    assert (run / "test.reference.text").read_text(encoding="utf-8").splitlines() == RAW
    assert (run / "test.hypothesis.tokens").read_text(encoding="utf-8").splitlines() == TOKENS
    expected = {"beam": 5, "lenpen": 0.6, "checkpoint": "run/best.pt", "sentences": 3}
    assert {key: scores[key] for key in expected} == expected
    assert scored(TOKENS)["chrf"]["score"] < 100, "upper and lower case are not the same"


def test_all_scores_are_those_of_sacrebleu(scored) -> None:
    text = ["A man in a hat sings a song.", "Two dogs run.", "He sleeps all day long, all day long, all day long."]
    scores = scored(text, "--metrics", *TEXT_SCORES)
    for name, metric in {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}.items():
        expected = metric.corpus_score(text, [RAW])
        found = {key: scores[name][key] for key in ("score", "signature", "details")}
        assert found == {"score": expected.score, "signature": str(metric.get_signature()), "details": str(expected)}


def test_ter_above_100_and_intervals(scored) -> None:
    scores = scored(["x " * 40] * 3, "--metrics", "ter", "bleu", "--confidence")
    assert scores["ter"]["score"] > 100
    assert scores["ter"]["interval_95"] >= 0
    assert "bs:" not in scores["ter"]["signature"], "the score itself does not depend on the bootstrap"
    record = {"labels": {}, "scores": scores}
    check_record(record, Path("result.json"))
    with pytest.raises(DataError, match="bleu"):
        check_record({"labels": {}, "scores": {"bleu": {"score": scores["ter"]["score"]}}}, Path("result.json"))


def test_tokens_only_and_the_languages_of_sacrebleu(run, capsys) -> None:
    write_lines(run.parent / "hyp", TOKENS)
    assert main(["score", "hyp", "--ref", "tokens", "--tokenized", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["bleu_tokenized"]["score"], "bleu" in scores) == (pytest.approx(100.0), False)
    assert main(["score", "hyp", "--ref", "raw", "--lang", "zh", "--json"]) == 0
    assert "tok:zh" in json.loads(capsys.readouterr().out)["bleu"]["signature"]
    assert main(["score", "hyp", "--ref", "raw", "--tokenize", "intl", "--json"]) == 0
    assert "tok:intl" in json.loads(capsys.readouterr().out)["bleu"]["signature"]


def test_every_score_of_the_registry_can_be_asked_for() -> None:
    """Names of classes and options are sacrebleu's; a perfect translation has the best value."""
    for name, score in SCORES.items():
        found = score.metric().corpus_score(RAW, [RAW]).score
        assert found == pytest.approx(score.most if score.higher else 0.0), name
        assert score.in_range(found)
        assert not score.in_range(-1.0)


# ---- tokens ---------------------------------------------------------------------------------------------------------


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
    assert detokenizer(["bpe", "moses"], "en")("it &apos;s a do@@ g .") == "it's a dog."
    assert detokenizer(["spacy"], "en")("R &amp;D is gr@@ een .") == "R &amp;D is gr@@ een."
    assert detokenizer([], None)("as it is .") == "as it is ."
    write_lines(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "dog", "##s", "the", "."])
    assert detokenizer([f"huggingface={tmp_path}"], None)("the dog ##s .") == "the dogs."


def test_text_that_fairseq_has_decoded_is_taken_as_it_is(run, capsys) -> None:
    generate_log(run / "generate-test.txt", ["a@@ b", "c", "d"], decoded=RAW)  # --results-path
    assert main(["score", "run", "--ref", "raw", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bleu"]["score"] == pytest.approx(100.0)


def test_translations_come_back_in_the_order_of_the_text_the_best_of_each(tmp_path) -> None:
    lines = "S-1\tx\nH-1\t-0.1\tthe dog sleeps .\nP-1\t-0.1\nH-0\t-0.2\twhy ?\nH-0\t-0.9\tsecond\n"
    (tmp_path / "generate.log").write_text(lines)
    assert read_translations(tmp_path / "generate.log").tokens == ["why ?", "the dog sleeps ."]


def test_lines_end_at_line_feeds_only(tmp_path) -> None:
    (tmp_path / "hyp").write_bytes("a\u2028b\r\nc\rd\n\n".encode())
    assert read_translations(tmp_path / "hyp").tokens == ["a\u2028b", "c\rd", ""]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"H-0\t-0.5\ta\nH-2\t-0.5\tb\n", "1 sentence missing, the first is number 1"),
        (b"2024 | {'_name': None, 'common': {}}\n", "1 sentence missing, the first is number 0"),
        (b"", "empty"),
        (None, "no such file"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_translations_that_are_missing_or_damaged(tmp_path, content, reason) -> None:
    if content is not None:
        (tmp_path / "hyp").write_bytes(content)
    with pytest.raises(DataError, match=reason) as error:
        read_translations(tmp_path / "hyp")
    assert str(tmp_path / "hyp") in str(error.value)


# ---- the folder of a run --------------------------------------------------------------------------------------------


def test_scores_of_the_test_set_go_to_the_result(scored, run, capsys) -> None:
    run.rmdir()
    write_run(run, {"seed": "1"}, [2.0], scores={"ter": {"score": 5.0}, "mismatched": {"accuracy": 1.0}, "beam": 2})
    before = (run / "result.json").read_bytes()
    generate_log(run / "valid.generate.log", RAW)
    assert main(["score", "run", "--ref", "raw", "--subset", "valid"]) == 0
    assert (run / "result.json").read_bytes() == before
    assert (run / "valid.hypothesis.text").exists()
    capsys.readouterr()
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


def test_dictionaries_must_be_those_of_the_training(run, capsys) -> None:
    run.rmdir()
    write_run(run, {"seed": "1"}, [2.0], finished=False, data={"all": "x", "dict.en.txt": "0" * 64})
    data = run.parent / "data"
    data.mkdir()
    generate_log(run / "test.generate.log", RAW, data=str(data))
    assert main(["score", "run", "--ref", "raw"]) == 0, "the data are elsewhere"
    (data / "dict.en.txt").write_text("a 1\n")
    capsys.readouterr()
    message = refused(capsys, "score", "run", "--ref", "raw")
    assert f"{data}/dict.en.txt" in message
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
def test_wrong_calls(run, capsys, arguments, messages) -> None:
    write_lines(run.parent / "hyp", RAW)
    write_lines(run.parent / "short", ["one"])
    before = sorted(run.parent.rglob("*"))
    message = refused(capsys, "score", *arguments)
    assert all(text in message for text in messages), message
    assert sorted(run.parent.rglob("*")) == before


def test_left_over_pieces_are_said(run, capsys) -> None:
    write_lines(run.parent / "hyp", ["a do@@ g", "b", "c"])
    assert main(["score", "hyp", "--ref", "raw"]) == 0
    captured = capsys.readouterr()
    assert "1 translation of 3 still in pieces: add --detokenize bpe" in captured.err
    assert "BLEU" in captured.out
