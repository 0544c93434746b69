"""``python -m embinit_fairseq`` is the command ``embinit``."""

import sys

from embinit_fairseq.cli.main import main

sys.exit(main())
