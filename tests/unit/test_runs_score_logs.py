"""embinit score: what the log says of its search, its reference, its source and the preparation of its text."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
import sacrebleu
import torch
from run_folders import (
    RAW,
    REFERENCES,
    TOKENS,
    end,
    generate_log,
    read_lines,
    write_lines,
    write_references,
    write_run,
)
from segmentations import train

from embinit_fairseq.checkpoints.trained_preparation import OPTION
from embinit_fairseq.cli.main import main
from embinit_fairseq.runs.log import CONFIGURATION
from embinit_fairseq.runs.search_options import SEARCH
from embinit_fairseq.runs.translations import read_translations
from embinit_fairseq.vocab.preparation_record import entries_of, record_preparation

#: options of fairseq-generate that change the search but are recorded, or common and without a note; or only the output
NO_NOTE = {
    *("beam", "lenpen", "max_len_a", "max_len_b", "score_reference"),
    *("no_early_stop", "no_beamable_mm", "sacrebleu", "print_alignment", "print_step", "retain_iter_history"),
    "no_seed_provided",
}
OPTIONS = (
    "{'_name': None, 'common': {'seed': 1}, 'common_eval': {'path': 'a.pt', 'model_overrides': '{}'}, 'generation': "
)


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch) -> Path:
    """A folder next to references in text and in tokens; the current folder is theirs."""
    monkeypatch.chdir(tmp_path)
    return write_references(tmp_path)


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
        (
            ["... | INFO | fairseq_cli.generate | " + CONFIGURATION + "{}, 'results_path': 'out'", end(3)],
            "give out/generate-test.txt",
        ),
        (["Namespace(beam=2)", "S\ta@@ b", "O\ta@@ b", "H\t-0.51\tc", "A\t0"], "cut -f3"),
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
        ({"diverse_beam_groups": 1, "diversity_rate": 0.0}, None),
        ({"diverse_beam_groups": 2}, "--diverse-beam-groups 2"),
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


def test_spaces_that_moses_does_not_restore_are_said(run, capsys) -> None:
    """The reference is right, and no option helps: Moses leaves the spaces before Hindi's danda and Arabic's marks."""
    moses = pytest.importorskip("sacremoses")
    for lang, line in (("hi", "मैं घर {} जाता हूँ।"), ("ar", "هل أنت {} بخير؟ نعم، شكرا.")):
        text = [line.format(word) for word in "abcdefghij"]
        tokens = [moses.MosesTokenizer(lang=lang).tokenize(line, return_str=True) for line in text]
        joined = [moses.MosesDetokenizer(lang=lang).detokenize(line.split()) for line in tokens]
        printed_log(run / "log", tokens, tokens)
        write_lines(run / "text", text)
        assert main(["score", "run/log", "--ref", "run/text", "--detokenize", "moses", "--lang", lang]) == 0
        counts = [sum(len(line.split()) for line in lines) for lines in (text, joined)]
        best = sacrebleu.corpus_bleu(joined, [text]).score
        said = (
            f"run/text has {counts[0]} words, the log's T- lines {counts[1]}, .* translation scores {best:.1f} BLEU; "
        )
        assert re.search(said, capsys.readouterr().err)
        assert counts[0] < counts[1]


def test_a_reference_in_another_normal_form_is_said(run, capsys) -> None:
    """As from macOS: the same text has a BLEU of nothing, and nobody sees why."""
    text = [f"tiếng Việt rất đẹp số {at}" for at in range(12)]
    write_lines(run / "translated", [line.replace("rất", "thì") for line in text])
    for form, is_said in (("NFC", False), ("NFD", True)):
        write_lines(run / "text", [unicodedata.normalize(form, line) for line in text])
        assert main(["score", "run/translated", "--ref", "run/text", "--lang", "vi"]) == 0
        said = "12 lines of run/text and 0 translations are not in Unicode's form NFC"
        assert (said in capsys.readouterr().err) == is_said
    (run / "translated").write_bytes((run / "text").read_bytes())
    assert main(["score", "run/translated", "--ref", "run/text", "--lang", "vi"]) == 0
    assert "NFC" not in capsys.readouterr().err, "both are in the same form"


def test_characters_that_sentencepiece_replaces_are_said(run, capsys) -> None:
    """Its rules write `，` as `,`: a Chinese reference is right, and no translation equals it."""
    text = [f"我们喜欢{word}，你们呢？" for word in "一二三四五六七八九十"]
    joined = [unicodedata.normalize("NFKC", line) for line in text]
    tokens = [f"▁{line}".replace("喜欢", " 喜欢 ") for line in joined]
    printed_log(run / "log", tokens, tokens)
    write_lines(run / "text", text)
    options = ["--detokenize", "sentencepiece", "--lang", "zh"]
    assert main(["score", "run/log", "--ref", "run/text", *options]) == 0
    best = sacrebleu.corpus_bleu(joined, [text], tokenize="zh").score
    assert best < 95
    said = f"run/text has ， ？, which the log's T- lines, .* translation scores {best:.1f} BLEU; replace them"
    assert re.search(said, capsys.readouterr().err)
    write_lines(run / "text", joined)
    assert main(["score", "run/log", "--ref", "run/text", *options]) == 0
    assert "T- lines" not in capsys.readouterr().err


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
    record_preparation(recorded, {"dict.en.txt": [{"step": "moses", "lang": "en", "escape": False}]})
    assert "--detokenize" in refused(*call)
    assert printed(*call, *STEPS)["bleu"]["score"] == pytest.approx(100)
    (recorded / "preparation.json").unlink()
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
    train(recorded / "model", "unigram")
    steps = [{"step": "moses", "lang": "en"}, {"step": "sentencepiece"}]
    record_preparation(recorded, {"dict.en.txt": steps}, {"model": recorded / "model"})
    (recorded / "model").unlink()
    generate_log(log, PIECES, data=recorded)
    assert "--detokenize sentencepiece=MODEL moses" in refused(*call)


def test_what_fairseq_has_joined_twice(run, printed, capsys) -> None:
    """Lines D- and T- without spaces, of --bpe and --remove-bpe sentencepiece; without options it is a note."""
    log, call = Path("joined.log"), ["score", "joined.log", "--ref", "raw"]
    glued = [line.replace(" ", "") for line in RAW]
    printed_log(log, RAW, glued, post_process="sentencepiece", bpe="sentencepiece")
    marked = log.read_text().splitlines()
    marked[1:1] = [f"D-{at}\t-0.5\t{line}" for at, line in enumerate(glued)]
    write_lines(log, marked)
    assert printed(*call)["bleu"]["score"] == pytest.approx(100)
    capsys.readouterr()
    write_lines(log, [line for line in marked if line[1:2] == "-"])
    assert main(call) == 0
    assert "--remove-bpe: translate again" in capsys.readouterr().err


def test_a_mark_that_was_left_in_is_named(run, capsys) -> None:
    """At the beginning or end of all lines of one text, and of none of the other."""
    texts = [f"{letter} man {letter * 3}" for letter in "abcdefghijkl"]
    marked = {
        "'__de__'": [f"__de__ {line}" for line in texts],
        "']'": [f"{line}[de_DE]" for line in texts],
        "'>'": [f"{line}</s>" for line in texts],
        "')'": [f"{line} (utt-{line[0]})" for line in texts],
    }
    for sign, lines in marked.items():
        for hypothesis, reference in ((lines, texts), (texts, lines)):
            write_lines(Path("h"), hypothesis)
            write_lines(Path("r"), reference)
            assert main(["score", "h", "--ref", "r"]) == 0
            said = capsys.readouterr().err
            assert sign in said
            assert ("lines of r " in said) == (lines is reference)
    stops = [f"{line}." for line in texts]
    for hypothesis, reference in ((texts, stops), (marked["']'"], marked["']'"]), (lines[:9], texts[:9])):
        write_lines(Path("h"), hypothesis)
        write_lines(Path("r"), reference)
        assert main(["score", "h", "--ref", "r"]) == 0
        assert "mark" not in capsys.readouterr().err
