"""Print the last table of the quickstart, with an interpretation.

python scripts/toy/summary.py runs/quickstart/results.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

COLUMNS = {
    "val. loss (bits)": "{:.3f}",
    "BLEU": "{:.1f}",
    "absorption ratio, encoder": "{:.2f}",
}


def main(path: Path) -> None:
    """Print one row per initialisation, a sentence about raw and rescaled vectors, and the place of the rest."""
    (table,) = json.loads(path.read_text(encoding="utf-8"))["tables"]
    rows = {row["labels"]["init"]: row["summary"] for row in table["rows"]}
    print(f"\n{'--embed-init':<20}{'val. loss (bits)':>17}{'test BLEU':>11}{'absorption':>12}")
    for name, summary in rows.items():
        cells = [
            form.format(value["mean"]) if (value := summary.get(column)) else "-" for column, form in COLUMNS.items()
        ]
        print(f"{name:<20}{cells[0]:>17}{cells[1]:>11}{cells[2]:>12}")
    bleu = {name: summary["BLEU"]["mean"] for name, summary in rows.items()}
    if {"xavier", "pretrained", "pretrained_xavier"} <= set(bleu):
        raw, rescaled = bleu["pretrained"] - bleu["xavier"], bleu["pretrained_xavier"] - bleu["xavier"]
        print(
            f"\nAgainst random numbers (xavier), the vectors as they are bring {raw:+.1f} BLEU, and {rescaled:+.1f} at "
            "the scale of xavier."
        )
    print(f"Details: {path.with_name('results.md')}, curves: {path.with_name('curves.png')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
