"""Define derivations of the toy grammar: the content of a sentence, before either language orders and inflects it.

`german.py` and `english.py` each turn one of these trees into tokens; a pair of sentences is one tree read twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from toy.lexicon import Adjective, Noun, Pronoun, Time, Verb

DETERMINERS = ("def", "indef", "bare", "kein", "number", "mein", "dein", "sein", "ihr", "unser")


@dataclass(frozen=True)
class NounPhrase:
    """determiner: one of DETERMINERS; "bare" and "number" are plural, `number` is read for the latter only."""

    noun: Noun
    determiner: str = "def"
    plural: bool = False
    adjective: Adjective | None = None
    number: int = 0

    person = 3


Argument = NounPhrase | Pronoun


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

    tense: present, past, modal or future.
    negated: "nicht"; a determiner "kein" of the direct object negates the English verb too.
    time: a `Time` or None; manner: a pair of words or a noun phrase after "mit"; frequency: a pair of words.
    """

    subject: Argument
    verb: Verb | None = None
    predicate: Adjective | None = None
    tense: str = "present"
    modal: str = ""
    negated: bool = False
    direct: Argument | None = None
    indirect: Argument | None = None
    time: Time | None = None
    frequency: tuple[str, str] | None = None
    manner: tuple[str, str] | None = None
    company: NounPhrase | None = None
    place: PlacePhrase | None = None

    @property
    def kein(self) -> bool:
        """Return True if "kein" of the direct object negates the clause."""
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
    subordinate: Clause | None = None
    subordinate_first: bool = False
