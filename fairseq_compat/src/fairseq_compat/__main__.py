"""``python -m fairseq_compat``: print the state of every fix; exit code 1 if a needed one is not active.

``python -m fairseq_compat install``: get fairseq itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from fairseq_compat.report import heading, status, table


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(prog="python -m fairseq_compat", description="Which fixes fairseq needs here.")
    options.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    commands = options.add_subparsers(dest="command", metavar="install")
    install = commands.add_parser("install", help="install fairseq and what it needs into this environment")
    install.add_argument("--no-compiler", action="store_true", help="its Python files only: the same results, slower")
    install.add_argument("--source", metavar="DIR", help="a checkout of fairseq (default: 0.12.2 from the index)")
    install.add_argument("--target", metavar="DIR", help="a folder for fairseq itself (default: this environment)")
    return options


def show(as_json: bool) -> int:
    """The state of the fixes."""
    rows = status()
    print(json.dumps([asdict(row) for row in rows], indent=2) if as_json else f"{heading()}\n{table(rows)}")
    return 0 if all(row.active for row in rows if row.needed) else 1


def main() -> int:
    args = parser().parse_args()
    if args.command is None:
        return show(args.json)
    from fairseq_compat import install

    try:
        print(install.install(args.source or install.FAIRSEQ, not args.no_compiler, args.target))
    except install.InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
