"""scripts/wmt14: finding, unpacking and downloading WMT's files, whole test sets, shards, cleaning, filter, BLEU."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import re
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("sacremoses")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from sacrebleu.dataset import DATASETS
from sacrebleu.metrics import BLEU
from wmt14 import clean, collect, corpora, encode, learn, score, sgm, testset

from embinit_fairseq.runs.tokens import detokenizer

CONTENT = bytes(range(256)) * 9000  # 2.3 MB: several pieces
several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


class Ranges(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT: /whole knows no ranges, /cut breaks off in the middle, everything else is as it should be."""

    asked: list[str | None] = []

    def do_GET(self) -> None:
        begin = self.headers.get("Range") if self.path != "/whole" else None
        self.asked.append(begin)
        content = CONTENT[int(begin.removeprefix("bytes=").rstrip("-")) :] if begin else CONTENT
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.path == "/cut" else content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Ranges.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_download_goes_on_where_it_was_stopped_and_is_right_or_not_there(server: str, tmp_path: Path) -> None:
    def archive(path: str, sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> corpora.Archive:
        return corpora.Archive(f"{server}/{path}", len(CONTENT), sha256)

    path = tmp_path / "new" / "archive.tgz"
    part = path.with_name("archive.tgz.part")
    with pytest.raises(SystemExit, match="start again to continue"):
        collect.download(archive("cut"), path)
    begin = part.stat().st_size
    assert 0 < begin < len(CONTENT)
    for _ in range(2):  # the second time nothing is asked for
        collect.download(archive("good"), path)
        assert path.read_bytes() == CONTENT
        assert not part.exists()
    assert Ranges.asked == [None, f"bytes={begin}-"]
    path.unlink()
    part.write_bytes(CONTENT[:1000])
    collect.download(archive("whole"), path)  # a server without ranges
    assert path.read_bytes() == CONTENT
    path.unlink()
    with pytest.raises(SystemExit, match=r"SHA-256 .* instead of 0000: .* set DATA"):
        collect.download(archive("good", "0000"), path)
    assert not list(path.parent.iterdir())


def packed(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_archives_are_unpacked_and_only_what_is_wanted(tmp_path: Path) -> None:
    giga, un = corpora.PAIRS["en-fr"]["giga"], corpora.PAIRS["en-fr"]["un"]
    text = {giga.member("en"): gzip.compress(b"one\n"), f"./{giga.member('fr')}": gzip.compress(b"un\n")}
    packed(tmp_path / giga.archive, {"other": b"x", **text})
    found = collect.files_of(giga, ["en", "fr"], tmp_path, tmp_path / "work")
    assert {lang: path.read_bytes() for lang, path in found.items()} == {"en": b"one\n", "fr": b"un\n"}
    assert {path.name for path in (tmp_path / "work/source").iterdir()} == {path.name for path in found.values()}
    path = packed(tmp_path / un.archive, {un.member("en"): b"one\n" * 9999})
    with pytest.raises(SystemExit, match=f"{un.archive} has no {un.member('fr')}"):
        collect.files_of(un, ["en", "fr"], tmp_path, tmp_path / "work")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SystemExit, match=f"{un.archive}: damaged or incomplete"):
        collect.files_of(un, ["en", "fr"], tmp_path, tmp_path / "other")
    assert not list((tmp_path / "other").rglob("*.en"))


def test_what_is_missing_in_the_users_folder_is_named(tmp_path: Path, monkeypatch) -> None:
    arguments = "collect --pair en-de --corpora europarl --test-from data --data".split()
    monkeypatch.setattr(sys, "argv", [*arguments, str(tmp_path), "--work", str(tmp_path / "work")])
    for files, message in (
        ([], "no newstest2014: put test-full.tgz"),
        (["newstest2014.en", "newstest2014.de"], "neither training-parallel-europarl-v7.tgz nor training/europarl-"),
        (["europarl-v7.de-en.en"], "nor training/europarl-v7.de-en.de (in"),
    ):
        for name in files:
            (tmp_path / name).touch()
        with pytest.raises(SystemExit, match=f"DATA={tmp_path} has .*{re.escape(message)}"):
            collect.main()
        assert not (tmp_path / "work" / "files.json").exists()


pairs_of_lines = st.lists(st.tuples(st.text("aé ", max_size=4), st.text("bß\r\u2028", max_size=4)), min_size=1)


@several
@given(pairs_of_lines, st.integers(1, 7), st.none() | st.integers(1, 9), st.booleans())
def test_shards_hold_every_pair_once(tmp_path: Path, pairs: list, size: int, limit: int | None, last: bool) -> None:
    paths = {lang: tmp_path / lang for lang in ("en", "de")}
    for path, side in zip(paths.values(), zip(*pairs)):
        path.write_bytes(("\n".join(side) + ("\n" if last or not side[-1] else "")).encode())
    found, expected = list(clean.cut(paths, 11, size, limit)), pairs[: limit or len(pairs)]
    numbers = [shard["first"] + i for shard in found for i in range(shard["pairs"])]
    assert numbers == list(range(11, 11 + len(expected)))
    assert max(shard["pairs"] for shard in found) <= size
    for lang, side in zip(paths, zip(*expected)):
        places = [shard[lang] for shard in found]
        held = b"".join(Path(path).read_bytes()[begin : begin + length] for path, begin, length in places)
        assert held.removesuffix(b"\n").decode().split("\n") == list(side)
        assert {path for path, _, _ in places} == {str(paths[lang])}
    paths["de"].write_bytes(paths["de"].read_bytes().removesuffix(b"\n") + b"\none more\n")
    if limit is None:
        with pytest.raises(SystemExit, match=rf"/de has more lines than .*/en \({len(pairs)}\): they do not belong"):
            list(clean.cut(paths, 1, size, None))


#: as IWSLT 2017 (ids go on)
TALKS = """<?xml version="1.0" encoding="UTF-8"?>
<mteval>
<refset setid="x">
<doc docid="767" genre="lectures">
<title>A title</title>
<seg id="1"> Thank you. </seg>
<seg id="2"> Yes &amp; no. </seg>
</doc>
<doc docid="769" genre="lectures">
<seg id="3"> Hello. </seg>
</doc>
</refset>
</mteval>
"""
#: upper case, attributes in another order, single and no quotes, a segment over two lines, two in a line
OLD = """<SRCSET SRCLANG="en" SETID='x'>
<DOC GENRE=news DOCID=first>
<SEG lang="en" ID = 'a1'>one
two</SEG> <Seg id=2>three</sEG>
<seg ID="3"/>
</DOC>
</SRCSET>
"""


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TALKS, [("767", "1", "Thank you."), ("767", "2", "Yes &amp; no."), ("769", "3", "Hello.")]),
        (OLD, [("first", "a1", "one two"), ("first", "2", "three"), ("first", "3", "")]),
        ("<seg>a</seg>\r\n<seg>b\u2028c\u0085</seg>", [(None, None, "a"), (None, None, "b c")]),
    ],
)
def test_segments_of_all_kinds_of_files_and_a_file_that_is_cut_anywhere(text, expected, tmp_path: Path) -> None:
    path, last = tmp_path / "file", text.rindex(">")  # without the line feed after the last tag nothing is lost
    for whole in (text, text[: last + 1]):
        assert sgm.read_sgm(written(path, whole)) == [sgm.Segment(*each) for each in expected]
    for size in range(last + 1) if expected[0][0] else ():
        with pytest.raises(SystemExit, match=rf"^error: {path}: "):
            sgm.read_sgm(written(path, text[:size]))


def test_what_is_damaged_or_does_not_belong_together_is_named(tmp_path: Path) -> None:
    whole, other = written(tmp_path / "a", TALKS), tmp_path / "b"
    for old, new, message in (
        ("Yes &amp; no. </seg>\n", "Yes &amp;", "line 7: segment 2"),
        (" Thank you. </seg>", "", "line 6: segment 1"),
        ("</doc>\n<doc", "<doc", 'line 4: <doc docid="767"'),
        ("<mteval>\n", "", "line 12: </mteval>"),
        ('<seg id="3"> Hello', "Hello", "line 10: </seg>"),
    ):
        with pytest.raises(SystemExit, match=re.escape(f"{other}: {message}") + ".* get it again"):
            sgm.read_sgm(written(other, TALKS.replace(old, new)))
    for old, new, message in (
        ('id="2"', 'id="4"', "segment 2 of {0} has id 2 of document 767, that of {1} id 4 of document 767"),
        ('docid="769"', 'docid="770"', "segment 3 of {0} has id 3 of document 769, that of {1} id 3 of document 770"),
        ('<seg id="3"> Hello. </seg>\n', "", "{0} has 3 sentences, {1} 2"),
    ):
        written(other, TALKS.replace(old, new))
        with pytest.raises(SystemExit, match=re.escape(message.format(whole, other)) + ".* get them again"):
            sgm.read_pair(whole, other)
        with pytest.raises(SystemExit):
            sgm.read_pair(other, whole)
    written(other, TALKS.replace(' docid="767" genre="lectures"', "").replace(' id="1"', ""))  # ids on one side only
    assert sgm.read_pair(whole, other) == (["Thank you.", "Yes &amp; no.", "Hello."],) * 2


def test_an_sgm_file_is_read_as_sacrebleu_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, expected = tmp_path / "newstest2014-deen-ref.de.sgm", tmp_path / "expected"
    text = '<refset setid="x" srclang="any">\n<doc docid="a">\n<hl>\n<seg id="1"> AT&amp;T\u00a0sagt  „ja“ </seg>\n'
    text += '</hl>\n<p>\n<seg id="2">a < b <b>c</b></seg>\n<seg id="3"></seg>\n</p>\n</doc>\n</refset>\n'
    DATASETS["wmt14/full"]._convert_format(str(written(path, text)), str(expected))
    found = [segment.text for segment in sgm.read_sgm(path)]
    assert found == expected.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(found) == 3
    with pytest.raises(SystemExit, match="text: no <seg"):
        sgm.read_sgm(written(tmp_path / "text", "no segments\n"))
    for encoding in ("latin1", "utf-16"):
        for read in (sgm.read_sgm, sgm.utf8_lines):
            with pytest.raises(SystemExit, match=f"{path}: line . is not UTF-8.*iconv -f"):
                read(written(path, "<doc>\n<seg>\u00e4</seg></doc>".encode(encoding)))
    only_line_feeds = written(path, "a\rb\r\nc\u2028d\u0085\n\nlast")
    assert list(sgm.utf8_lines(only_line_feeds)) == ["a\rb\r\n", "c\u2028d\u0085\n", "\n", "last"]
    monkeypatch.setattr(DATASETS["wmt14/full"], "_outdir", str(tmp_path))
    for field in ("src", "ref", "docid", "genre", "origlang"):
        (tmp_path / f"wmt14_full.en-fr.{field}").write_text(f"{field} 1\n{field} 2\n")
    assert testset.read_test({"kind": "sacrebleu"}, "en-fr") == (["src 1", "src 2"], ["ref 1", "ref 2"])


def test_a_line_becomes_moses_tokens_without_escapes() -> None:
    for lang, raw, expected in (
        ("en", "  It’s “well-known”\u00a0…\r\n", 'It \'s " well @-@ known " ...'),
        ("de", "„Das\u2028ist\u00ad gut“, sagte\ter.\n", '" Das ist gut " , sagte er .'),
        ("fr", "L’homme dit\u00a0: «\u00a0oui\u00a0» & <non>\n", 'L\' homme dit : " oui " & < non >'),
        ("de", "10\u00a0000 Euro\n", "10,000 Euro"),  # Moses' rule sees the no-break space
        ("en", "\n", ""),
    ):
        assert clean.cleaner(lang, "subword_nmt")(raw) == expected
    assert clean.cleaner("de", "sentencepiece")(" „Das \u2028 ist“ -\u200b gut. \n") == '"Das ist" - gut.'


def test_every_nth_pair_is_for_validation_and_unusable_ones_are_counted(tmp_path: Path) -> None:
    pairs = [(b"a %d\n" % number, b"b %d\n" % number) for number in range(7, 12)]
    pairs += [(b"x " * clean.MAX_CHARS + b"\n", b"long\n"), (b"bad \xff\n", b"b\n"), (b"last", b"last")]
    shard: dict = {"first": 7, "pairs": len(pairs)}
    for lang, side in zip(("en", "de"), zip(*pairs)):
        path = written(tmp_path / lang, b"before\n" + b"".join(side))
        shard[lang] = [str(path), 7, len(b"".join(side))]
    clean.clean_shard(3, shard, ["en", "de"], tmp_path / "clean", "subword_nmt", valid_every=5)
    found = {path.name: path.read_text() for path in (tmp_path / "clean/00003").iterdir()}
    assert (found["valid.en"], found["train.de"]) == ("a 10\n", "b 7\nb 8\nb 9\nb 11\nb\nlast\n")
    assert found["train.en"] == "a 7\na 8\na 9\na 11\nbad\nlast\n"
    assert found["words.txt"] == "11 2\n7 2\n8 2\n9 2\na 4\nb 5\nbad 1\nlast 2\n"
    assert found["stats.json"] == '{"pairs": 8, "not_utf8": 1, "too_many_characters": 1}\n'


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 10), st.sampled_from([1.0, 1.5, 3.0]))
def test_pairs_are_left_out_as_by_moses(left: int, right: int, longest: int, ratio: float) -> None:
    kept = 1 <= left <= longest and 1 <= right <= longest and left / right <= ratio and right / left <= ratio
    assert (encode.unfit([left, right], longest, ratio) is None) == kept


def test_sentencepiece_is_learned_from_spaced_lines_and_undone(tmp_path: Path) -> None:
    texts = {lang: [f"{lang} Satz Nummer {n}." for n in range(40)] for lang in ("en", "de")}
    for number in range(2):
        folder = tmp_path / f"0000{number}"
        folder.mkdir()
        (folder / "stats.json").write_text('{"pairs": 20}')
        for lang, lines in texts.items():
            (folder / f"train.{lang}").write_text("".join(f"{line}\n" for line in lines[20 * number :][:20]))
    taken = list(learn.spaced_lines(tmp_path, ["en", "de"], 8))
    assert taken == [texts[lang][n] for lang in ("en", "de") for n in (0, 10, 20, 30)]
    model, everything = tmp_path / "spm.model", list(learn.spaced_lines(tmp_path, ["en", "de"], 1000))
    assert len(everything) == 80
    learn.learn_sentencepiece(iter(everything), 40, "unigram", 1, model)
    pieces = encode.piece_encoder("sentencepiece", model)("de Satz Nummer 7.")
    assert len(pieces) > 4
    assert detokenizer([f"sentencepiece={model}"], "de")(" ".join(pieces)) == "de Satz Nummer 7."


def test_the_tokenised_figures() -> None:
    text = ["Das ist eine ARD-Sendung, sagt er.", "Wer hat das Rhein-Main-Gebiet gesehen?", "AT&T ist doch da."]
    reference = ["Das ist eine ZDF-Sendung, sagt er.", text[1], "AT&amp;T ist Konzern."]
    found = score.scores_of(text, reference, "de")
    # from left to right, as by s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g: what was matched once is not looked at again
    assert score.split_compounds("a-b-c - d-e -f") == "a ##AT##-##AT## b-c - d ##AT##-##AT## e -f"

    def plain(lines: list[str], between: str) -> list[str]:
        words = [re.sub(r"([,.?])", r" \1", line.replace("&amp;", "&").replace("AT&T", "AT & T")) for line in lines]
        return [re.sub(r"(\S)-(\S)", rf"\1{between}\2", line) for line in words]

    for name, between in (("bleu_tokenized", "-"), ("bleu_tokenized_compound_split", " ##AT##-##AT## ")):
        expected = BLEU(tokenize="none", force=True).corpus_score(plain(text, between), [plain(reference, between)])
        assert found[name]["score"] == pytest.approx(expected.score)
        assert "tok:none" in found[name]["signature"]
    assert found["bleu_tokenized_compound_split"]["score"] > found["bleu_tokenized"]["score"]  # "Sendung" is right
