"""Draw random derivations of the toy grammar.

Words of one kind do not behave alike: each word has a frequency, and each pair of a head (verb, noun) and a dependent
has a strength of collocation. Both are log-normal and depend on the words only, never on the seed, so that every text
drawn from the grammar, in either language, shows the same company for the same word, as natural text does.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

from toy import lexicon
from toy.lexicon import PRONOUNS, Adjective, Noun, Pronoun, Time, Verb
from toy.syntax import Argument, Clause, NounPhrase, PlacePhrase, Sentence

FREQUENCY_SIGMA = 0.6
COLLOCATION_SIGMA = 1.2

_FRAMES = {
    "intransitive": 12,
    "motion": 12,
    "stative": 10,
    "transitive": 28,
    "dative": 12,
    "double": 12,
    "to": 5,
    "predicate": 9,
}
_TENSES = {"present": 45, "past": 25, "modal": 20, "future": 10}
_DETERMINERS = {"def": 48, "indef": 18, "bare": 8, "number": 9, "kein": 0, "poss": 17}
_KINDS = {"statement": 78, "question": 10, "why": 5, "when": 4, "where": 3}


def _strength(key: str, sigma: float) -> float:
    """Return the log-normal strength that belongs to a key."""
    # seeding with a string hashes its characters with SHA-512: the same on every machine and Python version
    return math.exp(random.Random(key).gauss(0.0, sigma))


@cache
def _weights(head: str, words: tuple[str, ...]) -> list[float]:
    """Return the cumulative weights of words as company of `head`."""
    return list(
        accumulate(
            _strength(f"frequency|{word}", FREQUENCY_SIGMA) * _strength(f"{head}|{word}", COLLOCATION_SIGMA)
            for word in words
        )
    )


@cache
def _nouns_of(kinds: frozenset[str]) -> tuple[Noun, ...]:
    """Return the nouns that are of one of the kinds."""
    return tuple(noun for noun in lexicon.nouns().values() if noun.kinds & kinds)


@cache
def _adjectives_of(kinds: frozenset[str]) -> tuple[Adjective, ...]:
    """Return the adjectives that fit one of the kinds."""
    return tuple(adjective for adjective in lexicon.adjectives().values() if adjective.kinds & kinds)


@cache
def _verbs_of(frame: str) -> tuple[Verb, ...]:
    """Return the verbs of a frame."""
    return tuple(verb for verb in lexicon.verbs().values() if verb.frame == frame)


@dataclass(frozen=True)
class Density:
    """Hold the probabilities of optional phrases in a clause."""

    pronoun: float = 0.25
    adjective: float = 0.40
    adverbial: float = 0.35


MAIN = Density()
SUBORDINATE = Density(pronoun=0.45, adjective=0.3, adverbial=0.2)


class Sampler:
    """Draw sentences; the same seed gives the same sequence, by an own generator, never the global one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def weighted(self, table: dict[str, int]) -> str:
        """Draw a key of a table of weights."""
        return self.random.choices(list(table), list(table.values()))[0]

    def noun(self, kinds: frozenset[str], head: str, avoid: Argument | None = None) -> Noun:
        """Draw a noun of one of the kinds as company of `head`; not the noun of `avoid`."""
        nouns = _nouns_of(kinds)
        cumulative = _weights(head, tuple(noun.lemma for noun in nouns))
        while True:
            noun = self.random.choices(nouns, cum_weights=cumulative)[0]
            if not isinstance(avoid, NounPhrase) or avoid.noun != noun:
                return noun

    def adjective(self, noun: Noun) -> Adjective:
        """Draw an adjective that fits a noun."""
        adjectives = _adjectives_of(noun.kinds)
        cumulative = _weights(noun.lemma, tuple(adjective.lemma for adjective in adjectives))
        return self.random.choices(adjectives, cum_weights=cumulative)[0]

    def noun_phrase(self, noun: Noun, density: Density, determiner: str = "") -> NounPhrase:
        """Draw determiner, number and adjective of a noun."""
        determiner = determiner or self.weighted(_DETERMINERS)
        if determiner == "poss":
            determiner = self.random.choice(sorted(lexicon.POSSESSIVES))
        number = 0
        if determiner == "number":
            number = self.random.randint(2, 12) if self.chance(0.7) else self.random.randint(13, 49)
        plural = determiner in ("bare", "number") or (determiner != "indef" and self.chance(0.3))
        adjective = self.adjective(noun) if self.chance(density.adjective) else None
        return NounPhrase(noun, determiner, plural, adjective, number)

    def subject(self, kinds: frozenset[str], head: str, density: Density, asked: bool) -> Argument:
        """Draw a subject: a pronoun or a noun phrase; `asked`: of a question, which has no "kein"."""
        if "person" in kinds and self.chance(density.pronoun):
            return PRONOUNS[self.random.choice(["1sg", "2sg", "3m", "3f", "1pl", "2pl", "3pl"])]
        determiner = self._kein(asked)
        return self.noun_phrase(self.noun(kinds, f"{head} subject"), density, determiner)

    def _kein(self, asked: bool) -> str:
        """Draw "kein" or nothing as the determiner of a subject."""
        return "kein" if not asked and self.chance(0.03) else ""

    def object(self, kinds: frozenset[str], head: str, case: str, subject: Argument, density: Density) -> Argument:
        """Draw a noun phrase, or a pronoun that is not the subject's own person (no reflexives)."""
        if self.chance(density.pronoun * 0.6):
            names = ["1sg", "2sg", "3m", "3f", "1pl", "2pl", "3pl"] if "person" in kinds else ["3n"]
            fitting = [PRONOUNS[name] for name in names if getattr(PRONOUNS[name], case)]
            fitting = [item for item in fitting if item.person == 3 or item.person != subject.person]
            if fitting:
                return self.random.choice(fitting)
        return self.noun_phrase(self.noun(kinds, f"{head} {case}", subject), density)

    def place(self, head: str, goal: bool, density: Density) -> PlacePhrase:
        """Draw a place; `goal`: where something moves to."""
        noun = self.noun(frozenset({"place"}), f"{head} place")
        phrase = self.noun_phrase(noun, Density(adjective=density.adjective * 0.6), "def")
        phrase = replace(phrase, plural=False)
        place = lexicon.places()[noun.lemma]
        if not goal:
            return PlacePhrase(place.german, place.english, "dat", phrase)
        if self.chance(0.3):
            return PlacePhrase("zu", "to", "dat", phrase)
        english = "to" if place.german == "an" or place.english == "at" else f"{place.english}to"
        return PlacePhrase(place.german, english, "acc", phrase)

    def time(self, tense: str) -> Time:
        """Draw a phrase of time that fits a tense."""
        if self.chance(0.2):
            number = self.random.randint(2, 12)
            german, english = lexicon.number_german(number), lexicon.number_english(number)
            if tense == "past" and self.chance(0.5):
                return Time(f"vor {german} Jahren", f"{english} years ago", frozenset({tense}))
            if tense == "future" and self.chance(0.5):
                return Time(f"in {german} Tagen", f"in {english} days", frozenset({tense}))
            return Time(f"um {german} Uhr", f"at {english} o'clock", frozenset({tense}))
        return self.random.choice([time for time in lexicon.times().values() if tense in time.tenses])

    def clause(self, density: Density = MAIN, kind: str = "statement", tense: str = "") -> Clause:
        """Draw a clause; a clause that asks for a place has no verb of motion and no adjective with "sein"."""
        frame = self.weighted(_FRAMES)
        while kind == "where" and frame in ("motion", "predicate"):
            frame = self.weighted(_FRAMES)
        tense = tense or self.weighted(_TENSES)
        asked = kind != "statement"
        clause = (
            self._copula(density, tense, asked) if frame == "predicate" else self._core(frame, density, tense, asked)
        )
        return self._negate(self._adverbials(clause, density, kind))

    def _copula(self, density: Density, tense: str, asked: bool) -> Clause:
        """Draw a clause with "sein" and an adjective."""
        noun = self.noun(
            frozenset({"person", "animal", "food", "text", "clothing", "opening", "object", "vehicle"}), "sein"
        )
        determiner = self._kein(asked) or ("" if self.chance(0.3) else "def")
        phrase = self.noun_phrase(noun, replace(density, adjective=0.0), determiner)
        return Clause(phrase, predicate=self.adjective(noun), tense="past" if tense == "past" else "present")

    def _core(self, frame: str, density: Density, tense: str, asked: bool) -> Clause:
        """Draw verb, subject, objects and goal of a clause."""
        verbs = _verbs_of(frame)
        verb = self.random.choices(verbs, cum_weights=_weights(frame, tuple(verb.infinitive for verb in verbs)))[0]
        subject = self.subject(verb.subjects, verb.infinitive, density, asked)
        modal = self.random.choice(sorted(lexicon.MODALS)) if tense == "modal" else ""
        clause = Clause(subject, verb, tense=tense, modal=modal)
        if frame in ("stative", "transitive"):
            return replace(clause, direct=self.object(verb.objects, verb.infinitive, "acc", subject, density))
        if frame == "dative":
            return replace(clause, indirect=self.object(verb.objects, verb.infinitive, "dat", subject, density))
        if frame in ("double", "to"):
            direct = self.object(verb.objects, verb.infinitive, "acc", subject, density)
            indirect = self.object(frozenset({"person"}), verb.infinitive, "dat", subject, density)
            return replace(clause, direct=direct, indirect=indirect)
        return replace(clause, place=self.place(verb.infinitive, True, density)) if frame == "motion" else clause

    def _adverbials(self, clause: Clause, density: Density, kind: str) -> Clause:
        """Add frequency, time, manner, company and place to a clause, each by chance."""
        added: dict[str, object] = {}
        if kind != "when" and self.chance(density.adverbial):
            if clause.verb and clause.tense in ("present", "past") and self.chance(0.2):
                added["frequency"] = self.random.choice(sorted(lexicon.FREQUENCIES.items()))
            else:
                added["time"] = self.time(clause.tense)
        if clause.verb and clause.verb.frame != "stative" and self.chance(density.adverbial * 0.5):
            added["manner"] = self.random.choice(sorted(lexicon.manners().items()))
        elif clause.verb and clause.verb.frame in ("intransitive", "motion") and self.chance(density.adverbial * 0.4):
            company = self.noun(frozenset({"person"}), clause.verb.infinitive, clause.subject)
            added["company"] = self.noun_phrase(company, density)
        if clause.verb and not clause.place and kind != "where" and self.chance(density.adverbial * 0.6):
            added["place"] = self.place(clause.verb.infinitive, False, density)
        return replace(clause, **added)

    def _negate(self, clause: Clause) -> Clause:
        """Negate a clause by chance: an indefinite direct object by "kein", others by "nicht"; nothing twice."""
        subject = clause.subject
        twice = clause.frequency or (isinstance(subject, NounPhrase) and subject.determiner == "kein")
        if twice or not self.chance(0.15):
            return clause
        direct = clause.direct
        if isinstance(direct, NounPhrase) and direct.determiner in ("indef", "bare"):
            return replace(clause, direct=replace(direct, determiner="kein"))
        if isinstance(direct, NounPhrase) and direct.determiner == "number":
            return clause
        return replace(clause, negated=True)

    def _front(self, clause: Clause) -> str:
        """Draw the part that opens the sentence; an object only if its case is visible."""
        choices = ["time"] * 3 if clause.time else []
        direct, indirect = clause.direct, clause.indirect
        if (
            isinstance(direct, NounPhrase)
            and direct.noun.gender == "m"
            and not direct.plural
            and direct.determiner != "kein"
        ):
            choices.append("direct")
        if isinstance(indirect, NounPhrase) and indirect.determiner not in ("bare", "number"):
            choices.append("indirect")
        if clause.place:
            choices.append("place")
        return self.random.choice(choices) if choices and self.chance(0.4) else "subject"

    def sentence(self) -> Sentence:
        """Draw a sentence: a question, a statement, reported speech, or two clauses."""
        kind = self.weighted(_KINDS)
        if kind != "statement":
            return Sentence(self.clause(MAIN, kind), kind=kind)
        if not self.chance(0.35):
            clause = self.clause()
            return Sentence(clause, self._front(clause))
        if self.chance(0.3):
            subject = self.subject(frozenset({"person"}), "dass", MAIN, True)
            while isinstance(subject, Pronoun) and subject.person != 3:
                subject = self.subject(frozenset({"person"}), "dass", MAIN, True)
            reporting = self.random.choice(sorted(lexicon.REPORTING))
            return Sentence(Clause(subject), conjunction=reporting, subordinate=self.clause(SUBORDINATE))
        return self._with_subordinate()

    def _with_subordinate(self) -> Sentence:
        """Draw a statement with a subordinate clause."""
        conjunction = self.random.choice(sorted(lexicon.CONJUNCTIONS))
        # clauses tied in time share their tense; reasons need not
        tense = self.weighted({"present": 65, "past": 35}) if conjunction in ("wenn", "während", "bevor") else ""
        main, subordinate = self.clause(SUBORDINATE, tense=tense), self.clause(SUBORDINATE, tense=tense)
        if tense:
            main, subordinate = replace(main, time=None), replace(subordinate, time=None)
        if tense == "past" and conjunction == "wenn":
            conjunction = "weil"  # a single event in the past takes "als", not "wenn"
        first = self.chance(0.3)
        front = "subject" if first else self._front(main)
        return Sentence(main, front, "statement", conjunction, subordinate, first)
