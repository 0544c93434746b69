"""Read vectors, make an embedding matrix, fill an `nn.Embedding` (only this needs torch) in Python, without fairseq.

    import embinit_fairseq as ei

    vectors = ei.load_vectors("glove.6B.300d.txt", words=["cat", "dog"])
    matrix, report = ei.embedding_matrix(symbols, "glove.6B.300d.txt", "pretrained_xavier", pad=0)
    ei.init_embedding_(model.get_input_embeddings(), tokenizer, "glove.6B.300d.txt")   # a Hugging Face model

The numbers equal `--embed-init` with the same seed and the same symbols in the same rows (slot `encoder`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from embinit_fairseq.errors import DimensionError, OptionError, counted, named_by
from embinit_fairseq.init.alignment import RULES, Matching, Reading, read
from embinit_fairseq.init.draws import Draws, TargetStd, check_seed, parse_std
from embinit_fairseq.init.init_report import describe
from embinit_fairseq.init.strategies import OOV_CHOICES, SCALED, STRATEGIES, Strategy, build
from embinit_fairseq.io import PathLike
from embinit_fairseq.vectors.open import open_vectors, parse_source
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.writers import check_ending, write_npz, write_text
from embinit_fairseq.vocab.dictionary import (
    SPECIAL_SYMBOLS,
    Vocabulary,
    filler,
    read_dictionary,
    special_rows,
    vocabulary_of,
)

#: a tokenizer's names of special symbols -> their roles; the first one counts: a `</s>` that also pads must not be 0
_ROLES = {"bos": "bos", "cls": "bos", "eos": "eos", "sep": "eos", "unk": "unk", "mask": "mask", "pad": "pad"}
#: further names in lists of symbols
_NAMED = _ROLES | {"s": "bos", "sos": "bos", "start": "bos", "/s": "eos", "end": "eos"}
#: special symbols of a list: `<pad>`, `[PAD]`, `<|endoftext|>`
_SPECIAL = re.compile(r"</?\w+>|\[\w{3,}\]|<\|\S+\|>")


@dataclass(repr=False)
class Vectors:
    """Hold vectors. words: V, in the file's order; matrix: (V, D) float32. source: the file. missing: words without."""

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
        """Return the vector of a word, (D,); raise KeyError if it has none."""
        return self.matrix[self._rows[word]]

    def most_similar(self, query: str | np.ndarray, count: int = 10) -> list[tuple[str, float]]:
        """Return the words with the largest cosine to a word (without itself) or to a vector (D,), with the cosines.

        Raises:
            KeyError: if the word has no vector.
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

    def save(self, path: PathLike, option: str = "") -> None:
        """Write the vectors: `.npz`, word2vec's text if the name ends in `.vec`, else GloVe's; `.gz` compresses.

        Args:
            path: the file.
            option: flag that names the path, for messages.

        Raises:
            VectorFileError: if a word or number cannot be written.
            OutputError: if the place cannot be written to, or the name has the ending of another format (`.bin`).
        """
        name = os.fspath(path)
        if name.endswith(".npz"):
            write_npz(path, self.words, self.matrix, option)
        else:
            check_ending(path, option)
            write_text(path, self.words, self.matrix, header=name.removesuffix(".gz").endswith(".vec"), option=option)


class EmbeddingMatrix(NamedTuple):
    """Hold the matrix (N, D) float32, and the report: coverage and numbers, as in `embed_init.json`."""

    matrix: np.ndarray
    report: dict[str, Any]


def load_vectors(path: PathLike, words: Collection[str] | None = None, format: str | None = None) -> Vectors:
    """Read vectors in any format that `--embed-init-path` takes.

    Args:
        path: the file or folder.
        words: read only these spellings (None: all); words without a vector are in `missing`.
        format: format of the vectors; None to recognise it.

    Raises:
        VectorFileError, OptionError, CheckpointError: as with the flag.
    """
    if isinstance(words, str):
        raise OptionError(f"words={words!r}: give several, as in words=[{words!r}]")
    wanted = None if words is None else list(dict.fromkeys(words))
    with named_by("path "):
        table = open_vectors(path, format).read(None if wanted is None else Wanted.words(wanted))
    present = set(table.words)
    return Vectors(table.words, table.matrix, table.origin.path, [word for word in wanted or () if word not in present])


def embedding_matrix(
    symbols: Any,
    source: PathLike | None = None,
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
    """Make the embedding matrix that `--embed-init strategy` would give a model with these symbols.

    Args:
        symbols: one per row, in their order: a list, a mapping of symbols to rows, the path of a fairseq dict.txt, a
            fairseq Dictionary, or a Hugging Face tokenizer. Special symbols of a list (`<pad>`, `[PAD]`, `</s>`,
            `<unk>`, `<|endoftext|>` ...) are not words.
        source: vectors, or several as in `--embed-init-path` (`concat:A,B`); None for strategies that draw everything.
        strategy: one of `init.strategies.STRATEGIES`.
        dim: D; by default the vectors' D.
        pad: row or symbol of the padding, which is zero; by default the one among the symbols.
        oov: how rows without a vector are filled (`--embed-init-oov`).
        seed: `--embed-init-seed`.
        std: `--embed-init-std`.
        match: `--embed-init-match`.
        slot: name of the embedding matrix in a model.
        format: format of the vectors; None to recognise it.

    Returns:
        The matrix, and a report; its `missing` are the symbols without a vector.

    Raises:
        OptionError, VectorFileError, DimensionError, CoverageError: as with the flag.
    """
    chosen = _checked_strategy(strategy, source, std, oov, match)
    check_seed(seed := int(seed), "seed")
    vocabulary = vocabulary_of_rows(symbols, pad)
    reading = None
    if chosen.needs_source and source is not None:
        with named_by("source "):
            spec = parse_source(os.fspath(source), format)
        matching = Matching(tuple(match), oov=oov if chosen.fills else "xavier")
        try:
            reading = read(spec, vocabulary, matching, dim, flag="source ")
        except DimensionError as error:
            raise DimensionError(error.fact, error.dim, f"set dim={error.dim}, or choose another source") from error
        dim = reading.source.vectors.shape[1]
    if dim is None:
        raise OptionError(f"dim: {strategy} takes no vectors that say it; give the dimension")
    target = parse_std(None if std is None else str(std), "std") if chosen.scaled else TargetStd()
    draws = Draws(len(vocabulary), dim, seed, slot, target)
    matrix = build(chosen.rule_for(std is not None), reading.source if reading else None, draws, vocabulary.pad_row)
    report: dict[str, Any] = {"strategy": strategy, "seed": seed, "std": target.label, "rows": len(vocabulary)}
    report |= {"dim": dim, "pad": vocabulary.pad_row, "after": describe(matrix)}
    return EmbeddingMatrix(matrix, report | (_coverage(vocabulary, matrix, reading, oov) if reading else {}))


def init_embedding_(module: Any, symbols: Any, source: Any = None, strategy: str = "pretrained_xavier", **options: Any):
    """Fill a `torch.nn.Embedding` in place, so that layers that share its weight stay tied. Returns the report.

    If it raises, the module is as before. Rows beyond the symbols (Hugging Face rounds sizes up) are kept; the report
    counts them (`rows_left`).

    Args:
        module: the embedding, which has dim and the row of the padding.
        symbols: symbols of the rows, in their order; see `embedding_matrix`.
        source: vectors; None for strategies that draw everything.
        strategy: one of `init.strategies.STRATEGIES`.
        **options: further arguments of `embedding_matrix`.

    Raises:
        DimensionError: there are more symbols than rows, or the vectors have another dimension.
        OptionError: the module is not an embedding, has another row of padding than symbols, or cannot hold the values.
    """
    import torch

    if not isinstance(module, torch.nn.Embedding):
        raise OptionError(f"module: a torch.nn.Embedding is needed, this is a {type(module).__name__}")
    weight = module.weight
    if not isinstance(weight, torch.nn.Parameter) or weight.is_meta or not weight.is_floating_point():
        raise OptionError(
            "module: numbers written to its weight would be lost; fill it before a parametrization (weight_norm), as "
            "module.float() if it has integers, and after module.to_empty(device='cpu') if it is on the device meta"
        )
    vocabulary, pad = vocabulary_of_rows(symbols, None), module.padding_idx
    if "pad" not in options and pad is not None:
        if vocabulary.pad_row not in (None, pad):
            raise OptionError(
                f"module: its padding is row {pad}, that of the symbols row {vocabulary.pad_row}: is this the "
                "tokenizer of this model? (pad=ROW says which it is)"
            )
        options["pad"] = pad
    size, dim = weight.shape
    try:
        matrix, report = embedding_matrix(vocabulary, source, strategy, dim=dim, **options)
    except DimensionError as error:
        remedy = f"make the module a torch.nn.Embedding({size}, {error.dim}), or choose another source"
        raise DimensionError(f"module: {error.fact}", error.dim, remedy) from error
    if len(matrix) > size:
        raise DimensionError(
            f"module: {len(matrix)} symbols for an embedding of {size} rows",
            dim,
            "is this the tokenizer of this model? (model.resize_token_embeddings makes more rows)",
        )
    rows = torch.from_numpy(matrix).to(device=weight.device, dtype=weight.dtype)
    if not torch.isfinite(rows).all():
        raise OptionError(f"module: {weight.dtype} cannot hold the values; make it module.float(), or give std")
    with torch.no_grad():
        weight[: len(rows)] = rows
    return {**report, "rows_left": size - len(rows)}


def _checked_strategy(name: str, source: Any, std: Any, oov: str, match: Collection[str]) -> Strategy:
    """Return the strategy with that name; raise OptionError for arguments that it cannot have."""
    if name not in STRATEGIES:
        raise OptionError(f"strategy={name!r}: no such strategy; there are: {', '.join(STRATEGIES)}")
    chosen = STRATEGIES[name]
    if chosen.needs_source and source is None:
        raise OptionError(f"source: strategy {name!r} needs vectors; name a file of them")
    if std is not None and not chosen.scaled:
        raise OptionError(f"std={std}: {name} keeps the sigma it has; take one of {', '.join(SCALED)}")
    if oov not in OOV_CHOICES:
        raise OptionError(f"oov={oov!r}: choose from {', '.join(OOV_CHOICES)}")
    if unknown := set(match) - set(RULES):
        raise OptionError(f"match={sorted(unknown)}: choose from {', '.join(RULES)}")
    return chosen


def _coverage(vocabulary: Vocabulary, matrix: np.ndarray, reading: Reading, oov: str) -> dict[str, Any]:
    """Return the part of the report about the vectors."""
    return {
        "source": reading.spec.text,
        "oov": oov,
        "rows_by_rule": reading.rows_by_rule(),
        "matched": describe(matrix[reading.matched]),
        "found": int(reading.coverage["found"]),
        "coverage_types": reading.coverage["coverage_types"],
        "sources": [
            {
                "path": path,
                "found": int(part.coverage["found"]),
                "coverage_types": part.coverage["coverage_types"],
                "language": part.origin.language,
            }
            for path, part in zip(reading.spec.paths, reading.parts, strict=True)
        ],
        "missing": [vocabulary.symbols[row] for row in np.flatnonzero(vocabulary.regular & ~reading.matched).tolist()],
    }


# ---- The symbols of the rows ----------------------------------------------------------------------------------------


def vocabulary_of_rows(symbols: Any, pad: int | str | None) -> Vocabulary:
    """Return the symbols of the rows, from a list, mapping, path, Dictionary or tokenizer."""
    if isinstance(symbols, Vocabulary):
        vocabulary = symbols
    elif isinstance(symbols, (str, os.PathLike)):
        vocabulary = read_dictionary(os.fspath(symbols), "symbols", OptionError)
    elif hasattr(symbols, "get_vocab"):
        vocabulary = _of_tokenizer(symbols)
    elif hasattr(symbols, "symbols") and hasattr(symbols, "count"):
        vocabulary = vocabulary_of(symbols)
    else:
        if isinstance(symbols, (set, frozenset)):
            raise OptionError("symbols: a set has no order, so that rows have no symbols; give a list")
        texts: list[Any] = list(symbols) if isinstance(symbols, Iterable) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise OptionError("symbols: give texts, the path of a dict.txt, a Dictionary or a tokenizer")
        names = _by_row(symbols) if isinstance(symbols, Mapping) else texts
        vocabulary = Vocabulary(names, np.ones(len(names), dtype=np.int64), _roles(names))
    if not len(vocabulary):
        raise OptionError("symbols: none; give one for each row")
    return vocabulary if pad is None else _with_pad(vocabulary, pad)


def _roles(names: Sequence[str]) -> dict[int, str]:
    """Return row -> role of the special symbols, by their names.

    A list that begins with fairseq's four special symbols has the special rows of fairseq's commands.
    """
    if [*names[: len(SPECIAL_SYMBOLS)]] == [*SPECIAL_SYMBOLS]:
        return special_rows(names)
    roles = {row: _role(name) for row, name in enumerate(names)}
    return {row: role for row, role in roles.items() if role is not None}


def _role(name: str) -> str | None:
    """Return the role of a special symbol, None for a word."""
    match = _SPECIAL.fullmatch(name)
    return _NAMED.get(name.strip("<[|]>").lower(), "extra" if "|" in name else None) if match else None


def _with_pad(vocabulary: Vocabulary, pad: int | str) -> Vocabulary:
    row = list(vocabulary.symbols).index(pad) if isinstance(pad, str) and pad in vocabulary.symbols else pad
    if isinstance(row, str) or not 0 <= row < len(vocabulary):
        raise OptionError(f"pad={pad!r}: neither one of the symbols nor one of the {len(vocabulary)} rows")
    roles = {at: role for at, role in vocabulary.roles.items() if role != "pad"}
    return replace(vocabulary, roles={**roles, int(row): "pad"})


def _by_row(rows: Mapping[str, int]) -> list[str]:
    """Return the symbols in the order of their rows; rows without a symbol have the name of a filler."""
    if len(set(rows.values())) < len(rows) or min(rows.values(), default=0) < 0:
        raise OptionError("symbols: give each a row of its own, from 0")
    names = [filler(row) for row in range(max(rows.values(), default=-1) + 1)]
    for symbol, row in rows.items():
        names[row] = symbol
    return names


def _of_tokenizer(tokenizer: Any) -> Vocabulary:
    """Return the symbols of a Hugging Face tokenizer as it spells them; its special tokens are not words."""
    added: Mapping[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    names = _by_row(tokenizer.get_vocab())
    roles: dict[int, str] = dict.fromkeys(getattr(tokenizer, "all_special_ids", ()), "extra")
    for name, role in _ROLES.items():
        row = getattr(tokenizer, f"{name}_token_id", None)
        if row is not None:
            roles[row] = role if roles.get(row, "extra") == "extra" else roles[row]
    return Vocabulary(names, np.ones(len(names), dtype=np.int64), roles, frozenset(added.values()))
