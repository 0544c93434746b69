"""Match vectors, of one file or of several together, with the rows of a dictionary.

Begin at `read`: it opens the files, reads the rows that the dictionary needs, matches them, puts several files
together and judges the coverage. A word is matched if one file has it. Elements that the other files lack are filled by
the strategies, as whole rows are (`Source.gaps`).
Letters: N rows of the dictionary, K of them matched, D columns; of one file k and d.
"""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from embinit_fairseq.errors import CoverageError, OptionError, counted, named_by
from embinit_fairseq.init.init_report import coverage, describe
from embinit_fairseq.init.strategies import Gap, Source
from embinit_fairseq.vectors.open import SourceSpec, open_sources
from embinit_fairseq.vectors.table import Origin, VectorReader, VectorTable, Wanted
from embinit_fairseq.vocab.dictionary import WRITE_SUBWORDS, Vocabulary, is_number
from embinit_fairseq.vocab.matching import (
    DIGIT_WORDS,
    MASKS,
    PLAIN,
    RULES,
    Matcher,
    Spelling,
    find_masks,
    fold,
    readings,
)
from embinit_fairseq.vocab.subword_styles import (
    STYLES,
    Token,
    as_text,
    detect_style,
    escaped,
    ignores_spaces,
    in_bytes,
    parse,
    respell,
    spell,
    unmarked,
)

logger = logging.getLogger(__name__)

#: share of the running tokens below which a warning is logged: vectors of another language reach a third (names,
#: punctuation, words of both languages)
LOW_COVERAGE = 0.5
#: rules in the order of the reports, the closer match first
_REPORTED = ("special", "exact", "entities", "normalised", "digits", "label", "marker", "casefold")


@dataclass(frozen=True)
class Matching:
    """How vectors are matched with a dictionary.

    Args:
        rules: names from `vocab.matching.RULES`: how a dictionary's word and a vector's word may differ.
        markers: subword style of the dictionary, "auto" to recognise it.
        oov: rule for rows without a vector, one of `strategies.OOV_CHOICES`.
        strict: refuse files with broken lines.
    """

    rules: Collection[str] = RULES
    markers: str = "auto"
    oov: str = "xavier"
    strict: bool = False


@dataclass
class Alignment:
    """Hold, for each of the N rows of an embedding matrix, the row of the vectors that it takes.

    source_row: (N,) int64 into `VectorTable.matrix`, -1 for none. rule: the rule of the match, per row: "special" (the
    vectors' own special row, in `VectorTable.specials`), rules of `vocab.matching`, or "" (not matched). style,
    source_style: the subword styles of the two vocabularies. spelling: how the vectors spell words. is_lower: words
    with capitals were found, but in lower case only, as in BPEmb's vectors. form: the normal form of Unicode that the
    vectors have, None if their words do not show it.
    """

    source_row: np.ndarray
    rule: list[str]
    style: str
    source_style: str
    spelling: Spelling = PLAIN
    is_lower: bool = False
    form: Literal["NFC", "NFD"] | None = None

    @property
    def matched(self) -> np.ndarray:
        """Return (N,) bool: rows with a vector, special rows included."""
        return np.array([rule != "" for rule in self.rule], dtype=bool)

    def counts_by_rule(self) -> dict[str, int]:
        """Return rule -> number of rows."""
        counts = Counter(filter(None, self.rule))
        order = {name: sum(1 << _REPORTED.index(rule) for rule in name.split("_")) for name in counts}
        return {name: counts[name] for name in sorted(counts, key=order.__getitem__)}

    def gather(self, table: VectorTable, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """Return the matched rows, ascending (K,) int64, and their vectors (K, D) float32."""
        rows = np.flatnonzero(self.matched)
        vectors = np.empty((len(rows), table.matrix.shape[1]), dtype=np.float32)
        special = np.array([self.rule[row] == "special" for row in rows], dtype=bool)
        vectors[~special] = table.matrix[self.source_row[rows[~special]]]
        for at in np.flatnonzero(special):
            vectors[at] = table.specials[vocabulary.roles[int(rows[at])]]
        return rows, vectors


@dataclass
class Part:
    """Hold the vectors of one file for the dictionary.

    rows, vectors: (k,) and (k, d), matched; moments: moments of these vectors in the file. composed_rows, composed:
    (j,) and (j, d), composed from the file's subwords.
    """

    origin: Origin
    alignment: Alignment
    coverage: dict[str, Any]
    rows: np.ndarray
    vectors: np.ndarray
    moments: dict[str, float]
    composed_rows: np.ndarray
    composed: np.ndarray


@dataclass
class Reading:
    """Hold the vectors for one embedding matrix.

    source: the input of a strategy. parts: one per file. matched: (N,) bool, rows that a file has, special rows
    included. complete: (N,) bool, matched rows whose elements all come from files. found_in_all: words that every file
    has.
    """

    spec: SourceSpec
    source: Source
    parts: list[Part]
    matched: np.ndarray
    complete: np.ndarray
    coverage: dict[str, Any]
    found_in_all: int

    def rows_by_rule(self) -> dict[str, int]:
        """Return rule -> number of rows; with several files, the rule of the first that has the row counts."""
        rules = [next(filter(None, rules), "") for rules in zip(*(part.alignment.rule for part in self.parts))]
        return replace(self.parts[0].alignment, rule=rules).counts_by_rule()


def read(
    spec: SourceSpec,
    vocabulary: Vocabulary,
    matching: Matching = Matching(),
    dim: int | None = None,
    side: str | None = None,
    flag: str = "",
) -> Reading:
    """Open the files, read the rows that the dictionary needs, and judge the coverage.

    Args:
        spec: the files.
        vocabulary: the dictionary.
        matching: how the two are matched.
        dim: the expected D (None: any).
        side: `encoder` or `decoder`: which embedding matrix of a model with two.
        flag: option that names the files, with its separator (`--vectors `), for messages.

    Raises:
        VectorFileError, CheckpointError: if a file cannot be read.
        DimensionError: if the vectors have another D.
        CoverageError: if a file has no word of the dictionary, or words and the dictionary ids of subwords.
        OptionError: if vectors of different dimensions are to be averaged, or words composed without subwords.
    """
    with named_by(flag):
        readers = open_sources(spec, dim, matching.strict, side)
        for reader in readers:
            _check_ids(reader, vocabulary)
        reading = read_sources(readers, spec, vocabulary, matching)
        for reader, part in zip(readers, reading.parts):
            # a file of a mean may have one of the languages of a joined dictionary
            is_enough = spec.how == "avg" and (reading.coverage["coverage_tokens"] or 0) >= LOW_COVERAGE
            _check_coverage(reader, part, vocabulary, is_enough)
    return reading


def _check_ids(reader: VectorReader, vocabulary: Vocabulary) -> None:
    """Raise CoverageError if numbers among words would be taken for ids of subwords."""
    symbols = ", ".join([vocabulary.symbols[row] for row in np.flatnonzero(vocabulary.regular)[:3]])
    words = reader.first_words()
    if reader.has_ids and vocabulary.has_words:
        raise CoverageError(
            f"{reader.path}: its words are ids of subwords ({', '.join(words[:3])}, ...), and the dictionary has words "
            f"({symbols}, ...), whose numbers would take the vectors of ids; {WRITE_SUBWORDS}, or choose vectors of "
            "words"
        )
    words = [word for word in words if not is_number(word) and word[:1] not in ("", "<", "[")]
    if words and vocabulary.has_ids:
        raise CoverageError(
            f"{reader.path}: the symbols of the dictionary are numbers ({symbols}, ...), as ids of subwords are "
            f"(GPT-2's, spm_encode --output_format=id), and this file has words ({', '.join(words[:3])}); preprocess "
            "text in subwords (--output_format=piece), or give an .npz file whose words are the ids"
        )


def _check_coverage(reader: VectorReader, part: Part, vocabulary: Vocabulary, is_enough: bool) -> None:
    """Raise CoverageError if a file has no word of the dictionary; warn if it has few, unless `is_enough`."""
    count, share = part.coverage["found"], part.coverage["coverage_tokens"]
    if not count:
        examples = [vocabulary.symbols[row] for row in np.flatnonzero(vocabulary.regular)[:5]]
        words = reader.first_words()[:5]
        raise CoverageError(
            f"{reader.path}: none of the {int(vocabulary.regular.sum()):,} words of the dictionary is among the "
            f"{part.origin.rows:,} rows of this file ({part.origin.format}); the dictionary has words like {examples}"
            f"{f', the file words like {words}' if words else ''}: is it another language, spelling or segmentation, "
            "or is the matching too narrow?"
        )
    if share is not None and share < LOW_COVERAGE and not is_enough:
        logger.warning(
            "LOW COVERAGE: %s has vectors for only %.1f %% of the running tokens of the dictionary (%s matched); is it "
            "the file of another language, case or segmentation?",
            reader.path,
            100 * share,
            counted(int(count), "word"),
        )


def read_sources(
    readers: Sequence[VectorReader], spec: SourceSpec, vocabulary: Vocabulary, matching: Matching = Matching()
) -> Reading:
    """Read the rows that the dictionary needs, whatever their coverage. readers: the opened files of `spec`."""
    parts = [_read(reader, vocabulary, matching) for reader in readers]
    if matching.oov == "subword":
        _compose(parts, readers, vocabulary, matching.rules)
    if spec.unit:
        for part in parts:
            part.vectors, part.composed = _unit(part.vectors), _unit(part.composed)
    source = {None: _one, "concat": _side_by_side, "avg": _mean}[spec.how](parts)
    source.oov = matching.oov
    matched, complete = np.zeros((2, len(vocabulary)), dtype=bool)
    matched[source.rows] = True
    complete[source.rows[source.complete]] = True
    in_all = np.logical_and.reduce([part.alignment.matched for part in parts])
    found_in_all = int((in_all & vocabulary.regular).sum())
    return Reading(spec, source, parts, matched, complete, coverage(vocabulary, matched), found_in_all)


# ---- Match one file -------------------------------------------------------------------------------------------------


def read_tokens(vocabulary: Vocabulary, markers: str = "auto") -> tuple[str, dict[int, Token]]:
    """Read the dictionary's symbols: return their style, and row -> token of each row of text.

    markers: the style, or "auto" to recognise it from the symbols.
    """
    rows = np.flatnonzero(vocabulary.regular).tolist()
    subwords = [row for row in rows if row not in vocabulary.added]
    symbols = [vocabulary.symbols[row] for row in subwords]
    style = detect_style(symbols) if markers == "auto" else markers
    tokens = {row: parse(text, style) for row, text in zip(subwords, as_text(symbols, style))}
    return style, tokens | {row: unmarked(vocabulary.symbols[row]) for row in rows if row in vocabulary.added}


def read_table(reader: VectorReader, vocabulary: Vocabulary, markers: str = "auto") -> VectorTable:
    """Read the rows that the dictionary needs; of a file in several languages, only the dictionary's."""
    spelling = reader.spelling
    table = replace(reader.read(plan(vocabulary, markers, spelling)), spelling=spelling)
    return _in_one_language(table, vocabulary, markers)


def plan(vocabulary: Vocabulary, markers: str = "auto", spelling: Spelling = PLAIN) -> Wanted:
    """Return every word that a rule may match with the dictionary, whatever the style of the vectors.

    spelling: how the vectors spell words, as far as it is known before they are read.
    """
    _, tokens = read_tokens(vocabulary, markers)
    spelling = replace(spelling, masks=MASKS)
    spellings = {vocabulary.symbols[row] for row in tokens}
    texts = {text for token in tokens.values() for text, _ in readings(token, RULES, spelling)}
    texts |= {respell(token, text) for token in texts for text in escaped(token.surface)}
    for token in texts.union(Token(word, True, True) for word in DIGIT_WORDS):
        anywhere = replace(token, initial=None, final=None) if ignores_spaces(token.surface) else token
        for source_style in STYLES:
            spellings.update(spell(anywhere, source_style))
        if not token.surface.isascii():
            in_text = [*spell(anywhere, "bytelevel"), *spell(anywhere, "end_of_word")]
            spellings.update(map(in_bytes, in_text))
    return Wanted(
        folded=frozenset(map(fold, map(spelling.bare, spellings) if spelling.label else spellings)), spelling=spelling
    )


def _in_one_language(table: VectorTable, vocabulary: Vocabulary, markers: str) -> VectorTable:
    """Return the rows of the language that has the most running tokens of the dictionary."""
    languages = [table.spelling.language(word) for word in table.words]
    if len(set(languages)) < 2:
        return table
    words: dict[str, set[str]] = {}
    for word, language in zip(table.words, languages):
        words.setdefault(fold(table.spelling.bare(word)), set()).add(language)
    tokens = Counter[str]()
    weights = vocabulary.counts if vocabulary.has_counts else np.ones(len(vocabulary), np.int64)
    for row, token in read_tokens(vocabulary, markers)[1].items():
        tokens.update(dict.fromkeys(words.get(fold(token.surface), ()), int(weights[row])))
    best = max(filter(None, languages), key=tokens.__getitem__)
    chosen = [row for row, language in enumerate(languages) if language in ("", best)]
    logger.info("%s: words of %d languages, %s is taken", table.origin.path, len(set(languages) - {""}), best)
    origin = replace(table.origin, language=best)
    return replace(table, words=[table.words[row] for row in chosen], matrix=table.matrix[chosen], origin=origin)


def align(
    vocabulary: Vocabulary, table: VectorTable, rules: Collection[str] = RULES, markers: str = "auto"
) -> Alignment:
    """Match every row of the dictionary with at most one row of the vectors.

    Special rows take the vectors' own special rows if their format defines them; a word of the file that happens to be
    spelled `<s>` is never taken. `<pad>` takes nothing.
    """
    style, tokens = read_tokens(vocabulary, markers)
    source_style = table.origin.markers
    if source_style == "auto":
        source_style = detect_style(map(table.spelling.bare, table.words))
    source_row = np.full(len(vocabulary), -1, dtype=np.int64)
    rule = [""] * len(vocabulary)
    for row, role in vocabulary.roles.items():
        if role != "pad" and role in table.specials:
            rule[row] = "special"
    spelling = replace(table.spelling, masks=find_masks(table.words, source_style))
    matcher = Matcher(table.words, source_style, rules, table.added, spelling)
    for row, token in tokens.items():
        source_row[row], rule[row] = matcher.match(token)
    is_lower = any("casefold" in name for name in rule) and all(word == word.lower() for word in table.words)
    return Alignment(source_row, rule, style, source_style, spelling, is_lower, _form(table.words))


def _form(words: Sequence[str]) -> Literal["NFC", "NFD"] | None:
    """Return the normal form of Unicode of most words; None if as many words have the one as the other."""
    beyond_ascii = [word for word in words if not word.isascii()]
    nfc, nfd = (sum(unicodedata.is_normalized(form, word) for word in beyond_ascii) for form in ("NFC", "NFD"))
    return None if nfc == nfd else "NFC" if nfc > nfd else "NFD"


def _read(reader: VectorReader, vocabulary: Vocabulary, matching: Matching) -> Part:
    table = read_table(reader, vocabulary, matching.markers)
    alignment = align(vocabulary, table, matching.rules, matching.markers)
    rows, vectors = alignment.gather(table, vocabulary)
    nothing = np.empty(0, dtype=np.int64), np.empty((0, reader.dim), dtype=np.float32)
    covered = coverage(vocabulary, alignment.matched)
    return Part(table.origin, alignment, covered, rows, vectors, describe(vectors), *nothing)


def _compose(
    parts: list[Part], readers: Sequence[VectorReader], vocabulary: Vocabulary, rules: Collection[str]
) -> None:
    """Add the rows that each file's subwords can compose; raise OptionError if no file has subwords."""
    refused: list[OptionError] = []
    for part, reader in zip(parts, readers):
        try:
            part.composed_rows, part.composed = _composed(part.alignment, reader, vocabulary, rules)
        except OptionError as error:
            refused.append(error)
            if len(refused) == len(parts):
                raise refused[0] from None
            logger.warning("oov subword: %s has no subwords: rows that it lacks are drawn (xavier)", reader.path)


def _composed(
    alignment: Alignment, reader: VectorReader, vocabulary: Vocabulary, rules: Collection[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that the file's subwords can compose: (j,) and (j, d).

    A reader segments whole words, so only tokens that begin one are composed: the inner subword `ing` is not the word
    "ing".
    """
    _, tokens = read_tokens(vocabulary, alignment.style)
    spelling = alignment.spelling
    missing = {row: readings(token, rules, spelling)[-1][0] for row, token in tokens.items() if not alignment.rule[row]}
    surfaces = {row: token.surface for row, token in missing.items() if token.initial is not False and token.surface}
    if alignment.is_lower:
        surfaces = {row: surface.lower().replace("i\u0307", "i") for row, surface in surfaces.items()}
    if form := alignment.form:
        surfaces = {row: unicodedata.normalize(form, surface) for row, surface in surfaces.items()}
    composed = reader.compose(sorted(set(surfaces.values())))
    hits = [(row, composed[surface]) for row, surface in surfaces.items() if surface in composed]
    if not hits:
        return np.empty(0, dtype=np.int64), np.empty((0, reader.dim), dtype=np.float32)
    return np.array([row for row, _ in hits], dtype=np.int64), np.stack([vector for _, vector in hits])


# ---- Put several files together -------------------------------------------------------------------------------------


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Divide each row by its length; rows of zeros stay."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def _one(parts: list[Part]) -> Source:
    (part,) = parts
    return Source(part.rows, part.vectors, composed_rows=part.composed_rows, composed=part.composed)


def _placed_rows(parts: list[Part]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows that any file has (K,), and the further rows that any can compose (J,), both ascending."""
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
    count = len(rows)
    return Source(rows, values[:count], composed_rows=composed_rows, composed=values[count:], gaps=gaps)


def _mean(parts: list[Part]) -> Source:
    rows, composed_rows = _placed_rows(parts)
    vectors = _mean_of(rows, [(part.rows, part.vectors) for part in parts])
    composed = _mean_of(composed_rows, [(part.composed_rows, part.composed) for part in parts])
    return Source(rows, vectors, composed_rows=composed_rows, composed=composed)


def _mean_of(rows: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the mean of each row over the parts that have it, (len(rows), D) float32, accumulated in float64."""
    total, count = np.zeros((len(rows), parts[0][1].shape[1])), np.zeros(len(rows))
    for part_rows, vectors in parts:
        chosen = np.isin(part_rows, rows)
        places = np.searchsorted(rows, part_rows[chosen])
        total[places] += vectors[chosen]
        count[places] += 1
    return (total / np.maximum(count, 1)[:, None]).astype(np.float32)
