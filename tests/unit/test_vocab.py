"""Typed tokens: which style a list of symbols has, how a style spells a token, which tokens may be one."""

import pytest

from embinit_fairseq.vocab.tokens import Token, compatible, detect_style, spell


@pytest.mark.parametrize("marker", ["▁", "Ġ", "##", "@@"])
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
    assert not compatible(Token("go", None, None), Token("Go", None, None))
