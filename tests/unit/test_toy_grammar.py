"""The toy grammar against sentences written by hand: cases, endings, word order, agreement, do-support."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from toy import english, german, lexicon
from toy.lexicon import CONJUNCTIONS, PRONOUNS, REPORTING
from toy.syntax import DETERMINERS, Argument, Clause, NounPhrase, PlacePhrase, Sentence

NOUNS, ADJECTIVES, VERBS, TIMES = lexicon.nouns(), lexicon.adjectives(), lexicon.verbs(), lexicon.times()


def argument(text: str) -> Argument:
    """A pronoun, 3m, or a noun and how it is used, Ei.frisch.21 or Apfel.kein.plural; without a determiner: the."""
    noun, *used = text.split(".")
    if noun in PRONOUNS:
        return PRONOUNS[noun]
    number = next((int(word) for word in used if word.isdigit()), 0)
    determiner = next((word for word in used if word in DETERMINERS), "number" if number else "def")
    adjective = next((ADJECTIVES[word] for word in used if word in ADJECTIVES), None)
    return NounPhrase(NOUNS[noun], determiner, "plural" in used or number > 0, adjective, number)


def place(text: str) -> PlacePhrase:
    """in/into/acc/Museum"""
    *words, noun = text.split("/")
    return PlacePhrase(*words, argument(noun))


READ = {
    **dict.fromkeys(("direct", "indirect", "company"), argument),
    **dict.fromkeys(("manner", "frequency"), lambda text: tuple(text.split("/"))),
    "place": place,
    "time": lambda text: TIMES[text.replace("_", " ")],
    "predicate": ADJECTIVES.get,
}


def clause(text: str) -> Clause:
    subject, *words = text.split()
    slots: dict = {"subject": argument(subject)}
    for word in words:
        name, _, value = word.partition("=")
        if value:
            slots[name] = READ.get(name, str)(value)
        else:
            slots |= {"negated": True} if name == "negated" else {"verb": VERBS[name]}
    return Clause(**slots)


def sentence(text: str) -> Sentence:
    """[front=... or kind=... | ] main clause [ , conjunction clause, or clause first]"""
    *options, body = text.split(" | ")
    main, _, rest = body.partition(" , ")
    given: dict = dict(option.split("=") for option in options)
    if rest:
        conjunction, subordinate = rest.removesuffix(" first").split(" ", 1)
        assert conjunction in (*CONJUNCTIONS, *REPORTING)
        first = rest.endswith(" first")
        given |= {"conjunction": conjunction, "subordinate": clause(subordinate), "subordinate_first": first}
    return Sentence(clause(main), **given)


#: what is said; in German and in English
PAIRS = """
3m aufmachen direct=Tür
er macht die Tür auf . = he opens the door .
3m lachen , weil Mann.alt geben indirect=Kind direct=Buch
er lacht , weil der alte Mann dem Kind das Buch gibt . = he laughs because the old man gives the child the book .
3f schlafen , wenn 3m geben indirect=Kind direct=Buch first
wenn er dem Kind das Buch gibt , schläft sie . = when he gives the child the book , she sleeps .
3pl , glaubt Bruder lesen direct=Brief.indef tense=modal modal=wollen
sie glauben , dass der Bruder einen Brief lesen will . = they believe that the brother wants to read a letter .
front=time | Mann helfen indirect=Frau time=heute
heute hilft der Mann der Frau . = today the man helps the woman .
front=indirect | Maler helfen indirect=Student.unser
unserem Studenten hilft der Maler . = the painter helps our student .
front=time | Frau geben direct=3n indirect=3m time=morgen tense=future
morgen wird es ihm die Frau geben . = tomorrow the woman will give it to him .
3m anziehen direct=3n
er zieht es an . = he puts it on .
3f arbeiten time=am_Montag manner=langsam/slowly place=in/in/dat/Küche
sie arbeitet am Montag langsam in der Küche . = she works slowly in the kitchen on Monday .
1sg tanzen company=Freund.mein.jung.plural tense=past
ich habe mit meinen jungen Freunden getanzt . = I danced with my young friends .
2sg gehen place=in/into/acc/Museum tense=past
du bist ins Museum gegangen . = you went into the museum .
2pl laufen place=zu/to/dat/Turm.alt
ihr lauft zum alten Turm . = you run to the old tower .
Mann lesen direct=Buch.kein
der Mann liest kein Buch . = the man does not read a book .
3pl essen direct=Apfel.kein.rot.plural tense=past
sie haben keine roten Äpfel gegessen . = they did not eat any red apples .
Katze schlafen negated place=in/in/dat/Küche
die Katze schläft nicht in der Küche . = the cat does not sleep in the kitchen .
1sg schlafen negated tense=modal modal=können
ich kann nicht schlafen . = I cannot sleep .
kind=question | Schwester einladen direct=1sg tense=past
hat mich die Schwester eingeladen ? = did the sister invite me ?
kind=why | 3f helfen indirect=1pl negated
warum hilft sie uns nicht ? = why does she not help us ?
kind=question | Buch.plural predicate=teuer negated
sind die Bücher nicht teuer ? = are the books not expensive ?
3m folgen indirect=Maus.klein.3 tense=past
er ist drei kleinen Mäusen gefolgt . = he followed three small mice .
Junge.indef.müde sehen direct=Löwe.indef.wild frequency=oft/often
ein müder Junge sieht oft einen wilden Löwen . = a tired boy often sees a wild lion .
""".strip().split("\n")


@pytest.mark.parametrize(("said", "expected"), list(zip(PAIRS[::2], PAIRS[1::2])), ids=PAIRS[::2])
def test_sentence_pairs_written_by_hand(said: str, expected: str) -> None:
    assert " = ".join(" ".join(side.tokens(sentence(said))) for side in (german, english)) == expected


DECLENSION = """
Mann: der alte Mann, den alten Mann, dem alten Mann
Buch: das alte Buch, das alte Buch, dem alten Buch
Mann.plural: die alten Männer, die alten Männer, den alten Männern
Frau.mein: meine alte Frau, meine alte Frau, meiner alten Frau
Buch.unser: unser altes Buch, unser altes Buch, unserem alten Buch
Frau.bare.plural: alte Frauen, alte Frauen, alten Frauen
Soldat: der alte Soldat, den alten Soldaten, dem alten Soldaten
Igel.5: fünf alte Igel, fünf alte Igel, fünf alten Igeln
"""


def test_declension() -> None:
    for line in DECLENSION.strip().split("\n"):
        phrase, expected = line.split(": ")
        found = [" ".join(german.noun_phrase(argument(f"{phrase}.alt"), case)) for case in ("nom", "acc", "dat")]
        assert ", ".join(found) == expected


def test_numbers_and_the_english_article() -> None:
    numbers = {2: "zwei two", 12: "zwölf twelve", 13: "dreizehn thirteen", 15: "fünfzehn fifteen"}
    numbers |= {16: "sechzehn sixteen", 17: "siebzehn seventeen", 18: "achtzehn eighteen", 20: "zwanzig twenty"}
    numbers |= {21: "einundzwanzig twenty-one", 30: "dreißig thirty", 48: "achtundvierzig forty-eight"}
    for value, expected in numbers.items():
        assert f"{lexicon.number_german(value)} {lexicon.number_english(value)}" == expected
    for phrase, expected in {"Apfel": "an apple", "Apfel.rot": "a red apple", "Hund.alt": "an old dog"}.items():
        assert " ".join(english.noun_phrase(argument(f"{phrase}.indef"))) == expected


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
