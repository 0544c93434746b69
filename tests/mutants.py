"""How much the suite notices: small changes of the package (mutants), and which of them no test notices.

    python -m pytest tests/unit --cov=embinit_fairseq --cov-context=test --cov-report=    # which test runs which line
    python tests/mutants.py --tree CLONE --count 400 --seed 1

For each mutant the tests that cover its line are run, the most specific first, in a fork of a process that has imported
torch and fairseq. Lines that no test runs are not drawn. The same seed draws the same mutants of the same package: two
versions of the suite can be compared. The tree is changed while this runs: give a clone of its own.
"""

from __future__ import annotations

import argparse
import ast
import collections
import os
import random
import signal
import sys
import time
from pathlib import Path

ROOMS = tuple("init modules embed_init vectors resize checkpoints interop analysis runs models criterions".split())
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPARISONS |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
OPERATIONS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Add}
OPERATIONS |= {ast.Mod: ast.Add, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
#: seconds after which tests count as failed; tests of the first run: most of them, and most of one function
SECONDS, TESTS, OF_ONE = 600, 14, 3


class Mutation(ast.NodeTransformer):
    """Numbers the places of a file that can be changed, and changes the one with the number `wanted`."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.lines, self.change = wanted, [], ""

    def visit(self, node: ast.AST) -> ast.AST:
        # messages, documentation and types are nothing that a test should look at
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert, ast.arg, ast.AnnAssign)):
            return node
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return node
        decorators, node.decorator_list = getattr(node, "decorator_list", []), []
        node = self.generic_visit(node)
        node.decorator_list = decorators
        changed = self.changed(node)
        if changed is None:
            return node
        self.lines.append(node.lineno)
        if len(self.lines) - 1 != self.wanted:
            return node
        self.change = f"{ast.unparse(node)} -> {ast.unparse(changed)}"
        return ast.copy_location(changed, node)

    @staticmethod
    def changed(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return ast.BinOp(node.left, OPERATIONS[type(node.op)](), node.right)
        if isinstance(node, ast.BoolOp):
            return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return node.operand
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            return ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
        if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
            return ast.Return(ast.Constant(None))
        if isinstance(node, (ast.AugAssign, ast.Continue, ast.Break)):
            return ast.Pass()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return ast.Pass()
        if isinstance(node, ast.IfExp):
            return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        return None


def covering_tests(data: Path) -> dict[str, dict[int, tuple[list[str], list[str]]]]:
    """File -> line -> the most specific tests that run it, a few of each test function; all other tests that run it."""
    import coverage

    found, size = coverage.CoverageData(str(data)), collections.Counter()
    found.read()
    files = {path: found.contexts_by_lineno(path) for path in found.measured_files()}
    for contexts in (contexts for lines in files.values() for contexts in lines.values()):
        size.update(context for context in contexts if context.endswith("|run"))

    def chosen(contexts: list[str]) -> tuple[list[str], list[str]]:
        functions, first, others = collections.Counter(), [], []
        for context in sorted((each for each in contexts if each in size), key=lambda each: (size[each], each)):
            test = context.removesuffix("|run")
            function = test.partition("[")[0]
            functions[function] += 1
            (first if functions[function] <= OF_ONE and len(first) < TESTS else others).append(test)
        return first, others

    return {
        path[path.rindex("embinit_fairseq/") :]: {line: chosen(contexts) for line, contexts in lines.items()}
        for path, lines in files.items()
    }


def is_noticed(tests: list[str]) -> bool:
    """Return True if one of the tests fails, or none of them ends in time."""
    child = os.fork()
    if not child:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        import pytest

        os._exit(int(pytest.main([*"-x -q -p no:cacheprovider -p no:xdist -p no:cov -o addopts=".split(), *tests])))
    until = time.time() + SECONDS
    while time.time() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="a clone of the repository")
    parser.add_argument("--coverage", type=Path, default=Path(".coverage"), help="data with contexts")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tests, mutants = covering_tests(args.coverage.resolve()), []
    os.chdir(args.tree)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(Path.cwd()), str(Path("fairseq_compat/src").resolve())]
    import fairseq.models
    import fairseq.tasks  # noqa: F401

    for file in sorted(file for file in tests if file.split("/")[1] in ROOMS):
        mutation = Mutation()
        mutation.visit(ast.parse(Path(file).read_text()))
        mutants += [
            (file, number, line) for number, line in enumerate(mutation.lines) if any(tests[file].get(line, ()))
        ]
    drawn = random.Random(args.seed).sample(mutants, min(args.count, len(mutants)))
    survivors = 0
    for file, number, line in drawn:
        source = Path(file).read_text()
        try:
            mutation = Mutation(number)
            Path(file).write_text(ast.unparse(mutation.visit(ast.parse(source))))
            if not any(is_noticed(part) for part in tests[file][line] if part):
                survivors += 1
                print(f"{file}:{line} {source.splitlines()[line - 1].strip()}\n    {mutation.change}", flush=True)
        finally:
            Path(file).write_text(source)
    print(f"{len(drawn) - survivors} of {len(drawn)} mutants are noticed, of {len(mutants)} places")


if __name__ == "__main__":
    main()
