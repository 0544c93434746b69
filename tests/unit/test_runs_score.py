"""embinit score: tokens put back together, what is scored, how unknown words count, what is kept, what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.error import URLError

import pytest
import tokenizer_folders
import tokenizers
import torch
from run_folders import end, write_lines, write_run
from sacrebleu.metrics import BLEU, CHRF, TER

from embinit_fairseq.checkpoints.preparations import OPTION
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError
from embinit_fairseq.runs.detokenizers import Tokenizer, detokenizer, join_sentencepiece
from embinit_fairseq.runs.log import CONFIGURATION
from embinit_fairseq.runs.metrics import TEXT_SCORES, recorded_metrics
from embinit_fairseq.runs.scoring import ScoreRequest, score
from embinit_fairseq.runs.translations import SEARCH, read_translations, translations_in
from embinit_fairseq.vocab.preparation_record import entries_of, record_preparation

REFERENCES = ["A man , in a hat , sings a song .", "Two dogs run over the green grass .", "He sleeps all day long ."]
RAW = [line.replace(" .", ".").replace(" ,", ",") for line in REFERENCES]
TOKENS = [line.lower() for line in REFERENCES]


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def generate_log(path: Path, hypotheses: list[str], decoded: list[str] | None = None, data: object = "bin") -> None:
    """As fairseq-generate prints it: sorted by length, with several hypotheses each."""
    head = "{'_name': None, 'common': {'_name': None}, 'common_eval': {'path': 'run/best.pt'}, 'generation': "
    task = f"{{'beam': 5, 'lenpen': 0.6}}, 'task': Namespace(data='{data}', target_lang='en')}}"
    lines = [f"... | INFO | fairseq_cli.generate | {head}{task}"]
    for at in sorted(range(len(hypotheses)), key=lambda at: -len(hypotheses[at])):
        lines += [f"S-{at}\tx", f"H-{at}\t-0.5\t{hypotheses[at]}", f"D-{at}\t-0.5\t{(decoded or hypotheses)[at]}"]
        lines += [f"P-{at}\t-0.1", f"H-{at}\t-0.9\tworse", f"D-{at}\t-0.9\tworse", f"P-{at}\t-0.2"]
    write_lines(path, [*lines, end(len(hypotheses))])


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
    paths[0].write_bytes("a\u2028b\r\nc\rd\n\n".encode())
    assert read_translations(paths[:1]).tokens == ["a\u2028b", "c\rd", ""]  # lines end at line feeds only


def test_a_log_of_another_run_is_named(scored, run, capsys) -> None:
    (run.parent / "best.pt").touch()
    generate_log(run / "test.generate.log", TOKENS)
    log = (run / "test.generate.log").read_text()
    for place, is_named in ((run.parent / "best.pt", True), (run / "best.pt", False)):
        place.touch()
        (run / "test.generate.log").write_text(log.replace("run/best.pt", str(place)))
        assert main(["score", str(run), "--ref", "raw"]) == 0
        assert ("are these its translations" in capsys.readouterr().err) == is_named


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


# ---- Logs that are not of a plain beam search, references that are not the log's ------------------------------------

#: options of fairseq-generate that change the search but are recorded, or common and without a note; or only the output
NO_NOTE = {
    *("beam", "lenpen", "max_len_a", "max_len_b", "score_reference"),
    *("no_early_stop", "no_beamable_mm", "sacrebleu", "print_alignment", "print_step", "retain_iter_history"),
    "no_seed_provided",
}
OPTIONS = (
    "{'_name': None, 'common': {'seed': 1}, 'common_eval': {'path': 'a.pt', 'model_overrides': '{}'}, 'generation': "
)


def printed_log(path: Path, hypotheses: list[str], targets: list[str] | None = None, head: str = OPTIONS, **options):
    """A log with T- lines and the options of fairseq, of which some are changed."""
    values = {"beam": 5, "nbest": 1, "score_reference": False, "prefix_size": 0, "sampling": False, **options}
    lines = [f"... | INFO | fairseq_cli.generate | {head}{values}, 'task': {{'target_lang': 'en'}}}}"] if head else []
    for at, line in enumerate(hypotheses):
        lines += [f"S-{at}\tquelle {at}", *([f"T-{at}\t{targets[at]}"] if targets else []), f"H-{at}\t-0.5\t{line}"]
    write_lines(path, [*lines, *([end(len(hypotheses))] if head else [])])


def test_every_option_of_the_search_is_in_the_table() -> None:
    """SEARCH has fairseq's options and defaults: the next release's new option fails here."""
    from fairseq.dataclass.configs import CommonEvalConfig, GenerationConfig

    defaults = {**vars(CommonEvalConfig()), **vars(GenerationConfig())}
    assert {name for name in vars(GenerationConfig()) if not name.startswith("_")} == (SEARCH.keys() | NO_NOTE) - {
        "model_overrides"
    }
    for name, default in SEARCH.items():
        assert default == str(defaults[name]), name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"score_reference": True}, "--score-reference"),
        ({"prefix_size": 3}, "--prefix-size 3"),
        ({"head": "Namespace(all_gather_list_size=16384, score_reference=True, seed=1)"}, "--score-reference"),
        ({"head": ""}, "2>&1"),  # the reference, and no options that say why
    ],
)
def test_output_that_is_the_reference_is_refused(run, refused, options, said) -> None:
    """Nothing is written: BLEU 100 would be in result.json."""
    write_run(run, {"seed": "1"}, [2.0])
    before = (run / "result.json").read_bytes()
    targets = [*RAW[:2], "He <<unk>> all day long."]
    printed_log(run / "test.generate.log", [*RAW[:2], "He <unk> all day long."], targets, **options)
    assert said in refused("score", "run", "--ref", "raw")
    assert ((run / "result.json").read_bytes(), (run / "test.scores.json").exists()) == (before, False)
    printed_log(run / "test.0.generate.log", RAW[:1], **({"head": options["head"]} if "head" in options else {}))
    (run / "test.generate.log").rename(run / "test.generate.1.log")  # of two shards only the second one
    (run / "test.0.generate.log").rename(run / "test.generate.0.log")
    assert said in refused("score", "run", "--ref", "raw")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (["T-0\ta", "T-1\tb"], "give the whole output"),
        (["... | INFO | fairseq_cli.eval_lm | " + CONFIGURATION + "{}", "Loss (base 2): 3"], "eval_lm"),
        (["... | INFO | fairseq_cli.generate | " + CONFIGURATION + "{}, 'quiet': True"], "--quiet"),
    ],
)
def test_output_without_translations(run, refused, content, said) -> None:
    write_lines(run / "log", content)
    assert said in refused("score", "run/log", "--ref", "raw")


def test_lines_of_one_kind_are_in_the_order_of_the_text(run, printed, refused) -> None:
    """`grep ^D`; `grep ^T` is no reference, and a sorted list has the best translation anywhere."""
    write_lines(run / "decoded", [f"D-{at}\t-0.5\t{RAW[at]}" for at in (2, 0, 1)])
    assert printed("score", "run/decoded", "--ref", "raw")["bleu"]["score"] == pytest.approx(100)
    write_lines(run / "targets", [f"T-{at}\t{RAW[at]}" for at in (2, 0, 1)])
    assert "name their reference" in refused("score", "run/decoded", "--ref", "run/targets")
    several = [f"H-{at}\t{value}\t{line}" for at, line in enumerate(RAW) for value, line in ((-2, "x"), (-1, line))]
    write_lines(run / "sorted", several)
    found = read_translations([run / "sorted"])
    assert (found.tokens, found.search()) == (RAW, "--nbest 2")


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ({}, None),
        ({"no_early_stop": True, "print_alignment": "hard", "max_len_a": 1.2, "unkpen": 0.0}, None),
        ({"nbest": 5}, "--nbest 5"),
        ({"sampling": True, "sampling_topk": 10}, "--sampling --sampling-topk 10"),
        ({"prefix_size": 1}, "--prefix-size 1"),
        ({"constraints": "ordered", "match_source_len": True}, "--constraints ordered --match-source-len"),
        ({"head": OPTIONS.replace("a.pt", "a.pt:b.pt")}, "an ensemble of 2 checkpoints"),
    ],
)
def test_another_search_is_named_next_to_the_score(run, capsys, options, search) -> None:
    """Also in the record, where `embinit compare` finds it, until another translation is scored."""
    write_run(run, {"seed": "1"}, [2.0])
    printed_log(run / "test.generate.log", TOKENS, **options)
    assert main(["score", "run", "--ref", "raw"]) == 0
    said = capsys.readouterr().err
    recorded = json.loads((run / "result.json").read_text())["scores"]
    assert recorded.get("search") == search
    assert (search or "") in said
    assert any(search in note for note in recorded["notes"]) if search else "notes" not in recorded
    assert main(["compare", "run"]) == 0
    assert ("Attention: scores of run: " in capsys.readouterr().out) == bool(search)
    printed_log(run / "test.generate.log", TOKENS)
    assert main(["score", "run", "--ref", "raw"]) == 0
    assert json.loads((run / "result.json").read_text())["scores"].keys().isdisjoint({"search", "notes"})


WORDS = [(a, b, c) for a in ("dog", "cat") for b in "uvw" for c in "xyz"]
SENTENCES = [f'"The {a}\'s {b}", says {c} & Co, is well-known.' for a, b, c in WORDS]
SPLIT = [f"&quot; The {a} &apos;s {b} &quot; , says {c} &amp; Co , is well-known ." for a, b, c in WORDS]
MASKED = [line.replace("cat", "<<unk>>").replace("well", "<<unk>>") for line in SPLIT]
PIECES = [line.replace("known", "kn@@ own").replace("says", "sa@@ ys") for line in SPLIT]
STEPS = ["--detokenize", "bpe", "moses", "--lang", "en"]


@pytest.mark.parametrize(
    ("targets", "reference", "options", "said"),
    [
        (PIECES, SENTENCES, STEPS, ""),
        (MASKED, SENTENCES, STEPS, ""),
        ([line.lower() for line in MASKED], SENTENCES, [*STEPS, "--lowercase"], ""),
        (SENTENCES, SENTENCES, [], ""),
        (SPLIT, SPLIT, [], ""),
        (SPLIT, SENTENCES, [], "another form"),
        (REFERENCES * 4, RAW * 4, [], "another form"),  # BLEU alone does not notice
        (PIECES, SPLIT, STEPS, "another form"),
        (PIECES, PIECES, STEPS, "another form"),
        ([line.lower() for line in PIECES], SENTENCES, STEPS, "another form"),
        (PIECES, SENTENCES[::-1], STEPS, "not the reference"),
        (PIECES, [f"sentence {at}" for at in range(len(PIECES))], STEPS, "not the reference"),
        (MASKED, ["x"] * len(MASKED), STEPS, "not the reference"),
    ],
)
def test_a_reference_that_is_not_the_logs_is_said(run, capsys, targets, reference, options, said) -> None:
    """Tokens, subwords, other sentences of equal number; no word about the text itself, whatever became of it."""
    pytest.importorskip("sacremoses")
    hypotheses = [line.replace("<<unk>>", "<unk>").replace("says", "told") for line in targets]
    printed_log(run / "log", hypotheses, targets)
    write_lines(run / "reference", reference)
    assert main(["score", "run/log", "--ref", "run/reference", *options]) == 0
    notes = capsys.readouterr().err
    assert (said in notes) if said else "run/reference" not in notes, notes
    write_lines(run / "other", [f"o{at}" for at in range(len(reference))])  # one of several is enough
    assert main(["score", "run/log", "--ref", "run/other", "--ref", "run/reference", *options]) == 0
    assert (said in capsys.readouterr().err) or not said


def test_a_source_that_is_not_the_logs_is_said(run, capsys) -> None:
    printed_log(run / "log", RAW)
    for lines, is_said in ((["Quelle 0", "quelle 1", "Quelle 2."], False), (["a", "b", "quelle 2"], True)):
        write_lines(run / "source", lines)
        assert main(["score", "run/log", "--ref", "raw", "--src", "run/source"]) == 0
        assert ("run/source is not the text that was translated" in capsys.readouterr().err) == is_said


def test_what_is_not_known_or_too_good_is_said(run, capsys) -> None:
    """Output without options may be of any search; advice leaves out what was done."""
    pytest.importorskip("sacremoses")
    write_lines(run / "D", [f"D-{at}\t-0.5\t{line}" for at, line in enumerate(SENTENCES)])
    write_lines(run / "text", SENTENCES)
    printed_log(run / "log", SENTENCES, SPLIT)
    for call, said, unsaid in (
        ("D --ref text", "2>&1", "subwords"),
        ("log --ref text", "--detokenize for", "2>&1"),
        ("log --ref text --detokenize bpe --lowercase", "another form", "--detokenize|--lowercase"),
        ("text --ref text", "is its reference", "2>&1"),
    ):
        arguments = [str(run / word) if word in ("D", "text", "log") else word for word in call.split()]
        assert main(["score", *arguments]) == 0
        notes = capsys.readouterr().err
        assert said in notes, notes
        assert not re.search(unsaid, notes), notes


# ---- Several references ---------------------------------------------------------------------------------------------


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


# ---- As the text was prepared ---------------------------------------------------------------------------------------


@pytest.fixture
def recorded(run, tmp_path) -> Path:
    """Data whose record says Moses' words in subwords, and a log of `SENTENCES` in these."""
    pytest.importorskip("sacremoses")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dict.en.txt").write_text("a 1\n")
    (tmp_path / "codes").write_text("#version: 0.2\na b</w>\n")
    steps = [{"step": "moses", "lang": "en"}, {"step": "bpe"}]
    record_preparation(tmp_path / "bin", {"dict.en.txt": steps}, {"codes": tmp_path / "codes"})
    (tmp_path / "codes").unlink()  # nothing needs them to join
    generate_log(run / "test.generate.log", PIECES, data=tmp_path / "bin")
    write_lines(tmp_path / "text", SENTENCES)
    return tmp_path / "bin"


def test_the_record_says_how_tokens_become_text(recorded, run, printed, shown, refused) -> None:
    """As the same words do: next to the data, in the run, and, if --detokenize says so, in the checkpoint."""
    call = ["score", "run", "--ref", "text", "--tokenized", write_lines(run.parent / "split", SPLIT)]
    expected = printed(*call, *STEPS)
    assert read_lines(run / "test.hypothesis.text") == SENTENCES
    assert [expected[name]["score"] for name in ("bleu", "bleu_tokenized")] == pytest.approx([100, 100])

    def check(*options: str) -> None:
        assert printed(*call, *options).items() >= {**expected, "preparation": "moses,bpe"}.items()

    check()
    check("--detokenize")
    assert "undone: moses,bpe" in shown(*call, "--detokenize")
    assert "preparation" not in printed(*call, *STEPS)
    entries = entries_of(recorded)
    write_run(run, {"init": "a", "seed": "1"}, [2.0])
    expected["files"].append("run/result.json")
    (recorded / "preparation.json").rename(run / "preparation.json")
    check()
    check("--detokenize")
    (run / "preparation.json").unlink()
    assert "--detokenize bpe moses" in refused(*call, "--detokenize")
    model = {"model": {"w": torch.zeros(1)}, "cfg": {"model": {OPTION: json.dumps(entries)}}}
    torch.save(model, run / "best.pt")
    check("--detokenize")


def test_what_fairseq_has_joined_stays_and_a_models_file_is_named(recorded, run, printed, refused) -> None:
    generate_log(run / "test.generate.log", PIECES, [line.upper() for line in SENTENCES], data=recorded)
    call = ["score", "run", "--ref", "text"]
    assert "preparation" not in printed(*call)
    assert read_lines(run / "test.hypothesis.text") == [line.upper() for line in SENTENCES]
    assert printed(*call, "--detokenize")["bleu"]["score"] == pytest.approx(100)
    log = run / "test.generate.log"
    log.write_text(log.read_text().replace("'beam': 5", "'beam': 5, 'post_process': 'subword_nmt'", 1))
    assert "--detokenize moses" in refused(*call, "--detokenize")
    (recorded / "model").write_bytes(b"x")
    steps = [{"step": "moses", "lang": "en"}, {"step": "sentencepiece"}]
    record_preparation(recorded, {"dict.en.txt": steps}, {"model": recorded / "model"})
    (recorded / "model").unlink()
    generate_log(log, PIECES, data=recorded)
    assert "--detokenize sentencepiece=MODEL moses" in refused(*call)
