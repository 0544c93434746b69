"""Follow `fairseq-train --log-format json` on standard input and print one line per epoch."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator

_VALIDATION = re.compile(r"\| INFO \| valid \| (\{.*\})$")


def progress_lines(log: Iterable[str], name: str, epochs: int, clock=time.monotonic) -> Iterator[str]:
    """Yields "name  epoch 3/20 [###...] validation loss 2.50 ..."; the last epoch's time gives the time left."""
    start = previous = clock()
    for line in log:
        match = _VALIDATION.search(line.rstrip("\n"))
        if not match:
            continue
        record = json.loads(match.group(1))
        epoch, loss, now = int(record["epoch"]), float(record["valid_loss"]), clock()
        left = (now - previous) * (epochs - epoch)
        previous = now
        done = round(20 * epoch / epochs)
        bar = "#" * done + "." * (20 - done)
        yield (
            f"{name:<18} epoch {epoch:>2}/{epochs} [{bar}] validation loss {loss:6.3f} bits"
            f"  {now - start:4.0f} s, about {left:.0f} s left"
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="what to call the run")
    parser.add_argument("epochs", type=int, help="epochs that will be trained")
    options = parser.parse_args(argv)
    for line in progress_lines(sys.stdin, options.name, options.epochs):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
