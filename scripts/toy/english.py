"""English side of the toy grammar: subject-verb-object order, agreement, do-support, place before time."""

from __future__ import annotations

from toy.lexicon import CONJUNCTIONS, MODALS, POSSESSIVES, REPORTING, Pronoun, Verb, number_english
from toy.syntax import Argument, Clause, NounPhrase, PlacePhrase, Sentence

_BE = {
    "present": {1: ("am", "are"), 2: ("are", "are"), 3: ("is", "are")},
    "past": {1: ("was", "were"), 2: ("were", "were"), 3: ("was", "were")},
}
_THIRD = {"want to": "wants to", "have to": "has to"}
_QUESTION_WORDS = {"why": "why", "when": "when", "where": "where"}


def noun_phrase(phrase: NounPhrase) -> list[str]:
    """Return determiner, adjective and noun; "kein" as an object is "a" or "any": the verb has the "not"."""
    noun = phrase.noun.english_plural if phrase.plural else phrase.noun.english
    rest = [*([phrase.adjective.english] if phrase.adjective else []), noun]
    if phrase.determiner == "def":
        return ["the", *rest]
    if phrase.determiner == "number":
        return [number_english(phrase.number), *rest]
    if phrase.determiner in POSSESSIVES:
        return [POSSESSIVES[phrase.determiner], *rest]
    if phrase.plural:
        return ["any", *rest] if phrase.determiner == "kein" else rest
    return ["an" if rest[0][0] in "aeiou" else "a", *rest]


def _subject(item: Argument) -> list[str]:
    """Return the words of a subject; "kein" is "no"."""
    if isinstance(item, Pronoun):
        return [item.english]
    if item.determiner == "kein":
        bare = noun_phrase(item)[1:]
        return ["no", *bare]
    return noun_phrase(item)


def _object(item: Argument) -> list[str]:
    """Return the words of an object."""
    return [item.english_object] if isinstance(item, Pronoun) else noun_phrase(item)


def place_phrase(place: PlacePhrase) -> list[str]:
    """Return preposition and noun phrase."""
    return [*place.english.split(), *noun_phrase(place.phrase)]


def _is_third(subject: Argument) -> bool:
    """Return True for the third person singular, whose verb has an -s."""
    return subject.person == 3 and not subject.plural


def _finite(verb: Verb, tense: str, third: bool) -> str:
    """Return the finite form of a verb."""
    if tense == "past":
        return verb.english_past
    return verb.english_third if third else verb.english


def _do(tense: str, third: bool) -> str:
    """Return the form of "do" in a question or a negation."""
    if tense == "past":
        return "did"
    return "does" if third else "do"


def _auxiliary(clause: Clause, inverted: bool) -> tuple[str, list[str]]:
    """Return (auxiliary or "", words of the main verb) of a clause with a full verb."""
    third, negative = _is_third(clause.subject), clause.negated or clause.kein
    verb = clause.verb
    if clause.tense == "future":
        return "will", [verb.english]
    if clause.tense == "modal":
        modal, inflects = MODALS[clause.modal][3:]
        if not inflects:
            return modal, [verb.english]
        base, finite, rest = modal, _THIRD[modal] if third else modal, [verb.english]
    else:
        base, finite, rest = verb.english, _finite(verb, clause.tense, third), []
    if negative or inverted:
        return _do(clause.tense, third), [*base.split(), *rest]
    return "", [*finite.split(), *rest]


def _complements(clause: Clause) -> list[str]:
    """Return objects, particle and preposition: "puts it on", "puts on the coat", "gives it to him"."""
    verb, direct, indirect = clause.verb, clause.direct, clause.indirect
    particle = [verb.english_particle] if verb.english_particle else []
    preposition = [verb.english_preposition] if verb.english_preposition else []
    if direct is None:
        return [*particle, *preposition, *(_object(indirect) if indirect else [])]
    if indirect and verb.frame == "double" and not isinstance(direct, Pronoun):
        return [*_object(indirect), *particle, *_object(direct)]
    pronoun = isinstance(direct, Pronoun)
    first = [*_object(direct), *particle] if pronoun else [*particle, *preposition, *_object(direct)]
    if pronoun and preposition:
        first = [*preposition, *_object(direct)]
    return [*first, *(["to", *_object(indirect)] if indirect else [])]


def _adverbials(clause: Clause, time_fronted: bool) -> list[str]:
    """Return manner, company, place and time."""
    manner = [clause.manner[1]] if clause.manner else []
    company = ["with", *noun_phrase(clause.company)] if clause.company else []
    place = place_phrase(clause.place) if clause.place else []
    time = clause.time.english.split() if clause.time and not time_fronted else []
    return [*manner, *company, *place, *time]


def clause_tokens(clause: Clause, inverted: bool = False, time_fronted: bool = False) -> list[str]:
    """Return the clause without punctuation; `inverted`: the auxiliary, of a full verb a form of "do", is first."""
    subject, tail = _subject(clause.subject), _adverbials(clause, time_fronted)
    negation = ["not"] if clause.negated or clause.kein else []
    frequency = [clause.frequency[1]] if clause.frequency else []
    if clause.predicate:
        be = _BE["past" if clause.tense == "past" else "present"][clause.subject.person][clause.subject.plural]
        head = [be, *subject] if inverted else [*subject, be]
        return [*head, *negation, *frequency, clause.predicate.english, *tail]
    auxiliary, verb = _auxiliary(clause, inverted)
    tail = [*_complements(clause), *tail]
    if inverted:
        return [auxiliary, *subject, *negation, *frequency, *verb, *tail]
    if auxiliary == "can" and negation:
        auxiliary, negation = "cannot", []
    return [*subject, *([auxiliary] if auxiliary else []), *negation, *frequency, *verb, *tail]


def tokens(sentence: Sentence) -> list[str]:
    """Return the sentence as tokens; the first word is as in the dictionary ("I" and days keep their capitals)."""
    main = sentence.main
    if sentence.conjunction in REPORTING:
        _, singular, plural = REPORTING[sentence.conjunction]
        verb = plural if main.subject.plural else singular
        return [*_subject(main.subject), verb, "that", *clause_tokens(sentence.subordinate), "."]
    if sentence.kind != "statement":
        word = _QUESTION_WORDS.get(sentence.kind)
        return [*([word] if word else []), *clause_tokens(main, inverted=True), "?"]
    fronted = sentence.front == "time" and not sentence.subordinate_first
    front = main.time.english.split() if fronted else []
    statement = [*front, *clause_tokens(main, time_fronted=fronted)]
    if not sentence.subordinate:
        return [*statement, "."]
    subordinate = [CONJUNCTIONS[sentence.conjunction], *clause_tokens(sentence.subordinate)]
    if sentence.subordinate_first:
        return [*subordinate, ",", *statement, "."]
    return [*statement, *subordinate, "."]
