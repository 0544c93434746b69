"""The toy corpus: distinct, disjoint, reproducible, grammatical at random, with the rare words that it promises."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from toy import corpus, english, german, lexicon
from toy.sampler import Sampler

CONFIG = corpus.CorpusConfig(seed=3, train=500, valid=40, test=200, monolingual=600)


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    return corpus.make(CONFIG)


def test_sources_are_distinct_and_held_out_pairs_are_new(files: dict[str, list[str]]) -> None:
    for part in ("train", "valid", "test"):
        assert len(set(files[f"{part}.de"])) == len(files[f"{part}.de"]) == getattr(CONFIG, part)
    for language in ("de", "en"):
        train, valid, test, mono = (set(files[f"{part}.{language}"]) for part in ("train", "valid", "test", "mono"))
        assert not train & valid | train & test | valid & test | mono & (valid | test)


@pytest.mark.parametrize("side", [0, 1])
def test_a_known_sentence_is_not_drawn_again(side: int) -> None:
    first = corpus.held_out_pairs(CONFIG, "test", 20, [])
    known = [(first[0][0], "other"), ("anders", first[1][1])]
    sentences = [pair[side] for pair in corpus.held_out_pairs(CONFIG, "test", 20, known)]
    assert sentences[:18] == [pair[side] for pair in first[2:]]
    small = replace(CONFIG, monolingual=20)
    lines = corpus.monolingual(small, side, [])
    assert lines[0] not in corpus.monolingual(small, side, [(lines[0], lines[0])])


def test_same_seed_same_text_and_global_random_state_untouched(files: dict[str, list[str]]) -> None:
    before = random.getstate()
    assert corpus.make(CONFIG) == files
    assert random.getstate() == before
    other = corpus.training_pairs(replace(CONFIG, seed=4, train=50))
    assert [source for source, _ in other] != files["train.de"][:50]
    # monolingual texts are no translations: numbers have one form per language, and their sequences differ
    found = []
    for spell, language in ((lexicon.number_german, "de"), (lexicon.number_english, "en")):
        values = {spell(value): value for value in range(13, 50)}
        found.append([values[token] for line in files[f"mono.{language}"] for token in line.split() if token in values])
    assert found[0] != found[1]
    assert all(len(sequence) > 5 for sequence in found)


def noun_forms(lemma: str) -> set[str]:
    noun = lexicon.nouns()[lemma]
    return {noun.german(case, plural) for case in ("nom", "acc", "dat") for plural in (False, True)}


def test_rare_words_are_rare_in_training_text_only(files: dict[str, list[str]]) -> None:
    rare = {item.split(":")[1] for item in corpus.rare_lexemes(CONFIG) if item.startswith("noun:")}
    assert len(rare) == round(0.4 * len(lexicon.nouns()))
    forms = {form: lemma for lemma in rare for form in noun_forms(lemma)}

    def uses(name: str) -> Counter:
        return Counter(lemma for line in files[name] for lemma in {forms[t] for t in line.split() if t in forms})

    assert max(uses("train.de").values()) <= CONFIG.rare_limit
    assert sum(uses("mono.de").values()) > 3 * sum(uses("train.de").values())
    # natural frequency: about as many of the nouns in the test text as the share says
    everything = {form for lemma in lexicon.nouns() for form in noun_forms(lemma)}
    tokens = [token for line in files["test.de"] for token in line.split() if token in everything]
    assert 0.2 < sum(token in forms for token in tokens) / len(tokens) < 0.6


def test_random_sentences_agree_and_have_no_reflexive_or_double_negation() -> None:
    stems = {adjective.stem for adjective in lexicon.adjectives().values()}
    nouns = {form for lemma in lexicon.nouns() for form in noun_forms(lemma)}
    thirds = {verb.english_third for verb in lexicon.verbs().values()} | {"does", "is", "has", "wants"}
    sampler, checked = Sampler(11), 0
    for _ in range(1500):
        sentence = sampler.sentence()
        source, target = (text.split() for text in corpus.pair(sentence))
        for determiner, adjective, noun in zip(source, source[1:], source[2:]):
            weak = determiner in ("dem", "den", "einem", "im", "zum", "keinen")
            if weak and noun in nouns and adjective[:-2] in stems:
                assert adjective.endswith("en"), source
                checked += 1
        assert not re.search(r"\ba [aeio]|\ban [^aeiou]", " ".join(target))
        assert not any(subject in ("I", "we", "they") and verb in thirds for subject, verb in zip(target, target[1:]))
        for clause in filter(None, (sentence.main, sentence.subordinate)):
            people = [item.person for item in (clause.subject, clause.direct, clause.indirect) if hasattr(item, "nom")]
            assert max(people.count(1), people.count(2)) <= 1
            if clause.verb:
                words = german.verb_final(clause)
                assert sum(word in ("nicht", "nie") or word.startswith("kein") for word in words) <= 1, words
                assert english.clause_tokens(clause).count("not") <= 1
    assert checked > 100
