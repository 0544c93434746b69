"""From Python, without fairseq: read vectors, make an embedding matrix, fill an `nn.Embedding` (only this needs torch).

    import embinit_fairseq as ei

    vectors = ei.load_vectors("glove.6B.300d.txt", words=["cat", "dog"])
    matrix, report = ei.embedding_matrix(symbols, "glove.6B.300d.txt", "pretrained_xavier", pad=0)
    ei.init_embedding_(model.get_input_embeddings(), tokenizer, "glove.6B.300d.txt")   # a Hugging Face model

The numbers are those of `--embed-init` with the same seed and the same symbols in the same rows (slot `encoder`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from embinit_fairseq.errors import CoverageError, DimensionError, OptionError, counted, renamed
from embinit_fairseq.init.alignment import RULES, Reading, read_sources
from embinit_fairseq.init.draws import OOV_CHOICES, Draws, TargetStd, check_seed, parse_std
from embinit_fairseq.init.report import describe
from embinit_fairseq.init.strategies import SCALED, STRATEGIES, Strategy, build
from embinit_fairseq.vectors.open import open_sources, open_vectors, parse_source
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.writers import write_npz, write_text
from embinit_fairseq.vocab.dictionary import Vocabulary, read_dictionary, vocabulary_of
from embinit_fairseq.vocab.tokens import as_text, detect_style

#: option of the command line -> argument here, for messages
_ARGUMENTS = {"--embed-init-path": "source", "--embed-init-oov subword": "oov='subword'"}
_ARGUMENTS |= {f"--embed-init-{name}": name for name in ("format", "oov", "std", "match")}
#: by what a tokenizer calls its special symbols
_ROLES = ("bos", "cls", "pad", "eos", "sep", "unk", "mask")


@dataclass(repr=False)
class Vectors:
    """words: V, in the order of the source; matrix: (V, D) float32. source: where they are from.

    missing: words that were asked for, but are not in the source.
    """

    words: list[str]
    matrix: np.ndarray
    source: str = ""
    missing: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._rows = {word: row for row, word in reversed(list(enumerate(self.words)))}

    def __repr__(self) -> str:
        missing = f", {len(self.missing):,} missing" if self.missing else ""
        source = f"{self.source}: " if self.source else ""
        return f"Vectors({source}{counted(len(self), 'word')} x {self.matrix.shape[1]}{missing})"

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._rows

    def __getitem__(self, word: str) -> np.ndarray:
        """(D,) the vector of a word. Raises KeyError."""
        return self.matrix[self._rows[word]]

    def most_similar(self, query: str | np.ndarray, count: int = 10) -> list[tuple[str, float]]:
        """The words with the largest cosine to a word (itself left out) or to a vector (D,), and the cosines.

        Raises KeyError for a word that has no vector.
        """
        vector = np.asarray(self[query] if isinstance(query, str) else query, dtype=np.float64)
        own = np.linalg.norm(vector)
        lengths = np.sqrt(np.einsum("vd,vd->v", self.matrix, self.matrix, dtype=np.float64))  # squares leave float32
        cosines = self.matrix @ (vector / (own or 1)).astype(np.float32) / np.where(lengths > 0, lengths, np.inf)
        if isinstance(query, str):
            cosines[self._rows[query]] = -np.inf
        count = min(count, len(self) - isinstance(query, str))
        nearest = np.argsort(-cosines, kind="stable")[:count]
        return [(self.words[row], float(cosines[row])) for row in nearest]

    def save(self, path: str | os.PathLike[str], option: str = "") -> None:
        """Write them: `.npz`, text in word2vec's format if the name ends in `.vec`, else GloVe's; `.gz` compresses.

        option: the flag that named the path, for messages.
        Raises VectorFileError for what cannot be written there, OutputError for the place.
        """
        name = os.fspath(path)
        if name.endswith(".npz"):
            write_npz(path, self.words, self.matrix, option)
        else:
            write_text(path, self.words, self.matrix, header=name.removesuffix(".gz").endswith(".vec"), option=option)


class EmbeddingMatrix(NamedTuple):
    """matrix: (N, D) float32. report: what was found and what it looks like, as in `embed_init.json`."""

    matrix: np.ndarray
    report: dict[str, Any]


def load_vectors(
    path: str | os.PathLike[str], words: Collection[str] | None = None, format: str | None = None
) -> Vectors:
    """Read vectors in any format that `--embed-init-path` takes.

    words: only these spellings (None: all); those without a vector are in `missing`. format: None to recognise it.
    Raises VectorFileError, OptionError, CheckpointError.
    """
    if isinstance(words, str):
        raise OptionError(f"words={words!r}: give several, as in words=[{words!r}]")
    wanted = None if words is None else list(dict.fromkeys(words))
    with renamed({**_ARGUMENTS, "--embed-init-path": "path"}):
        table = open_vectors(path, format).read(None if wanted is None else Wanted.words(wanted))
    found = set(table.words)
    missing = [word for word in wanted or () if word not in found]
    return Vectors(table.words, table.matrix, table.origin.path, missing)


@renamed(_ARGUMENTS)
def embedding_matrix(
    symbols: Any,
    source: str | os.PathLike[str] | None = None,
    strategy: str = "pretrained_xavier",
    dim: int | None = None,
    pad: int | str | None = None,
    oov: str = "xavier",
    seed: int = 1,
    std: float | str | None = None,
    match: Collection[str] = RULES,
    slot: str = "encoder",
    format: str | None = None,
) -> EmbeddingMatrix:
    """The table that `--embed-init strategy` would give a model with these symbols.

    Args:
        symbols: of the rows, in their order: a list, a mapping of symbols to rows, the path of a fairseq dict.txt, a
            fairseq Dictionary, or a Hugging Face tokenizer.
        source: vectors, or several as in `--embed-init-path` (`concat:A,B`); None for strategies that draw everything.
        strategy: one of `init.strategies.STRATEGIES`.
        dim: D; by default that of the source.
        pad: row or symbol of the padding, which is zero; by default what symbols say.
        oov: what rows without a vector start as (`--embed-init-oov`).
        seed: `--embed-init-seed`.
        std: `--embed-init-std`.
        match: `--embed-init-match`.
        slot: name of the embedding matrix in a model.
        format: of the source; None to recognise it.

    Returns:
        The matrix, and a report; its `missing` are the symbols without a vector.

    Raises:
        OptionError, VectorFileError, DimensionError, CoverageError: as the flag does.
    """
    chosen = _strategy(strategy, source, std, oov, match)
    if not _is_whole(seed):
        raise OptionError(f"seed={seed!r}: give a whole number from 0")
    check_seed(seed := int(seed), "seed")
    if dim is not None and (not _is_whole(dim) or dim < 1):
        raise OptionError(f"dim={dim!r}: give a whole number from 1")
    vocabulary = _vocabulary(symbols, pad)
    reading = _read(vocabulary, source, format, dim, oov, match, chosen) if chosen.needs_source else None
    if reading is not None:
        dim = reading.source.vectors.shape[1]
    if dim is None:
        raise OptionError(f"dim: {strategy} takes no vectors that say it; give the dimension")
    target = parse_std(None if std is None else str(std)) if chosen.scaled else TargetStd()
    draws = Draws(len(vocabulary), dim, seed, slot, target)
    table = build(chosen.rule_for(std is not None), reading.source if reading else None, draws, vocabulary.pad_row)
    return EmbeddingMatrix(table, _report(strategy, oov, seed, target, vocabulary, table, reading))


def init_embedding_(module: Any, symbols: Any, source: Any = None, strategy: str = "pretrained_xavier", **options: Any):
    """Fill a `torch.nn.Embedding` in place, so that what shares its weight stays tied. Returns the report.

    symbols and options: as for `embedding_matrix`; dim and the row of the padding are the module's. Rows beyond the
    symbols (Hugging Face rounds sizes up) keep what they have; the report counts them (`rows_left`). If it raises, the
    module is as it was.

    Raises:
        DimensionError: there are more symbols than rows, or the vectors have another dimension.
        OptionError: the module is no embedding, has another row of padding than symbols, or cannot hold the values.
    """
    import torch

    if not isinstance(module, torch.nn.Embedding):
        raise OptionError(f"module: a torch.nn.Embedding is needed, this is a {type(module).__name__}")
    weight = module.weight
    _check_weight(module)
    symbols = list(symbols) if isinstance(symbols, Iterator) else symbols  # they are read twice
    if "pad" not in options:
        options["pad"] = _check_pad(module.padding_idx, _vocabulary(symbols, None).pad_row)
    size, dim = weight.shape
    try:
        matrix, report = embedding_matrix(symbols, source, strategy, dim=dim, **options)
    except DimensionError as error:
        remedy = f"make the module a torch.nn.Embedding({size}, {error.dim}), or choose another source"
        raise DimensionError(f"module: {error.fact}; {remedy}") from error
    if len(matrix) > size:
        raise DimensionError(
            f"module: {len(matrix)} symbols for an embedding of {size} rows: is this the tokenizer of this model? "
            "(model.resize_token_embeddings makes more rows)"
        )
    rows = torch.from_numpy(matrix).to(device=weight.device, dtype=weight.dtype)
    if not torch.isfinite(rows).all():
        raise OptionError(f"module: {weight.dtype} cannot hold the values; make it module.float(), or give std")
    with torch.no_grad():
        weight[: len(rows)] = rows
    return {**report, "rows_left": size - len(rows)}


def _check_pad(module: int | None, symbols: int | None) -> int | None:
    """The row of the padding; OptionError if two are said."""
    if None not in (module, symbols) and module != symbols:
        raise OptionError(
            f"module: its padding is row {module}, that of the symbols row {symbols}: is this the tokenizer of this "
            "model? (pad=ROW says which it is)"
        )
    return symbols if module is None else module


def _check_weight(module: Any) -> None:
    """OptionError unless numbers that are written to the weight are the module's from then on."""
    import torch

    weight = module.weight
    if weight.is_meta:
        raise OptionError("module: has no memory yet (device meta); module.to_empty(device='cpu') gives it some")
    if module._parameters.get("weight") is not weight:
        raise OptionError(
            "module: its weight is computed from other tensors, so that what is written there would be lost; fill it "
            "before it gets a parametrization (weight_norm, spectral_norm)"
        )
    if weight.dim() != 2:
        raise OptionError(
            f"module: its weight has the shape {tuple(weight.shape)}, a part of it or none; fill it before the model "
            "is divided among processes"
        )
    if weight.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise OptionError(f"module: {weight.dtype} cannot hold the values; fill it as module.float(), then convert it")
    if weight.is_inference() and not torch.is_inference_mode_enabled():
        raise OptionError("module: was made in torch.inference_mode() and cannot be changed; make it outside")


def _strategy(name: str, source: Any, std: Any, oov: str, match: Collection[str]) -> Strategy:
    """The strategy with that name; OptionError for what it cannot be told."""
    if name not in STRATEGIES:
        raise OptionError(f"strategy={name!r}: no such strategy; there are: {', '.join(STRATEGIES)}")
    chosen = STRATEGIES[name]
    if chosen.needs_source and source is None:
        raise OptionError(f"source: strategy {name!r} needs vectors; name a file of them")
    if source is not None and not isinstance(source, (str, os.PathLike)):
        raise OptionError(f"source: of type {type(source).__name__}; name a file of vectors (Vectors.save writes one)")
    if std is not None and not chosen.scaled:
        raise OptionError(f"std={std}: {name} keeps the sigma it has; take one of {', '.join(SCALED)}")
    if oov not in OOV_CHOICES:
        raise OptionError(f"oov={oov!r}: choose from {', '.join(OOV_CHOICES)}")
    unknown = set(match) - set(RULES)
    if unknown:
        raise OptionError(f"match={sorted(unknown)}: choose from {', '.join(RULES)}")
    return chosen


def _read(
    vocabulary: Vocabulary,
    source: Any,
    format: str | None,
    dim: int | None,
    oov: str,
    match: Collection[str],
    strategy: Strategy,
) -> Reading:
    spec = parse_source(os.fspath(source), format)
    compose = strategy.fills and oov == "subword"
    try:
        readers = open_sources(spec, dim)
    except DimensionError as error:
        remedy = f"Vectors are never cut or padded: set dim={error.dim}, or choose another source."
        raise DimensionError(f"{error.fact}. {remedy}", error.fact, error.dim) from error
    reading = read_sources(readers, spec, vocabulary, tuple(match), oov=oov, compose=compose)
    for path, part in zip(spec.paths, reading.parts, strict=True):
        if not part.coverage["found"]:
            example = [vocabulary.symbols[row] for row in np.flatnonzero(vocabulary.regular)[:5]]
            raise CoverageError(
                f"source {path}: none of the symbols has a vector there; they are like {example}: another language or "
                "segmentation, or match too narrow?"
            )
    return reading


def _report(
    strategy: str,
    oov: str,
    seed: int,
    std: TargetStd,
    vocabulary: Vocabulary,
    table: np.ndarray,
    reading: Reading | None,
) -> dict[str, Any]:
    report: dict[str, Any] = {"strategy": strategy, "seed": seed, "std": std.label, "rows": len(vocabulary)}
    report |= {"dim": table.shape[1], "pad": vocabulary.pad_row, "after": describe(table)}
    if reading is not None:
        report |= {
            "source": reading.spec.text,
            "oov": oov,
            "rows_by_rule": reading.rows_by_rule(),
            "matched": describe(table[reading.matched]),
            "found": int(reading.coverage["found"]),
            "coverage_types": reading.coverage["coverage_types"],
            "sources": [
                {"path": path, "found": int(part.coverage["found"]), "coverage_types": part.coverage["coverage_types"]}
                for path, part in zip(reading.spec.paths, reading.parts, strict=True)
            ],
            "missing": [
                vocabulary.symbols[row] for row in np.flatnonzero(vocabulary.regular & ~reading.matched).tolist()
            ],
        }
    return report


def _vocabulary(symbols: Any, pad: int | str | None) -> Vocabulary:
    """What rows stand for, from whatever says it."""
    if isinstance(symbols, (str, os.PathLike)):
        vocabulary = read_dictionary(os.fspath(symbols), "symbols", OptionError)
    elif hasattr(symbols, "get_vocab"):
        vocabulary = _of_tokenizer(symbols)
    elif hasattr(symbols, "symbols") and hasattr(symbols, "count"):
        vocabulary = vocabulary_of(symbols)
    else:
        if isinstance(symbols, (set, frozenset)):
            raise OptionError("symbols: a set has no order, so that nobody knows which row is whose; give a list")
        texts: list[Any] = list(symbols) if isinstance(symbols, Iterable) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise OptionError("symbols: give texts, the path of a dict.txt, a Dictionary or a tokenizer")
        names = _by_row(_checked_rows(symbols)) if isinstance(symbols, Mapping) else texts
        vocabulary = Vocabulary(names, np.ones(len(names), dtype=np.int64))
    if not len(vocabulary):
        raise OptionError("symbols: there is none; give one for each row")
    return vocabulary if pad is None else _with_pad(vocabulary, pad)


def _with_pad(vocabulary: Vocabulary, pad: int | str) -> Vocabulary:
    row = list(vocabulary.symbols).index(pad) if isinstance(pad, str) and pad in vocabulary.symbols else pad
    if not _is_whole(row) or not 0 <= row < len(vocabulary):
        raise OptionError(f"pad={pad!r}: neither one of the symbols nor one of the {len(vocabulary)} rows")
    roles = {at: role for at, role in vocabulary.roles.items() if role != "pad"}
    return replace(vocabulary, roles={**roles, int(row): "pad"})


def _is_whole(number: Any) -> TypeGuard[int]:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def _checked_rows(rows: Mapping[str, Any]) -> Mapping[str, int]:
    """OptionError for what is no row, and for a row of two symbols: one of them would be lost."""
    symbol_of: dict[int, str] = {}
    for symbol, row in rows.items():
        if not _is_whole(row) or row < 0:
            raise OptionError(f"symbols: {symbol!r} has the row {row!r}; give whole numbers from 0")
        if symbol_of.setdefault(row, symbol) != symbol:
            raise OptionError(f"symbols: {symbol_of[row]!r} and {symbol!r} have one row, {row}; give each its own")
    return rows


def _by_row(rows: Mapping[str, int]) -> list[str]:
    """Symbols in the order of their rows; rows that no symbol has are named by their number, as no text is."""
    size = max(rows.values(), default=-1) + 1
    names = [f"madeupword{row:04d}" for row in range(size)]
    for symbol, row in rows.items():
        names[row] = symbol
    return names


def _of_tokenizer(tokenizer: Any) -> Vocabulary:
    """A Hugging Face tokenizer's: its special tokens are no words."""
    added: Mapping[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    names = _as_text(_by_row(tokenizer.get_vocab()), added)
    roles: dict[int, str] = dict.fromkeys(getattr(tokenizer, "all_special_ids", ()), "extra")
    for name in _ROLES:
        row = getattr(tokenizer, f"{name}_token_id", None)
        if row is not None:
            role = {"cls": "bos", "sep": "eos"}.get(name, name)
            roles[row] = role if roles.get(row, "extra") == "extra" else roles[row]
    return Vocabulary(names, np.ones(len(names), dtype=np.int64), roles, frozenset(added.values()))


def _as_text(names: list[str], added: Collection[str]) -> list[str]:
    """Spell pieces of bytes (GPT-2's) as their text, `ĠÃ¼ber` as `Ġüber`; a part of a character is named by its row."""
    texts = [name if name in added else text for name, text in zip(names, as_text(names, detect_style(names)))]
    return [f"madeupword{row:04d}" if re.search("[\ud800-\udfff]", text) else text for row, text in enumerate(texts)]
