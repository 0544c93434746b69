"""Start transformers better: embedding initialisation, TUPE, Duo and vocabulary expansion for fairseq.

`--user-dir embinit_fairseq` (or `import embinit_fairseq`) registers everything below with fairseq. Without fairseq:
`load_vectors`, `embedding_matrix` and `init_embedding_` (`embinit_fairseq.embeddings`), `expand` and `transfer`
(`new_words`), `expand_hf` (`hf_models`).
"""

from typing import TYPE_CHECKING

if __name__ != "embinit_fairseq":
    raise ImportError(f"--user-dir must be a folder called embinit_fairseq, not {__name__}: name a link likewise")

from embinit_fairseq.registration import register_with_fairseq
from embinit_fairseq.version import VERSION

if TYPE_CHECKING:
    from embinit_fairseq.embeddings import Vectors, embedding_matrix, init_embedding_, load_vectors
    from embinit_fairseq.hf_models import expand_hf
    from embinit_fairseq.new_words import expand, transfer

__all__ = ["Vectors", "embedding_matrix", "expand", "expand_hf", "init_embedding_", "load_vectors", "transfer"]
__version__ = VERSION

#: modules that register their classes when they are imported
REGISTERING = [
    "embinit_fairseq.embed_init.plugin",
    "embinit_fairseq.optimizers.fused_adam",
    "embinit_fairseq.criterions.fused_cross_entropy",
    "embinit_fairseq.criterions.sentence_prediction_metrics",
    "embinit_fairseq.models.embinit_classifier",
    "embinit_fairseq.models.tupe",
    "embinit_fairseq.models.electra",
    "embinit_fairseq.criterions.electra_losses",
    "embinit_fairseq.models.tupe_transformer",
    "embinit_fairseq.models.duo_transformer",
    "embinit_fairseq.models.duo_classifier",
]

register_with_fairseq(REGISTERING)


def __getattr__(name: str):
    """Import the functions of `__all__` when they are used: numpy and the readers take longer than the rest."""
    if name in __all__:
        from embinit_fairseq import embeddings, hf_models, new_words

        module = {"expand": new_words, "transfer": new_words, "expand_hf": hf_models}.get(name, embeddings)
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the functions, and the names that every module has."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
