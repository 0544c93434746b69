"""The toy corpus: one text for one seed, distinct, disjoint, with the rare words that it promises."""

import hashlib
import random
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from toy import corpus, lexicon

NOUNS = lexicon.nouns()
CONFIG = corpus.CorpusConfig(seed=3, train=500, valid=40, test=200, monolingual=600)
#: of the files of CONFIG: results on the toy corpus are compared across versions
DIGEST = "12b1eac4c800a137"
#: some of them, looked through by eye: order, agreement, do-support
SAMPLE = """
bevor er das Kind hasst , leiht ein ruhiger Mann es ihr . = before he hates the child , a quiet man lends it to her .
sechsunddreißig ruhige Jungen kaufen keine gelbe Jacke . = thirty-six quiet boys do not buy a yellow jacket .
warum ist seine Schlange laut in den Keller gegangen ? = why did his snake go loudly into the cellar ?
holt dich die Frau in der seltsamen Küche ab ? = does the woman pick you up in the strange kitchen ?
""".strip().split("\n")


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    """All texts: for one seed always the same, and the global random state is left alone."""
    before = random.getstate()
    files = corpus.make(CONFIG)
    assert random.getstate() == before
    text = "\n".join(line for name in sorted(files) for line in [name, *files[name]])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGEST
    return files


def test_sentences_are_right_distinct_and_held_out_pairs_are_new(files: dict[str, list[str]]) -> None:
    assert set(SAMPLE) <= {" = ".join(pair) for pair in zip(files["test.de"], files["test.en"])}
    for part in ("train", "valid", "test"):
        assert len(set(files[f"{part}.de"])) == len(files[f"{part}.de"]) == getattr(CONFIG, part)
    for language in ("de", "en"):
        train, valid, test, mono = (set(files[f"{part}.{language}"]) for part in ("train", "valid", "test", "mono"))
        assert not train & valid | train & test | valid & test | mono & (valid | test)
    other = islice(corpus.training_pairs(replace(CONFIG, seed=4)), 50)
    assert [source for source, _ in other] != files["train.de"][:50]


def test_a_known_sentence_is_not_drawn_again() -> None:
    """Of either language, also with another translation."""
    first = list(islice(corpus.held_out_pairs(CONFIG, "test", []), 20))
    known = [(first[0][0], "other"), ("anders", first[1][1])]
    assert list(islice(corpus.held_out_pairs(CONFIG, "test", known), 18)) == first[2:]


def test_rare_words_are_rare_in_training_text_only(files: dict[str, list[str]]) -> None:
    rare = {item.split(":")[1] for item in corpus.rare_lexemes(CONFIG) if item.startswith("noun:")}
    assert len(rare) == round(0.4 * len(NOUNS))
    cases = [(case, plural) for case in ("nom", "acc", "dat") for plural in (False, True)]
    forms = {NOUNS[lemma].german(*case): lemma for lemma in rare for case in cases}

    def uses(name: str) -> Counter:
        return Counter(lemma for line in files[name] for lemma in {forms[t] for t in line.split() if t in forms})

    assert max(uses("train.de").values()) <= CONFIG.rare_limit
    assert sum(uses("mono.de").values()) > 3 * sum(uses("train.de").values())


def test_no_two_german_words_share_a_translation() -> None:
    """Or the target would not be decided."""
    for table in (NOUNS, lexicon.adjectives()):
        assert len({entry.english for entry in table.values()}) == len(table)
