"""What transformers' FSMT and BART have in common: post-LN encoder and decoder, with the names of fairseq's layers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from embinit_fairseq.export.rounding import ACTIVATIONS, unrounded

if TYPE_CHECKING:
    from torch import Tensor

    from embinit_fairseq.export.trained import Trained

#: --activation-fn -> its name in transformers
_ACTIVATIONS = {**ACTIVATIONS, "relu_squared": "relu2", "linear": "linear"}
#: what both have; a head or a wrapper, say, is not among it
_LAYER = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj", "self_attn.out_proj", "self_attn_layer_norm")
_CROSS = tuple(name.replace("self_attn", "encoder_attn") for name in _LAYER)
_FFN = ("fc1", "fc2", "final_layer_norm")
#: fairseq-generate's --max-len-b, beside --max-len-a 0
_MAX_LEN = 200


def refused(trained: Trained, name: str, more: dict[str, bool]) -> str | None:
    """What neither has, and `more`: option -> is it so? name: of the class, in words."""
    cfg, decoder = trained.model.cfg, trained.model.decoder
    dims = f"--encoder-embed-dim {cfg.encoder_embed_dim} beside --decoder-embed-dim {cfg.decoder_embed_dim}"
    wrong = {
        f"--activation-fn {cfg.activation_fn}": str(cfg.activation_fn) not in _ACTIVATIONS,
        "--adaptive-softmax-cutoff": decoder.adaptive_softmax is not None,
        "--base-layers": bool(cfg.base_layers),
        "--cross-self-attention": cfg.cross_self_attention,
        "--decoder-input-dim": decoder.project_in_dim is not None,
        "--decoder-normalize-before": cfg.decoder_normalize_before,
        "--decoder-output-dim": decoder.project_out_dim is not None,
        dims: cfg.encoder_embed_dim != cfg.decoder_embed_dim,
        "--encoder-normalize-before": cfg.encoder_normalize_before,
        "--no-cross-attention": cfg.no_cross_attention,
        "--no-token-positional-embeddings": cfg.no_token_positional_embeddings,
        "--quant-noise-pq": bool(cfg.quant_noise_pq),
        "--quant-noise-scalar": bool(cfg.quant_noise_scalar),
        **{f"--{side}-xformers-att-config": bool(getattr(cfg, f"{side}_xformers_att_config")) for side in _SIDES},
        **more,
    }
    found = ", ".join(option for option, is_so in wrong.items() if is_so)
    if not found:
        return None
    return f"transformers' {name} cannot have {found}: see docs/ctranslate2.md, or let the model stay in fairseq"


_SIDES = ("encoder", "decoder")


def sizes(trained: Trained) -> str:
    """Of both sides."""
    parts = []
    for side in _SIDES:
        layers = len(getattr(trained.model, side).layers)
        ffn, heads = (getattr(trained.model.cfg, f"{side}_{part}") for part in ("ffn_embed_dim", "attention_heads"))
        parts.append(f"{side} of {layers} layers, FFN {ffn}, {heads} heads")
    dim = trained.model.cfg.encoder_embed_dim
    return f"{', '.join(parts)}, dimension {dim}, {longest(trained)} positions"


def longest(trained: Trained) -> int:
    """Positions of the side that has more."""
    return max(trained.model.max_positions())


def settings(trained: Trained) -> dict[str, Any]:
    """What both configurations call the same."""
    cfg, model = trained.model.cfg, trained.model
    found: dict[str, Any] = {
        "d_model": cfg.encoder_embed_dim,
        "activation_function": _ACTIVATIONS[str(cfg.activation_fn)],
        "dropout": float(cfg.dropout),
        "attention_dropout": float(cfg.attention_dropout),
        "activation_dropout": float(cfg.activation_dropout or cfg.relu_dropout),
        "max_position_embeddings": longest(trained),
        "scale_embedding": not cfg.no_scale_embedding,
        "tie_word_embeddings": bool(cfg.share_all_embeddings),
        "is_encoder_decoder": True,
        "decoder_start_token_id": model.decoder.dictionary.eos(),
        "forced_eos_token_id": model.decoder.dictionary.eos(),
    }
    for side in _SIDES:
        found[f"{side}_layers"] = len(getattr(model, side).layers)
        found[f"{side}_attention_heads"] = getattr(cfg, f"{side}_attention_heads")
        found[f"{side}_ffn_dim"] = getattr(cfg, f"{side}_ffn_embed_dim")
        found[f"{side}_layerdrop"] = float(getattr(cfg, f"{side}_layerdrop"))
    return found


def generation(trained: Trained) -> dict[str, Any]:
    """generation_config.json: what fairseq-generate does without options (`--beam 5 --lenpen 1 --max-len-b 200`).

    Lengths count `</s>` in front, with which a decoder begins. There, an empty translation and `<pad>` are forbidden.
    """
    dictionary = trained.model.decoder.dictionary
    return {
        "num_beams": 5,
        "early_stopping": True,
        "length_penalty": 1.0,
        "min_length": 2,
        "max_length": min(_MAX_LEN, trained.model.max_positions()[1] - 1) + 2,
        "suppress_tokens": [dictionary.pad()],
        "decoder_start_token_id": dictionary.eos(),
        "forced_eos_token_id": dictionary.eos(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "pad_token_id": dictionary.pad(),
        "use_cache": True,
    }


def layers(trained: Trained) -> dict[str, Tensor]:
    """Their tensors, by the names of both."""
    tensors = {}
    for side, parts in zip(_SIDES, (_LAYER + _FFN, _LAYER + _CROSS + _FFN)):
        for number, layer in enumerate(getattr(trained.model, side).layers):
            for part in parts:
                for name, value in layer.get_submodule(part).state_dict().items():
                    tensors[f"model.{side}.layers.{number}.{part}.{name}"] = value
    return tensors


def plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As safetensors takes them: each with a memory of its own."""
    seen: set[int] = set()
    found = {}
    for name, value in tensors.items():
        whole = value.detach().contiguous()
        found[name] = whole.clone() if whole.data_ptr() in seen else whole
        seen.add(whole.data_ptr())
    return found


def prepare(trained: Trained) -> AbstractContextManager[None]:
    """Without what fairseq rounds to single precision."""
    return unrounded(trained.model)
