"""``python -m fairseq_compat``: print the state of every fix; exit code 1 if a needed one is not active."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from fairseq_compat.report import heading, status, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fairseq_compat", description="Which fixes fairseq needs here.")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    as_json = parser.parse_args().json
    rows = status()
    print(json.dumps([asdict(row) for row in rows], indent=2) if as_json else f"{heading()}\n{table(rows)}")
    return 0 if all(row.active for row in rows if row.needed) else 1


if __name__ == "__main__":
    sys.exit(main())
