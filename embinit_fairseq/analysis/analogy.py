"""The word-analogy task on a table of embeddings, plain or transformed (Kim et al. 2024, Table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from embinit_fairseq.analysis.questions import Questions
from embinit_fairseq.analysis.search import Progress, nearest
from embinit_fairseq.analysis.transforms import RANDOM, Surroundings, transform
from embinit_fairseq.errors import DataError, OptionError


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
