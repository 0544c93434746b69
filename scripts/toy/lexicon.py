"""Read the words of the toy language pair as objects with their German and English forms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: the word lists, one entry per line; the first lines describe the fields
WORDS = Path(__file__).resolve().parent / "words"

_UNITS_DE = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
_UNITS_EN = "zero one two three four five six seven eight nine ten eleven twelve".split()
_TENS_DE = {20: "zwanzig", 30: "dreißig", 40: "vierzig"}
_TENS_EN = {20: "twenty", 30: "thirty", 40: "forty"}


@dataclass(frozen=True)
class Noun:
    """gender: m, f or n; weak: masculine whose oblique singular looks like the plural (der Junge, den Jungen)."""

    lemma: str
    gender: str
    weak: bool
    plural: str
    english: str
    english_plural: str
    kinds: frozenset[str]

    def german(self, case: str, plural: bool) -> str:
        """Return the form of the noun in `case` (nom, acc or dat)."""
        if plural:
            needs_n = case == "dat" and self.plural[-1] not in "ns"
            return self.plural + ("n" if needs_n else "")
        return self.plural if self.weak and case != "nom" else self.lemma


@dataclass(frozen=True)
class Adjective:
    """Describe an adjective; kinds: kinds of the nouns that it fits."""

    lemma: str
    stem: str
    english: str
    kinds: frozenset[str]


@dataclass(frozen=True)
class Verb:
    """present: the finite forms for 1sg, 2sg, 3sg, 2pl without the separable particle; empty strings mean "has none".

    frame: intransitive, motion (goal phrase), stative (accusative, no manner), transitive (accusative), dative,
    double (dative and accusative, English double object) or to (dative and accusative, English "to").
    """

    infinitive: str
    present: tuple[str, str, str, str]
    participle: str
    auxiliary: str
    particle: str
    english: str
    english_third: str
    english_past: str
    english_particle: str
    english_preposition: str
    frame: str
    subjects: frozenset[str]
    objects: frozenset[str]

    def german(self, person: int, plural: bool) -> str:
        """Return the finite present form without the particle (er macht ... auf -> "macht")."""
        if plural and person != 2:
            return self.infinitive[len(self.particle) :]
        return self.present[3] if plural else self.present[person - 1]


@dataclass(frozen=True)
class Place:
    """Describe a place with the prepositions of its location."""

    noun: Noun
    german: str
    english: str


@dataclass(frozen=True)
class Time:
    """Describe a phrase of time; tenses: tenses of the clauses that it fits."""

    german: str
    english: str
    tenses: frozenset[str]


@dataclass(frozen=True)
class Pronoun:
    """Personal pronoun; acc, dat and english_object are empty where the grammar uses it as a subject only."""

    nom: str
    acc: str
    dat: str
    english: str
    english_object: str
    person: int
    plural: bool


PRONOUNS = {
    name: Pronoun(*forms)
    for name, forms in {
        "1sg": ("ich", "mich", "mir", "I", "me", 1, False),
        "2sg": ("du", "dich", "dir", "you", "you", 2, False),
        "3m": ("er", "ihn", "ihm", "he", "him", 3, False),
        "3f": ("sie", "sie", "ihr", "she", "her", 3, False),
        "3n": ("es", "es", "", "it", "it", 3, False),
        "1pl": ("wir", "uns", "uns", "we", "us", 1, True),
        "2pl": ("ihr", "euch", "euch", "you", "you", 2, True),
        # no accusative: "sie" could be "her" or "them", which no model could decide from the sentence alone
        "3pl": ("sie", "", "ihnen", "they", "them", 3, True),
    }.items()
}

POSSESSIVES = {"mein": "my", "dein": "your", "sein": "his", "ihr": "her", "unser": "our"}

CONJUNCTIONS = {"weil": "because", "obwohl": "although", "wenn": "when", "während": "while", "bevor": "before"}

#: verbs that take a clause with "dass": third-person forms are enough because sampled subjects are nouns, er and sie
REPORTING = {
    "glaubt": ("glauben", "believes", "believe"),
    "weiß": ("wissen", "knows", "know"),
    "sagt": ("sagen", "says", "say"),
    "hofft": ("hoffen", "hopes", "hope"),
}

#: modal -> (1sg = 3sg, 2sg, 2pl, English, does English inflect it as a full verb)
MODALS = {
    "können": ("kann", "kannst", "könnt", "can", False),
    "sollen": ("soll", "sollst", "sollt", "should", False),
    "dürfen": ("darf", "darfst", "dürft", "may", False),
    "wollen": ("will", "willst", "wollt", "want to", True),
    "müssen": ("muss", "musst", "müsst", "have to", True),
}

FREQUENCIES = {"oft": "often", "immer": "always", "manchmal": "sometimes", "nie": "never"}


def number_german(value: int) -> str:
    """Return a numeral from 2 to 49, ones before tens: 21 -> "einundzwanzig"."""
    if value <= 12:
        return _UNITS_DE[value]
    if value < 20:
        return {16: "sechzehn", 17: "siebzehn"}.get(value, _UNITS_DE[value - 10] + "zehn")
    tens, unit = value - value % 10, value % 10
    return (_UNITS_DE[unit] + "und" if unit else "") + _TENS_DE[tens]


def number_english(value: int) -> str:
    """Return a numeral from 2 to 49: 21 -> "twenty-one"."""
    if value <= 12:
        return _UNITS_EN[value]
    if value < 20:
        irregular = {13: "thirteen", 15: "fifteen", 18: "eighteen"}
        return irregular.get(value, _UNITS_EN[value - 10] + "teen")
    tens, unit = value - value % 10, value % 10
    return _TENS_EN[tens] + ("-" + _UNITS_EN[unit] if unit else "")


def _lines(name: str) -> list[str]:
    """Return the entries of a word list."""
    lines = (WORDS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _rows(name: str) -> list[list[str]]:
    """Return the fields of each entry, which have no spaces."""
    return [line.split() for line in _lines(name)]


def _optional(text: str) -> str:
    """Return a field; "-" is an empty one."""
    return "" if text == "-" else text


@cache
def nouns() -> dict[str, Noun]:
    """Return lemma -> noun."""
    return {
        lemma: Noun(lemma, gender[0], gender == "mw", plural, en, en_plural, frozenset(kinds.split(",")))
        for lemma, gender, plural, en, en_plural, kinds in _rows("nouns")
    }


@cache
def adjectives() -> dict[str, Adjective]:
    """Return lemma -> adjective."""
    return {
        lemma: Adjective(lemma, stem, en, frozenset(kinds.split(","))) for lemma, stem, en, kinds in _rows("adjectives")
    }


@cache
def verbs() -> dict[str, Verb]:
    """Return infinitive -> verb."""
    table = {}
    for line in _lines("verbs"):
        german, english, syntax = (part.split() for part in line.split("|"))
        infinitive, ich, du, er, ihr, participle, auxiliary, particle = german
        frame, subjects, objects = syntax
        table[infinitive] = Verb(
            infinitive,
            (ich, du, er, ihr),
            participle,
            auxiliary,
            _optional(particle),
            *map(_optional, english),
            frame,
            frozenset(subjects.split(",")),
            frozenset(_optional(objects).split(",")),
        )
    return table


@cache
def places() -> dict[str, Place]:
    """Return lemma of a noun -> place."""
    return {lemma: Place(nouns()[lemma], de, en) for lemma, de, en in _rows("places")}


@cache
def manners() -> dict[str, str]:
    """Return German -> English adverbs of manner."""
    return dict(_rows("manners"))


@cache
def times() -> dict[str, Time]:
    """Return German phrase -> time."""
    entries = ([part.strip() for part in line.split("|")] for line in _lines("times"))
    return {de: Time(de, en, frozenset(tenses.split())) for de, en, tenses in entries}
