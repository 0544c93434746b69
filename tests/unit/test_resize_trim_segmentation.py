"""The segmentation of a trimmed dictionary: no removed subword, no new `<unk>`, in every way to segment a text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from expand_checkpoints import as_fairseq, make
from fairseq.models.transformer import TransformerModel
from hf_exports import checkpoint_of
from hf_exports import opened_here as opened_here
from hypothesis import given, settings
from hypothesis import strategies as st
from segmentations import KINDS, NEW_TEXT, SYLLABLES, TRAINING, mark_of, opened, subwords_of, train, words
from segmentations import files as files

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError
from embinit_fairseq.models.tupe import TupeModel
from embinit_fairseq.resize.new_segmentation import symbols_that_spell, write_restricted
from embinit_fairseq.vocab.segmentation import Segmentation, Sentencepiece, SubwordNmt

FILE = {"codes": "bpe.codes", "unigram": "sentencepiece.model", "bpe": "sentencepiece.model"}
LETTERS = sorted({*"".join(SYLLABLES)})


# ---- What is segmented how, stated a second time ---------------------------------------------------------------------


def merged(characters: list[str], rank: Callable[[str, str], float | None]) -> list[tuple]:
    """Merge the pair of the lowest rank, the leftmost first, as long as there is one; return (text, left, right)."""
    nodes: list[tuple] = [(character, None, None) for character in characters]
    while True:
        ranks = [(rank(left[0], right[0]), at) for at, (left, right) in enumerate(zip(nodes, nodes[1:]))]
        ranks = [pair for pair in ranks if pair[0] is not None]
        if not ranks:
            return nodes
        at = min(ranks)[1]
        left, right = nodes[at : at + 2]
        nodes[at : at + 2] = [(left[0] + right[0], left, right)]


def undone(node: tuple, is_kept: Callable[[str], bool]) -> list[str]:
    """Undo merges until every part is kept, or a character."""
    text, left, right = node
    return [text] if is_kept(text) or left is None else [*undone(left, is_kept), *undone(right, is_kept)]


def by_codes(file: Path, word: str, kept: set[str]) -> list[str]:
    pairs = [tuple(line.split()) for line in file.read_text().splitlines()[1:]]
    ranks = {pair: row for row, pair in reversed(list(enumerate(pairs)))}

    def spelled(text: str) -> str:
        return text.removesuffix("</w>") if text.endswith("</w>") else f"{text}@@"

    nodes = merged([*word[:-1], f"{word[-1]}</w>"], lambda *pair: ranks.get(pair))
    return [spelled(part) for node in nodes for part in undone(node, lambda text: spelled(text) in kept)]


def by_merged_pieces(file: Path, word: str, kept: set[str]) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(str(file))
    score = {model.id_to_piece(row): model.get_score(row) for row in range(3, len(model))}
    nodes = merged([*f"▁{word}"], lambda *pair: -score["".join(pair)] if "".join(pair) in score else None)
    return [part for node in nodes for part in undone(node, kept.__contains__)]


def best_score(file: Path, word: str, kept: set[str]) -> float:
    """The largest sum of scores of all ways to write a word with kept pieces."""
    model = sentencepiece.SentencePieceProcessor(str(file))
    score = {piece: model.get_score(model.piece_to_id(piece)) for piece in kept}

    @functools.cache
    def best(text: str) -> float:
        ways = [score[piece] + best(text[len(piece) :]) for piece in kept if text.startswith(piece)]
        return max(ways, default=float("-inf")) if text else 0.0

    return best(f"▁{word}")


@settings(max_examples=20)
@given(st.lists(words, min_size=1, max_size=8), st.lists(words, min_size=1, max_size=8), st.sampled_from(KINDS))
def test_kept_text_is_segmented_as_before_and_new_text_has_no_removed_subword(files, text, others, kind) -> None:
    """Each word of new text is as a naive statement says; the dictionary has every character."""
    old = opened(files, kind)
    kept = set(subwords_of(old, text))
    dictionary = [*subwords_of(old, [*TRAINING, *text, *others, *NEW_TEXT]), "▁", *LETTERS]
    dictionary += [f"{letter}@@" for letter in LETTERS]
    kept |= {*symbols_that_spell(old, kept, dictionary, kept)}
    new = old.restricted(frozenset(kept))
    assert new.segment(" ".join(text)) == old.segment(" ".join(text))
    letters = set("".join(text))
    for word in filter(lambda word: letters.issuperset(word), [*others, *NEW_TEXT[0].split()]):
        found = new.segment(word)
        assert kept.issuperset(found)
        if kind == "unigram":
            scores = sentencepiece.SentencePieceProcessor(str(files[kind]))
            total = sum(scores.get_score(scores.piece_to_id(piece)) for piece in found)
            assert total == pytest.approx(best_score(files[kind], word, kept), rel=1e-5)
        else:
            naive = {"codes": by_codes, "bpe": by_merged_pieces}[kind]
            assert found == naive(files[kind], word, kept)


def test_a_vocabulary_of_codes_has_counts(tmp_path) -> None:
    """Without them no subword would be known, and text would be single characters."""
    (tmp_path / "codes").write_text("#version: 0.2\na b</w>\n")
    for line in ("ab", "ab\t3"):
        (tmp_path / "codes.vocabulary").write_text(f"{line}\n")
        with pytest.raises(DataError, match=r"codes.vocabulary:1: .*count"):
            SubwordNmt(str(tmp_path / "codes"))


def test_unknown_characters_that_the_model_leaves_together_stay(files) -> None:
    """Such a run is one symbol of a dictionary, which the model does not split."""
    old, dictionary = opened(files, "unigram"), ["\u2581ba", "\u4e00", "\u4e8c", "\u4e00\u4e8c", "\u4e00\u4e09"]
    added = symbols_that_spell(old, {"\u2581ba", "\u4e00"}, dictionary, ["\u4e00", "\u4e8c"])
    assert added == ["\u4e8c", "\u4e00\u4e8c"]


def test_a_character_that_only_longer_subwords_spell(tmp_path) -> None:
    """The dictionary has `qu@@` and no `q@@`: `qu@@` stays, and the removed `quba` becomes `qu@@ b@@ a`."""
    (tmp_path / "codes").write_text("#version: 0.2\nq u\nb a</w>\nqu ba</w>\nq o</w>\n")
    old, dictionary = SubwordNmt(str(tmp_path / "codes")), "quba qu@@ ba u@@ b@@ a q d qo x@@ bab".split()
    added = symbols_that_spell(old, {"ba"}, dictionary, ["ba", "qu@@"])  # a word of the text that is no symbol
    assert added == "u@@ b@@ a q qu@@".split()  # neither `d`, which is no kept character, nor `bab`, of other codes
    new = old.restricted(frozenset({"ba", *added}))
    assert new.segment("quba bba q qud") == ["qu@@", "ba", "b@@", "ba", "q", "qu@@", "d"]
    assert new.made == {"qu@@", "ba"}
    (tmp_path / "text").write_text("quba b@@ ba\n")
    arguments = set(dictionary), {"b@@", "ba"}, [str(tmp_path / "text")], tmp_path, "out"
    with pytest.raises(DataError, match=r"--keep-text .*text:1: 'q' would become <unk>.*--keep a list"):
        write_restricted(old, *arguments)
    record = write_restricted(old, set(dictionary) - {"quba", "qu@@"}, *arguments[1:])  # as before
    counts = {"lines": 1, "changed": 1, "subwords": 5, "unknown_before": 1, "unknown_after": 2}
    assert record["kept_text"] == {**counts, "gone": ["q", "u"]}


def test_a_subword_that_other_merges_come_before(tmp_path) -> None:
    """The codes have `xy z`, but make `x@@ yz` of `xyz`: without a row for `x@@`, `xyz` stays, and the search ends."""
    (tmp_path / "codes").write_text("#version: 0.2\ny z</w>\nx y\nxy z</w>\n")
    old = SubwordNmt(str(tmp_path / "codes"))
    assert symbols_that_spell(old, {"yz"}, ["yz", "xyz", "y"], ["x@@", "yz"]) == ["y", "xyz"]


def test_bytes_spell_everything(files) -> None:
    """They stay, so that also removed characters are spelled."""
    old, kept = opened(files, "bytes"), {"▁ba", "ba"}
    processor = sentencepiece.SentencePieceProcessor(str(files["bytes"]))
    added = symbols_that_spell(old, kept, [processor.id_to_piece(row) for row in range(3, len(processor))], kept)
    assert {symbol for symbol in added if not symbol.startswith("<0x")} == {"▁", "b", "a"}
    assert len(added) == 256 + 3
    made = old.restricted(frozenset(kept | {*added})).symbols_of("ba kiba 龍")
    assert (made[0], made[2:4], made[-3:]) == ("▁ba", ["<0x6B>", "<0x69>"], ["<0xE9>", "<0xBE>", "<0x8D>"])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_numbers_of_kept_pieces_keep_their_order(files, kind: str, tmp_path) -> None:
    """Rows of `dict.txt` that are numbers of pieces plus a constant still are after the trim; BPE's steps are last."""
    old, before = opened(files, kind), sentencepiece.SentencePieceProcessor(str(files[kind]))
    pieces = [before.id_to_piece(row) for row in range(len(before))]
    kept = [piece for piece in pieces[3:] if len(piece) == 1 or len(piece) > 4]
    old.restricted(frozenset(kept)).write((), tmp_path)
    after = sentencepiece.SentencePieceProcessor(str(tmp_path / "sentencepiece.model"))
    assert [after.id_to_piece(row) for row in range(3 + len(kept))] == [*pieces[:3], *kept]
    steps = range(3 + len(kept), len(after))
    assert all(after.is_unused(row) for row in steps)
    assert len(steps) == (len(pieces) - 3 - len(kept) if kind == "bpe" else 0)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_removed_piece_of_the_user_is_not_made(kind: str, tmp_path) -> None:
    """One that stays is made wherever its text is, as before."""
    old = Sentencepiece(str(train(tmp_path / "old", kind, user_defined_symbols=["kilo", "lona"])))
    assert old.segment("bakilona") == ["\u2581ba", "kilo", "na"]
    (tmp_path / "new").mkdir()
    kept = frozenset({"\u2581", *LETTERS, "lona"})
    new = old.restricted(kept).write((), tmp_path / "new")
    assert new.segment("bakilona") == ["\u2581", *"baki", "lona"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_word_can_come_back(files, kind: str, tmp_path) -> None:
    """`expand-vocab` after `trim-vocab`; then the word is trimmed again."""
    old, mark = opened(files, kind), mark_of(kind)
    whole = next(word for word in " ".join(TRAINING).split() if old.segment(word) == [mark + word] and len(word) > 3)
    characters = frozenset({"▁", *LETTERS, *(f"{letter}@@" for letter in LETTERS)})
    folders = [tmp_path / name for name in ("trimmed", "grown", "again")]
    for folder in folders:
        folder.mkdir()
    trimmed = old.restricted(characters).write((), folders[0])
    parts = trimmed.segment(whole)
    assert characters.issuperset(parts)
    grown = trimmed.write([mark + whole], folders[1])
    assert grown.segment(f"{whole} {whole}") == [mark + whole] * 2
    assert ("--vocabulary" in grown.command("d"), "--glossaries" in grown.command("d")) == (kind == "codes",) * 2
    again = grown.restricted(characters).write((), folders[2])
    assert again.segment(whole) == parts
    assert "--glossaries" not in again.command("d")


def test_what_cannot_be_restricted(files, tmp_path) -> None:
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.1\nl o\nlo </w>\n")
    for old, said in (
        (SubwordNmt(str(codes)), "--bpe-codes .*codes: codes of version 0.1.*leave --bpe-codes out"),
        (opened(files, "word"), "--sentencepiece-model .*word: a model of words.*leave --sentencepiece-model out"),
    ):
        with pytest.raises(DataError, match=said):
            old.restricted(frozenset({"lo"}))
    (tmp_path / "codes.vocabulary").write_text("ab\n")  # without counts, text would be single characters
    with pytest.raises(DataError, match=r"codes.vocabulary:1: .*count"):
        SubwordNmt(str(codes))


# ---- The command, and every way to segment a text with what it wrote -------------------------------------------------


def trimmed(checkpoint, files: dict[str, Path], kind: str) -> tuple[Segmentation, list[str]]:
    """Trim a model of TRAINING to its first sentences; return the segmentation and lines of the same characters."""
    old, text = opened(files, kind), checkpoint.folder / "kept"
    text.write_text("".join(f"{' '.join(old.segment(line))}\n" for line in TRAINING[:12]), encoding="utf-8")
    call = ["trim-vocab", "--checkpoint", checkpoint.path, "--dict", checkpoint.dictionary, "--keep-text", str(text)]
    assert main([*call, old.flag, str(files[kind]), "--output", str(checkpoint.output)]) == 0
    letters = set("".join(TRAINING[:12]))
    lines = [line for line in (*TRAINING[12:], *NEW_TEXT) if letters.issuperset(line)]
    return type(old)(str(checkpoint.output / FILE[kind])), lines


def test_a_mask_that_is_a_piece_of_the_model_stays_one(tmp_path) -> None:
    model = train(tmp_path / "model", "unigram", user_defined_symbols=["<mask>"])
    words = ["<mask>", *subwords_of(Sentencepiece(str(model)), TRAINING)]
    new, _ = trimmed(make(tmp_path, "lm", words=words), {"unigram": model}, "unigram")
    assert "<mask>" in new.segment(f"{TRAINING[0]} <mask>")


@pytest.mark.usefixtures("opened_here")
@pytest.mark.parametrize("kind", KINDS)
def test_no_text_of_kept_characters_is_unknown(files, kind: str, tmp_path, capsys) -> None:
    """In the task's `--bpe` (fairseq-interactive), fairseq's hub, and the exported tokenizer."""
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    old = opened(files, kind)
    checkpoint = make(tmp_path, "transformer_shared", words=subwords_of(old, [*TRAINING, *NEW_TEXT]))
    new, lines = trimmed(checkpoint, files, kind)
    said, record = capsys.readouterr().out, json.loads((checkpoint.output / "trim.json").read_text())
    out, made = checkpoint.output, record["segmentation"]
    assert {*made["files"]} <= {*record["files"]} == {path.name for path in out.iterdir()}
    assert made["kept_text"]["changed"] == 0
    spelling = made["kept_to_spell"]
    assert not spelling or f"also kept      {len(spelling)} subword" in said
    assert f"segment by     {made['command']}" in said
    assert str(out) in made["command"]

    _, task = as_fairseq(checkpoint)
    dictionary = task.source_dictionary
    assert {*subwords_of(old, lines)}.difference(dictionary.symbols)
    expected = [dictionary.encode_line(" ".join(new.segment(line)), add_if_not_exist=False).tolist() for line in lines]
    assert not any(dictionary.unk() in ids for ids in expected)
    name, option = {"codes": ("subword_nmt", "bpe_codes")}.get(kind, ("sentencepiece", "sentencepiece_model"))
    hub = TransformerModel.from_pretrained(str(out), "model.pt", str(out), bpe=name, **{option: str(out / FILE[kind])})
    interactive = task.build_bpe(hub.cfg.bpe)
    assert [hub.encode(line).tolist() for line in lines] == expected
    assert [hub.binarize(interactive.encode(line)).tolist() for line in lines] == expected

    export = ["export-hf", "--checkpoint", out / "model.pt", "--output", tmp_path / "hf", old.flag, out / FILE[kind]]
    assert main([*map(str, export), "--preparation=none", "--lowercase=no"]) == 0
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / "hf"), trust_remote_code=True)
    assert [tokenizer(line)["input_ids"] for line in lines] == expected


def test_the_hub_of_this_plugin_has_no_removed_subword(files, tmp_path) -> None:
    checkpoint = checkpoint_of(tmp_path / "c", words=subwords_of(opened(files, "codes"), [*TRAINING, *NEW_TEXT]))
    new, lines = trimmed(checkpoint, files, "codes")
    out, text = str(checkpoint.output), {"preparation": "none", "lowercase": False}
    for codes, is_restricted in ((f"{out}/bpe.codes", True), (str(files["codes"]), False)):
        hub = TupeModel.from_pretrained(out, "model.pt", out, bpe_codes=codes, **text)
        assert ([hub.prepare(line) for line in lines] == [new.segment(line) for line in lines]) == is_restricted


def test_what_the_command_says(files, tmp_path, shown, refused) -> None:
    """Without codes what to do; of another dictionary, and two segmentations, refused."""
    checkpoint = make(tmp_path, "lm_tied", words=subwords_of(opened(files, "codes"), TRAINING))
    (tmp_path / "list").write_text("ba\nmu\n")
    call = ["trim-vocab", "--checkpoint", checkpoint.path, "--dict", checkpoint.dictionary, "--force"]
    call += ["--keep", str(tmp_path / "list"), "--output", str(checkpoint.output)]
    advice = shown(*call)
    assert "attention      removed subwords that a segmenter still makes are <unk>: give --bpe-codes" in advice
    assert json.loads((checkpoint.output / "trim.json").read_text())["segmentation"] is None
    assert "attention" not in shown(*call, "--bpe-codes", files["codes"])
    assert (checkpoint.output / "bpe.codes.vocabulary").read_text().split()[::2] == sorted(
        line.split()[0] for line in (checkpoint.output / "dict.txt").read_text().splitlines()
    )
    assert "--sentencepiece-model" in refused(*call, "--sentencepiece-model", files["unigram"])
    both = ("--bpe-codes", files["codes"], "--sentencepiece-model", files["unigram"])
    assert "give the one" in refused(*call, *both)
