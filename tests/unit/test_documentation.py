"""Test that tests, files and options of `embinit` named by README, CONTRIBUTING and docs/ exist."""

import argparse
import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from embinit_fairseq.cli.main import COMMANDS, build_parser

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = "benchmarks docs embinit_fairseq examples fairseq_compat scripts tests".split()
FILES = {p.relative_to(REPOSITORY).as_posix() for room in FOLDERS for p in (REPOSITORY / room).rglob("*.*")}
FILES |= {path.name for path in REPOSITORY.glob("*.*")}
PLACES = {file[at:] for file in FILES for at in [0, *(m.end() for m in re.finditer("/", file))]}  # src/a.py, a.py
PYTHON = [file for file in FILES if re.search(r"tests/.*\.py$", file)]
TESTS = {name for f in PYTHON for name in re.findall(r"^def (test_\w+)", (REPOSITORY / f).read_text("utf-8"), re.M)}
TESTS |= {Path(file).stem for file in PYTHON}
#: what is made, a data set, and files of fairseq and of plugins of others
OTHERS = set(
    """results.md test_2016_flickr scripts/average_checkpoints.py get_ende_bleu.sh prepare-wmt14en2de.sh
    prepare-wmt14en2fr.sh preprocess.py scripts/generate_ctc.py generate_bnmt.py train_bnmt.py""".split()
)
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "tests/README.md",
    *sorted(f for f in FILES if re.fullmatch(r"docs/.*\.md", f)),
]


@lru_cache
def flags_of(command: str) -> set[str]:
    """Return the options of a sub-command and of its own sub-commands."""
    parsers, flags = [build_parser(command)], set()
    while parsers:
        for action in parsers.pop()._actions:
            flags.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    return flags


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    assert not set(re.findall(r"\btest_\w+\b(?![*<])", text)) - TESTS - OTHERS
    named = set(re.findall(r"(?<![\w./*<>$~{}-])\w[\w.-]*(?:/[\w.-]+)*\.(?:py|sh|md)\b", text))
    assert not {name for name in named - PLACES - OTHERS if not (REPOSITORY / name).exists()}  # some are links
    for name, words in re.findall(r"\bembinit ([a-z-]+)((?:\\\n|[^\n`|;)])*)", text):
        if name in COMMANDS:
            assert not set(re.findall(r"(?<=[\s\[(])--[a-z][\w-]*", words.partition(" -- ")[0])) - flags_of(name), name


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    """As the site of scripts/docs.sh needs them: a folder is no page."""
    text = re.sub(r"```.*?```|`[^`]*`", "", (REPOSITORY / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link} - {""}
    assert not [link for link in links if not ((REPOSITORY / page).parent / link).is_file()]


@pytest.mark.parametrize("place", ["docs/index.md", "mkdocs.yml"])
def test_every_page_is_listed(place: str) -> None:
    text = (REPOSITORY / place).read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([\w/]+\.md)\)|- (?:[^\n:]*: )?([\w/]+\.md)$", text, re.MULTILINE))
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - {"index.md"}
    assert {name for pair in listed for name in pair} - {"", "index.md"} == pages


def test_the_page_of_the_fixes_says_what_their_files_say() -> None:
    """The list is the first line of each file, which `python -m fairseq_compat` prints, too."""
    page = (REPOSITORY / "docs/fairseq_compat.md").read_text(encoding="utf-8")
    fixes = (REPOSITORY / "fairseq_compat/src/fairseq_compat/fixes").glob("[a-z]*.py")
    heads = {fix.stem: ast.get_docstring(ast.parse(fix.read_text("utf-8"))).splitlines()[0][:-1] for fix in fixes}
    assert dict(re.findall(r"^- `(\w+)`: (.*)$", page, re.MULTILINE)) == heads


def test_records_name_no_place_of_the_machine_that_made_them() -> None:
    records = sorted((REPOSITORY / "docs/results/records").glob("*.csv"))
    places = re.compile(r"(?<![\w.:/])/(?:tmp|home|root|work|mnt|data|Users)\b")
    assert len(records) > 10
    assert not [path.name for path in records if places.search(path.read_text(encoding="utf-8"))]
