"""Write made-up English-like text of any size, to try prepare.sh and to measure its memory and speed.

Words follow the law of Zipf and Mandelbrot: their number grows with the text as that of a language does. One line
in fifty repeats an earlier one, one in a hundred holds an address or a file name. The same seed gives the same text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from embinit_fairseq.arguments import ArgumentParser

_SYLLABLES = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
_EXTRAS = ("http://www.example.org/{0}?page=1", "{0}@example.com", "{0}_notes.txt", "{0}.example.net")
_MOST_WORDS = 20_000_000
_AT_A_TIME = 100_000


def spelling(rank: int) -> str:
    """Return a word of at least two syllables for an integer from 0; smaller numbers have shorter words."""
    syllables, rank = [], rank + len(_SYLLABLES)
    while rank:
        rank, digit = divmod(rank, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return "".join(syllables)


def words(generator: np.random.Generator) -> Iterator[str]:
    """Yield endless words, frequent and rare ones."""
    common = [spelling(rank) for rank in range(_AT_A_TIME)]
    while True:
        # The frequency of rank r falls with (r + 10)^-1.5: about 1.4 million different words in a gigabyte.
        for rank in np.minimum(10 * generator.pareto(0.5, _AT_A_TIME), _MOST_WORDS).astype(int).tolist():
            yield common[rank] if rank < _AT_A_TIME else spelling(rank)


def paragraph(source: Iterator[str], generator: np.random.Generator) -> str:
    """Return a paragraph of one to six sentences."""
    sentences = []
    for length in generator.integers(2, 30, size=generator.integers(1, 7)).tolist():
        sentence = [next(source) for _ in range(length)]
        sentences.append(", ".join([" ".join(sentence[: length // 2]), " ".join(sentence[length // 2 :])]).capitalize())
    text = ". ".join(sentences) + ("?" if generator.random() < 0.1 else ".")
    if generator.random() < 0.01:
        text += " See " + _EXTRAS[generator.integers(len(_EXTRAS))].format(next(source)) + "."
    return text


def lines(seed: int) -> Iterator[str]:
    """Yield endless paragraphs; an empty line ends a document."""
    generator = np.random.default_rng(seed)
    source, earlier = words(generator), []
    while True:
        for _ in range(generator.integers(1, 30)):
            text = paragraph(source, generator)
            if len(earlier) < 1000:
                earlier.append(text)
            yield earlier[generator.integers(len(earlier))] if generator.random() < 0.02 else text
        yield ""


def main() -> None:
    """Write the text."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, required=True, help="size of the text (standard output)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    args = parser.parse_args()
    left = int(args.megabytes * 1e6)
    for line in lines(args.seed):
        left -= sys.stdout.write(line + "\n")
        if left <= 0:
            break


if __name__ == "__main__":
    main()
