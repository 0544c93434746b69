"""Packages import in one direction only (docs/architecture.md), and those without fairseq stay so."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "embinit_fairseq"

#: package -> packages it may import from, in addition to BELOW, which are below everything
BELOW = {"arguments", "errors", "io", "figures", "checkpoint_file", "machine", "version"}
ALONE = "errors machine version registration vocab modules optimizers".split()
ARROWS = {
    **{room: set() for room in ALONE},
    "arguments": {"errors"},
    "io": {"errors"},
    "figures": {"errors", "io"},
    "checkpoint_file": {"errors"},
    "vectors": {"vocab"},
    "corpora": {"vocab"},
    "init": {"vocab", "vectors"},
    "embeddings": {"vocab", "vectors", "init"},
    "matrices": {"init"},
    "new_words": {"vocab", "vectors", "init", "embeddings", "matrices"},
    "hf_models": {"vocab", "init", "embeddings", "matrices", "new_words"},
    "checkpoints": {"vocab", "init"},
    "embed_init": {"vocab", "vectors", "init", "checkpoints"},
    "models": {"modules", "checkpoints", "vocab"},
    "criterions": {"modules", "models"},
    "resize": {"vocab", "vectors", "init", "checkpoints"},
    "interop": {"vocab", "vectors", "modules", "checkpoints", "models"},
    "analysis": {"vocab", "vectors", "init", "modules", "checkpoints"},
    "runs": {"vocab", "vectors", "checkpoints"},
    "cli": {*"vocab corpora vectors init embeddings checkpoints resize interop models analysis runs".split()},
    "__init__": {"registration", "embeddings", "new_words", "hf_models"},
    "__main__": {"cli"},
}
WITHOUT_FAIRSEQ = {
    *BELOW,
    *"registration vocab vectors init embeddings matrices new_words hf_models modules analysis runs".split(),
}


def imports_of(path: Path, top_level: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "embinit_fairseq")
    return found


def test_imports_go_one_way_and_no_arrow_is_unused():
    used: dict[str, set[str]] = {package: set() for package in ARROWS}
    for path in PACKAGE.rglob("*.py"):
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert package in ARROWS, f"{package} is new; give it its arrows here and in docs/architecture.md"
        for name in imports_of(path):
            first, _, rest = name.partition(".")
            if first == "embinit_fairseq" and rest:
                used[package].add(rest.partition(".")[0])
            assert first not in ("fairseq", "fairseq_cli") or package not in WITHOUT_FAIRSEQ, f"{path} imports {name}"
            # safe reading has its list in fairseq_compat, scoring its languages
            shared = package == "cli" or rest in ("plain_data", "languages")
            assert first != "fairseq_compat" or shared, f"{path} imports {name}"
    for package, allowed in ARROWS.items():
        below = BELOW if package not in BELOW else set()
        assert used[package] - allowed - below - {package} == set(), f"{package} may not import them"
        assert allowed - used[package] == set(), f"{package} does not import them"


def test_no_two_files_have_one_name():
    """The file of a command in cli/ has the command's name, as score; the file that does the work is named by content.

    The recipe of a corpus that is prepared in shards has its list of steps in steps.py.
    """
    root = PACKAGE.parent
    paths: dict[str, list[str]] = {}
    for folder in ("embinit_fairseq", "fairseq_compat/src", "scripts"):
        for path in (root / folder).rglob("*.py"):
            paths.setdefault(path.stem, []).append(path.relative_to(root).as_posix())
    assert {name: same for name, same in paths.items() if len(same) > 1}.keys() == {"__init__", "__main__", "steps"}


def loaded_with(name: str, seen: set[str]) -> set[str]:
    """Everything that importing a module of ours imports at its top level, ours and others'."""
    path = PACKAGE.parent / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if name in seen or not path.is_file():
        return seen | {name}
    seen = seen | {name}
    for parent in (name.rpartition(".")[0], *imports_of(path, top_level=True)):
        seen = loaded_with(parent, seen) if parent.startswith("embinit_fairseq") else seen | {parent.split(".")[0]}
    return seen


def test_light_packages_do_not_load_torch_or_fairseq():
    """Reading vectors, or the help of a command, would wait for seconds."""
    light = "vectors.open init.alignment init.strategies analysis.statistics runs.training cli.main cli.stats".split()
    light += [f"vectors.{path.stem}" for path in (PACKAGE / "vectors").glob("*.py") if path.stem != "__init__"]
    for name in light:
        loaded = loaded_with(f"embinit_fairseq.{name}", set())
        assert not loaded & {"torch", "fairseq", "matplotlib"}, name
    assert "torch" in loaded_with("embinit_fairseq.modules.duo", set())
