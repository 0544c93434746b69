"""Solve word analogies with word vectors, plain or transformed (Kim et al. 2024, Table 4).

A question `a b c d` reads: a is to b as c is to d. The answer is the word whose unit vector u has the highest
u . (u_b - u_a + u_c), the question's own words excluded (3CosAdd; Mikolov et al. 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embinit_fairseq.analysis.transforms import RANDOM, Surroundings, transform
from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.io import read_lines

#: name of the section of questions before the first `: name` line
UNNAMED = "(no section)"
#: scores (of unit vectors, in double precision) closer than this are ties; the word with the lower row wins
TIE = 1e-12

#: for `nearest`: wraps the iteration over blocks of words, as tqdm does
Progress = Callable[[Iterable[int]], Iterable[int]]


# ---- Read questions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Questions:
    """Hold Q questions in the order of their file.

    sections: names, in file order. section: (Q,) int64, the section of each question. words: Q tuples (a, b, c, d).
    """

    path: str
    sections: list[str]
    section: np.ndarray
    words: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.words)

    def vocabulary(self) -> set[str]:
        """Return the distinct words of all questions."""
        return {word for question in self.words for word in question}

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """Return (Q, 4) int64: the row of each question word in `words`, the first of duplicates; -1 if it has none."""
        row_of: dict[str, int] = {}
        for row, word in enumerate(words):
            row_of.setdefault(word, row)
        rows = [[row_of.get(word, -1) for word in question] for question in self.words]
        return np.asarray(rows, dtype=np.int64).reshape(-1, 4)


def read_questions(path: str, lower: bool = True) -> Questions:
    """Read questions in the format of word2vec's `questions-words.txt`.

    A line `: name` opens a section; every other line holds the four words of a question.

    Args:
        path: the file.
        lower: change the questions to lower case, for uncased vectors.

    Raises:
        DataError: the file is missing or not UTF-8, has no questions, or has a line of more or fewer than four words.
    """
    sections: list[str] = []
    section: list[int] = []
    words: list[tuple[str, ...]] = []
    for number, line in read_lines(path, DataError, "--questions"):
        fields = (line.lower() if lower else line).split()
        if line.startswith(":"):
            sections.append(line[1:].strip())
        elif fields:
            if len(fields) != 4:
                raise DataError(
                    f"--questions {path}:{number}: {counted(len(fields), 'word')}; a question has four ('a b c d') "
                    "and the line of a section starts with ':'. Correct or remove the line"
                )
            if not sections:
                sections.append(UNNAMED)
            section.append(len(sections) - 1)
            words.append(tuple(fields))
    if not words:
        raise DataError(f"--questions {path}: no questions; expected lines of four words, as in questions-words.txt")
    return Questions(path, sections, np.asarray(section, dtype=np.int64), words)


# ---- Answer questions -----------------------------------------------------------------------------------------------


def nearest(
    matrix: np.ndarray, questions: np.ndarray, block: int = 8192, progress: Progress | None = None
) -> np.ndarray:
    """Answer each question by the row with the highest 3CosAdd score.

    A test set has few distinct words and pairs (a, b): word2vec's 19,544 questions have 905 and 550. So the matrix
    product is over words, and the questions of a pair share the difference s_b - s_a of the similarities s_x = U u_x.

    Args:
        matrix: (V, D) float. A row of zeros has similarity 0 to everything.
        questions: (Q, 3) int, the rows of a, b and c.
        block: words that are scored at a time; memory is about (W + 2 D) * block * 8 bytes for W distinct words.
        progress: wraps the iteration over blocks.

    Returns:
        (Q,) int64: the best row other than a, b and c, the lowest one in a tie; -1 if there is no other row.

    Raises:
        DataError: vectors are not finite.
    """
    norm = _norms(matrix)
    words, index = np.unique(questions, return_inverse=True)
    index = index.reshape(-1, 3)
    unit = matrix[words].astype(np.float64) / norm[words, None]  # (W, D)
    pairs, pair_of = np.unique(index[:, :2], axis=0, return_inverse=True)
    by_pair = np.split(np.argsort(pair_of, kind="stable"), np.cumsum(np.bincount(pair_of))[:-1])
    best_score, best_row = np.full(len(questions), -np.inf), np.full(len(questions), -1, dtype=np.int64)
    starts: Iterable[int] = range(0, len(matrix), block)
    for start in progress(starts) if progress else starts:
        columns = matrix[start : start + block].astype(np.float64)
        columns /= norm[start : start + block, None]
        similarity = unit @ columns.T  # (W, block)
        for (a, b), asked in zip(pairs, by_pair):
            scores = similarity[index[asked, 2]]  # a copy, (questions of this pair, block)
            scores += similarity[b] - similarity[a]
            own = questions[asked] - start
            question, role = np.nonzero((own >= 0) & (own < len(columns)))
            scores[question, own[question, role]] = -np.inf
            top = scores.max(axis=1)
            (better,) = np.nonzero(top > best_score[asked] + TIE)
            best_score[asked[better]] = top[better]
            best_row[asked[better]] = start + (scores[better] >= top[better, None] - TIE).argmax(axis=1)
    return best_row


def _norms(matrix: np.ndarray) -> np.ndarray:
    """Return (V,) float64 lengths of rows, 1 for rows of zeros so that they stay zeros."""
    norm = np.sqrt(np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64))
    bad = np.flatnonzero(~np.isfinite(norm))
    if len(bad):
        raise DataError(f"row {bad[0]} of the vectors holds NaN or infinite values; remove or repair it")
    norm[norm == 0] = 1.0
    return norm


# ---- Score answers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """Hold the number of correct answers to `applicable` questions (all four words have vectors) among `total`."""

    name: str
    correct: int
    applicable: int
    total: int

    @property
    def accuracy(self) -> float:
        """Return correct / applicable; nan without applicable questions."""
        return self.correct / self.applicable if self.applicable else float("nan")


#: Kim et al. 2024, Table 4: name, transformations from left to right, and the accuracy that they report in percent of
#: 1,631 applicable questions. The paper prints 87.3 once, in a cell that spans the first five rows. The last two rows
#: are not in the paper: positions added after the scaling, as in a transformer.
TABLE4: tuple[tuple[str, tuple[str, ...], float | None], ...] = (
    ("GloVe", (), 87.3),
    ("GloVe & Scaled", ("scaled",), 87.3),
    ("GloVe & Pos. Enc.", ("positions",), 87.3),
    ("GloVe & Xavier-Std.", ("xavier",), 87.3),
    ("GloVe & Xavier-Std. & Scaled", ("xavier", "scaled"), 87.3),
    ("GloVe & Xavier-Std. & Pos. Enc.", ("xavier", "positions"), 12.9),
    ("GloVe & (Pos. Enc. x sigma_p/sigma_x)", ("scaled_positions",), 11.1),
    ("GloVe & Scaled & Pos. Enc.", ("scaled", "positions"), None),
    ("GloVe & Xavier-Std. & Scaled & Pos. Enc.", ("xavier", "scaled", "positions"), None),
)


def score(
    words: Sequence[str], matrix: np.ndarray, questions: Questions, block: int = 8192, progress: Progress | None = None
) -> list[Score]:
    """Answer the questions whose four words have vectors; return one Score per section in file order, then the total.

    Args:
        words: V words.
        matrix: (V, D) their vectors.
        questions: the questions.
        block, progress: as for `nearest`.

    Raises:
        DataError: no question has its four words among `words`.
    """
    rows = questions.rows(words)
    is_applicable = (rows >= 0).all(axis=1)
    if not is_applicable.any():
        raise DataError(
            f"--questions {questions.path}: none of the {len(questions)} questions has its four words among the "
            f"{len(words)} words with vectors, such as {list(words[:5])}; if the vectors are cased, add --case; else "
            "choose more words"
        )
    correct = nearest(matrix, rows[is_applicable, :3], block, progress) == rows[is_applicable, 3]
    size = len(questions.sections)
    total = np.bincount(questions.section, minlength=size)
    applicable = np.bincount(questions.section[is_applicable], minlength=size)
    right = np.bincount(questions.section[is_applicable][correct], minlength=size)
    scores = [Score(*row) for row in zip(questions.sections, right.tolist(), applicable.tolist(), total.tolist())]
    return [*scores, Score("total", int(right.sum()), int(applicable.sum()), int(total.sum()))]


def evaluate(
    words: Sequence[str],
    matrix: np.ndarray,
    questions: Questions,
    transforms: Sequence[str],
    around: Surroundings,
    repeats: int = 1,
    block: int = 8192,
    progress: Progress | None = None,
) -> list[list[Score]]:
    """Transform the vectors and score them; `repeats` times, with seeds seed, seed + 1, ..., if positions are drawn."""
    seeds = range(around.seed, around.seed + (repeats if RANDOM.intersection(transforms) else 1))
    return [
        score(words, transform(matrix, transforms, replace(around, seed=seed)), questions, block, progress)
        for seed in seeds
    ]
