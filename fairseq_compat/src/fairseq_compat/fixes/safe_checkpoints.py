"""torch >= 2.6: Weights only load failed; older torch and fairseq's main branch execute what a file says.

Symptom: resuming and ``fairseq-generate`` raise ``UnpicklingError: Weights only load failed`` for
    ``argparse.Namespace`` (every legacy architecture) or ``numpy._core.multiarray._reconstruct`` (``--eval-bleu``).
    fairseq's main branch loads everything instead: a file from the net can execute what it likes.
Versions: torch >= 2.6, where ``torch.load`` has ``weights_only=True`` as default; torch 2.4 and 2.5 and fairseq's main
    branch (``weights_only=False``), where nothing was refused. An older torch has no list that could be added to.
Where: fairseq/checkpoint_utils.py:315 and :878.
Remedy: stand-ins for the plain data of a fairseq checkpoint join the allow-list (``fairseq_compat.plain_data``, with
    the reason why numpy's own classes must not). Loading stays safe: a pickle that names any other global is refused.
    A plugin with a copy of fairseq's module calls ``torch.load`` itself: for it the options of legacy architectures,
    which each of their checkpoints holds, join the list at once; numpy's arrays do not, as they need `plain`.
Upstream: fairseq issue 5603 (open); pytorch pull request 137602 (the change of the default).
Can go: with a fairseq that stores plain containers only; old checkpoints need it for ever.
"""

from __future__ import annotations

from fairseq_compat.patches import shadow
from fairseq_compat.versions import at_least

BROKEN = r"torch\.load\("


def needed() -> bool:
    return at_least("torch", 2, 4)


def patch(module):
    from fairseq_compat.plain_data import allowed, plain
    from fairseq_compat.stand_ins import stand_in

    torch = module.torch
    torch.serialization.add_safe_globals([stand_in("argparse.Namespace")])

    def load(file, *args, **kwargs):
        with allowed(torch.serialization.get_safe_globals()):
            return plain(torch.load(file, *args, **{**kwargs, "weights_only": True}))

    shadow(module, "torch.load", load)
