"""What a source of vectors, or several together, have for a dictionary: match, read, put together.

A word is matched if one source has it. What the others lack is left to the strategies, which fill it as they fill
whole rows (`Source.gaps`). Letters: N rows of the dictionary, K of them matched, D columns; of one file k and d.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.report import coverage, describe
from embinit_fairseq.init.strategies import Gap, Source
from embinit_fairseq.vectors.open import SourceSpec
from embinit_fairseq.vectors.table import Origin, VectorReader, VectorTable, Wanted
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.tokens import compatible, detect_style, parse, spell, unescape

# ---- Which row of a source belongs to which row of a model's matrix, and by which rule -------------------------------
# The rules, tried in this order: `exact` spelling; `casefold`, the same word in another case; `marker`, the same
# piece of text in another segmenter's spelling; `marker_casefold`, both. Each is tried for the symbol as it is and then
# for its plain form without Moses' entities (`&apos;s` is `'s`): `entities`, `entities_casefold` and so on.

#: What a user can switch; a rule of two names (`marker_casefold`) needs both.
RULES = ("exact", "entities", "casefold", "marker")
#: Names of rules in reports, in the order in which they are tried.
_REPORTED = (
    "special",
    "exact",
    "entities",
    "casefold",
    "entities_casefold",
    "marker",
    "entities_marker",
    "marker_casefold",
    "entities_marker_casefold",
)
_STYLES = ("none", "subword_nmt", "sentencepiece", "wordpiece", "bytelevel")


@dataclass
class Alignment:
    """For each of the N rows of a model's embedding matrix the row of the source it takes.

    source_row: (N,) int64 into `VectorTable.matrix`, -1 = none. rule: what matched, per row: "special" (the source's
    own special row, kept in `VectorTable.specials`), one of the rules above, or "" (nothing). style, source_style:
    the marker styles of the two vocabularies.
    """

    source_row: np.ndarray
    rule: list[str]
    style: str
    source_style: str

    @property
    def found(self) -> np.ndarray:
        """(N,) bool: rows that the source provides, special rows included."""
        return np.array([rule != "" for rule in self.rule], dtype=bool)

    def counts_by_rule(self) -> dict[str, int]:
        """How many rows each rule found."""
        return {name: count for name in _REPORTED if (count := self.rule.count(name))}

    def gather(self, table: VectorTable, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """The rows that were found, ascending (K,) int64, and their vectors (K, D) float32."""
        rows = np.flatnonzero(self.found)
        vectors = np.empty((len(rows), table.matrix.shape[1]), dtype=np.float32)
        special = np.array([self.rule[row] == "special" for row in rows], dtype=bool)
        vectors[~special] = table.matrix[self.source_row[rows[~special]]]
        for at in np.flatnonzero(special):
            vectors[at] = table.specials[vocabulary.roles[int(rows[at])]]
        return rows, vectors


def resolve_style(vocabulary: Vocabulary, markers: str = "auto") -> str:
    """The marker style of the dictionary: as told, or recognised from its symbols."""
    if markers != "auto":
        return markers
    return detect_style(vocabulary.symbols[row] for row in np.flatnonzero(vocabulary.regular).tolist())


def spellings(symbol: str, rules: Collection[str]) -> list[str]:
    """The symbol and, where it has Moses' entities and the rule is on, its plain form."""
    plain = unescape(symbol) if "&" in symbol and "entities" in rules else symbol
    return [symbol] if plain == symbol else [symbol, plain]


def plan(vocabulary: Vocabulary, rules: Collection[str] = RULES, markers: str = "auto") -> Wanted:
    """Every spelling under which a source, whatever its style, may hold a row of this dictionary."""
    style = resolve_style(vocabulary, markers)
    exact: set[str] = set()
    for row in np.flatnonzero(vocabulary.regular).tolist():
        for form in spellings(vocabulary.symbols[row], rules):
            exact.add(form)
            if "marker" in rules:
                token = parse(form, style)
                for source_style in _STYLES:
                    exact.update(spell(token, source_style))
    folded = {word.casefold() for word in exact} if "casefold" in rules else ()
    return Wanted(frozenset(exact), frozenset(folded))


def align(
    vocabulary: Vocabulary, table: VectorTable, rules: Collection[str] = RULES, markers: str = "auto"
) -> Alignment:
    """Match every row of the dictionary with at most one row of the source.

    Special rows take the source's own special rows where its format defines them; a word of the file that happens
    to be spelled `<s>` is never taken. `<pad>` takes nothing. Among rows equal up to case the first one wins.
    """
    style = resolve_style(vocabulary, markers)
    source_style = table.origin.markers
    if source_style == "auto":
        source_style = detect_style(table.words)
    matcher = _Matcher(table, rules, style, source_style)
    source_row = np.full(len(vocabulary), -1, dtype=np.int64)
    rule = [""] * len(vocabulary)
    for row, role in vocabulary.roles.items():
        if role != "pad" and role in table.specials:
            rule[row] = "special"
    for row in np.flatnonzero(vocabulary.regular).tolist():
        source_row[row], rule[row] = matcher.match(vocabulary.symbols[row])
    return Alignment(source_row, rule, style, source_style)


class _Matcher:
    def __init__(self, table: VectorTable, rules: Collection[str], style: str, source_style: str) -> None:
        self.rules, self.style, self.source_style = rules, style, source_style
        self.exact: dict[str, int] = {}
        self.folded: dict[str, int] = {}
        for row, word in enumerate(table.words):
            self.exact.setdefault(word, row)
        if "casefold" in rules:
            for row, word in enumerate(table.words):
                self.folded.setdefault(word.casefold(), row)

    def match(self, symbol: str) -> tuple[int, str]:
        """(row of the source, rule); (-1, "") without a match."""
        forms = spellings(symbol, self.rules)
        for step in (self._same_case, self._other_case, self._translated):
            for form in forms:
                row, rule = step(form, plain=form != symbol)
                if rule and form != symbol:
                    rule = "entities" if rule == "exact" else f"entities_{rule}"
                if rule:
                    return row, rule
        return -1, ""

    def _same_case(self, form: str, plain: bool) -> tuple[int, str]:
        # Words are word-initial: where a segmenter has both `▁haus` and the inner piece `haus`, the first is the word.
        if self.style == "none" and "marker" in self.rules:
            translated = self._translations(form)
            if form not in translated and (match := self._first(self.exact, translated)) is not None:
                return match, "marker"
        # that a plain form is spelled like its row needs no other rule than `entities`
        if (plain or "exact" in self.rules) and form in self.exact and self._means_the_same(form):
            return self.exact[form], "exact"
        return -1, ""

    def _other_case(self, form: str, plain: bool) -> tuple[int, str]:
        folded = form.casefold()
        if "casefold" in self.rules and folded in self.folded and self._means_the_same(form):
            return self.folded[folded], "casefold"
        return -1, ""

    def _translated(self, form: str, plain: bool) -> tuple[int, str]:
        if "marker" in self.rules:
            translated = self._translations(form)
            if (match := self._first(self.exact, translated)) is not None:
                return match, "marker"
            if "casefold" in self.rules:
                translated = [word.casefold() for word in translated]
                if (match := self._first(self.folded, translated)) is not None:
                    return match, "marker_casefold"
        return -1, ""

    def _translations(self, form: str) -> list[str]:
        return spell(parse(form, self.style), self.source_style)

    def _means_the_same(self, form: str) -> bool:
        """Equal spelling is equal text unless two *segmenters* disagree about what the spelling means.

        `ing` is inside a word for sentencepiece, at its beginning for BERT.
        """
        typed = "none" not in (self.style, self.source_style) and self.style != self.source_style
        return not typed or compatible(parse(form, self.style), parse(form, self.source_style))

    @staticmethod
    def _first(rows: dict[str, int], words: list[str]) -> int | None:
        return next((rows[word] for word in words if word in rows), None)


# ----------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)


@dataclass
class Part:
    """What one file has for the dictionary.

    rows, vectors: (k,) and (k, d), what was matched; composed_rows, composed: (j,) and (j, d), what its sub-words can
    express. moments: of the vectors as the file has them.
    """

    origin: Origin
    alignment: Alignment
    coverage: dict[str, float | int]
    rows: np.ndarray
    vectors: np.ndarray
    moments: dict[str, float]
    composed_rows: np.ndarray
    composed: np.ndarray


@dataclass
class Reading:
    """What was read for one embedding matrix: source, ready for a strategy; parts, one a file; spec."""

    spec: SourceSpec
    source: Source
    parts: list[Part]
    matched: np.ndarray  # (N,) bool: rows that a source has, special rows included
    known: np.ndarray  # (N,) bool: of these the rows of which every element comes from a source
    coverage: dict[str, float | int]
    found_in_all: int  # words that every source has

    def rows_by_rule(self) -> dict[str, int]:
        """How many rows each rule matched; with several sources, the rule of the first that has the row."""
        rules = [next(filter(None, rules), "") for rules in zip(*(part.alignment.rule for part in self.parts))]
        first = self.parts[0].alignment
        return Alignment(first.source_row, rules, first.style, first.source_style).counts_by_rule()


def read_sources(
    readers: Sequence[VectorReader],
    spec: SourceSpec,
    vocabulary: Vocabulary,
    rules: Collection[str] = RULES,
    markers: str = "auto",
    oov: str = "xavier",
    compose: bool = False,
) -> Reading:
    """Read the rows that the dictionary needs. compose: and what sub-words can express (`--embed-init-oov subword`)."""
    wanted = plan(vocabulary, rules, markers)
    parts = [_read(reader, vocabulary, wanted, rules, markers) for reader in readers]
    if compose:
        _compose(parts, readers, vocabulary, rules)
    if spec.unit:
        for part in parts:
            part.vectors, part.composed = _unit(part.vectors), _unit(part.composed)
    source = {None: _one, "concat": _side_by_side, "avg": _mean}[spec.how](parts)
    source.oov = oov
    matched = np.zeros(len(vocabulary), dtype=bool)
    matched[source.rows] = True
    known = np.zeros(len(vocabulary), dtype=bool)
    known[source.rows[source.complete]] = True
    in_all = np.logical_and.reduce([part.alignment.found for part in parts])
    found_in_all = int((in_all & vocabulary.regular).sum())
    return Reading(spec, source, parts, matched, known, coverage(vocabulary, matched), found_in_all)


def _read(reader: VectorReader, vocabulary: Vocabulary, wanted: Wanted, rules: Collection[str], markers: str) -> Part:
    table = reader.read(wanted)
    alignment = align(vocabulary, table, rules, markers)
    rows, vectors = alignment.gather(table, vocabulary)
    nothing = np.empty(0, dtype=np.int64), np.empty((0, reader.dim), dtype=np.float32)
    covered = coverage(vocabulary, alignment.found)
    return Part(table.origin, alignment, covered, rows, vectors, describe(vectors), *nothing)


def _compose(
    parts: list[Part], readers: Sequence[VectorReader], vocabulary: Vocabulary, rules: Collection[str]
) -> None:
    """Add the rows that each source's sub-words can express; OptionError if no source has sub-words."""
    refused: list[OptionError] = []
    for part, reader in zip(parts, readers):
        try:
            part.composed_rows, part.composed = _composed(part.alignment, reader, vocabulary, rules)
        except OptionError as error:
            refused.append(error)
            if len(refused) == len(parts):
                raise refused[0] from None
            where = "%s has no sub-words to compose from: what it lacks is drawn (xavier)"
            logger.warning("--embed-init-oov subword: " + where, reader.path)


def _composed(
    alignment: Alignment, reader: VectorReader, vocabulary: Vocabulary, rules: Collection[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows that the source's sub-words can express: (J,) and (J, D).

    A source cuts words, so only tokens that begin one are asked for: the inner piece `ing` is not the word "ing".
    """
    missing = np.flatnonzero(vocabulary.regular & ~alignment.found).tolist()
    plain = [spellings(vocabulary.symbols[row], rules)[-1] for row in missing]
    tokens = [(row, parse(symbol, alignment.style)) for row, symbol in zip(missing, plain)]
    surfaces = {row: token.surface for row, token in tokens if token.initial is not False and token.surface}
    composed = reader.compose(sorted(set(surfaces.values())))
    hits = [(row, composed[surface]) for row, surface in surfaces.items() if surface in composed]
    if not hits:
        return np.empty(0, dtype=np.int64), np.empty((0, reader.dim), dtype=np.float32)
    return np.array([row for row, _ in hits], dtype=np.int64), np.stack([vector for _, vector in hits])


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Each row divided by its length; rows of zeros stay."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def _one(parts: list[Part]) -> Source:
    (part,) = parts
    return Source(part.rows, part.vectors, composed_rows=part.composed_rows, composed=part.composed)


def _placed_rows(parts: list[Part]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that any source has (K,), and the further ones that any can compose (J,), both ascending."""
    rows = np.unique(np.concatenate([part.rows for part in parts]))
    return rows, np.setdiff1d(np.concatenate([part.composed_rows for part in parts]), rows)


def _side_by_side(parts: list[Part]) -> Source:
    rows, composed_rows = _placed_rows(parts)
    placed = np.concatenate([rows, composed_rows])
    place = np.full(placed.max(initial=-1) + 1, -1)
    place[placed] = np.arange(len(placed))
    edges = np.cumsum([0] + [part.vectors.shape[1] for part in parts])
    values = np.zeros((len(placed), edges[-1]), dtype=np.float32)
    gaps = []
    for part, start, end in zip(parts, edges, edges[1:]):
        columns = slice(int(start), int(end))
        values[place[part.rows], columns] = part.vectors
        values[place[part.composed_rows], columns] = part.composed
        lacking = np.setdiff1d(np.arange(len(placed)), place[part.rows])
        if len(lacking):
            gaps.append(Gap(columns, lacking, np.isin(lacking, place[part.composed_rows])))
    kept = len(rows)
    return Source(rows, values[:kept], composed_rows=composed_rows, composed=values[kept:], gaps=gaps)


def _mean(parts: list[Part]) -> Source:
    rows, composed_rows = _placed_rows(parts)
    vectors = _mean_of(rows, [(part.rows, part.vectors) for part in parts])
    composed = _mean_of(composed_rows, [(part.composed_rows, part.composed) for part in parts])
    return Source(rows, vectors, composed_rows=composed_rows, composed=composed)


def _mean_of(rows: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """(len(rows), D) float32: for each row the mean over the parts that have it, accumulated in float64."""
    total, count = np.zeros((len(rows), parts[0][1].shape[1])), np.zeros(len(rows))
    for own, vectors in parts:
        chosen = np.isin(own, rows)
        places = np.searchsorted(rows, own[chosen])
        total[places] += vectors[chosen]
        count[places] += 1
    return (total / np.maximum(count, 1)[:, None]).astype(np.float32)
