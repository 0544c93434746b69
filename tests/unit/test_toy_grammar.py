"""The toy grammar against sentences written by hand: cases, endings, word order, agreement, do-support."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from toy import english, german, lexicon
from toy.lexicon import PRONOUNS
from toy.syntax import Clause, NounPhrase, PlacePhrase, Sentence

NOUNS, ADJECTIVES, VERBS, TIMES = lexicon.nouns(), lexicon.adjectives(), lexicon.verbs(), lexicon.times()


def phrase(
    noun: str, determiner: str = "def", adjective: str = "", plural: bool = False, number: int = 0
) -> NounPhrase:
    return NounPhrase(NOUNS[noun], determiner, plural, ADJECTIVES[adjective] if adjective else None, number)


def clause(subject, verb: str, **rest) -> Clause:
    for slot in ("subject", "direct", "indirect"):
        value = subject if slot == "subject" else rest.get(slot)
        if isinstance(value, str):
            value = PRONOUNS[value] if value in PRONOUNS else phrase(value)
            if slot == "subject":
                subject = value
            else:
                rest[slot] = value
    if "time" in rest:
        rest["time"] = TIMES[rest["time"]]
    return Clause(subject, VERBS[verb], **rest)


KITCHEN = PlacePhrase("in", "in", "dat", phrase("Küche"))
INTO_MUSEUM = PlacePhrase("in", "into", "acc", phrase("Museum"))
TO_OLD_TOWER = PlacePhrase("zu", "to", "dat", phrase("Turm", adjective="alt"))
OLD_MAN_GIVES = clause(phrase("Mann", adjective="alt"), "geben", indirect="Kind", direct="Buch")

PAIRS = [
    # separable verb: the particle closes the bracket, is joined in a subordinate clause and in participle, infinitive
    (Sentence(clause("3m", "aufmachen", direct="Tür")), "er macht die Tür auf .", "he opens the door ."),
    (
        Sentence(clause("3m", "aufmachen", direct="Tür", tense="past")),
        "er hat die Tür aufgemacht .",
        "he opened the door .",
    ),
    (
        Sentence(clause("3pl", "aufmachen", direct="Tür", tense="modal", modal="müssen")),
        "sie müssen die Tür aufmachen .",
        "they have to open the door .",
    ),
    (
        Sentence(clause("1sg", "lachen"), conjunction="weil", subordinate=clause("2sg", "aufmachen", direct="Fenster")),
        "ich lache , weil du das Fenster aufmachst .",
        "I laugh because you open the window .",
    ),
    # verb-final order, dative before accusative
    (
        Sentence(clause("Junge", "lachen"), conjunction="weil", subordinate=OLD_MAN_GIVES),
        "der Junge lacht , weil der alte Mann dem Kind das Buch gibt .",
        "the boy laughs because the old man gives the child the book .",
    ),
    # subordinate clause first: the main verb follows the comma
    (
        Sentence(clause("3f", "schlafen"), conjunction="wenn", subordinate=OLD_MAN_GIVES, subordinate_first=True),
        "wenn der alte Mann dem Kind das Buch gibt , schläft sie .",
        "when the old man gives the child the book , she sleeps .",
    ),
    (
        Sentence(
            Clause(PRONOUNS["3pl"]),
            conjunction="glaubt",
            subordinate=clause("Bruder", "lesen", direct=phrase("Brief", "indef"), tense="modal", modal="wollen"),
        ),
        "sie glauben , dass der Bruder einen Brief lesen will .",
        "they believe that the brother wants to read a letter .",
    ),
    # fronting: verb second, subject after it; English keeps subject first
    (
        Sentence(clause("Mann", "helfen", indirect="Frau", time="heute"), front="time"),
        "heute hilft der Mann der Frau .",
        "today the man helps the woman .",
    ),
    (
        Sentence(clause("Kind", "sehen", direct=phrase("Hund", adjective="groß")), front="direct"),
        "den großen Hund sieht das Kind .",
        "the child sees the big dog .",
    ),
    (
        Sentence(clause("Maler", "helfen", indirect=phrase("Student", "unser")), front="indirect"),
        "unserem Studenten hilft der Maler .",
        "the painter helps our student .",
    ),
    # pronouns: accusative before dative, and before a noun subject after the verb
    (
        Sentence(clause("Frau", "geben", direct="3n", indirect="3m", time="morgen", tense="future"), front="time"),
        "morgen wird es ihm die Frau geben .",
        "tomorrow the woman will give it to him .",
    ),
    (Sentence(clause("3m", "anziehen", direct="3n")), "er zieht es an .", "he puts it on ."),
    (
        Sentence(clause("1pl", "anziehen", direct=phrase("Mantel", "mein"))),
        "wir ziehen meinen Mantel an .",
        "we put on my coat .",
    ),
    (Sentence(clause("2pl", "suchen", direct="3f")), "ihr sucht sie .", "you look for her ."),
    # time, manner, place in German; manner, place, time in English
    (
        Sentence(clause("3f", "arbeiten", time="am Montag", manner=("langsam", "slowly"), place=KITCHEN)),
        "sie arbeitet am Montag langsam in der Küche .",
        "she works slowly in the kitchen on Monday .",
    ),
    (
        Sentence(clause("1sg", "tanzen", company=phrase("Freund", "mein", "jung", plural=True), tense="past")),
        "ich habe mit meinen jungen Freunden getanzt .",
        "I danced with my young friends .",
    ),
    # goals and contractions, perfect with sein
    (
        Sentence(clause("2sg", "gehen", place=INTO_MUSEUM, tense="past")),
        "du bist ins Museum gegangen .",
        "you went into the museum .",
    ),
    (Sentence(clause("2pl", "laufen", place=TO_OLD_TOWER)), "ihr lauft zum alten Turm .", "you run to the old tower ."),
    # negation
    (
        Sentence(clause("Mann", "lesen", direct=phrase("Buch", "kein"))),
        "der Mann liest kein Buch .",
        "the man does not read a book .",
    ),
    (
        Sentence(clause("3pl", "essen", direct=phrase("Apfel", "kein", "rot", plural=True), tense="past")),
        "sie haben keine roten Äpfel gegessen .",
        "they did not eat any red apples .",
    ),
    (
        Sentence(clause("Katze", "schlafen", negated=True, place=KITCHEN)),
        "die Katze schläft nicht in der Küche .",
        "the cat does not sleep in the kitchen .",
    ),
    (
        Sentence(clause("1sg", "schlafen", negated=True, tense="modal", modal="können")),
        "ich kann nicht schlafen .",
        "I cannot sleep .",
    ),
    (Sentence(clause(phrase("Hund", "kein"), "schlafen")), "kein Hund schläft .", "no dog sleeps ."),
    # questions
    (
        Sentence(clause("Schwester", "einladen", direct="1sg", tense="past"), kind="question"),
        "hat mich die Schwester eingeladen ?",
        "did the sister invite me ?",
    ),
    (
        Sentence(clause("3f", "helfen", indirect="1pl", negated=True), kind="why"),
        "warum hilft sie uns nicht ?",
        "why does she not help us ?",
    ),
    (
        Sentence(clause("2sg", "ankommen", tense="modal", modal="wollen"), kind="when"),
        "wann willst du ankommen ?",
        "when do you want to arrive ?",
    ),
    (
        Sentence(Clause(phrase("Buch", plural=True), predicate=ADJECTIVES["teuer"], negated=True), kind="question"),
        "sind die Bücher nicht teuer ?",
        "are the books not expensive ?",
    ),
    # numbers take strong endings; weak nouns; dative plural
    (
        Sentence(clause("1pl", "kaufen", direct=phrase("Ei", "number", "frisch", True, 21))),
        "wir kaufen einundzwanzig frische Eier .",
        "we buy twenty-one fresh eggs .",
    ),
    (
        Sentence(clause("3m", "folgen", indirect=phrase("Maus", "number", "klein", True, 3), tense="past")),
        "er ist drei kleinen Mäusen gefolgt .",
        "he followed three small mice .",
    ),
    (
        Sentence(
            clause(
                phrase("Junge", "indef", "müde"),
                "sehen",
                direct=phrase("Löwe", "indef", "wild"),
                frequency=("oft", "often"),
            )
        ),
        "ein müder Junge sieht oft einen wilden Löwen .",
        "a tired boy often sees a wild lion .",
    ),
]


@pytest.mark.parametrize(("sentence", "expected_german", "expected_english"), PAIRS, ids=[pair[1] for pair in PAIRS])
def test_sentence_pairs_written_by_hand(sentence: Sentence, expected_german: str, expected_english: str) -> None:
    assert " ".join(german.tokens(sentence)) == expected_german
    assert " ".join(english.tokens(sentence)) == expected_english


@pytest.mark.parametrize(
    ("noun", "determiner", "plural", "nominative", "accusative", "dative"),
    [
        ("Mann", "def", False, "der alte Mann", "den alten Mann", "dem alten Mann"),
        ("Frau", "def", False, "die alte Frau", "die alte Frau", "der alten Frau"),
        ("Buch", "def", False, "das alte Buch", "das alte Buch", "dem alten Buch"),
        ("Mann", "def", True, "die alten Männer", "die alten Männer", "den alten Männern"),
        ("Mann", "indef", False, "ein alter Mann", "einen alten Mann", "einem alten Mann"),
        ("Frau", "mein", False, "meine alte Frau", "meine alte Frau", "meiner alten Frau"),
        ("Buch", "unser", False, "unser altes Buch", "unser altes Buch", "unserem alten Buch"),
        ("Auto", "kein", True, "keine alten Autos", "keine alten Autos", "keinen alten Autos"),
        ("Frau", "bare", True, "alte Frauen", "alte Frauen", "alten Frauen"),
        ("Soldat", "def", False, "der alte Soldat", "den alten Soldaten", "dem alten Soldaten"),
        ("Igel", "number", True, "fünf alte Igel", "fünf alte Igel", "fünf alten Igeln"),
    ],
)
def test_declension(noun: str, determiner: str, plural: bool, nominative: str, accusative: str, dative: str) -> None:
    item = phrase(noun, determiner, "alt", plural, 5)
    found = [" ".join(german.noun_phrase(item, case)) for case in ("nom", "acc", "dat")]
    assert found == [nominative, accusative, dative]


@pytest.mark.parametrize(
    ("value", "expected_german", "expected_english"),
    [
        (2, "zwei", "two"),
        (12, "zwölf", "twelve"),
        (13, "dreizehn", "thirteen"),
        (14, "vierzehn", "fourteen"),
        (15, "fünfzehn", "fifteen"),
        (16, "sechzehn", "sixteen"),
        (17, "siebzehn", "seventeen"),
        (18, "achtzehn", "eighteen"),
        (19, "neunzehn", "nineteen"),
        (20, "zwanzig", "twenty"),
        (21, "einundzwanzig", "twenty-one"),
        (30, "dreißig", "thirty"),
        (37, "siebenunddreißig", "thirty-seven"),
        (48, "achtundvierzig", "forty-eight"),
    ],
)
def test_numbers(value: int, expected_german: str, expected_english: str) -> None:
    assert (lexicon.number_german(value), lexicon.number_english(value)) == (expected_german, expected_english)


@pytest.mark.parametrize(
    ("noun", "adjective", "expected"),
    [
        ("Apfel", "", "an apple"),
        ("Apfel", "rot", "a red apple"),
        ("Hund", "alt", "an old dog"),
        ("Glocke", "", "a bell"),
    ],
)
def test_english_article(noun: str, adjective: str, expected: str) -> None:
    assert " ".join(english.noun_phrase(phrase(noun, "indef", adjective))) == expected


def test_word_lists_are_consistent() -> None:
    kinds = set().union(*(noun.kinds for noun in NOUNS.values()))
    for verb in VERBS.values():
        assert verb.infinitive.startswith(verb.particle)
        assert verb.participle.startswith(verb.particle)
        assert verb.auxiliary in ("haben", "sein")
        assert verb.subjects <= kinds
        assert verb.objects <= kinds | {""}
        assert (verb.objects == {""}) == (verb.frame in ("intransitive", "motion"))
    assert {noun.lemma for noun in NOUNS.values() if "place" in noun.kinds} == set(lexicon.places())
    assert set().union(*(adjective.kinds for adjective in ADJECTIVES.values())) <= kinds
    for noun in NOUNS.values():
        assert any(adjective.kinds & noun.kinds for adjective in ADJECTIVES.values()), noun.lemma
    for table in (NOUNS, ADJECTIVES):  # no two German words share a translation, or the target would not be decided
        assert len({entry.english for entry in table.values()}) == len(table)
