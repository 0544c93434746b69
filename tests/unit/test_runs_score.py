"""embinit score: tokens put back together, what is scored, how unknown words count, what is kept, what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.error import URLError

import pytest
import tokenizer_folders
import tokenizers
from run_folders import RAW, TOKENS, generate_log, read_lines, write_lines, write_references, write_run
from sacrebleu.metrics import BLEU, CHRF, TER

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError
from embinit_fairseq.runs.detokenizers import Tokenizer, detokenizer, join_sentencepiece
from embinit_fairseq.runs.log import CONFIGURATION
from embinit_fairseq.runs.metrics import TEXT_SCORES, recorded_metrics
from embinit_fairseq.runs.scoring import ScoreRequest, score
from embinit_fairseq.runs.translations import read_translations, translations_in


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch) -> Path:
    """A folder next to references in text and in tokens; the current folder is theirs."""
    monkeypatch.chdir(tmp_path)
    return write_references(tmp_path)


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
    assert [scores[name]["score"] for name in ("bleu", "bleu_tokenized")] == pytest.approx([expected] * 2)


def test_order_case_and_settings(scored, run, printed, capsys) -> None:
    """Hypotheses return to the order of the text, and the first of each is meant."""
    pytest.importorskip("sacremoses")
    scores = scored(TOKENS, *MOSES)
    assert [scores[name]["score"] for name in ("bleu", "bleu_tokenized", "chrf")] == pytest.approx([100.0] * 3)
    assert read_lines(run / "test.reference.text") == RAW
    assert read_lines(run / "test.hypothesis.tokens") == TOKENS
    assert scores.items() >= {"beam": 5, "lenpen": 0.6, "checkpoint": "run/best.pt", "sentences": 3}.items()
    assert scored(TOKENS)["chrf"]["score"] < 100, "upper and lower case are not the same"
    generate_log(run / "test.generate.log", ["a@@ b", "c", "d"], decoded=RAW)  # what fairseq has decoded
    assert printed("score", "run", "--ref", "raw")["bleu"]["score"] == pytest.approx(100.0)
    assert "tok:intl" in printed("score", "run", "--ref", "raw", "--tokenize", "intl")["bleu"]["signature"]
    # a language that fairseq has found itself
    log = (run / "test.generate.log").read_text().replace("target_lang='en'", "target_lang=None")
    found = "2026 | INFO | fairseq.tasks.translation | bin test de-en 3 examples\n"
    (run / "test.generate.log").write_text(found + log)
    assert read_translations([run / "test.generate.log"]).target_lang == "en"
    write_lines(run / "hypotheses", [f"{word} ." for word in "abcde"] * 20)
    write_lines(run / "reference", [f"{word}." for word in "abcde"] * 20)
    capsys.readouterr()
    assert main(["score", str(run / "hypotheses"), "--ref", str(run / "reference")]) == 0
    assert capsys.readouterr().err.count("--detokenize moses") == 1  # it looks tokenised


def test_damage_is_found_before_anything_is_written(scored, run, refused) -> None:
    scored(TOKENS)
    before = {path: path.read_bytes() for path in run.iterdir()}
    write_lines(run.parent / "other", RAW[::-1])
    (run / "result.json").write_text("{")
    assert "result.json" in refused("score", "run", "--ref", "other")
    assert {path: path.read_bytes() for path in before} == before
    with (run / "test.generate.log").open("a") as log:
        log.write("H-9\t-1\tx\n")
    assert "sentence 9" in refused("score", "run", "--ref", "raw")
    generate_log(run / "test.generate.log", RAW)
    twice = (run / "test.generate.log").read_text()
    (run / "test.generate.log").write_text(twice * 2)
    assert "two outputs of fairseq-generate in one file" in refused("score", "run", "--ref", "raw")
    (run / "test.generate.log").write_text(twice)
    (run / "generate-test.txt").write_text(twice)
    assert "remove the older one" in refused("score", "run", "--ref", "raw")
    (run / "generate-test.txt").unlink()
    write_run(run, {}, [1.0], data={"dict.en.txt": "0" * 64})
    (run.parent / "bin").mkdir()
    (run.parent / "bin/dict.en.txt").write_text("a 1\n")
    generate_log(run / "test.generate.log", RAW)
    assert re.search("bin/dict.en.txt.*translate again", refused("score", "run", "--ref", "raw"))


def test_all_scores_are_those_of_sacrebleu(scored) -> None:
    """TER may be above 100; the scores themselves do not depend on the bootstrap of their intervals."""
    text = ["A man in a hat sings a song.", "x " * 40, "He sleeps all day long, all day long, all day long."]
    found = scored(text[:1] * 3, "--metrics", "ter", "--confidence")["ter"]
    assert found["interval_95"] >= 0
    assert not re.search("bs:|seed:", found["signature"])  # the same score with and without an interval
    scores = scored(text, "--metrics", *TEXT_SCORES)
    assert scores["ter"]["score"] > 100
    for name, metric in {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}.items():
        found = metric.corpus_score(text, [RAW])
        expected = {"score": found.score, "signature": str(metric.get_signature()), "details": str(found)}
        assert scores[name].items() >= expected.items()


CHINESE = (
    ["我喜欢吃苹果。", "今天天气很好。", "他在北京大学学习中文。"],
    ["我喜欢吃苹果。", "今天天气好。", "他在北京学习中文。"],
)
THAI = ["ฉันรักแมว AI", "สวัสดี", "ขอบคุณ"], ["ฉันรักหมา AI", "สวัสดีครับ", "ขอบคุณ"]


def characters(lines: list[str]) -> list[str]:
    return [" ".join(line.lower().replace(" ", "")) for line in lines]


@pytest.mark.parametrize("code", ["zh_CN", "th_TH"])
def test_text_without_spaces_is_scored_by_its_language(code, run, printed) -> None:
    """Chinese by sacrebleu's own rules, Thai by characters; `embinit compare` counts TER by the same rules again."""
    reference, translations = THAI if code == "th_TH" else CHINESE
    write_lines(run.parent / "raw", reference)
    generate_log(run / "test.generate.log", translations)
    write_run(run, {"seed": "1"}, [2.0])
    found = printed("score", "run", "--ref", "raw", "--lang", code, "--metrics", "bleu", "ter")
    if code == "th_TH":
        expected = [BLEU(tokenize="char").corpus_score(translations, [reference])]
        expected.append(TER().corpus_score(characters(translations), [characters(reference)]))
    else:
        expected = [BLEU(trg_lang="zh").corpus_score(translations, [reference])]
        expected.append(TER(normalized=True, asian_support=True).corpus_score(translations, [reference]))
    assert [found[name]["score"] for name in ("bleu", "ter")] == pytest.approx([result.score for result in expected])
    recorded = json.loads((run / "result.json").read_text())["scores"]
    for name, metric in recorded_metrics(recorded, ("bleu", "ter")).items():
        again = metric.corpus_score(translations, [reference]).score
        assert (again, str(metric.get_signature())) == (pytest.approx(found[name]["score"]), found[name]["signature"])


@pytest.mark.parametrize("tokenizer", ["ja-mecab", "ko-mecab"])
def test_a_signature_with_the_version_of_mecab_is_understood(tokenizer, monkeypatch) -> None:
    """`embinit compare` asks sacrebleu for the tokeniser itself, which says here what it needs."""
    monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{tokenizer.replace('-', '_')}.MeCab", None)
    scores = {"bleu": {"score": 1.0, "signature": f"case:mixed|tok:{tokenizer}-0.996-IPA|smooth:exp"}}
    with pytest.raises(DataError, match="pip install"):
        recorded_metrics(scores, ["bleu"])


def test_a_language_that_is_not_known(run, refused, capsys) -> None:
    """From the user an error; from a log, where a file's ending may be tgt, 13a and a note."""
    message = refused("score", "raw", "--ref", "raw", "--lang=english")
    assert all(part in message for part in ("--lang 'english'", "give one such as de"))
    generate_log(run / "test.generate.log", RAW)
    log = (run / "test.generate.log").read_text().replace("target_lang='en'", "target_lang='tgt'")
    (run / "test.generate.log").write_text(log)
    assert "--lang" in refused("score", "run", "--ref", "raw", "--detokenize", "moses")
    assert main(["score", "run", "--ref", "raw"]) == 0
    captured = capsys.readouterr()
    assert "tok:13a" in captured.out
    assert re.search("tgt.*13a.*--lang", captured.err)


def test_a_script_without_spaces_is_noticed(run, capsys, monkeypatch) -> None:
    """Japanese is counted by characters where MeCab is not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, lines in zip(("reference", "translations"), CHINESE):
        write_lines(run / name, lines)
    remedies = (("", "--lang zh"), ("--lang en", "--lang zh"), ("--lang zh", None), ("--tokenize char", None))
    for options, remedy in (*remedies, ("--lang ja", "ja]")):
        assert main(["score", "run/translations", "--ref", "run/reference", *options.split()]) == 0
        said = capsys.readouterr().err
        assert (remedy in said) if remedy else not said, options


def test_steps_in_their_order(tmp_path) -> None:
    pytest.importorskip("sacremoses")
    assert join_sentencepiece("▁The ▁do g ▁s leeps .") == "The dog sleeps."
    write_lines(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "dog", "##s", "the", "."])
    for steps, tokens, text in (
        (["bpe", "moses"], "it &apos;s a do@@ g .", "it's a dog."),
        (["bpe"], "a do@@ g in a h@@", "a dog in a h"),
        (["spacy"], "R &amp;D is gr@@ een .", "R &amp;D is gr@@ een."),
        (["moses"], "l&apos; homme", "l' homme"),  # French joins it
        ([], "as it is .", "as it is ."),
        ([f"huggingface={tmp_path}"], "the dog ##s .", "the dogs."),
    ):
        assert detokenizer(steps, "en_XX")(tokens) == text
    padding = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"))
    padding.enable_padding(length=9)
    padding.enable_truncation(3)
    padding.save(str(tmp_path / "tokenizer.json"))  # as folders of sentence-transformers have it
    assert Tokenizer(str(tmp_path)).encode("The dogs.") == ["the", "dog", "##s", "."]
    (tmp_path / "t5").mkdir()
    subwords = tokenizer_folders.sentencepiece(tmp_path / "t5").encode("the old house", out_type=str)
    assert Tokenizer(str(tmp_path / "t5")).encode("the old house") == subwords
    assert detokenizer([f"huggingface={tmp_path / 't5'}"], None)(" ".join(subwords)) == "the old house"
    assert detokenizer(["moses"], "fra_Latn")("l&apos; homme , c&apos; est lui !") == "l'homme, c'est lui !"


def test_shards_hold_every_sentence_once(run, tmp_path) -> None:
    lines = [f"H-{number}\t-0.5\tword{number}" for number in range(7)]
    for shard in range(3):
        order = [line for first in lines[shard::3][::-1] for line in (first, f"{first} worse")]  # the first one is best
        options = f"| Namespace(score_reference=False, skip_invalid_size_inputs_valid_test={shard == 0})"
        write_lines(run / f"test.generate.{shard}.log", [options, *order])
    paths = translations_in(run, "test")
    assert read_translations(paths).tokens == [f"word{number}" for number in range(7)]
    with pytest.raises(DataError, match=r"2 sentences missing, the first has the number 1\); split .*--skip-invalid"):
        read_translations([paths[0], paths[2]])
    with pytest.raises(DataError, match=r"2 sentences missing, the first has the number 0\); run fairseq-generate"):
        read_translations(paths[1:])
    write_lines(paths[1], lines[2::3])
    with pytest.raises(DataError, match=r"generate\.2\.log: 2 sentences also in .* number 2; .*--shard-id"):
        read_translations(paths)
    paths[0].write_bytes("a\u2028b\r\nc\x85d\n\n".encode())
    assert read_translations(paths[:1]).tokens == ["a\u2028b", "c\x85d", ""]  # lines end at line feeds only


def test_a_log_of_another_run_is_named(scored, run, capsys) -> None:
    (run.parent / "best.pt").touch()
    generate_log(run / "test.generate.log", TOKENS)
    log = (run / "test.generate.log").read_text()
    for place, is_named in ((run.parent / "best.pt", True), (run / "best.pt", False)):
        place.touch()
        (run / "test.generate.log").write_text(log.replace("run/best.pt", str(place)))
        assert main(["score", str(run), "--ref", "raw"]) == 0
        assert ("are these its translations" in capsys.readouterr().err) == is_named


@pytest.mark.parametrize(
    ("started", "checkpoint", "is_named"),
    [
        ("2026-01-31T12:00:01+01:00", "checkpoint_best.pt", True),
        ("2026-01-31T12:00:01+01:00", "checkpoint3.pt", False),  # is not replaced
        ("2026-01-31T11:00:00+01:00", "checkpoint_best.pt", False),
        (None, "checkpoint_best.pt", False),
    ],
)
def test_a_log_that_is_older_than_the_training_is_named(scored, run, capsys, started, checkpoint, is_named) -> None:
    sessions = [{"started": "2026-01-31T09:00:00+01:00"}, {"started": started}]
    write_run(run, {"seed": "1"}, [2.0], sessions=sessions if started else [])
    (run / checkpoint).touch()
    generate_log(run / "test.generate.log", TOKENS)
    log = (run / "test.generate.log").read_text().replace("run/best.pt", str(run / checkpoint))
    (run / "test.generate.log").write_text(log.replace("... | INFO", "2026-01-31 12:00:00 | INFO"))
    assert main(["score", str(run), "--ref", "raw"]) == 0
    assert ("has continued at 2026-01-31 12:00:01" in capsys.readouterr().err) == is_named


def test_scores_of_the_test_set_go_to_the_result(scored, run, capsys) -> None:
    others = {"ter": {"score": 5.0}, "mismatched": {"accuracy": 1.0}, "test_macro_f1": 3.0, "beam": 2}
    write_run(run, {"seed": "1"}, [2.0], scores=others)
    before = (run / "result.json").read_bytes()
    generate_log(run / "valid.generate.log", ["a do@@ g", "b", "c"])
    assert main(["score", "run", "--ref", "raw", "--subset", "valid"]) == 0
    said = capsys.readouterr().err
    assert "1 translation of 3 in subwords: add --detokenize bpe" in said
    assert "--lang" not in said  # the log names a language that is known
    assert (run / "result.json").read_bytes() == before
    assert scored(RAW)["bleu"]["score"] == pytest.approx(100.0)
    found = json.loads((run / "result.json").read_text())["scores"]
    assert found.items() >= {"beam": 5, "mismatched": {"accuracy": 1.0}, "test_macro_f1": 3.0}.items()
    assert "ter" not in found
    (run / "result.json").rename(run / "training.json")  # a training that has not ended
    for is_training in (True, False):
        assert main(["score", "run", "--ref", "raw"]) == 0
        assert ("has not finished" in capsys.readouterr().err) == is_training
        (run / "training.json").unlink(missing_ok=True)  # a folder that never was one
    assert json.loads((run / "test.scores.json").read_text())["sentences"] == 3


def test_what_is_kept_of_the_same_translations_and_of_others(scored, run) -> None:
    """Their scores and texts stay where others are added; nothing stays of translations that are no longer there."""
    write_run(run, {"seed": "1"}, [2.0])
    write_lines(run.parent / "source", SOURCE := ["eins", "zwei", "drei"])

    def kept() -> tuple[set, set]:
        found = [json.loads((run / f).read_text()) for f in ("result.json", "test.scores.json")]
        assert found[0]["scores"] == found[1]
        texts = {name for name in ("source", "reference") if (run / f"test.{name}.text").exists()}
        return found[1].keys() & {"bleu", "bleu_tokenized", "ter"}, texts

    scored(RAW, "--metrics", "bleu")
    scored(RAW, "--src", "source", "--metrics", "ter")
    assert read_lines(run / "test.source.text") == SOURCE
    scored(RAW, "--metrics", "chrf")
    assert kept() == ({"bleu", "ter"}, {"source", "reference"})
    scored(TOKENS, "--tokenized")
    assert kept() == ({"bleu_tokenized"}, set())


def offline(tokenize: str = "", **options: object) -> BLEU:
    if tokenize == "flores200":
        raise URLError("no network")
    return BLEU(tokenize=tokenize or None, **options)


def test_wrong_calls(run, refused, monkeypatch) -> None:
    write_lines(run.parent / "short", ["one"])
    write_lines(run / "valid.generate.log", RAW)
    write_lines(run.parent / "failed", [f"| INFO | {CONFIGURATION}{{}}", "ValueError: no such arch"])
    write_lines(run.parent / "empty", [])
    monkeypatch.setattr("sacrebleu.metrics.BLEU", offline)
    for arguments, said in (
        ("raw --ref raw --tokenize flores200", ["--tokenize flores200: ", "no network", "choose another"]),
        ("run --ref raw", ["run: no translations", "fairseq-generate DATA", "run/test.generate.log"]),
        ("failed --ref raw", ["failed: no translation", "ValueError: no such arch", "--user-dir"]),
        ("raw --ref nowhere", ["nowhere: no such file"]),
        ("raw --ref empty", ["empty: empty"]),
        ("raw --ref short", ["short has 1 line", "3 translations in raw", "name their reference"]),
        ("run --ref raw --src short --subset valid", ["short has 1 line", "the text that was translated"]),
        ("raw --ref raw --tokenized short", ["short has 1 line"]),
        ("raw --ref raw --detokenize moses", ["--detokenize moses", "--lang"]),
        ("raw --ref raw --detokenize letters", ["--detokenize letters", "bpe"]),
        ("raw --ref raw --detokenize bpe=x", ["--detokenize bpe=x"]),
        ("raw --ref raw --detokenize huggingface", ["huggingface=DIR"]),
        ("raw --ref raw --tokenized --metrics bleu chrf", ["--metrics", "--tokenized"]),
    ):
        message = refused("score", *arguments.split())
        assert all(text in message for text in said), message


def test_several_references_are_those_of_sacrebleu_and_are_kept(run, printed, refused) -> None:
    write_run(run, {"init": "a", "seed": "1"}, [2.0])
    other = ["A man with a hat sings.", "Two dogs are running over grass.", "He is asleep all day long."]
    write_lines(run.parent / "second", other)
    hypotheses = ["A man sings a song.", "Two dogs are running over the grass.", "He sleeps all day."]
    generate_log(run / "test.generate.log", hypotheses)
    found = printed("score", "run", "--ref", "raw", "second", "--metrics", *TEXT_SCORES)
    for name, metric in {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}.items():
        expected = metric.corpus_score(hypotheses, [RAW, other])
        assert found[name].items() >= {"score": expected.score, "signature": str(metric.get_signature())}.items()
        assert "nrefs:2" in found[name]["signature"]
    names = ["test.reference.text", "test.reference.2.text"]
    assert [read_lines(run / name) for name in names] == [RAW, other]
    write_run(run.parent / "b", {"init": "b", "seed": "1"}, [2.0])
    generate_log(run.parent / "b" / "test.generate.log", RAW)
    printed("score", "b", "--ref", "raw", "--ref", "second")
    ((test,),) = (table["tests"] for table in printed("compare", "run", "b")["tables"])
    assert test["bleu"]["baseline"] == pytest.approx(found["bleu"]["score"])
    printed("score", "run", "--ref", "raw", "--metrics", "chrf")
    assert [(run / name).exists() for name in names] == [True, False]
    assert json.loads((run / "result.json").read_text())["scores"].keys().isdisjoint({"bleu", "ter"})
    write_lines(run.parent / "second", other[:2])
    assert "second has 2 lines" in refused("score", "run", "--ref", "raw", "second")


def test_a_request_in_python(run) -> None:
    generate_log(run / "log", RAW)
    assert score(ScoreRequest("run/log", ["raw", "tokens"])).scores["bleu"]["score"] == pytest.approx(100)
