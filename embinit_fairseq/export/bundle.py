"""One Python file out of several: a source and, in place of its imports from this package, what it imports.

So an exported model is made of the modules that fairseq trains, and there is no second statement of the equations.
What is taken along is what is used: definitions are followed by name.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = __name__.partition(".")[0]
_WIDTH = 120


@dataclass
class _Part:
    """A module: its docstring, top-level definitions (name -> statement), statements that define nothing, imports."""

    docstring: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    statements: dict[int, str] = field(default_factory=dict)
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    inlined: list[ast.ImportFrom] = field(default_factory=list)


def bundle(source: str, stand_ins: Mapping[str, str], beside: Mapping[str, str]) -> str:
    """The text of module `source` without imports from this package.

    stand_ins: module -> the one that takes its place. beside: module -> name of the file that it becomes.
    """
    parts: dict[str, _Part] = {}
    _collect(source, stand_ins, beside, parts)
    owner: dict[str, str] = {}
    for module, part in parts.items():
        for name in part.definitions:
            if name in owner:
                raise RuntimeError(f"{name} is defined in {owner[name]} and in {module}: one file cannot hold both")
            owner[name] = module
    needed = _reachable(parts, owner, source)
    sections = []
    for module, part in parts.items():
        kept = [text for line, text in part.statements.items() if _names_at(part, line) & needed or module == source]
        if kept:
            sections.append(("" if module == source else _comment(part.docstring)) + "\n\n\n".join(kept))
    body = "\n\n\n".join(sections) + "\n"
    head = f'"""{parts[source].docstring}"""\n\nfrom __future__ import annotations\n'
    return "\n".join([head, _imports(parts, needed), "", body])


def _collect(module: str, stand_ins: Mapping[str, str], beside: Mapping[str, str], parts: dict[str, _Part]) -> None:
    """Read `module` behind everything it needs."""
    text = source_of(module)
    tree = ast.parse(text)
    part = _Part(ast.get_docstring(tree, clean=False) or "")
    lines, end = text.splitlines(), 0
    for node in tree.body:
        begin, end = end, node.end_lineno or 0
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _sort_import(node, part, stand_ins, beside, parts)
        elif begin or not isinstance(node, ast.Expr):  # the first expression is the docstring
            part.statements[node.lineno] = "\n".join(lines[begin:end]).strip("\n")
            part.definitions.update(dict.fromkeys(_defined(node), node))
    parts[module] = part


def _sort_import(
    node: ast.Import | ast.ImportFrom,
    part: _Part,
    stand_ins: Mapping[str, str],
    beside: Mapping[str, str],
    parts: dict[str, _Part],
) -> None:
    module = getattr(node, "module", None) or ""
    if module.partition(".")[0] != PACKAGE:
        part.imports.append(node)
        return
    if any(alias.asname for alias in node.names):
        raise RuntimeError(f"{module} is imported under another name, which one file cannot do")
    if module in beside:
        part.imports.append(ast.ImportFrom(beside[module], node.names, level=1))
        return
    module = stand_ins.get(module, module)
    if module not in parts:
        _collect(module, stand_ins, beside, parts)


def source_of(module: str) -> str:
    """The text of a module, which is not run."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None  # a file of this package
    return Path(spec.origin).read_text(encoding="utf-8")


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if not isinstance(target, ast.Name):
                raise RuntimeError(f"line {node.lineno}: an assignment to several names cannot be followed by name")
            yield target.id
    else:
        raise RuntimeError(f"line {node.lineno}: a {type(node).__name__} cannot be taken into one file")


def _names_at(part: _Part, line: int) -> set[str]:
    return {name for name, node in part.definitions.items() if node.lineno == line}


def _used(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def _reachable(parts: Mapping[str, _Part], owner: Mapping[str, str], source: str) -> set[str]:
    """Names that the definitions of `source` lead to, its own and those of imports included."""
    reachable: set[str] = set()
    waiting = list(parts[source].definitions)
    while waiting:
        name = waiting.pop()
        if name not in reachable:
            reachable.add(name)
            if name in owner:
                waiting += _used(parts[owner[name]].definitions[name])
    return reachable


def _imports(parts: Mapping[str, _Part], needed: set[str]) -> str:
    """Imports of all parts that are used, each once, in the order of isort."""
    plain: set[str] = set()
    names: dict[str, set[str]] = {}
    for part in parts.values():
        for node in part.imports:
            kept = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in needed]
            written = {alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in kept}
            if isinstance(node, ast.Import):
                plain |= {f"import {name}" for name in written}
            elif written and node.module != "__future__":
                names.setdefault("." * node.level + str(node.module), set()).update(written)
    lines = sorted(plain) + [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)]
    groups: list[list[str]] = [[], [], []]
    for line in lines:
        module = line.split()[1]
        groups[2 if module.startswith(".") else int(module.split(".")[0] in ("torch", "transformers"))].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def _comment(docstring: str) -> str:
    """A module's docstring as a comment above its section."""
    lines = [f"# {line}".rstrip() for line in docstring.strip().splitlines()]
    return "\n".join([f"# {'-' * (_WIDTH - 2)}", *lines, f"# {'-' * (_WIDTH - 2)}"]) + "\n\n\n"
