"""Rooms import in one direction only (docs/architecture.md), and rooms without fairseq stay so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "embinit_fairseq"

#: room -> rooms it may import from, beside those that stand below everything: BELOW
BELOW = {"errors", "bounded", "files", "machine", "version"}
ARROWS = {
    "errors": set(),
    "version": set(),
    "machine": set(),
    "registration": set(),
    "bounded": {"errors"},
    "files": {"errors"},
    "vocab": set(),
    "vectors": {"vocab"},
    "init": {"vocab", "vectors"},
    "checkpoints": {"vocab", "vectors", "init"},
    "hooks": {"vocab", "vectors", "init", "checkpoints"},
    "modules": set(),
    "architectures": {"modules", "init", "hooks"},
    "models": {"modules", "architectures", "init", "hooks", "checkpoints"},
    "criterions": {"modules", "models", "hooks"},
    "lr_schedulers": {"hooks"},
    "optimizers": set(),
    "expand": {"vocab", "vectors", "init", "checkpoints"},
    "convert_tupe": {"vocab", "vectors", "init", "checkpoints"},
    "export": {"vocab", "modules", "checkpoints", "expand", "architectures", "models"},
    "analysis": {"vocab", "vectors", "init", "modules"},
    "runs": {"vectors", "init", "checkpoints"},
    "plots": {"analysis", "checkpoints", "runs"},
    "bench": set(),
    "cli": {*"vocab vectors init checkpoints expand convert_tupe export analysis runs plots bench".split()},
    "__init__": {"registration"},
}
WITHOUT_FAIRSEQ = {*BELOW, *"registration vocab vectors init modules analysis runs plots".split()}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    room = room_of(path)
    assert room in ARROWS, f"{room}: a new room; give it its arrows here and in docs/architecture.md"
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "embinit_fairseq" and len(parts) > 1 and parts[1] != room:
            allowed = ARROWS[room] | (BELOW if room not in BELOW else set())
            assert parts[1] in allowed, f"{path.relative_to(PACKAGE)} imports {name}"
        if room in WITHOUT_FAIRSEQ:
            assert parts[0] not in ("fairseq", "fairseq_cli"), f"{path.relative_to(PACKAGE)} imports {name}"
        if parts[0] == "fairseq_compat":  # the doctor looks at it, and safe reading has its list there
            safely = name in ("fairseq_compat.plain_data", "fairseq_compat.scanned_pickles")
            assert room == "cli" or safely, f"{path.relative_to(PACKAGE)} imports {name}"


def test_light_rooms_do_not_load_torch_or_fairseq():
    code = (
        "import sys; import embinit_fairseq.vectors.open, embinit_fairseq.init.alignment,"
        " embinit_fairseq.init.strategies, embinit_fairseq.analysis, embinit_fairseq.runs.launch,"
        " embinit_fairseq.cli.main;"
        " print({'torch', 'fairseq'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr


@pytest.mark.parametrize(
    "order",
    [
        "import fairseq, embinit_fairseq",
        "import embinit_fairseq, fairseq",
        "import embinit_fairseq.vectors.open; import fairseq.options",
        "import embinit_fairseq.hooks.options",
        "from embinit_fairseq.models import embinit_classifier",
    ],
)
def test_registration_in_any_order_of_imports(order):
    code = (
        f"{order}\n"
        "import fairseq.models, fairseq.registry\n"
        "print(sorted(fairseq.registry.REGISTRIES['embed_init']['registry']),"
        " 'embinit_classifier' in fairseq.models.ARCH_MODEL_REGISTRY,"
        " hasattr(fairseq.models.build_model, '_embinit_wrapped'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    expected = ["normal", "pretrained", "pretrained_xavier", "shuffled", "xavier", "xavier_pretrained"]
    assert done.stdout.strip() == f"{expected} True True", done.stdout + done.stderr
