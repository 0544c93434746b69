"""The toy corpus: distinct, disjoint, reproducible, grammatical at random, with the rare words that it promises."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from toy import corpus, english, german, lexicon
from toy.sampler import Sampler

CONFIG = corpus.CorpusConfig(seed=3, train=1000, valid=100, test=300, monolingual=1000)


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    return corpus.make(CONFIG)


@pytest.fixture(scope="module")
def sample() -> list[tuple[str, str]]:
    sampler = Sampler(11)
    return [corpus.pair(sampler.sentence()) for _ in range(4000)]


def test_sources_are_distinct_and_held_out_pairs_are_new(files: dict[str, list[str]]) -> None:
    for part in ("train", "valid", "test"):
        assert len(set(files[f"{part}.de"])) == len(files[f"{part}.de"])
    for language in ("de", "en"):
        train, valid, test = (set(files[f"{part}.{language}"]) for part in ("train", "valid", "test"))
        assert not train & valid
        assert not train & test
        assert not valid & test
        assert not set(files[f"mono.{language}"]) & (valid | test)


@pytest.mark.parametrize("side", [0, 1])
def test_a_known_sentence_is_not_drawn_again(side: int) -> None:
    first = corpus.held_out_pairs(CONFIG, "test", 20, [])
    known = [(first[0][0], "other"), ("anders", first[1][1])]
    sentences = [pair[side] for pair in corpus.held_out_pairs(CONFIG, "test", 20, known)]
    assert first[0][side] not in sentences  # its source is known
    assert first[1][side] not in sentences  # its target is known
    assert sentences[:18] == [pair[side] for pair in first[2:]]
    small = corpus.CorpusConfig(monolingual=20)
    lines = corpus.monolingual(small, side, [])
    assert lines[0] not in corpus.monolingual(small, side, [(lines[0], lines[0])])


def test_monolingual_texts_are_not_parallel(files: dict[str, list[str]]) -> None:
    # numbers have one form per language; in translations their sequences would be equal
    values = range(13, 50)
    names = {lexicon.number_german(value): value for value in values}
    names |= {lexicon.number_english(value): value for value in values}
    sequences = [
        [names[token] for line in files[f"mono.{language}"] for token in line.split() if token in names]
        for language in ("de", "en")
    ]
    assert all(len(sequence) > 10 for sequence in sequences)
    assert sequences[0] != sequences[1]


def test_same_seed_same_text_and_global_random_state_untouched(files: dict[str, list[str]]) -> None:
    random.seed(5)
    np.random.seed(5)
    before = (random.getstate(), np.random.get_state()[1].copy())
    assert corpus.make(CONFIG) == files
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()
    other = corpus.training_pairs(corpus.CorpusConfig(seed=4, train=50))
    assert [source for source, _ in other] != files["train.de"][:50]


def test_rare_words_are_rare_in_training_text_only(files: dict[str, list[str]]) -> None:
    rare = {item.split(":")[1] for item in corpus.rare_lexemes(CONFIG) if item.startswith("noun:")}
    assert len(rare) == round(0.4 * len(lexicon.nouns()))
    forms = {form: lemma for lemma in rare for form in _noun_forms(lemma)}

    def uses(name: str) -> Counter:
        return Counter(lemma for line in files[name] for lemma in {forms[t] for t in line.split() if t in forms})

    assert max(uses("train.de").values()) <= CONFIG.rare_limit
    assert sum(uses("mono.de").values()) > 3 * sum(uses("train.de").values())
    # natural frequency: about as many of the nouns in the test text as the share says
    everything = {form for lemma in lexicon.nouns() for form in _noun_forms(lemma)}
    tokens = [token for line in files["test.de"] for token in line.split() if token in everything]
    assert 0.2 < sum(token in forms for token in tokens) / len(tokens) < 0.6


def _noun_forms(lemma: str) -> set[str]:
    noun = lexicon.nouns()[lemma]
    return {noun.german(case, plural) for case in ("nom", "acc", "dat") for plural in (False, True)}


def test_endings_agree_in_random_sentences(sample: list[tuple[str, str]]) -> None:
    stems = {adjective.stem for adjective in lexicon.adjectives().values()}
    genders = {form: noun.gender for noun in lexicon.nouns().values() for form in _noun_forms(noun.lemma)}
    checked = 0
    for source, _ in sample:
        tokens = source.split()
        for determiner, adjective, noun in zip(tokens, tokens[1:], tokens[2:]):
            ending = next(
                (adjective[len(s) :] for s in stems if adjective.startswith(s) and len(adjective) - len(s) in (1, 2)),
                None,
            )
            if noun not in genders or ending not in ("e", "en", "er", "es"):
                continue
            if determiner in ("dem", "den", "einem", "einer", "einen", "meinem", "im", "am", "zum", "zur", "keinen"):
                assert ending == "en", source
            elif determiner in ("ein", "mein", "kein"):
                assert ending == {"m": "er", "n": "es"}[genders[noun]], source
            elif determiner in ("das",):
                assert ending == "e", source
            else:
                continue
            checked += 1
    assert checked > 500


def test_english_verbs_agree_in_random_sentences(sample: list[tuple[str, str]]) -> None:
    thirds = {verb.english_third for verb in lexicon.verbs().values()}
    bases = {verb.english for verb in lexicon.verbs().values()}
    for _, target in sample:
        assert not re.search(r"\ba [aeio]|\ban [^aeiou]", target), target
        tokens = target.split()
        for subject, verb in zip(tokens, tokens[1:]):
            if subject in ("I", "we", "they"):
                assert verb not in thirds | {"does", "is", "has", "wants"}, target
            if subject in ("he", "she") and tokens[0] not in ("did", "does", "why", "when", "where", "can", "may"):
                assert verb not in bases - {"read", "put"} or "?" in tokens, target
            if subject in ("did", "does", "do") and verb == "not":
                assert not set(tokens[tokens.index("not") + 1 : tokens.index("not") + 2]) & thirds, target


def test_sampled_sentences_have_no_reflexive_or_double_negation() -> None:
    sampler = Sampler(2)
    for _ in range(2000):
        sentence = sampler.sentence()
        for clause in filter(None, (sentence.main, sentence.subordinate)):
            people = [item.person for item in (clause.subject, clause.direct, clause.indirect) if hasattr(item, "nom")]
            assert people.count(1) <= 1
            assert people.count(2) <= 1
            text = german.verb_final(clause) if clause.verb else []
            assert sum(token == "nicht" or token.startswith("kein") or token == "nie" for token in text) <= 1, text
            assert english.clause_tokens(clause).count("not") <= 1 if clause.verb else True
