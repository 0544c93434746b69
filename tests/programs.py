"""How the tests start programs: much faster than in new processes, unless a test is about starts and stops.

Programs that are killed or stopped, that work in several processes, or whose start itself is tested get
``sys.executable`` and ``sys.prefix`` instead; and the first start of every program is always a new process. With
EMBINIT_TESTS_COLD_START=1, and without OMP_NUM_THREADS=1, all of them are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from warm_start.start import environment

#: for VENV of the scripts
VENV = environment()
#: in place of sys.executable
PYTHON = sys.executable if Path(sys.prefix) == VENV else str(VENV / "bin" / "python")
