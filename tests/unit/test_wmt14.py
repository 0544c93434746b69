"""scripts/wmt14: finding, unpacking and downloading WMT's files, whole test sets, shards, cleaning, filter, BLEU."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
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


# ---- files and archives ---------------------------------------------------------------------------------------------


def archive(url: str, content: bytes = CONTENT) -> corpora.Archive:
    return corpora.Archive(url, len(content), hashlib.sha256(content).hexdigest())


class Ranges(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT: /whole knows no ranges, /cut breaks off in the middle, everything else is as it should be."""

    asked: list[str | None] = []

    def do_GET(self) -> None:
        begin = self.headers.get("Range")
        self.asked.append(begin)
        content = CONTENT
        if begin and self.path != "/whole":
            content = CONTENT[int(begin.removeprefix("bytes=").rstrip("-")) :]
            self.send_response(206)
        else:
            self.send_response(200)
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


def test_a_download_goes_on_where_it_was_stopped(server: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "archive.tgz"
    with pytest.raises(SystemExit, match="start again to continue"):
        collect.download(archive(f"{server}/cut"), path)
    part = path.with_name("archive.tgz.part")
    assert 0 < part.stat().st_size < len(CONTENT)
    begin = part.stat().st_size
    collect.download(archive(f"{server}/good"), path)
    assert path.read_bytes() == CONTENT
    assert not part.exists()
    assert Ranges.asked == [None, f"bytes={begin}-"]
    collect.download(archive(f"{server}/good"), path)  # nothing is asked for again
    assert len(Ranges.asked) == 2


def test_a_server_without_ranges_begins_anew(server: str, tmp_path: Path) -> None:
    (tmp_path / "archive.part").write_bytes(CONTENT[:1000])
    collect.download(archive(f"{server}/whole"), tmp_path / "archive")
    assert (tmp_path / "archive").read_bytes() == CONTENT


def test_a_wrong_archive_is_not_kept(tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.write_bytes(CONTENT[:-1] + b"?")
    wrong = archive(published.as_uri())
    with pytest.raises(SystemExit, match=f"SHA-256 .* instead of {wrong.sha256}: .* set DATA"):
        collect.download(wrong, tmp_path / "archive")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["published"]
    published.write_bytes(CONTENT)
    collect.download(wrong, tmp_path / "archive")
    assert (tmp_path / "archive").read_bytes() == CONTENT


def test_what_is_published_about_the_archives_is_complete() -> None:
    used = {corpus.archive for pair in corpora.PAIRS.values() for corpus in pair.values()}
    assert used == set(corpora.ARCHIVES)
    for name, each in corpora.ARCHIVES.items():
        assert each.url.endswith(f"/{name}")
        assert len(bytes.fromhex(each.sha256)) == 32
    assert corpora.test_member("en-fr", "ref") == "test-full/newstest2014-fren-ref.fr.sgm"
    assert corpora.test_member("en-de", "src") == "test-full/newstest2014-deen-src.en.sgm"


@pytest.mark.parametrize("name", ["training/europarl.en", "europarl.en", "training/europarl.en.gz", "europarl.en.gz"])
def test_files_are_found_with_and_without_folders_and_compression(name: str, tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / name).touch()
    assert collect.find(tmp_path, "training/europarl.en") == tmp_path / name
    assert collect.find(tmp_path, "training/europarl.en.gz") == tmp_path / name
    assert collect.find(tmp_path, "training/europarl.de") is None


def packed(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    with tarfile.open(folder / name, "w:gz" if name.endswith("gz") else "w") as tar:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return folder / name


def test_archives_are_unpacked_and_only_what_is_wanted(tmp_path: Path) -> None:
    giga = corpora.PAIRS["en-fr"]["giga"]
    members = {
        giga.member("en"): gzip.compress(b"one\n"),
        "other": b"x",
        f"./{giga.member('fr')}": gzip.compress(b"un\n"),
    }
    packed(tmp_path, giga.archive, members)
    found = collect.files_of(giga, ["en", "fr"], tmp_path, tmp_path / "work")
    assert {lang: path.read_bytes() for lang, path in found.items()} == {"en": b"one\n", "fr": b"un\n"}
    assert sorted(path.name for path in (tmp_path / "work" / "source").iterdir()) == [
        "giga-fren.release2.fixed.en",
        "giga-fren.release2.fixed.fr",
    ]


def test_an_archive_that_is_not_what_its_name_says_is_named(tmp_path: Path) -> None:
    name = "training-parallel-un.tgz"
    path = packed(tmp_path, name, {"un/undoc.2000.fr-en.en": b"one\n" * 9999})
    un = corpora.PAIRS["en-fr"]["un"]
    with pytest.raises(SystemExit, match=f"{name} has no un/undoc.2000.fr-en.fr"):
        collect.files_of(un, ["en", "fr"], tmp_path, tmp_path / "work")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SystemExit, match=f"{name}: damaged or incomplete"):
        collect.files_of(un, ["en", "fr"], tmp_path, tmp_path / "other")
    assert not list((tmp_path / "other").rglob("*.en"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no newstest2014: put test-full.tgz"),
        (["newstest2014.en", "newstest2014.de"], "neither training-parallel-europarl-v7.tgz nor training/europarl-"),
        (["newstest2014.en", "newstest2014.de", "europarl-v7.de-en.en"], "nor training/europarl-v7.de-en.de (in"),
    ],
)
def test_what_is_missing_in_the_users_folder_is_named(
    files: list[str], message: str, tmp_path: Path, monkeypatch
) -> None:
    for name in files:
        (tmp_path / name).touch()
    arguments = ["--pair", "en-de", "--corpora", "europarl", "--test-from", "data", "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["collect", *arguments, "--work", str(tmp_path / "work")])
    with pytest.raises(SystemExit, match=f"DATA={tmp_path} has .*{re.escape(message)}"):
        collect.main()
    assert not (tmp_path / "work" / "files.json").exists()


lines = st.lists(st.tuples(st.text("aé ", max_size=4), st.text("bß\r\u2028", max_size=4)), min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(lines, st.integers(1, 7), st.none() | st.integers(1, 9), st.booleans())
def test_shards_hold_every_pair_once(tmp_path: Path, pairs: list, size: int, limit: int | None, last: bool) -> None:
    paths = {lang: tmp_path / lang for lang in ("en", "de")}
    for index, path in enumerate(paths.values()):
        text = "\n".join(pair[index] for pair in pairs) + ("\n" if last or not pairs[-1][index] else "")
        path.write_bytes(text.encode())
    found = list(clean.cut(paths, 11, size, limit))
    expected = pairs[: limit or len(pairs)]
    numbers = [shard["first"] + i for shard in found for i in range(shard["pairs"])]
    assert numbers == list(range(11, 11 + len(expected)))
    assert max(shard["pairs"] for shard in found) <= size
    for index, lang in enumerate(paths):
        held = b""
        for path, offset, length in (shard[lang] for shard in found):
            assert path == str(paths[lang])
            held += Path(path).read_bytes()[offset : offset + length]
        assert held.removesuffix(b"\n").decode().split("\n") == [pair[index] for pair in expected]


def test_files_of_different_length_are_refused(tmp_path: Path) -> None:
    (tmp_path / "en").write_text("a\nb\n")
    (tmp_path / "de").write_text("a\nb\nc\n")
    paths = {lang: tmp_path / lang for lang in ("en", "de")}
    with pytest.raises(SystemExit, match=r"/de has more lines than .*/en \(2\): they do not belong together"):
        list(clean.cut(paths, 1, 10, None))
    assert [shard["pairs"] for shard in clean.cut(paths, 1, 10, 2)] == [2]


# ---- test sets ------------------------------------------------------------------------------------------------------


#: as newstest2014 of WMT (no XML declaration, ids anew in every document)
NEWSTEST = """<refset trglang="de" setid="newstest2014" srclang="any">
<doc sysid="ref" docid="10023-bote.de" genre="news" origlang="de">
<hl>
<seg id="1">Gutach: R&D < 3 > 2</seg>
</hl>
<p>
<seg id="2">"Ja", sagt <b>er</b>.</seg>
</p>
</doc>
<doc sysid="ref" docid="10035-zeitung.at" genre="news" origlang="de">
<seg id="1">Eins.</seg>
<seg id="2"></seg>
</doc>
</refset>
"""
#: as IWSLT 2017 (ids go on)
TALKS = """<?xml version="1.0" encoding="UTF-8"?>
<mteval>
<refset setid="iwslt2017-tst2010" srclang="german" trglang="english">
<doc docid="767" genre="lectures">
<url>http://www.ted.com/talks/x</url>
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
        (
            NEWSTEST,
            [
                ("10023-bote.de", "1", "Gutach: R&D < 3 > 2"),
                ("10023-bote.de", "2", '"Ja", sagt <b>er</b>.'),
                ("10035-zeitung.at", "1", "Eins."),
                ("10035-zeitung.at", "2", ""),
            ],
        ),
        (TALKS, [("767", "1", "Thank you."), ("767", "2", "Yes &amp; no."), ("769", "3", "Hello.")]),
        (OLD, [("first", "a1", "one two"), ("first", "2", "three"), ("first", "3", "")]),
        ("<seg>a</seg>\r\n<seg>b\u2028c\u0085</seg>", [(None, None, "a"), (None, None, "b c")]),
    ],
)
def test_segments_of_all_kinds_of_files(text: str, expected: list[tuple], tmp_path: Path) -> None:
    assert sgm.read_sgm(written(tmp_path / "file", text)) == [sgm.Segment(*each) for each in expected]


@pytest.mark.parametrize("text", [NEWSTEST, TALKS, OLD])
def test_a_file_that_is_cut_anywhere_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    last = text.rindex(">")  # without the line feed after the last tag nothing is lost
    for size in range(last + 1):
        if text[:size].strip():
            with pytest.raises(SystemExit, match=rf"^error: {path}: "):
                sgm.read_sgm(written(path, text[:size]))
    assert sgm.read_sgm(written(path, text[: last + 1])) == sgm.read_sgm(written(path, text))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Yes &amp; no. </seg>\n", "Yes &amp;", "line 8: segment 2"),
        (" Thank you. </seg>", "", "line 7: segment 1"),
        ("</doc>\n</refset>\n</mteval>\n", "", 'line 10: <doc docid="769"'),
        ("</doc>\n<doc", "<doc", 'line 4: <doc docid="767"'),
        ("</mteval>\n", "", "line 2: <mteval>"),
        ("<mteval>\n", "", "line 13: </mteval>"),
        ('<seg id="3"> Hello', "Hello", "line 11: </seg>"),
    ],
)
def test_what_is_damaged_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "file", TALKS.replace(old, new))
    with pytest.raises(SystemExit, match=re.escape(f"{path}: {message}") + ".* get it again"):
        sgm.read_sgm(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id="2"', 'id="4"', "segment 2 of {0} has id 2 of document 767, that of {1} id 4 of document 767"),
        ('<seg id="2"> Yes &amp; no. </seg>\n', "", "segment 2 of {0} has id 2 of document 767, that of {1} id 3"),
        ('docid="769"', 'docid="770"', "segment 3 of {0} has id 3 of document 769, that of {1} id 3 of document 770"),
        ('<seg id="3"> Hello. </seg>\n', "", "{0} has 3 sentences, {1} 2"),
    ],
)
def test_sides_that_do_not_belong_together_are_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    paths = written(tmp_path / "a", TALKS), written(tmp_path / "b", TALKS.replace(old, new))
    with pytest.raises(SystemExit, match=re.escape(message.format(*paths)) + ".* get them again"):
        sgm.read_pair(*paths)
    with pytest.raises(SystemExit):
        sgm.read_pair(*paths[::-1])


def test_ids_on_one_side_only_do_not_count(tmp_path: Path) -> None:
    plain = TALKS.replace(' docid="767" genre="lectures"', "").replace(' id="1"', "")
    paths = written(tmp_path / "a", TALKS), written(tmp_path / "b", plain)
    assert sgm.read_pair(*paths) == (["Thank you.", "Yes &amp; no.", "Hello."],) * 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.lists(st.lists(st.text("aß<>& \n\u2028=\"'", max_size=6), max_size=4), min_size=1, max_size=4))
def test_what_is_written_is_read(tmp_path: Path, docs: list[list[str]]) -> None:
    expected = [(str(d), str(n), " ".join(s.split())) for d, doc in enumerate(docs) for n, s in enumerate(doc)]
    body = "".join(
        f'<doc docid="{d}">' + "".join(f'<seg id="{n}">{s}</seg>\n' for n, s in enumerate(doc)) + "</doc>"
        for d, doc in enumerate(docs)
    )
    path = written(tmp_path / "file", f"<srcset>{body}</srcset>")
    if expected:
        assert sgm.read_sgm(path) == [sgm.Segment(*each) for each in expected]
    else:
        with pytest.raises(SystemExit, match="file: no <seg"):
            sgm.read_sgm(path)


@pytest.mark.parametrize("encoding", ["latin1", "utf-16"])
def test_another_encoding_is_named(encoding: str, tmp_path: Path) -> None:
    path = written(tmp_path / "file", "<doc>\n<seg>\u00e4</seg></doc>".encode(encoding))
    for read in (sgm.read_sgm, sgm.utf8_lines):
        with pytest.raises(SystemExit, match=f"{path}: line . is not UTF-8.*iconv -f"):
            read(path)


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    text = "a\rb\r\nc\u2028d\u0085\n\nlast"
    assert list(sgm.utf8_lines(written(tmp_path / "file", text))) == ["a\rb\r\n", "c\u2028d\u0085\n", "\n", "last"]


def test_an_sgm_file_is_read_as_sacrebleu_reads_it(tmp_path: Path) -> None:
    path, expected = tmp_path / "newstest2014-deen-ref.de.sgm", tmp_path / "expected"
    path.write_text(
        '<refset setid="x" srclang="any">\n<doc docid="a">\n<hl>\n<seg id="1"> AT&amp;T\u00a0sagt  „ja“ </seg>\n</hl>\n'
        '<p>\n<seg id="2">a < b <b>c</b></seg>\n<seg id="3"></seg>\n</p>\n</doc>\n</refset>\n',
        encoding="utf-8",
    )
    DATASETS["wmt14/full"]._convert_format(str(path), str(expected))
    found = [segment.text for segment in sgm.read_sgm(path)]
    assert found == expected.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(found) == 3
    (tmp_path / "text").write_text("no segments\n")
    with pytest.raises(SystemExit, match="text: no <seg"):
        sgm.read_sgm(tmp_path / "text")


def test_sacrebleus_own_copy_is_the_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS["wmt14/full"], "_outdir", str(tmp_path))
    for field in ("src", "ref", "docid", "genre", "origlang"):
        (tmp_path / f"wmt14_full.en-fr.{field}").write_text(f"{field} 1\n{field} 2\n")
    assert testset.read_test({"kind": "sacrebleu"}, "en-fr") == (["src 1", "src 2"], ["ref 1", "ref 2"])


def test_escapes_stay_in_the_raw_test_set_and_are_undone_in_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"src": tmp_path / "en", "ref": tmp_path / "de"}
    for path, verb in zip(places.values(), ("says", "sagt")):
        path.write_text(f"AT&amp;T {verb}\n")
    files = {"kind": "text", **{side: str(path) for side, path in places.items()}}
    (tmp_path / "files.json").write_text(json.dumps({"test": files}))
    (tmp_path / "codes").write_text("#version: 0.2\na y\n")
    options = ["--work", tmp_path, "--pair", "en-de", "--tokens", "subword_nmt", "--model", tmp_path / "codes"]
    outputs = [tmp_path / name for name in ("raw.en", "raw.de", "pieces.en", "pieces.de")]
    monkeypatch.setattr(sys, "argv", ["testset", *map(str, [*options, *outputs])])
    testset.main()
    assert [path.read_text() for path in outputs[:2]] == ["AT&amp;T says\n", "AT&amp;T sagt\n"]
    assert [path.read_text() for path in outputs[2:]] == ["A@@ T & T s@@ ay@@ s\n", "A@@ T & T s@@ a@@ g@@ t\n"]


# ---- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lang", "raw", "expected"),
    [
        ("en", "  It’s “well-known”\u00a0…\r\n", 'It \'s " well @-@ known " ...'),
        ("de", "„Das\u2028ist\u00ad gut“, sagte\ter.\n", '" Das ist gut " , sagte er .'),
        ("fr", "L’homme dit\u00a0: «\u00a0oui\u00a0» & <non>\n", 'L\' homme dit : " oui " & < non >'),
        ("de", "10\u00a0000 Euro\n", "10,000 Euro"),  # Moses' rule sees the no-break space
        ("en", "\n", ""),
    ],
)
def test_a_line_becomes_moses_tokens_without_escapes(lang: str, raw: str, expected: str) -> None:
    assert clean.cleaner(lang, "subword_nmt")(raw) == expected


def test_sentencepiece_gets_normalised_text() -> None:
    assert clean.cleaner("de", "sentencepiece")(" „Das \u2028 ist“ -\u200b gut. \n") == '"Das ist" - gut.'


def shard_of(folder: Path, pairs: list[tuple[bytes, bytes]], first: int) -> dict:
    places = {}
    for index, lang in enumerate(("en", "de")):
        content = b"".join(pair[index] for pair in pairs)
        (folder / lang).write_bytes(b"before\n" + content)
        places[lang] = [str(folder / lang), 7, len(content)]
    return {"first": first, "pairs": len(pairs), **places}


def test_every_nth_pair_is_for_validation_and_unusable_ones_are_counted(tmp_path: Path) -> None:
    pairs = [(b"a %d\n" % number, b"b %d\n" % number) for number in range(7, 12)]
    pairs += [(b"x " * clean.MAX_CHARS + b"\n", b"long\n"), (b"bad \xff\n", b"b\n"), (b"last", b"last")]
    output = tmp_path / "clean"
    clean.clean_shard(3, shard_of(tmp_path, pairs, 7), ["en", "de"], output, "subword_nmt", valid_every=5)
    folder = output / "00003"
    assert (folder / "valid.en").read_text() == "a 10\n"
    assert (folder / "train.de").read_text() == "b 7\nb 8\nb 9\nb 11\nb\nlast\n"
    assert (folder / "train.en").read_text() == "a 7\na 8\na 9\na 11\nbad\nlast\n"
    assert (folder / "words.txt").read_text() == "11 2\n7 2\n8 2\n9 2\na 4\nb 5\nbad 1\nlast 2\n"
    assert (folder / "stats.json").read_text() == '{"pairs": 8, "not_utf8": 1, "too_many_characters": 1}\n'


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 10), st.sampled_from([1.0, 1.5, 3.0]))
def test_pairs_are_left_out_as_by_moses(left: int, right: int, longest: int, ratio: float) -> None:
    kept = 1 <= left <= longest and 1 <= right <= longest and left / right <= ratio and right / left <= ratio
    assert (encode.unfit([left, right], longest, ratio) is None) == kept


def test_sentencepiece_is_learned_from_spaced_lines_and_undone(tmp_path: Path) -> None:
    texts = {lang: [f"{lang} Satz Nummer {n}." for n in range(40)] for lang in ("en", "de")}
    for number in range(2):
        folder = tmp_path / "clean" / f"0000{number}"
        folder.mkdir(parents=True)
        (folder / "stats.json").write_text('{"pairs": 20}')
        for lang, lines in texts.items():
            (folder / f"train.{lang}").write_text("".join(f"{line}\n" for line in lines[20 * number :][:20]))
    taken = list(learn.spaced_lines(tmp_path / "clean", ["en", "de"], 8))
    assert taken == [texts[lang][n] for lang in ("en", "de") for n in (0, 10, 20, 30)]
    assert len(list(learn.spaced_lines(tmp_path / "clean", ["en", "de"], 1000))) == 80
    model = tmp_path / "spm.model"
    everything = learn.spaced_lines(tmp_path / "clean", ["en", "de"], 1000)
    learn.learn_sentencepiece(everything, 40, "unigram", 1, model)
    pieces = encode.piece_encoder("sentencepiece", model)("de Satz Nummer 7.")
    assert len(pieces) > 4
    assert detokenizer([f"sentencepiece={model}"], "de")(" ".join(pieces)) == "de Satz Nummer 7."


@given(st.lists(st.sampled_from(["a", "-", " ", "b", ".", "\u00e4"]), max_size=14).map("".join))
def test_compounds_are_split_as_by_the_perl_one_liner(line: str) -> None:
    # s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g: from left to right, what was matched once is not looked at again
    expected, place = "", 0
    while place < len(line):
        piece = line[place : place + 3]
        if len(piece) == 3 and piece[1] == "-" and " " not in piece:
            expected, place = f"{expected}{piece[0]} ##AT##-##AT## {piece[2]}", place + 3
        else:
            expected, place = expected + line[place], place + 1
    assert score.split_compounds(line) == expected


def test_the_tokenised_figures() -> None:
    text = ["Das ist eine ARD-Sendung, sagt er.", "Wer hat das Rhein-Main-Gebiet gesehen?", "AT&T ist doch da."]
    reference = [
        "Das ist eine ZDF-Sendung, sagt er.",
        "Wer hat das Rhein-Main-Gebiet gesehen?",
        "AT&amp;T ist Konzern.",
    ]
    found = score.scores_of(text, reference, "de")

    def words(line: str) -> str:
        return re.sub(r"([,.?])", r" \1", line.replace("&amp;", "&").replace("AT&T", "AT & T"))

    def plain(lines: list[str], between: str) -> list[str]:
        return [re.sub(r"(\S)-(\S)", rf"\1{between}\2", words(line)) for line in lines]

    for name, between in (("bleu_tokenized", "-"), ("bleu_tokenized_compound_split", " ##AT##-##AT## ")):
        expected = BLEU(tokenize="none", force=True).corpus_score(plain(text, between), [plain(reference, between)])
        assert found[name]["score"] == pytest.approx(expected.score)
        assert "tok:none" in found[name]["signature"]
    assert found["bleu_tokenized_compound_split"]["score"] > found["bleu_tokenized"]["score"]  # "Sendung" is right
