"""Programs of scripts/ and benchmarks/ are imported by the folder that they are in, as their callers import them."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "scripts", "scripts/expansion", "scripts/glue", "scripts/multi30k")
sys.path += [str(REPOSITORY / folder) for folder in FOLDERS]
