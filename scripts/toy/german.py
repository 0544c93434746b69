"""German side of the toy grammar: cases, endings, verb-second and verb-final order, separable verbs."""

from __future__ import annotations

from toy.lexicon import MODALS, REPORTING, Pronoun, number_german
from toy.syntax import Argument, Clause, NounPhrase, PlacePhrase, Sentence

_ARTICLES = {
    "nom": ("der", "die", "das", "die"),
    "acc": ("den", "die", "das", "die"),
    "dat": ("dem", "der", "dem", "den"),
}
_EIN_ENDINGS = {"nom": ("", "e", "", "e"), "acc": ("en", "e", "", "e"), "dat": ("em", "er", "em", "en")}
# Adjective endings for m, f, n, plural. Weak follows der/die/das, mixed follows ein/kein/mein, strong follows nothing.
_WEAK = {"nom": ("e", "e", "e", "en"), "acc": ("en", "e", "e", "en"), "dat": ("en", "en", "en", "en")}
_MIXED = {"nom": ("er", "e", "es", "en"), "acc": ("en", "e", "es", "en"), "dat": ("en", "en", "en", "en")}
_STRONG_PLURAL = {"nom": "e", "acc": "e", "dat": "en"}
_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("in", "das"): "ins",
    ("an", "das"): "ans",
}
_SEIN = {1: ("bin", "sind"), 2: ("bist", "seid"), 3: ("ist", "sind")}
_WAR = {1: ("war", "waren"), 2: ("warst", "wart"), 3: ("war", "waren")}
_HABEN = {1: ("habe", "haben"), 2: ("hast", "habt"), 3: ("hat", "haben")}
_WERDEN = {1: ("werde", "werden"), 2: ("wirst", "werdet"), 3: ("wird", "werden")}
# also nominatives: before the subject they would be read as the subject
_NOT_BEFORE_SUBJECT = {"sie", "ihr"}
_QUESTION_WORDS = {"why": "warum", "when": "wann", "where": "wo"}


def noun_phrase(phrase: NounPhrase, case: str) -> list[str]:
    """Return determiner, adjective and noun in `case` (nom, acc or dat)."""
    column = 3 if phrase.plural else "mfn".index(phrase.noun.gender)
    if phrase.determiner == "def":
        determiner, ending = [_ARTICLES[case][column]], _WEAK[case][column]
    elif phrase.determiner in ("bare", "number"):
        determiner = [number_german(phrase.number)] if phrase.determiner == "number" else []
        ending = _STRONG_PLURAL[case]
    else:
        stem = "ein" if phrase.determiner == "indef" else phrase.determiner
        determiner, ending = [stem + _EIN_ENDINGS[case][column]], _MIXED[case][column]
    adjective = [phrase.adjective.stem + ending] if phrase.adjective else []
    return [*determiner, *adjective, phrase.noun.german(case, phrase.plural)]


def argument(item: Argument, case: str) -> list[str]:
    """Return the words of a pronoun or a noun phrase in `case`."""
    return [getattr(item, case)] if isinstance(item, Pronoun) else noun_phrase(item, case)


def place_phrase(place: PlacePhrase) -> list[str]:
    """Return preposition and noun phrase, contracted where German contracts them (im, zur)."""
    preposition, rest = place.german, noun_phrase(place.phrase, place.case)
    contracted = _CONTRACTIONS.get((preposition, rest[0]))
    return [contracted, *rest[1:]] if contracted else [preposition, *rest]


def _modal(name: str, person: int, plural: bool) -> str:
    """Return the finite form of a modal verb."""
    singular, second, second_plural = MODALS[name][:3]
    if plural:
        return second_plural if person == 2 else name
    return second if person == 2 else singular


def _verb_complex(clause: Clause) -> tuple[str, list[str], str]:
    """Return (finite verb, words that close the sentence bracket, particle of a finite separable verb)."""
    person, plural = clause.subject.person, clause.subject.plural
    if clause.predicate:
        forms = _WAR if clause.tense == "past" else _SEIN
        return forms[person][plural], [clause.predicate.lemma], ""
    verb = clause.verb
    if clause.tense == "present":
        return verb.german(person, plural), [], verb.particle
    if clause.tense == "past":
        auxiliary = _HABEN if verb.auxiliary == "haben" else _SEIN
        return auxiliary[person][plural], [verb.participle], ""
    finite = _WERDEN[person][plural] if clause.tense == "future" else _modal(clause.modal, person, plural)
    return finite, [verb.infinitive], ""


def _middle_field(clause: Clause, fronted: str, inverted: bool) -> list[str]:
    """Return subject, pronouns (accusative first), time, dative, accusative, nicht, manner, place.

    inverted: the finite verb comes first; then pronouns precede a noun subject (heute gibt ihm der Mann ...).
    """
    parts: list[tuple[str, list[str]]] = [("subject", argument(clause.subject, "nom"))]
    objects = (("direct", clause.direct, "acc"), ("indirect", clause.indirect, "dat"))
    pronouns = [(slot, argument(item, case)) for slot, item, case in objects if isinstance(item, Pronoun)]
    light = not any(form in _NOT_BEFORE_SUBJECT for _, (form,) in pronouns)
    if inverted and light and isinstance(clause.subject, NounPhrase):
        parts = [*pronouns, *parts]
    else:
        parts += pronouns
    if clause.time:
        parts.append(("time", clause.time.german.split()))
    if clause.frequency:
        parts.append(("frequency", [clause.frequency[0]]))
    parts += [(slot, argument(item, case)) for slot, item, case in reversed(objects) if isinstance(item, NounPhrase)]
    if clause.negated:
        parts.append(("negation", ["nicht"]))
    if clause.manner:
        parts.append(("manner", [clause.manner[0]]))
    if clause.company:
        parts.append(("company", ["mit", *noun_phrase(clause.company, "dat")]))
    if clause.place:
        parts.append(("place", place_phrase(clause.place)))
    return [token for slot, tokens in parts if slot != fronted for token in tokens]


def _front(clause: Clause, slot: str) -> list[str]:
    """Return the words of the part that opens the sentence."""
    if slot == "time":
        return clause.time.german.split()
    if slot == "place":
        return place_phrase(clause.place)
    item, case = {
        "subject": (clause.subject, "nom"),
        "direct": (clause.direct, "acc"),
        "indirect": (clause.indirect, "dat"),
    }[slot]
    return argument(item, case)


def verb_second(clause: Clause, front: list[str], fronted: str = "") -> list[str]:
    """Return `front`, the finite verb, the middle field, the end of the bracket."""
    finite, closing, particle = _verb_complex(clause)
    return [*front, finite, *_middle_field(clause, fronted, True), *([particle] if particle else []), *closing]


def verb_final(clause: Clause) -> list[str]:
    """Return a subordinate clause: the finite verb comes last and keeps its particle (weil er die Tür aufmacht)."""
    finite, closing, particle = _verb_complex(clause)
    return [*_middle_field(clause, "", False), *closing, particle + finite]


def tokens(sentence: Sentence) -> list[str]:
    """Return the sentence as tokens; nouns keep their capitals, the first word is as in the dictionary."""
    main = sentence.main
    if sentence.conjunction in REPORTING:
        verb = REPORTING[sentence.conjunction][0] if main.subject.plural else sentence.conjunction
        return [*argument(main.subject, "nom"), verb, ",", "dass", *verb_final(sentence.subordinate), "."]
    if sentence.kind != "statement":
        word = _QUESTION_WORDS.get(sentence.kind)
        return [*verb_second(main, [word] if word else []), "?"]
    if not sentence.subordinate:
        return [*verb_second(main, _front(main, sentence.front), sentence.front), "."]
    subordinate = [sentence.conjunction, *verb_final(sentence.subordinate)]
    if sentence.subordinate_first:
        return [*subordinate, ",", *verb_second(main, []), "."]
    return [*verb_second(main, _front(main, sentence.front), sentence.front), ",", *subordinate, "."]
