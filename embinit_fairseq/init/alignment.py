"""What a source of vectors, or several together, have for a dictionary: match, read, put together.

A word is matched if one source has it. What the others lack is left to the strategies, which fill it as they fill
whole rows (`Source.gaps`). Letters: N rows of the dictionary, K of them matched, D columns; of one file k and d.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.report import coverage, describe
from embinit_fairseq.init.strategies import Gap, Source
from embinit_fairseq.vectors.open import SourceSpec
from embinit_fairseq.vectors.table import Origin, VectorReader, VectorTable, Wanted
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.matching import RULES, Matcher, fold, readings
from embinit_fairseq.vocab.tokens import (
    STYLES,
    Token,
    as_text,
    detect_style,
    ignores_spaces,
    in_bytes,
    parse,
    spell,
    unmarked,
)

# ---- Which row of a source belongs to which row of a model's matrix, and by which rule (`vocab.matching`) -----------

#: Names of rules in reports, the closer match first.
_REPORTED = (
    "special",
    "exact",
    "entities",
    "marker",
    "entities_marker",
    "casefold",
    "entities_casefold",
    "marker_casefold",
    "entities_marker_casefold",
)


@dataclass
class Alignment:
    """For each of the N rows of a model's embedding matrix the row of the source it takes.

    source_row: (N,) int64 into `VectorTable.matrix`, -1 = none. rule: what matched, per row: "special" (the source's
    own special row, kept in `VectorTable.specials`), rules of `vocab.matching`, or "" (nothing). style, source_style:
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


def read_tokens(vocabulary: Vocabulary, markers: str = "auto") -> tuple[str, dict[int, Token]]:
    """Read the dictionary's symbols: (their style, row -> token of each row that stands for text).

    markers: the style, or "auto" to recognise it from the symbols.
    """
    rows = np.flatnonzero(vocabulary.regular).tolist()
    pieces = [row for row in rows if row not in vocabulary.added]
    symbols = [vocabulary.symbols[row] for row in pieces]
    style = detect_style(symbols) if markers == "auto" else markers
    tokens = {row: parse(text, style) for row, text in zip(pieces, as_text(symbols, style))}
    return style, tokens | {row: unmarked(vocabulary.symbols[row]) for row in rows if row in vocabulary.added}


def plan(vocabulary: Vocabulary, markers: str = "auto") -> Wanted:
    """Want every row that a rule may match with the dictionary, whatever the style of the source."""
    _, tokens = read_tokens(vocabulary, markers)
    spellings = {vocabulary.symbols[row] for row in tokens}
    spellings.add("####")  # shows that the source is a list of words with masked digits (`detect_style`)
    for token in itertools.chain.from_iterable(map(readings, tokens.values())):
        anywhere = replace(token, initial=None) if ignores_spaces(token.surface) else token
        for source_style in STYLES:
            spellings.update(spell(anywhere, source_style))
        if not token.surface.isascii():
            in_text = [*spell(anywhere, "bytelevel"), *spell(anywhere, "end_of_word")]
            spellings.update(map(in_bytes, in_text))
    return Wanted(folded=frozenset(map(fold, spellings)))


def align(
    vocabulary: Vocabulary, table: VectorTable, rules: Collection[str] = RULES, markers: str = "auto"
) -> Alignment:
    """Match every row of the dictionary with at most one row of the source.

    Special rows take the source's own special rows where its format defines them; a word of the file that happens
    to be spelled `<s>` is never taken. `<pad>` takes nothing.
    """
    style, tokens = read_tokens(vocabulary, markers)
    source_style = table.origin.markers
    if source_style == "auto":
        source_style = detect_style(table.words)
    source_row = np.full(len(vocabulary), -1, dtype=np.int64)
    rule = [""] * len(vocabulary)
    for row, role in vocabulary.roles.items():
        if role != "pad" and role in table.specials:
            rule[row] = "special"
    matcher = Matcher(table.words, source_style, rules, table.added)
    for row, token in tokens.items():
        source_row[row], rule[row] = matcher.match(token)
    return Alignment(source_row, rule, style, source_style)


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
    wanted = plan(vocabulary, markers)
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
    _, tokens = read_tokens(vocabulary, alignment.style)
    missing = {row: readings(token, rules)[-1] for row, token in tokens.items() if not alignment.rule[row]}
    surfaces = {row: token.surface for row, token in missing.items() if token.initial is not False and token.surface}
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
