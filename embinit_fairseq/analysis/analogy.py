"""The word-analogy task on a table of embeddings, plain or transformed (Kim et al. 2024, Table 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embinit_fairseq.analysis.transforms import RANDOM, Surroundings, transform
from embinit_fairseq.bounded import read_lines
from embinit_fairseq.errors import DataError, OptionError, counted

# ---- Analogy questions in the format of word2vec's `questions-words.txt` --------------------------------------------
# A line `: name` opens a section; every other line holds four words, `a b c d`: a is to b as c is to d.

#: The section of questions that stand before the first `: name` line.
UNNAMED = "(no section)"


@dataclass(frozen=True)
class Questions:
    """Q questions in file order.

    sections: names, in file order. section: (Q,) int64, which section a question is in. words: Q tuples (a, b, c, d).
    """

    path: str
    sections: list[str]
    section: np.ndarray
    words: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.words)

    def vocabulary(self) -> set[str]:
        """The distinct words of all questions."""
        return {word for question in self.words for word in question}

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """(Q, 4) int64: the row of each question word in `words`; -1 where it has none, the first of duplicates."""
        row_of: dict[str, int] = {}
        for row, word in enumerate(words):
            row_of.setdefault(word, row)
        rows = [[row_of.get(word, -1) for word in question] for question in self.words]
        return np.asarray(rows, dtype=np.int64).reshape(-1, 4)


def read_questions(path: str, lower: bool = True) -> Questions:
    """Read a questions-words file; `lower` folds the questions to lower case, as uncased vectors need it.

    Raises DataError (file and line) for a question without exactly four words, for a file without questions, for bytes
    that are not UTF-8 and for a file that cannot be opened.
    """
    sections: list[str] = []
    section: list[int] = []
    words: list[tuple[str, ...]] = []
    for number, line in read_lines(path, DataError, "--questions", newline=None):
        fields = (line.lower() if lower else line).split()
        if line.startswith(":"):
            sections.append(line[1:].strip())
        elif fields:
            _check(path, number, fields)
            if not sections:
                sections.append(UNNAMED)
            section.append(len(sections) - 1)
            words.append(tuple(fields))
    if not words:
        raise DataError(f"{path}: no questions; expected lines of four words, as in word2vec's questions-words.txt")
    return Questions(path, sections, np.asarray(section, dtype=np.int64), words)


def _check(path: str, number: int, fields: list[str]) -> None:
    if len(fields) != 4:
        raise DataError(
            f"{path}, line {number}: {counted(len(fields), 'word')}, a question has four ('a b c d') and a section "
            "line starts with ':'; correct or remove the line"
        )


# ---- The nearest word to b - a + c for many questions at once (3CosAdd), exact and in bounded memory ----------------
# With unit rows u, the score of word w is u_w . (u_b - u_a + u_c) = s_b[w] - s_a[w] + s_c[w], where s_x = U u_x holds
# the similarities of one *question word*. A test set of 19,544 questions has 905 distinct words and 550 distinct pairs
# (a, b), so the matrix product is over words, not questions, and most questions share their difference s_b - s_a.
#
# Three steps keep the rest small and the answer exact:
#
# 1. the vocabulary is taken in blocks of columns; only one block of similarities exists at a time;
# 2. within a block, stripes of STRIPE columns whose bound max(s_b - s_a) + max(s_c) is below the best score that the
#    question has already reached are skipped;
# 3. whatever comes within the rounding error of single precision of the best is scored again in double precision.
#
# Letters: V rows, D columns, Q questions, W distinct words, P distinct pairs, B columns of a block.

#: Columns that share one bound. Larger stripes are cheaper to bound and harder to skip; 128 was the fastest of 32-512.
STRIPE = 128
#: Below any score of three unit vectors (>= -3): "nothing found yet".
LOWEST = np.float32(-4.0)
#: Double-precision scores closer than this are ties; the lower row wins.
TIE = 1e-12
#: (question, stripe) pairs evaluated at once, and candidates held before they are scored again: bounds on memory.
CHUNK = 2048
PENDING = 1 << 20

Progress = Callable[[Iterable[int]], Iterable[int]]


def nearest(
    matrix: np.ndarray, questions: np.ndarray, block: int = 8192, progress: Progress | None = None
) -> np.ndarray:
    """The predicted row for each question.

    matrix: (V, D) float. questions: (Q, 3) int, rows a, b, c. Returns (Q,) int64: the row with the highest cosine to
    u_b - u_a + u_c other than a, b and c (the lowest such row in a tie); -1 if there is no other row. Rows of zeros
    have similarity 0 to everything. Memory beyond the matrix: about (W + P + 4 D) * block * 4 bytes.
    progress wraps the iteration over blocks (tqdm, say). Raises DataError for values that are not finite.
    """
    if block < 1:
        raise OptionError(f"block must be at least 1 column, not {block}")
    questions = np.asarray(questions, dtype=np.int64).reshape(-1, 3)
    if len(questions) == 0:
        return np.empty(0, dtype=np.int64)
    width = -(-min(block, len(matrix)) // STRIPE) * STRIPE
    search = _Search(np.ascontiguousarray(matrix, dtype=np.float32), questions, width)
    starts: Iterable[int] = range(0, len(matrix), width)
    for start in progress(starts) if progress else starts:
        search.scan(start)
    return search.row


class _Search:
    """The state of one search: what each question has reached so far."""

    def __init__(self, matrix: np.ndarray, questions: np.ndarray, width: int) -> None:
        self.matrix = matrix
        self.norm = _norms(matrix)
        self.questions = questions
        words, index = np.unique(questions, return_inverse=True)
        self.a, self.b, self.c = index.reshape(-1, 3).T  # word of each question, (Q,) each
        pair, self.pair = np.unique(self.a * len(words) + self.b, return_inverse=True)
        self.pair_a, self.pair_b = np.divmod(pair, len(words))
        self.exact = self._unit(words)  # (W, D) float64
        self.unit = self.exact.astype(np.float32)
        # Twice (two scores are compared) the error of three single-precision dot products of unit vectors.
        self.margin = np.float32(6 * (matrix.shape[1] + 16) * 2.0**-24)
        self.best = self._start(words)  # (Q,) float32, never above the best score but for rounding
        self.score = np.full(len(questions), float(LOWEST))  # (Q,) float64
        self.row = np.full(len(questions), -1, dtype=np.int64)
        # One block at a time, in the same memory: fresh pages for each block cost a tenth of the whole search.
        self.columns = np.zeros((width, matrix.shape[1]), dtype=np.float32)
        self.similarity = np.empty((len(words), width), dtype=np.float32)
        self.difference = np.empty((len(pair), width), dtype=np.float32)

    def _unit(self, rows: np.ndarray) -> np.ndarray:
        return self.matrix[rows].astype(np.float64) / self.norm[rows, None]

    def _start(self, words: np.ndarray) -> np.ndarray:
        """(Q,) best score among the question words themselves: the expected answer is one of them."""
        similarity = self.unit @ self.unit.T
        best = np.empty(len(self.questions), dtype=np.float32)
        for first in range(0, len(best), CHUNK):
            part = slice(first, first + CHUNK)
            a, b, c = self.a[part], self.b[part], self.c[part]
            scores = similarity[b] - similarity[a] + similarity[c]
            at = np.arange(len(a))
            scores[at, a] = scores[at, b] = scores[at, c] = LOWEST
            best[part] = scores.max(axis=1)
        return best

    def scan(self, start: int) -> None:
        """Take one block of columns; the last block may have fewer real columns than the buffers hold."""
        rows = self.matrix[start : start + len(self.columns)]
        norm = self.norm[start : start + len(rows), None]
        np.divide(rows, norm, out=self.columns[: len(rows)], casting="same_kind")
        np.matmul(self.unit, self.columns.T, out=self.similarity)
        for pair, (a, b) in enumerate(zip(self.pair_a, self.pair_b)):
            np.subtract(self.similarity[b], self.similarity[a], out=self.difference[pair])
        self.difference[:, len(rows) :] = -np.inf
        similarity = self.similarity.reshape(len(self.similarity), -1, STRIPE)
        difference = self.difference.reshape(len(self.difference), -1, STRIPE)
        bound = difference.max(axis=2)[self.pair] + similarity.max(axis=2)[self.c]  # (Q, stripes)
        question, stripe = np.nonzero(bound >= (self.best - self.margin)[:, None])
        pending: list[tuple[np.ndarray, np.ndarray]] = []
        for first in range(0, len(question), CHUNK):
            q, s = question[first : first + CHUNK], stripe[first : first + CHUNK]
            scores = difference[self.pair[q], s]
            scores += similarity[self.c[q], s]
            pending.append(self._candidates(scores, q, start + s * STRIPE))
            if sum(len(q) for q, _ in pending) > PENDING:
                self._decide(pending)
                pending = []
        self._decide(pending)

    def _candidates(self, scores: np.ndarray, q: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(question, row) of everything in (n, STRIPE) scores that may be best; raises `best` first."""
        for role in range(3):
            column = self.questions[q, role] - start
            inside = np.flatnonzero((column >= 0) & (column < STRIPE))
            scores[inside, column[inside]] = -np.inf
        top = scores.max(axis=1)
        np.maximum.at(self.best, q, top)
        enough = self.best[q] - self.margin
        hot = np.flatnonzero(top >= enough)
        which, column = np.nonzero(scores[hot] >= enough[hot, None])
        return q[hot[which]], start[hot[which]] + column

    def _decide(self, pending: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Score candidates in double precision; rows of a question come in ascending order from call to call."""
        if not pending:
            return
        question, row = (np.concatenate(part) for part in zip(*pending))
        order = np.lexsort((row, question))
        question, row = question[order], row[order]
        score = np.empty(len(row))
        for first in range(0, len(row), CHUNK):
            part = slice(first, first + CHUNK)
            q = question[part]
            target = self.exact[self.b[q]] - self.exact[self.a[q]] + self.exact[self.c[q]]
            score[part] = np.einsum("ij,ij->i", self._unit(row[part]), target)
        asked, begins, group = np.unique(question, return_index=True, return_inverse=True)
        if not len(asked):
            return
        top = np.maximum.reduceat(score, begins)
        tied = np.flatnonzero(score >= top[group] - TIE)
        _, winner = np.unique(group[tied], return_index=True)
        better = top > self.score[asked] + TIE
        self.score[asked[better]] = top[better]
        self.row[asked[better]] = row[tied[winner[better]]]


def _norms(matrix: np.ndarray) -> np.ndarray:
    """(V,) float64 lengths, 1 for rows of zeros so that they stay zeros."""
    norm = np.sqrt(np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64))
    bad = np.flatnonzero(~np.isfinite(norm))
    if len(bad):
        raise DataError(f"row {bad[0]} of the vectors holds NaN or infinite values; remove or repair it")
    norm[norm == 0] = 1.0
    return norm


# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """correct of `applicable` questions (all four words known) among `total`."""

    name: str
    correct: int
    applicable: int
    total: int

    @property
    def accuracy(self) -> float:
        """correct / applicable; nan without applicable questions."""
        return self.correct / self.applicable if self.applicable else float("nan")


@dataclass(frozen=True)
class Row:
    """One line of a table: a chain of transformations, scored once or (if it draws positions) once per seed.

    runs[i] holds the scores of seed i, section by section; the last one, named "total", sums them.
    """

    transforms: tuple[str, ...]
    runs: list[list[Score]]

    @property
    def mean(self) -> float:
        """Mean total accuracy over the runs."""
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float:
        """Sample standard deviation of the total accuracy over the runs; nan for a single run."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.runs) > 1 else float("nan")

    @property
    def accuracies(self) -> list[float]:
        """Total accuracy of each run."""
        return [run[-1].accuracy for run in self.runs]


#: Kim et al. 2024, Table 4: what is done to the table (left to right), and the accuracy they report in percent of
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
    """Answer the questions with a table: one Score per section in file order, then the total.

    words: V of them; matrix: (V, D). Questions with an unknown word are skipped and not counted as applicable.
    Raises DataError if none is applicable.
    """
    rows = questions.rows(words)
    known = (rows >= 0).all(axis=1)
    if not known.any():
        raise DataError(
            f"{questions.path}: none of the {len(questions)} questions has its four words among the {len(words)} words "
            "of the table; the vectors may be cased (try --case) or the vocabulary too small"
        )
    correct = nearest(matrix, rows[known, :3], block, progress) == rows[known, 3]
    size = len(questions.sections)
    total = np.bincount(questions.section, minlength=size)
    applicable = np.bincount(questions.section[known], minlength=size)
    right = np.bincount(questions.section[known][correct], minlength=size)
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
) -> Row:
    """Transform the table and score it; `repeats` times with seeds seed, seed + 1, ... if a step draws positions."""
    if repeats < 1:
        raise OptionError(f"--repeats must be at least 1, not {repeats}")
    drawn = bool(RANDOM.intersection(transforms))
    runs = []
    for run in range(repeats if drawn else 1):
        changed = transform(matrix, transforms, replace(around, seed=around.seed + run))
        runs.append(score(words, changed, questions, block, progress))
    return Row(tuple(transforms), runs)
