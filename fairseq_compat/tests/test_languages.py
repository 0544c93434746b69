"""Codes of languages, and the tokenisers that belong to them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fairseq_compat.fixes.target_languages import warn_unsuited
from fairseq_compat.languages import UnknownLanguageError, bleu_tokenizer, has_spaces, language, missing_tokenizer

CODES = {
    "zh": "zh zh_CN zh-Hans-CN ZH_cn zho_Hans zho chi cmn __zh__ <2zh_CN> [zh_CN] zh.sp",
    "ja": "ja ja_XX jpn_Jpan ja-JP jp",
    "fr": "fr fr_XX fr-FR fra_Latn fre",
    "de": "de de-AT deu_Latn ger de_DE.UTF-8 de_DE@euro >>deu<<",
    "ar": "ar ar_AR arb_Arab arz_Arab",
    "he": "he_IL heb_Hebr iw",
    "nso": "nso_Latn ns",
    "yue": "yue_Hant",
}


def test_all_spellings_of_a_language() -> None:
    for code, spellings in CODES.items():
        assert {language(spelling) for spelling in spellings.split()} == {code}


@pytest.mark.parametrize("code", ["", "2", "tgt", "xx", "english", "en2de", "bpe.de", "中文"])
def test_another_word_is_an_error_with_the_remedy(code: str) -> None:
    with pytest.raises(UnknownLanguageError, match="give one such as de"):
        language(code)


def test_all_languages_of_published_models_are_known() -> None:
    """As transformers lists them; what is written without spaces is not counted by 13a."""
    nllb = pytest.importorskip("transformers.models.nllb.tokenization_nllb").FAIRSEQ_LANGUAGE_CODES
    mbart = pytest.importorskip("transformers.models.mbart50.tokenization_mbart50").FAIRSEQ_LANGUAGE_CODES
    m2m = pytest.importorskip("transformers.models.m2m_100.tokenization_m2m_100").FAIRSEQ_LANGUAGE_CODES["m2m100"]
    assert len([*nllb, *mbart, *m2m]) > 300
    languages = {code: language(code) for code in (*nllb, *mbart, *m2m)}
    unspaced = ("Hans", "Hant", "Jpan", "Khmr", "Laoo", "Mymr", "Thai", "Tibt")
    for code, found in languages.items():
        if "_" in code and len(code) == 8:
            assert has_spaces(found) == (code[-4:] not in unspaced), code
            assert has_spaces(found) or bleu_tokenizer(found) != "13a", code


@pytest.mark.parametrize("installed", [True, False])
def test_the_tokeniser_of_a_language(installed: bool, monkeypatch) -> None:
    """sacrebleu's own for the languages that it names; characters where MeCab is missing, with the remedy."""
    from sacrebleu.metrics import BLEU

    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed or None)
    for code, name in BLEU._TOKENIZER_MAP.items():
        assert bleu_tokenizer(code) == (name if installed or code == "zh" else "char")
        expected = None if installed or code == "zh" else f"pip install 'sacrebleu[{code}]'"
        assert (missing_tokenizer(code) or "").endswith(expected or "")
    tokenizers = [bleu_tokenizer(code) for code in ("", "de", "vi", "yue", "th", "my")]
    assert tokenizers == ["13a", "13a", "13a", "zh", "char", "char"]


@pytest.mark.parametrize(
    ("lang", "name", "options", "remedy"),
    [
        ("zh", "bleu", {}, "sacrebleu"),
        ("th", "wer", {"wer_char_level": False}, "--scoring chrf"),
        ("th", "wer", {"wer_char_level": True}, None),
        ("zh", "chrf", {}, None),
        ("ko", "bleu", {}, None),
        ("de", "bert_score", {"bert_score_lang": "en"}, "--bert-score-lang de"),
        ("en", "bert_score", {"bert_score_lang": "en"}, None),
    ],
)
def test_a_scorer_that_does_not_suit_the_target_is_named(
    lang: str, name: str, options: dict, remedy: str | None, caplog
) -> None:
    warn_unsuited(name, SimpleNamespace(**options), lang)
    assert (remedy in caplog.text) if remedy else not caplog.text
