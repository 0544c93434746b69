"""hydra >= 1.1 warns six times about fairseq's code at every start.

Symptom: every command but ``fairseq-preprocess`` and ``fairseq-score`` starts with some twenty lines of warnings
    (``version_base``, ``hydra.experimental``, ``@package _group_``, ...) that no user can do anything about.
Versions: hydra >= 1.1; which of the warnings there are depends on the version (all below with 1.3).
Where: fairseq/dataclass/utils.py:388-399 (``initialize``, ``compose``); fairseq_cli/hydra_train.py:25 (``hydra.main``);
    fairseq/config/config.yaml, which both read.
Remedy: these messages are ignored while fairseq composes its configuration (by ``fairseq-hydra-train``: until it ends,
    since hydra's function contains the training). hydra's other messages, the same ones about configurations and code
    of the user, and all warnings of others are shown.
Upstream: hydra's guides "Upgrading from 1.0 to 1.1", "1.1 to 1.2" and "1.3 to 1.4".
Can go: with a fairseq written for hydra 1.2 or later.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager

from fairseq_compat.patches import wrap
from fairseq_compat.versions import at_least

BROKEN = r"hydra\.main|\binitialize\("

# beginnings of messages, as regular expressions; 'config' is the name of fairseq's own configuration
EXPECTED = (
    r"hydra\.experimental\.(initialize|compose)\(\) is no longer experimental",
    r"\s*The version_base parameter is not specified",
    r"\s*In 'config': Usage of deprecated keyword in package header '# @package _group_'",
    r"\s*'config' is validated against ConfigStore schema with the same name",
    r"\s*The strict flag in the compose API is deprecated",
)


def needed() -> bool:
    return at_least("hydra-core", 1, 1)


@contextmanager
def executing(module):
    """Ignore the expected warnings: hydra.main warns when it decorates."""
    with warnings.catch_warnings():
        for message in EXPECTED:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield


def patch(module):
    @wrap(module, "hydra_main" if hasattr(module, "hydra_main") else "convert_namespace_to_omegaconf")
    def quietly(original, *args, **kwargs):
        with executing(module):
            return original(*args, **kwargs)
