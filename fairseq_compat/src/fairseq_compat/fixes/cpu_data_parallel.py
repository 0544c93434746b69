"""--cpu with several processes: ValueError: ... device_ids.

Symptom: ``--cpu`` with several processes and the default ``--ddp-backend pytorch_ddp`` raises ``ValueError:
    DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU
    modules or CPU modules, but got device_ids [0]``.
Where: fairseq/models/distributed_fairseq_model.py:60.
Remedy: no device ids for a module on the CPU. Without this fix: ``--ddp-backend legacy_ddp``.
"""

from __future__ import annotations

from typing import Any

BROKEN = r"device_ids=\[args\.device_id\]"


def patch(module):
    original: Any = module.DistributedDataParallel

    class DistributedDataParallel(original):
        def __init__(self, module, device_ids=None, output_device=None, **options):
            if all(parameter.device.type == "cpu" for parameter in module.parameters()):
                device_ids = output_device = None
            super().__init__(module, device_ids=device_ids, output_device=output_device, **options)

    module.DistributedDataParallel = DistributedDataParallel
