"""fairseq's BART (`bart_base`, `bart_large`, what was fine-tuned from them): transformers' own, without code of ours.

Positions are learned, two rows further on than they are counted. transformers counts columns, fairseq what is no
padding: padding on the right gives the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embinit_fairseq.export import encoder_decoder

if TYPE_CHECKING:
    from torch import Tensor

    from embinit_fairseq.export.trained import Trained

ARCHS = "fairseq's bart_base, bart_large"
TAGS = ("bart", "fairseq")
TASKS = ("denoising", "translation")
CODE: tuple[str, ...] = ()
NOTE = "BART as in Lewis et al. 2019; transformers' own class computes it."


def models() -> tuple[type, ...]:
    """Also those of mBART, of which `refused` leaves what is BART."""
    from fairseq.models.bart import BARTModel

    return (BARTModel,)


def refused(trained: Trained) -> str | None:
    """What transformers' BART has no counterpart of."""
    from fairseq.modules import LearnedPositionalEmbedding

    encoder, decoder = trained.model.encoder, trained.model.decoder
    source, target = trained.model.max_positions()
    wrong = {
        f"--max-source-positions {source} beside --max-target-positions {target}": source != target,
        "two tables of embeddings (no --share-all-embeddings)": not trained.model.cfg.share_all_embeddings,
        "a classification head": trained.head is not None,
    }
    for side, part in (("encoder", encoder), ("decoder", decoder)):
        is_learned = isinstance(part.embed_positions, LearnedPositionalEmbedding)
        wrong[f"sines as positions (no --{side}-learned-pos)"] = not is_learned
    without = None in (encoder.layernorm_embedding, decoder.layernorm_embedding)
    return encoder_decoder.refused(trained, "BART", {**wrong, "no --layernorm-embedding": without})


def describe(trained: Trained) -> str:
    """BART, and what its task was."""
    return "BART" if trained.task == "denoising" else "BART, fine-tuned"


def settings(trained: Trained) -> dict[str, Any]:
    """Those of `BartConfig`."""
    return {
        **encoder_decoder.settings(trained),
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
    }


def weights(trained: Trained) -> dict[str, Tensor]:
    """The one table of embeddings is named once. There is a bias behind the output there, which is zero here."""
    model = trained.model
    tensors = encoder_decoder.layers(trained)
    tensors["model.shared.weight"] = model.encoder.embed_tokens.weight
    tensors["final_logits_bias"] = model.encoder.embed_tokens.weight.new_zeros(1, len(trained.source.symbols))
    for side, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        tensors[f"model.{side}.embed_positions.weight"] = part.embed_positions.weight
        for name, value in part.layernorm_embedding.state_dict().items():
            tensors[f"model.{side}.layernorm_embedding.{name}"] = value
    return encoder_decoder.plain(tensors)


generation, prepare, sizes = encoder_decoder.generation, encoder_decoder.prepare, encoder_decoder.sizes
