"""Print the state of every fix (``python -m fairseq_compat``), or install fairseq (``... install``)."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import asdict

import fairseq_compat
from fairseq_compat.report import fairseq_folders, heading, status, table


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    about = "Show which fixes fairseq needs here, and which are active. Exit code 1 if one is needed and not active."
    options = argparse.ArgumentParser(prog="python -m fairseq_compat", description=about, allow_abbrev=False)
    options.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    options.add_argument("--version", action="version", version=fairseq_compat.__version__)
    commands = options.add_subparsers(dest="command", metavar="[install]")
    about = "install fairseq and its requirements into this environment"
    install = commands.add_parser("install", help=about, description=about, allow_abbrev=False)
    install.add_argument("--no-compiler", action="store_true", help="its Python files only: the same results, slower")
    install.add_argument("--source", metavar="DIR", help="a checkout of fairseq (default: 0.12.2 from the index)")
    install.add_argument("--target", metavar="DIR", help="a folder for fairseq itself (default: this environment)")
    return options


def show(as_json: bool) -> int:
    """Print the state of the fixes; return the exit code, 1 if one is needed and not active."""
    rows = status()
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(heading(), *([table(rows)] if fairseq_folders() else []), sep="\n")
    return 0 if all(row.active for row in rows if row.needed) else 1


def main() -> int:
    args = parser().parse_args()
    from fairseq_compat import install

    try:
        if args.command is None:
            return show(args.json)
        source = install.FAIRSEQ if args.source is None else args.source
        print(install.install(source, not args.no_compiler, args.target))
    except (install.InstallError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if sys.path[0] in ("", os.getcwd()):  # python -m; fairseq's commands do not look there
        del sys.path[0]
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
