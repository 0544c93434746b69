"""Typed tokens: the style of symbols, how a style spells a token; is a text segmented as a dictionary is?"""

import pytest

from embinit_fairseq.errors import DataError
from embinit_fairseq.vocab.subword_styles import (
    Token,
    as_text,
    compatible,
    detect_style,
    ignores_spaces,
    in_bytes,
    parse,
    spell,
)
from embinit_fairseq.vocab.text_checks import check_not_segmented, check_tokens, count_tokens, pieces_left


@pytest.mark.parametrize("marker", ["▁", "Ġ", "##", "@@", "</w>", "￭"])
def test_a_marker_alone_is_no_sign_of_a_style(marker: str) -> None:
    assert detect_style([marker, "go", "house"]) == "none"


def test_a_word_that_may_go_on_is_spelled_whole_first() -> None:
    spelled = {final: spell(Token("go", None, final), "subword_nmt") for final in (None, True, False)}
    assert spelled == {None: ["go", "go@@"], True: ["go"], False: ["go@@"]}


@pytest.mark.parametrize("side", ["initial", "final"])
def test_tokens_are_one_unless_they_contradict_each_other(side: str) -> None:
    def token(value: bool | None) -> Token:
        return Token("go", **{"initial": None, "final": None, side: value})

    values = (None, True, False)
    found = {(one, other) for one in values for other in values if not compatible(token(one), token(other))}
    assert found == {(True, False), (False, True)}


def test_styles_are_recognised() -> None:
    words = [f"w{i}" for i in range(200)]
    assert detect_style(["the", "house", "##/##", *words]) == detect_style([]) == "none"
    pieces = {"subword_nmt": "hou@@ se", "sentencepiece": "▁hou se", "wordpiece": "hou ##se", "bytelevel": "Ġhou se"}
    pieces |= {"end_of_word": "hou se</w>", "space_after": "hou se▁ ,▁ ▁x", "joiner": "hou￭ se ￭,"}
    for style, spelled in pieces.items():
        assert detect_style(spelled.split()) == style
    # stray markers in word lists are fewer than one in fifty
    assert detect_style(["##0", "##1", *words[:198]]) == "none"
    assert detect_style([*(f"##{i}" for i in range(6)), *words[:194]]) == "wordpiece"
    # sentencepiece marks few subwords of Chinese; a list of Chinese words has stray markers, too
    chinese = [chr(0x4E00 + number) for number in range(2000)]
    assert detect_style(["▁", *(f"▁{sign}" for sign in chinese[:6]), *chinese, "a"]) == "sentencepiece"
    assert (
        detect_style(["▁x", *chinese])
        == detect_style([*(f"▁{sign}" for sign in chinese[:6]), *chinese, *words * 5])
        == "none"
    )
    assert detect_style([*(f"{sign}▁" for sign in chinese[:6]), *chinese]) == "space_after"
    # a list with masked digits has years
    assert detect_style(["####", *(f"##{end}" for end in ("s", "th", "rd", "mm", ",###")), "the"]) == "none"


def test_bytes_are_recognised_without_blanks() -> None:
    """Chinese and Thai have no blanks. Words of no language are bytes by chance."""
    assert detect_style(map(in_bytes, ["我", "中国", "の", "ไทย"])) == "bytelevel"
    words = "é été naïve über Öğün ļoti ēģipte Ąłł Ûñ ñ façade áľ".split()
    assert detect_style(words) == "none"
    assert as_text(words, "bytelevel") == words
    # the first letter of Maltese Ġesù could not be told from the marker; `é` is a part of a character
    pieces = [*map(in_bytes, words), "ÄłesÃ¹", "é"]
    assert as_text(pieces, "bytelevel") == [*words, "ÄłesÃ¹", "\udce9"]
    assert as_text(pieces, "sentencepiece") == pieces


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        *((text, True) for text in '. ... " € + 👍🏽 ❤️ 中 中国。 ひらカナー ไทย ລາວ ខ្មែរ မြန်မာ'.split()),
        *((text, False) for text in (*"s 's 2 ² Ж 한국 中2 ा".split(), "", "\udce9")),
    ],
)
def test_a_space_says_nothing_about_signs_and_scripts_without_spaces(text: str, is_open: bool) -> None:
    assert ignores_spaces(text) == is_open
    assert parse(text, "sentencepiece").initial is (None if is_open else False)
    assert parse(f"##{text}x", "wordpiece").initial is False
    assert parse(f"▁{text}", "sentencepiece").initial is True
    assert spell(parse(text, "sentencepiece"), "none") == [text][:is_open]


#: subword style -> a dictionary, and a line in it of which 4 of 5 tokens are there
DICTIONARIES = {
    "none": ("the small house".split(), "the small house the ?"),
    "subword_nmt": ("the sm@@ all hou@@ se".split(), "sm@@ all hou@@ se ?"),
    "sentencepiece": ("▁the ▁sm all ▁hou se".split(), "▁sm all ▁hou se ?"),
    "wordpiece": ("the sm ##all hou ##se".split(), "sm ##all hou ##se ?"),
    "bytelevel": ("Ġthe Ġsm all Ġhou se".split(), "Ġsm all Ġhou se ?"),
    "space_after": ("the▁ sm all▁ hou se▁".split(), "sm all▁ hou se▁ ?"),
    "joiner": ("the sm￭ all hou ￭se".split(), "sm￭ all hou ￭se ?"),
}


def counts_of(tmp_path, text: str):
    (tmp_path / "text").write_text(text, encoding="utf-8-sig")
    return count_tokens("--text", str(tmp_path / "text"))


@pytest.mark.parametrize("style", DICTIONARIES)
def test_a_text_in_the_style_of_the_dictionary(tmp_path, style) -> None:
    symbols, line = DICTIONARIES[style]
    counts = counts_of(tmp_path, f"{line}\n\n{line}\n")
    assert counts == {token: 2 for token in line.split()} | ({"the": 4} if style == "none" else {})
    assert check_tokens("--text t", counts, symbols) == pytest.approx(0.8)


@pytest.mark.parametrize("style", DICTIONARIES)
@pytest.mark.parametrize("other", ["none", "subword_nmt", "sentencepiece"])
def test_a_text_in_another_style_is_refused(style, other) -> None:
    """With the remedy; also if most of its tokens are words that the dictionary has whole (`the`)."""
    if style != other:
        counts = {**dict.fromkeys(DICTIONARIES[other][1].split(), 5), "the": 5, "elsewhere": 5}
        remedy = "give it before its segmentation" if style == "none" else "segment it"
        with pytest.raises(DataError, match=rf"--text t: found .*% of them in the dictionary; expected .*{remedy}"):
            check_tokens("--text t", counts, DICTIONARIES[style][0])


def test_a_stray_mark_makes_no_segmented_text_and_a_missing_one_no_raw_text() -> None:
    symbols = DICTIONARIES["subword_nmt"][0]
    assert check_tokens("--text t", {"the": 5, "all": 2, "龍": 1}, symbols) == 7 / 8
    with pytest.raises(DataError, match="found whole words"):
        check_tokens(
            "--text t", {"the": 50, "small": 9, "house": 9, "sm@@": 1, **{f"w{n}": 1 for n in range(50)}}, symbols
        )
    with pytest.raises(DataError, match=r"32% of them .* give text of its language"):
        check_tokens("--text t", {"sm@@": 32, "x@@": 68}, symbols)


def test_text_that_should_not_be_segmented(tmp_path) -> None:
    """A patch has `@@`, too; one line in a hundred with a mark is somebody's example."""
    raw = ["@@ -1,3 +1,3 @@ def f():", *["a small house"] * 98]
    for lines, found in ((raw, None), ([*raw, "hou@@ se"], (1, "bpe")), (["▁a", "b"], (1, "sentencepiece"))):
        assert pieces_left(lines) == found
    path = tmp_path / "text"
    path.write_text("\n".join([*raw, "hou@@ se", ""]))
    check_not_segmented("--text", str(path))
    path.write_text("sm@@ all\nthe\n\n")
    with pytest.raises(DataError, match=r"--text .*text: found subwords \(bpe\) in 1 of 2 lines, .*before its"):
        check_not_segmented("--text", str(path))
    path.write_text("\n")
    with pytest.raises(DataError, match=r"--text .*text: no words"):
        count_tokens("--text", str(path))
