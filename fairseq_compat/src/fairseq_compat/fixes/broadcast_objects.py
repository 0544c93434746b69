"""torch >= 2.6, several processes: a resumed training ends with Unsupported global: ...DictConfig.

Symptom: resuming with two or more processes raises ``UnpicklingError ... Unsupported global:
    omegaconf.dictconfig.DictConfig`` on all of them but the first.
Versions: torch >= 2.6; fairseq 0.12.2.
Where: fairseq/distributed/utils.py:770 (``_broadcast_object_slow``), the only ``torch.load`` of that module.
Remedy: there, and there only, a load without the allow-list. Its bytes were sent through the process group of the same
    job by its first process, which itself had loaded the file through the allow-list; ``all_gather_list`` of the same
    module unpickles what peers send as well. Files are refused: only bytes in memory are taken.
    Without this fix: ``--load-checkpoint-on-all-dp-ranks``.
Can go: with a fairseq that broadcasts plain containers.
"""

from __future__ import annotations

import io

from fairseq_compat.patches import shadow
from fairseq_compat.versions import at_least

BROKEN = r"def _broadcast_object_slow\([\s\S]*?torch\.load\("
FIXED = r"def broadcast_object\("


def needed() -> bool:
    return at_least("torch", 2, 6)


def patch(module):
    torch = module.torch

    def load(buffer, map_location=None):
        if not isinstance(buffer, io.BytesIO):
            raise TypeError("fairseq.distributed.utils may only load bytes received from its own job, never a file")
        return torch.load(buffer, map_location=map_location, weights_only=False)

    shadow(module, "torch.load", load)
