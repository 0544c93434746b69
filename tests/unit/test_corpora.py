"""`embinit prepare`: which file is what, what is found in a text, and the bytes that fairseq-preprocess would write."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import select
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fairseq.data.data_utils import load_indexed_dataset

from embinit_fairseq.corpora import workers as corpora_workers
from embinit_fairseq.corpora.raw_texts import Columns, find_raw_texts
from embinit_fairseq.corpora.subwords import _parts
from embinit_fairseq.corpora.workers import SEPARATOR, parts_of, segmented, symbols_of, workers
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import read_preparation
from embinit_fairseq.vocab.preparation_steps import Preparation

sacremoses = pytest.importorskip("sacremoses")
apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
learn_bpe = pytest.importorskip("subword_nmt.learn_bpe")

DE = ["Ein Hund läuft, schnell.", "Der „Hund“ läuft.", "", "a\u2028b\rc </s>", "Ein Hund läuft, schnell."] * 4 + ["Ωψ"]
EN = ["A dog's running, fast.", 'The "dog" runs.', "empty", "a b c", "A dog's running, fast."] * 4 + ["Ωψ φ"]
ROWS = [("good film", "pos", 1.5), ("bad film, dull", "neg", -1), ("good", "pos", 1), ("dull", "neg", 0)]
BPE = ("--steps", "lowercase,moses,bpe", "--bpe-size", "20", "--jobs", "1")


def write(path: Path, lines: list[str], end: str = "\n", mark: bytes = b"") -> Path:
    content = mark + "".join(f"{line}{end}" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def parallel(tmp_path):
    files = [write(tmp_path / "train.de", DE, "\r\n", b"\xef\xbb\xbf"), write(tmp_path / "train.en.gz", EN)]
    return [*files, write(tmp_path / "val.de", [*DE[:6], "ξ"]), write(tmp_path / "val.en", [*EN[:6], "ξ ξ"])]


def preprocess(flags: str) -> None:
    from fairseq import options
    from fairseq_cli import preprocess

    preprocess.main(options.get_preprocessing_parser().parse_args(flags.split()))


def same_files(one: Path, other: Path) -> None:
    names = {path.name for path in other.iterdir()} - {"preprocess.log", "preparation.json"}
    assert names == {path.name for path in one.iterdir()} - {"preparation.json"}
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_the_same_bytes_as_the_programs_one_after_the_other(parallel, tmp_path, printed):
    """Moses, learn-bpe on both sides, apply-bpe, fairseq-preprocess; CR, U+2028 and a byte-order mark are no words."""
    out, tokens, codes = tmp_path / "out", {}, io.StringIO()
    record = printed("prepare", *parallel, *BPE, "--min-count", "2", "--output", out)
    for lang, lines in {"de": DE, "en": EN}.items():
        words = Preparation(parse_steps("lowercase,moses", lang))
        tokens[lang] = [" ".join(words(line.replace("\u2028", " ").replace("\r", " "))) for line in lines]
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe.learn_bpe([*tokens["de"], *tokens["en"]], codes, 20)
    assert (out / "bpe.codes").read_text() == codes.getvalue()
    bpe = apply_bpe.BPE(io.StringIO(codes.getvalue()))
    for lang, lines in tokens.items():
        assert (out / f"text/train.{lang}").read_text().split("\n")[:-1] == list(map(bpe.process_line, lines))
    files = f"--trainpref {out}/text/train --validpref {out}/text/valid --destdir {tmp_path}/bin"
    preprocess(f"-s de -t en {files} --thresholdsrc 2 --thresholdtgt 2")
    same_files(out / "bin", tmp_path / "bin")
    check_numbers(out, record)
    recorded = read_preparation(out / "bin/dict.de.txt")
    assert recorded.steps == ({"step": "lowercase"}, {"step": "moses", "lang": "de"}, {"step": "bpe"})
    assert recorded.preparation(())(DE[0]) == (out / "text/train.de").read_text().split("\n")[0].split()


def check_numbers(out: Path, record: dict) -> None:
    """<unk> is what the cut dictionary lacks; ends of lines do not count."""
    for split in record["splits"]:
        rows = (out / f"bin/dict.{split['column']}.txt").read_text().splitlines()
        symbols = {row.rpartition(" ")[0] for row in rows}
        lines = (out / f"text/{split['split']}.{split['column']}").read_text().split("\n")[:-1]
        found = [token for line in lines for token in line.split()]
        missing = sum(token not in symbols for token in found)
        numbers = (len(lines), len(found), missing, max(len(line.split()) for line in lines))
        assert tuple(split[name] for name in ("sentences", "tokens", "unknown", "longest")) == numbers
        assert split["share"] == missing / len(found)
        ids = load_indexed_dataset(f"{out}/bin/{split['split']}.de-en.{split['column']}")
        assert missing == sum((row == 3).sum().item() for row in ids), "what the training reads"
    assert missing == 2  # ξ ξ
    assert record["splits"][0]["share"] > 0  # rare symbols of the training text


def test_a_table_says_what_was_found_with_the_numbers_of_the_lines(parallel, tmp_path, shown):
    out = shown("prepare", *parallel, *BPE, "--output", tmp_path / "out")
    heading, german, english = (line.split() for line in out.splitlines()[:3])
    assert dict(zip(heading, german)) == {
        **{"text": str(parallel[0]), "lines": "21", "empty": "4", "CR": "4", "symbols": "4"},
        **{"doubled": "16", "BOM": "yes"},
    }, "kinds that occur in no text have no column"
    assert english[1:4] == ["21", "0", "0"]
    assert f"{parallel[0]}: no words (kept: delete them, of two languages in both files) in lines 3, 8, 13, 18" in out
    assert ["valid.en", "7"] in [line.split()[:2] for line in out.splitlines()]
    assert f"fairseq-train {tmp_path}/out/bin" in out


def test_texts_without_a_word_after_the_steps_are_counted(tmp_path, shown, printed):
    """Kim's words are of English letters: of Korean nothing is left, and a training would run on nothing."""
    texts = [write(tmp_path / f"{split}.txt", ["한국어 좋다", "", "ab 한", "ω"]) for split in ("train", "valid")]
    out = shown("prepare", *texts, "--steps", "kim", "--jobs", "1", "--output", tmp_path / "out")
    assert "attention      train: the steps leave nothing of 2 lines that are not empty (" in out
    record = printed("prepare", *texts, "--steps", "moses", "--jobs", "1", "--output", tmp_path / "other")
    assert [(check["split"], check["empty"]) for check in record["checks"]] == [("train", 1), ("valid", 1)]
    assert [split["empty"] for split in record["splits"]] == [1, 1]


def test_the_language_of_the_rules_is_said(tmp_path, shown):
    """By rules of English each syllable of Korean is a word, and `l'homme` begins with `l`."""
    rows = ["text\tlabel", "한국어 l'homme\tp", "x\tn"]
    texts = [write(tmp_path / f"{split}.tsv", rows) for split in ("train", "dev")]
    options = ("--text-columns", "text", "--label-column", "label", "--steps", "moses", "--jobs", "1", "--output")
    for lang, said, words in (
        ("", "rules of en; --source-lang names another language", "한 국 어 l &apos;homme"),
        ("ko", "rules of ko", "한국어 l &apos; homme"),
        ("fr", "rules of fr", "한 국 어 l&apos; homme"),
    ):
        out = tmp_path / f"out{lang}"
        assert f"steps          moses ({said})\n" in shown(
            *("prepare", *texts, *(("--source-lang", lang) if lang else ()), *options, out)
        )
        assert (out / "text/train.input0").read_text(encoding="utf-8").split("\n")[0] == words


def test_a_trained_models_dictionary_says_the_steps(parallel, tmp_path, printed, refused):
    first, again = tmp_path / "first", tmp_path / "again"
    record = printed("prepare", *parallel, *BPE, "--joined-dictionary", "--output", first)
    assert re.match("fairseq-train .* --arch transformer_iwslt_de_en --share-all-embeddings ", record["next"])
    given = ("--dict", first / "bin/dict.de.txt", "--joined-dictionary", "--output", again)
    printed("prepare", *parallel, *given)
    same_files(first / "bin", again / "bin")
    assert (first / "bin/dict.de.txt").read_bytes() == (first / "bin/dict.en.txt").read_bytes()
    assert "--share" not in printed("prepare", *parallel, *BPE, "--output", tmp_path / "apart")["next"]
    two = ("--dict", first / "bin/dict.de.txt", "--target-dict", first / "bin/dict.en.txt")
    assert " --share-all-embeddings " in printed("prepare", *parallel, *two, "--output", tmp_path / "two")["next"]
    assert read_preparation(again / "bin/dict.en.txt").files["codes"]["path"] == "../../first/bpe.codes"
    assert "--steps" in refused("prepare", *parallel, "--steps", "moses,bpe", *given[:-1], tmp_path / "other")
    other = write(tmp_path / "codes", ["#version: 0.2", "a b</w>"])
    assert "--bpe-codes" in refused("prepare", *parallel, "--bpe-codes", other, *given[:-1], tmp_path / "other")
    (first / "bin/preparation.json").unlink()
    assert "looks like" in refused("prepare", *parallel, *given[:-1], tmp_path / "other")


@pytest.fixture(params=["tsv", "csv", "jsonl"])
def labelled(request, tmp_path):
    kind = request.param
    for name in ("train", "dev"):
        lines = ["text\tlabel\tscore".replace("\t", "," if kind == "csv" else "\t")]
        for text, label, score in ROWS:
            quoted = f'"{text}"' if kind == "csv" else text
            lines.append(f"{quoted}\t{label}\t{score}".replace("\t", "," if kind == "csv" else "\t"))
        if kind == "jsonl":
            lines = [json.dumps({"text": text, "label": label, "score": score}) for text, label, score in ROWS]
        write(tmp_path / f"{name}.{kind}", lines)
    return [tmp_path / f"{name}.{kind}" for name in ("train", "dev")]


def test_tables_with_labels(labelled, tmp_path, printed, refused):
    more = ("--text-columns", "text", "--steps", "moses", "--jobs", "1")
    record = printed("prepare", *labelled, *more, "--label-column", "label", "--output", tmp_path / "out")
    assert "--separator-token" not in record["next"]
    assert (tmp_path / "out/text/train.input0").read_text().split("\n")[1] == "bad film , dull"
    assert (tmp_path / "out/bin/label/dict.txt").read_text() == "neg 1\npos 1\n"
    for column, given in (("input0", ""), ("label", f"--srcdict {tmp_path}/out/bin/label/dict.txt")):
        files = f"--trainpref {tmp_path}/out/text/train.{column} --validpref {tmp_path}/out/text/valid.{column}"
        preprocess(f"--only-source {files} --destdir {tmp_path}/bin/{column} {given}")
        same_files(tmp_path / "out/bin" / column, tmp_path / "bin" / column)
    numbers = ("--label-column", "score", "--regression")
    printed("prepare", *labelled, *more, *numbers, "--output", tmp_path / "numbers")
    assert (tmp_path / "numbers/bin/label/train.label").read_text() == "1.5\n-1\n1\n0\n"
    absent = refused("prepare", *labelled, *more, "--label-column", "stars", "--output", tmp_path / "none")
    assert "no column stars" in absent
    assert "text, label, score" in absent


@pytest.mark.parametrize(("examples", "is_unbalanced"), [((8, 2), False), ((9, 1), True)])
def test_examples_of_classes_are_counted_and_one_frequent_class_is_named(examples, is_unbalanced, tmp_path, shown):
    rows = ["text\tlabel", *["a\tno"] * examples[0], *["b\tyes it is"] * examples[1]]
    train = write(tmp_path / "train.tsv", rows)
    columns = ("--text-columns", "text", "--label-column", "label", "--steps", "none", "--jobs", "1")
    out = shown("prepare", train, *columns, "--output", tmp_path / "out")
    assert f"classes        no {examples[0]}, yes_it_is {examples[1]} (" in out
    assert ("accuracy says little" in out) == is_unbalanced


def test_the_classes_of_a_trained_classifier_keep_their_numbers(tmp_path, printed, refused):
    """fairseq-preprocess numbers classes by frequency. A test set alone has the numbers of the training."""
    rows = ["text\tlabel", "a\tfine film", "b\tfine film", "c\tdull"]
    train, test = write(tmp_path / "train.tsv", rows), write(tmp_path / "test.tsv", ["text\tlabel", "b\tdull"])
    more = ("--text-columns", "text", "--label-column", "label", "--jobs", "1")
    old = printed("prepare", train, *more, "--steps", "none", "--output", tmp_path / "old")
    assert (old["classes"], old["spaces_in_classes"]) == (["dull", "fine_film"], True)
    assert (tmp_path / "old/text/train.label").read_text() == "fine_film\nfine_film\ndull\n"
    labels = write(tmp_path / "old/bin/label/dict.txt", ["fine_film 2", "dull 1"])
    given = ("--dict", tmp_path / "old/bin/input0/dict.txt")
    new = printed("prepare", test, *more, *given, "--output", tmp_path / "new")
    assert new["classes"] == ["fine_film", "dull"]
    assert re.match("fairseq-validate .* --batch-size .* --valid-subset test", new["next"])
    assert (tmp_path / "new/bin/label/dict.txt").read_bytes() == labels.read_bytes()
    preprocess(f"--only-source --testpref {tmp_path}/new/text/test.label --srcdict {labels} --destdir {tmp_path}/label")
    assert (tmp_path / "new/bin/label/test.bin").read_bytes() == (tmp_path / "label/test.bin").read_bytes()
    wrong = write(tmp_path / "wrong.test.tsv", ["text\tlabel", "b\tgood"])
    assert "wrong.test.tsv:2: the class good" in refused("prepare", wrong, *more, *given, "--output", tmp_path / "no")
    labels.unlink()
    assert "--dict DATA/input0/dict.txt" in refused("prepare", test, *more, *given, "--output", tmp_path / "no")


LANGUAGES = {"fra": "fr", "fra_Latn": "fr", "fr_XX": "fr", "FR": "fr", "zh_CN": "zh", "iw": "he", "src": "en"}


@pytest.mark.parametrize("code", LANGUAGES)
def test_codes_of_languages(code, tmp_path, printed, caplog):
    """Names of files, and of the data, have the user's code; the steps have that of the libraries."""
    files = [write(tmp_path / f"train.{lang}", ["L'homme x.", "1 000"]) for lang in (code, "en")]
    printed("prepare", *files, "--steps", "moses", "--jobs", "1", "--output", tmp_path / "out")
    (step,) = read_preparation(tmp_path / f"out/bin/dict.{code}.txt").steps
    assert step == {"step": "moses", "lang": LANGUAGES[code]}
    for part in ("src is not the code of a known language", "--source-lang de --target-lang en"):
        assert (part in caplog.text) == (code == "src")


def test_text_in_one_language(tmp_path, printed):
    """Of a test set for a dictionary nobody says whether the model is a masked one: both commands are named."""
    files = [write(tmp_path / f"{name}.txt", DE) for name in ("train", "valid")]
    printed("prepare", *files, "--steps", "none", "--output", tmp_path / "out", "--jobs", "2")
    preprocess(f"--only-source --trainpref {files[0]} --validpref {files[1]} --destdir {tmp_path}/bin")
    same_files(tmp_path / "out/bin", tmp_path / "bin")
    given = ("--dict", tmp_path / "out/bin/dict.txt", "--output", tmp_path / "new", "--jobs", "1")
    following = printed("prepare", f"test={files[1]}", *given)["next"]
    assert re.match("fairseq-eval-lm .* --task language_modeling .*fairseq-validate .* --task masked_lm ", following)


def test_processes_and_two_passes_do_not_change_the_result():
    lines = [f"A line an {number}.\t</s> <mask> \ue004" for number in range(4500)]
    codes = {"codes": "#version: 0.2\na n</w>\nl i\n"}
    prepare = {"": Preparation([*parse_steps("lowercase"), {"step": "bpe"}], codes)}
    whole = "".join(f"{' '.join(prepare[''](line))}\n" for line in lines)
    for jobs in (1, 2):
        with workers(prepare, jobs) as mapped:
            chunks = list(mapped(symbols_of, "", lines))
            parts = "".join(chunk.text for chunk in mapped(parts_of, "", lines)).split("\n")[:-1]
            again = "".join(chunk.text for chunk in mapped(segmented, "", parts))
        assert "".join(chunk.text for chunk in chunks) == again == whole
        assert [chunk.lines for chunk in chunks] == [2000, 2000, 500]


def test_processes_end_with_the_one_that_waits_for_them():
    """Also after SIGKILL: then nobody has the end of a pipe that all of them inherit."""
    reader, writer = os.pipe()
    if (waiting := os.fork()) == 0:
        try:
            with workers({"": Preparation()}, 2) as mapped:
                list(mapped(symbols_of, "", ["a"]))
                os.write(writer, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.kill(waiting, signal.SIGKILL)
    os.waitpid(waiting, 0)
    assert select.select([reader], [], [], 600)[0] == [reader]
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_several_sentences_stay_one_line():
    pytest.importorskip("spacy")
    lines = ["See www.x.org, line one. A 'second' one. An <unk>!", "***", "An end."]
    prepare = Preparation([*parse_steps("wikibooks"), {"step": "bpe"}], {"codes": "#version: 0.2\na n</w>\n"})
    parts = ["".join(text) for text in parts_of(prepare, lines)]
    assert parts[0].count(SEPARATOR) == 2
    assert segmented(prepare, parts) == symbols_of(prepare, lines) == list(map(prepare, lines))
    assert len(prepare.sentences(lines[0])) == 3


def test_only_lf_ends_a_line(tmp_path):
    ends = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # of `str.splitlines`
    file = write(tmp_path / "train.txt", ["a\rb", *(f"c{end}d" for end in ends), "e"], "\r\n", b"\xef\xbb\xbf")
    (raw_text,) = find_raw_texts([str(file)], Columns())
    assert list(raw_text.lines()) == ["a b", *["c d"] * len(ends), "e"]


# ---- Names of files -------------------------------------------------------------------------------------------------


def test_languages_are_written_as_the_user_writes_them(tmp_path):
    files = [str(write(tmp_path / name, ["a"])) for name in ("train.fr_XX", "train.EN", "valid.fr_xx", "valid.en")]
    columns = [one.column for one in find_raw_texts(files, Columns(source_lang="fr_XX", target_lang="en"))]
    assert columns == ["fr_XX", "en"] * 2
    table = str(write(tmp_path / "train.jsonl", ["{}"]))
    columns = [one.column for one in find_raw_texts([table], Columns(text_columns=["translation.de", "text.en"]))]
    assert columns == ["de", "en"]
    with pytest.raises(DataError, match="a folder; name a file in it"):
        find_raw_texts([str(tmp_path)], Columns())


def test_names_say_split_and_language(tmp_path):
    names = "train.de train.en.gz news-dev.de news-dev.en".split()
    files = [str(write(tmp_path / name, ["a"])) for name in names]
    other = [f"test1={write(tmp_path / f'newstest2014.{lang}', ['a'])}" for lang in ("de", "en")]
    table = str(write(tmp_path / "train.csv", ["a"]))
    plain = [str(write(tmp_path / name, ["a"])) for name in ("wiki.train", "wiki.valid", "b.train.txt", "en_train")]
    assert [(one.split, one.column) for one in find_raw_texts(plain[:2], Columns())] == [("train", ""), ("valid", "")]
    raw_texts = find_raw_texts([*files, *other], Columns())
    expected = [(split, lang) for lang in ("de", "en") for split in ("train", "valid", "test1")]
    assert sorted((one.split, one.column) for one in raw_texts) == sorted(expected)
    assert [one.column for one in find_raw_texts(files, Columns(source_lang="en"))][:2] == ["en", "de"]
    for texts, columns, remedy in (
        ([str(tmp_path / "newstest2014.de")], Columns(), "train="),
        (files[:3], Columns(), "no file in en"),
        ([*files, f"valid={files[0]}"], Columns(), "valid1="),
        ([*files, f"train={files[0]}"], Columns(), "; put them into one file"),
        (plain[::2], Columns(), "if they are two languages, name them as train.de and train.en.*; else put them"),
        (plain[2:], Columns(), "if they are two languages"),
        ([str(write(tmp_path / "train.label", ["a"])), files[0]], Columns(), "--source-lang"),
        (files, Columns(target_lang="fr"), "--target-lang"),
        (files, Columns(text_columns=["a"]), "--text-columns"),
        ([table], Columns(), "--text-columns"),
        ([table], Columns(text_columns=["a", "a"]), "a a has one column twice"),
        ([table], Columns(text_columns=["a"], label_column="a"), "a a has one column twice"),
        ([table], Columns(text_columns=["a", "label"]), "--source-lang and --target-lang"),
        ([table], Columns("de", "de", ["a", "b"]), "--source-lang and --target-lang"),
        ([table], Columns(text_columns=["a text", "b"]), "--source-lang and --target-lang"),
    ):
        with pytest.raises(OptionError, match=remedy):
            find_raw_texts(texts, columns)


# ---- What is refused, in one line and before anything is written ----------------------------------------------------

LABELLED = ("--text-columns", "t", "--label-column", "l")
REFUSED = {
    "unequal": (["train.de", "short.en"], BPE, "has 21 lines.*3"),
    "shorter": (["short.en", "train.de"], BPE, "short.en has 3 lines.*21"),
    "latin1": (["latin.txt"], ("--steps", "none"), "lines 2, 4: not UTF-8"),
    "empty": (["train=empty.txt"], ("--steps", "none"), "no line"),
    "segmented": (["bpe.train.txt"], ("--steps", "bpe", "--bpe-size", "9"), "before its segmentation"),
    "no steps": (["train.de"], (), "--steps"),
    "no codes": (["train.de"], ("--steps", "bpe"), "--bpe-codes, or --bpe-size N"),
    "both": (["train.de"], ("--steps", "bpe", "--bpe-size", "9", "--bpe-codes", "codes"), "give one of them"),
    "unused": (["train.de"], ("--steps", "moses", "--bpe-size", "9"), "--bpe-size.*leave it out"),
    "known": (["train.de"], ("--steps", "known"), "--dict"),
    "no train": (["valid=train.de"], ("--steps", "moses"), "train=FILE"),
    "joined": (["train.de"], ("--steps", "moses", "--joined-dictionary"), "--joined-dictionary"),
    "new class": (["train.tsv", "dev.tsv"], ("--steps", "none", *LABELLED), "class x"),
    "width": (["train=wide.tsv"], ("--steps", "moses", "--text-columns", "t"), "wide.tsv:2: 3 fields"),
    "words": (["train.tsv"], ("--steps", "none", *LABELLED, "--regression"), "number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_prepared(case, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"train.de": DE, "train.en": EN, "short.en": EN[:3], "empty.txt": [], "bpe.train.txt": ["a@@ b"] * 9}
    texts |= {"train.tsv": ["t\tl", "a\ty", "b\tz"], "dev.tsv": ["t\tl", "a\tx"], "wide.tsv": ["t\tl", "a\tb\tc"]}
    texts |= {"codes": ["#version: 0.2", "a b</w>"]}
    for name, lines in texts.items():
        write(tmp_path / name, lines)
    (tmp_path / "latin.txt").write_bytes(b"a\n\xe4\nb\n\xe4\n")
    files, options, remedy = REFUSED[case]
    files = [f"train={name}" if name in ("short.en", "latin.txt") else name for name in files]
    jobs = () if "--jobs" in options else ("--jobs", "1")
    message = refused("prepare", *files, *options, "--output", "out", *jobs)
    assert re.search(remedy, message), message
    assert not (tmp_path / "out").exists()


# ---- What nobody would see in the result ----------------------------------------------------------------------------


def test_classes_that_are_numbers_are_in_their_order_and_quotation_marks_are_text(tmp_path, printed):
    rows = ['"a\t10', 'b"\t-1', '"c"\t2', "d\t0"]
    files = [write(tmp_path / f"{name}.tsv", ["t\tl", *rows]) for name in ("train", "valid")]
    columns = ("--text-columns", "t", "--label-column", "l")
    printed("prepare", *files, *columns, "--steps", "none", "--jobs", "1", "--output", tmp_path / "out")
    assert (tmp_path / "out/text/train.input0").read_text() == '"a\nb"\n"c"\nd\n'
    assert (tmp_path / "out/bin/label/dict.txt").read_text() == "-1 1\n0 1\n2 1\n10 1\n"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_subwords_are_learned_of_the_training_text_evenly_spaced(tmp_path, printed, monkeypatch, kind):
    """Every second line, if a text has twice as many lines as are read; and no line of another split."""
    sentencepiece = pytest.importorskip("sentencepiece")
    monkeypatch.setattr("embinit_fairseq.corpora.prepare_texts.MOST_LINES", 8)
    files = [write(tmp_path / "train.txt", ["ab ba", "xy"] * 8)]
    files += [write(tmp_path / f"{name}.txt", ["cd dc"] * 8) for name in ("valid", "test")]
    size = ("--sentencepiece-size", "9", "--sentencepiece-type", kind, "--jobs", "1")
    printed("prepare", *files, "--steps", "sentencepiece", *size, "--output", tmp_path / "out")
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out/sentencepiece.model"))
    pieces = [model.id_to_piece(number) for number in range(len(model)) if not model.is_unknown(number)]
    assert {letter for piece in pieces for letter in piece if piece[0] != "<"} == {"a", "b", "▁"}
    ranks = [model.get_score(number).is_integer() for number in range(len(model))]
    assert all(ranks) == (kind == "bpe"), "merges have ranks, pieces of unigram probabilities"


def test_sentencepiece_learns_of_long_lines_too(tmp_path, printed):
    """Which sentencepiece itself leaves out: lines of more than 4,192 bytes."""
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = ["ab ba " * 1000, "我" * 2000, *["xy"] * 8, "kurz " * 800]
    parts = list(_parts(["", *lines]))
    assert parts[-9:] == lines[-9:], "lines of at most 4,192 bytes stay as they are"
    assert max(len(part.encode()) for part in parts) <= 4192
    assert " ".join(parts[:7]).split() == lines[0].split()
    assert "".join(parts[7:9]) == lines[1]
    more = ("--steps", "sentencepiece", "--sentencepiece-size", "20", "--jobs", "1", "--output", tmp_path / "out")
    printed("prepare", write(tmp_path / "train.txt", lines), *more)
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out/sentencepiece.model"))
    assert {*"abk我"} <= {letter for number in range(len(model)) for letter in model.id_to_piece(number)}


def test_chunks_are_in_the_order_of_the_lines(monkeypatch):
    """With more chunks than may wait."""
    monkeypatch.setattr(corpora_workers, "_CHUNK", 3)
    monkeypatch.setattr(corpora_workers, "_begin_process", corpora_workers._begin)
    monkeypatch.setattr(corpora_workers, "ProcessPoolExecutor", ThreadPoolExecutor)
    lines = [f"line {number}" for number in range(50)]
    with workers({"": Preparation(parse_steps("lowercase"))}, 2) as mapped:
        assert "".join(chunk.text for chunk in mapped(symbols_of, "", lines)).splitlines() == lines
