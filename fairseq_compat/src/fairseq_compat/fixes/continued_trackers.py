"""--wandb-project: a continued run with another --max-epoch ends with ConfigError.

Symptom: ``--wandb-project`` with ``WANDB_RESUME=allow``: a run whose ``--max-epoch`` has changed ends at its start with
    ``ConfigError: Attempted to change value of key "optimization.max_epoch"``.
Where: fairseq/logging/progress_bar.py:513 (``wandb.config.update(config)``).
Remedy: the options of the last session are the run's.
Can go: with a fairseq that passes ``allow_val_change=True``.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"wandb\.config\.update\(config\)"


def patch(module):
    @wrap(module.WandBProgressBarWrapper)
    def update_config(original, self, config):
        if module.wandb is not None:
            module.wandb.config.update(config, allow_val_change=True)
        self.wrapped_bar.update_config(config)
