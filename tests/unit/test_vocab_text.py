"""Is a text segmented, and does it belong to a dictionary? The one question wherever a text is named."""

import pytest

from embinit_fairseq.errors import DataError
from embinit_fairseq.vocab.text import check_not_segmented, check_tokens, count_tokens, pieces_left

#: subword style -> a dictionary, and a line in it of which 4 of 5 tokens are there
DICTIONARIES = {
    "none": ("the small house".split(), "the small house the ?"),
    "subword_nmt": ("the sm@@ all hou@@ se".split(), "sm@@ all hou@@ se ?"),
    "sentencepiece": ("▁the ▁sm all ▁hou se".split(), "▁sm all ▁hou se ?"),
    "wordpiece": ("the sm ##all hou ##se".split(), "sm ##all hou ##se ?"),
    "bytelevel": ("Ġthe Ġsm all Ġhou se".split(), "Ġsm all Ġhou se ?"),
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
