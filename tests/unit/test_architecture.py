"""Rooms import in one direction only (docs/architecture.md), and rooms without fairseq stay so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "embinit_fairseq"

#: room -> rooms it may import from
ARROWS = {
    "errors": set(),
    "version": set(),
    "registration": set(),
    "vectors": {"errors"},
    "vocab": {"errors", "vectors"},
    "init": {"errors", "vectors", "vocab"},
    "modules": {"errors"},
    "checkpoints": {"errors", "vectors", "vocab", "init"},
    "hooks": {"errors", "version", "vectors", "vocab", "init", "checkpoints"},
    "models": {"errors", "modules", "init", "hooks", "checkpoints"},
    "tasks": {"errors", "models", "hooks"},
    "criterions": {"errors", "models", "hooks", "analysis"},
    "lr_schedulers": {"errors", "hooks"},
    "analysis": {"errors", "vectors", "vocab", "init", "modules"},
    "export": {"errors", "version", "vocab", "modules", "checkpoints", "models"},
    "cli": {"errors", "version", "vectors", "vocab", "init", "analysis", "checkpoints", "modules", "export"},
    "__init__": {"registration", "version"},
}
WITHOUT_FAIRSEQ = ("errors", "registration", "vectors", "vocab", "init", "modules", "analysis")
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
            assert parts[1] in ARROWS[room], f"{path.relative_to(PACKAGE)} imports {name}"
        if room in WITHOUT_FAIRSEQ:
            assert parts[0] not in ("fairseq", "fairseq_cli"), f"{path.relative_to(PACKAGE)} imports {name}"
        assert parts[0] != "fairseq_compat" or room == "cli", "only the doctor may look at fairseq_compat"


def test_light_rooms_do_not_load_torch_or_fairseq():
    code = (
        "import sys; import embinit_fairseq.vectors.open, embinit_fairseq.vocab.align, embinit_fairseq.init.strategies,"
        " embinit_fairseq.analysis, embinit_fairseq.cli.main; print({'torch', 'fairseq'} & set(sys.modules))"
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
