"""fairseq-generate > log 2>&1: lines of the log begin within lines of translations.

Symptom: with ``fairseq-generate ... > FILE 2>&1`` a line such as ``D-7`` may continue with a line of the log:
    Python writes stdout in blocks, which may end within a line, and the log line by line.
Versions: all.
Where: fairseq_cli/generate.py:61 and fairseq_cli/interactive.py (``print``); fairseq/tasks/text_to_speech.py:23 has
    sent the log to stderr before.
Remedy: stdout of these commands is written line by line, too. Without this fix: ``PYTHONUNBUFFERED=1``.
Can go: with a fairseq that writes both to one stream.
"""

from __future__ import annotations

import io
import sys

from fairseq_compat.patches import wrap

BROKEN = r"print\("


def patch(module):
    @wrap(module)
    def main(original, cfg, *args, **options):
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
        return original(cfg, *args, **options)
