"""Show how often two tests call equal systems different: `embinit compare`'s, and sacrebleu's paired bootstrap.

    python benchmarks/significance.py --ref test.en A.txt B.txt
    python benchmarks/significance.py --ref test.en

The sentences of two outputs (default: the reference, with words exchanged at random) are exchanged at random, which
makes two outputs without a difference. A test is right if p is below 0.05 in 5 % of them. Both tests have 1,000 trials
here; `embinit compare` takes more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from sacrebleu.significance import PairedTest

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line
from embinit_fairseq.runs.metrics import SCORES
from embinit_fairseq.runs.paired import randomisation_tests
from embinit_fairseq.runs.translations import read_lines

TRIALS = 1000
LEVELS = (0.05, 0.10)
#: share of the words that are exchanged in outputs made from the reference
DAMAGE = 0.3


def damaged(lines: list[str], rng: np.random.Generator) -> list[str]:
    """Return lines in which words are replaced by words of the text."""
    words = [word for line in lines for word in line.split()]

    def replaced(word: str) -> str:
        return words[rng.integers(len(words))] if rng.random() < DAMAGE else word

    return [" ".join(map(replaced, line.split())) for line in lines]


def simulate(outputs: list[list[str]], reference: list[str], number: int, rng: np.random.Generator) -> dict[str, list]:
    """Return test -> p of each pair of outputs without a difference."""
    bleu = SCORES["bleu"].metric()
    counts = [bleu._extract_corpus_statistics(output, [reference]) for output in outputs]
    # counted once: exchanging two sentences exchanges their counts
    counts_of = [dict(zip(pair, both)) for pair, both in zip(zip(*outputs), zip(*counts))]
    bleu._extract_corpus_statistics = lambda text, _: [of[line] for of, line in zip(counts_of, text)]
    metrics = {"bleu": bleu}
    p_values: dict[str, list] = {"randomisation": [], "bootstrap": []}
    for _ in range(number):
        is_exchanged = rng.integers(2, size=len(reference), dtype=bool)
        pairs = [pair[::-1] if exchanged else pair for exchanged, pair in zip(is_exchanged, zip(*outputs))]
        first, second = map(list, zip(*pairs))
        (test,) = randomisation_tests(first, [reference], [second], metrics, TRIALS)
        p_values["randomisation"].append(test["bleu"]["p"])
        named = [("1", first), ("2", second)]
        _, results = PairedTest(named, metrics, [reference], test_type="bs", n_samples=TRIALS)()
        p_values["bootstrap"].append(results["BLEU"][1].p_value)
    return p_values


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", nargs="*", type=Path, metavar="OUTPUT", help="two translations, plain text")
    parser.add_argument("--ref", type=Path, required=True, metavar="FILE", help="their reference")
    parser.add_argument("--number", type=int, default=400, help="pairs of outputs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if len(args.outputs) not in (0, 2):
        parser.error("give two outputs, or none")
    rng = np.random.default_rng(args.seed)
    reference = args.ref.read_text(encoding="utf-8").splitlines()
    outputs = [read_lines(path, "lines of the reference", len(reference)) for path in args.outputs]
    outputs = outputs or [damaged(reference, rng) for _ in range(2)]
    tests = simulate(outputs, reference, args.number, rng)
    shares = {
        test: {f"p < {level}": float(np.mean(np.array(ps) < level)) for level in LEVELS} for test, ps in tests.items()
    }
    print(json.dumps({"sentences": len(reference), "pairs": args.number, **shares}))


if __name__ == "__main__":
    with one_line():
        main()
