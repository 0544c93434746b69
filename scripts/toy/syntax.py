"""Derivations of the toy grammar: what a sentence says, before either language orders and inflects it.

`german.py` and `english.py` each turn one of these trees into tokens; a pair of sentences is one tree read twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from toy.lexicon import Adjective, Noun, Pronoun, Time, Verb

DETERMINERS = ("def", "indef", "bare", "kein", "number", "mein", "dein", "sein", "ihr", "unser")
TENSES = ("present", "past", "modal", "future")


@dataclass(frozen=True)
class NounPhrase:
    """determiner: one of DETERMINERS; "bare" and "number" are plural, `number` is read for the latter only."""

    noun: Noun
    determiner: str = "def"
    plural: bool = False
    adjective: Optional[Adjective] = None
    number: int = 0

    person = 3


Argument = Union[NounPhrase, Pronoun]


@dataclass(frozen=True)
class PlacePhrase:
    """A location (dative) or a goal (accusative, or "zu" with dative)."""

    german: str
    english: str
    case: str
    phrase: NounPhrase


@dataclass(frozen=True)
class Clause:
    """Exactly one of `verb` and `predicate` (an adjective after "sein") is set.

    negated: "nicht"; a determiner "kein" of the direct object negates the English verb too.
    time: a `Time` or None; manner: a pair of words or a noun phrase after "mit"; frequency: a pair of words.
    """

    subject: Argument
    verb: Optional[Verb] = None
    predicate: Optional[Adjective] = None
    tense: str = "present"
    modal: str = ""
    negated: bool = False
    direct: Optional[Argument] = None
    indirect: Optional[Argument] = None
    time: Optional[Time] = None
    frequency: Optional[tuple[str, str]] = None
    manner: Optional[tuple[str, str]] = None
    company: Optional[NounPhrase] = None
    place: Optional[PlacePhrase] = None

    @property
    def kein(self) -> bool:
        return isinstance(self.direct, NounPhrase) and self.direct.determiner == "kein"


@dataclass(frozen=True)
class Sentence:
    """One main clause with at most one subordinate clause.

    front: the part before the German finite verb (subject, time, direct, indirect or place).
    kind: statement, question (yes/no), why, when or where.
    conjunction: a key of CONJUNCTIONS, or a key of REPORTING: then `main` carries the subject of "glaubt, dass".
    """

    main: Clause
    front: str = "subject"
    kind: str = "statement"
    conjunction: str = ""
    subordinate: Optional[Clause] = None
    subordinate_first: bool = False
