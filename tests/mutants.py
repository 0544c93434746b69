"""How much the suite notices: small changes of the package (mutants), and which of them make a test fail.

    python -m pytest tests/unit --cov=embinit_fairseq --cov-context=test --cov-report=    # which test runs which line
    python tests/mutants.py make LIST.json --count 400 --seed 1               # draw mutants of covered lines
    python tests/mutants.py run LIST.json --tree CLONE                        # notes in LIST.json who was killed
    python tests/mutants.py run LIST.json --tree CLONE --only-killed --name after     # the same, another suite

A mutant is found again by its content (file, line, place in the line), so that two versions of the suite, or of the
package, can be compared. For each the tests that cover its line are run, the most specific first, in a fork of a
process that has imported torch and fairseq. The tree is changed while that runs: give a clone of its own.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOMS = tuple("init modules embed_init vectors resize checkpoints interop analysis runs models criterions".split())
COMPARISONS = {"Lt": "<=", "LtE": "<", "Gt": ">=", "GtE": ">", "Eq": "!=", "NotEq": "==", "Is": "is not"}
COMPARISONS |= {"IsNot": "is", "In": "not in", "NotIn": "in"}
SYMBOLS = {"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!=", "Is": "is", "IsNot": "is not"}
SYMBOLS |= {"In": "in", "NotIn": "not in"}
OPERATIONS = {"Add": ("+", "-"), "Sub": ("-", "+"), "Mult": ("*", "+"), "Div": ("/", "*"), "FloorDiv": ("//", "+")}
OPERATIONS |= {"Mod": ("%", "+"), "Pow": ("**", "*"), "MatMult": ("@", "*"), "BitAnd": ("&", "|"), "BitOr": ("|", "&")}
_SECONDS = 120
_TESTS = 14


def mutants(source: str) -> Iterator[tuple[int, int, int, str]]:
    """(line from 1, first column, last column, what stands there then), of one line each; columns count characters."""
    lines = source.split("\n")
    tree = ast.parse(source)
    ignored = {id(node) for node in ast.walk(tree) if _is_text(node) for node in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in ignored or not hasattr(node, "lineno") or node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        if len(line) != len(line.encode()):
            continue
        for first, last, text in _changes(node, line):
            yield node.lineno, first, last, text


def _is_text(node: ast.AST) -> bool:
    """What no test should look at: messages, documentation, types."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom, ast.arg, ast.AnnAssign)):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST, line: str) -> Iterator[tuple[int, int, str]]:
    start, end = node.col_offset, node.end_col_offset
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(line, node.left, node.comparators[0], SYMBOLS, COMPARISONS, type(node.ops[0]).__name__)
    elif isinstance(node, ast.BinOp) and type(node.op).__name__ in OPERATIONS:
        if not any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, node.right)):
            symbols = {name: pair[0] for name, pair in OPERATIONS.items()}
            others = {name: pair[1] for name, pair in OPERATIONS.items()}
            yield from _between(line, node.left, node.right, symbols, others, type(node.op).__name__)
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        names = {"And": "and", "Or": "or"}
        others = {"And": "or", "Or": "and"}
        yield from _between(line, *node.values, names, others, type(node.op).__name__)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield start, node.operand.col_offset, ""
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield start, end, str(not node.value)
        elif isinstance(node.value, (int, float)):
            yield start, end, f"{node.value + 1!r}"
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield start, end, "return None"
    elif isinstance(node, (ast.AugAssign, ast.Continue, ast.Break)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield start, end, "pass"
    elif isinstance(node, ast.IfExp) and node.test.lineno == node.lineno:
        yield node.test.col_offset, node.test.end_col_offset, f"not ({ast.unparse(node.test)})"


def _between(line: str, left: ast.expr, right: ast.expr, symbols: dict, others: dict, name: str):
    """The operator between two expressions that stand in one line."""
    if left.end_lineno == right.lineno and name in symbols:
        first = line.find(symbols[name], left.end_col_offset, right.col_offset)
        if first >= 0:
            yield first, first + len(symbols[name]), others[name]


def covered(data: Path, tree: Path) -> dict[str, dict[int, list[str]]]:
    """File -> line -> the tests that run it, the most specific first."""
    import coverage

    found = coverage.CoverageData(str(data))
    found.read()
    by_file = {}
    size: collections.Counter = collections.Counter()
    for path in found.measured_files():
        lines = {}
        for line, contexts in found.contexts_by_lineno(path).items():
            tests = {context.rpartition("|")[0] for context in contexts if context.endswith("|run")}
            lines[line] = tests
            size.update(tests)
        by_file[Path(path).relative_to(tree).as_posix()] = lines
    return {
        file: {line: sorted(tests, key=lambda t: (size[t], t)) for line, tests in lines.items()}
        for file, lines in by_file.items()
    }


def chosen_tests(tests: list[str]) -> list[str]:
    """At most three of one test function."""
    seen: collections.Counter = collections.Counter()
    chosen = []
    for test in tests:
        function = test.partition("[")[0]
        seen[function] += 1
        if seen[function] <= 3:
            chosen.append(test)
    return chosen[:_TESTS]


def make(args: argparse.Namespace) -> None:
    tree = args.tree.resolve()
    coverage, everything = covered(args.coverage, tree), []
    for room in ROOMS:
        for path in sorted((tree / "embinit_fairseq" / room).rglob("*.py")):
            file, source = path.relative_to(tree).as_posix(), path.read_text()
            lines = [line.strip() for line in source.split("\n")]
            for number, first, last, text in mutants(source):
                if coverage.get(file, {}).get(number):
                    indent = len(source.split("\n")[number - 1]) - len(source.split("\n")[number - 1].lstrip())
                    occurrence = lines[: number - 1].count(lines[number - 1])
                    place = {"first": first - indent, "last": last - indent, "text": text}
                    everything.append({"file": file, "line": lines[number - 1], "occurrence": occurrence, **place})
    drawn = random.Random(args.seed).sample(everything, min(args.count, len(everything)))
    args.list.write_text(json.dumps(drawn, indent=0) + "\n")
    print(f"{len(drawn)} of {len(everything)} mutants")


def located(mutant: dict, tree: Path) -> tuple[Path, int] | None:
    """File and line now; in another file if it has moved."""
    files = [tree / mutant["file"], *sorted((tree / "embinit_fairseq").rglob("*.py"))]
    for path in files:
        if path.is_file():
            places = [i for i, line in enumerate(path.read_text().split("\n")) if line.strip() == mutant["line"]]
            if path != files[0] and len(places) != 1:
                continue
            if places:
                return path, places[min(mutant["occurrence"], len(places) - 1)]
    return None


def run(args: argparse.Namespace) -> None:
    tree = args.tree.resolve()
    known, coverage = json.loads(args.list.read_text()), covered(args.coverage, tree)
    _preload(tree)
    for number, mutant in enumerate(known):
        key = args.name
        if key in mutant or (args.only_killed and mutant.get("before") != "killed"):
            continue
        place = located(mutant, tree)
        if place is None:
            mutant[key] = "gone"
            continue
        path, line = place
        source = path.read_text()
        tests = chosen_tests(coverage.get(path.relative_to(tree).as_posix(), {}).get(line + 1, []))
        started = time.time()
        try:
            path.write_text(_mutated(source, line, mutant))
            mutant[key] = _outcome(tree, tests) if tests else "not covered"
        finally:
            path.write_text(source)
        print(f"{number} {mutant['file']}:{line + 1} {mutant[key]} {time.time() - started:.1f} s", flush=True)
        args.list.write_text(json.dumps(known, indent=0) + "\n")
    print(collections.Counter(mutant.get(args.name) for mutant in known))


def _mutated(source: str, line: int, mutant: dict) -> str:
    lines = source.split("\n")
    indent = len(lines[line]) - len(lines[line].lstrip())
    first, last = mutant["first"] + indent, mutant["last"] + indent
    lines[line] = lines[line][:first] + mutant["text"] + lines[line][last:]
    return "\n".join(lines)


def _preload(tree: Path) -> None:
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for path in (tree / "embinit_fairseq").rglob("*.pyc"):
        path.unlink()
    os.chdir(tree)
    sys.path[:0] = [str(tree), str(tree / "fairseq_compat/src")]
    import fairseq.models
    import fairseq.tasks  # noqa: F401
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import sacrebleu  # noqa: F401


def _outcome(tree: Path, tests: list[str]) -> str:
    child = os.fork()
    if not child:
        os.setsid()
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        import pytest

        off = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-o", "addopts="]
        os._exit(int(pytest.main(["-x", "-q", *off, *tests])))
    until = time.time() + _SECONDS
    while time.time() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: "survived", 4: "tests not found", 5: "tests not found"}.get(code, "killed")
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "killed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("make", "run"))
    parser.add_argument("list", type=Path, help="JSON file with the mutants")
    parser.add_argument("--tree", type=Path, default=Path(), help="a clone of the repository; default: here")
    parser.add_argument("--coverage", type=Path, default=Path(".coverage"), help="data with contexts")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", default="before", help="under which the outcome is noted")
    parser.add_argument("--only-killed", action="store_true", help="only those that were killed `before`")
    args = parser.parse_args()
    args.list = args.list.resolve()
    {"make": make, "run": run}[args.step](args)


if __name__ == "__main__":
    main()
