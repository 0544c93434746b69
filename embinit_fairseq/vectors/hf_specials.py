"""Which rows of a Hugging Face model play the roles of fairseq's <s>, </s>, <unk>, <pad> and <mask>."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embinit_fairseq.vectors.hf_files import read_optional_json

#: role -> the keys under which a tokenizer declares it, in the order of preference.
_DECLARED = {
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "unk": ("unk_token",),
    "pad": ("pad_token",),
    "mask": ("mask_token",),
}

#: role -> usual spellings, for directories without a declaration.
_USUAL = {
    "bos": ("[CLS]", "<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("[SEP]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
}


def find_specials(directory: Path, rows: dict[str, int]) -> dict[str, int]:
    """role -> row; declared by tokenizer_config.json or special_tokens_map.json, else by the usual spellings.

    A role whose token is missing is left out (T5 has no bos). GPT-2 declares `<|endoftext|>` for everything: one row
    may serve as bos and eos, but not as unk or pad as well.
    """
    declared: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        content = read_optional_json(directory / name)
        declared.update({key: value for key, value in content.items() if key.endswith("_token")})
    names = {key: _spelling(value) for key, value in declared.items()}
    found: dict[str, int] = {}
    for role, keys in _DECLARED.items():
        tokens = [names.get(key) for key in keys] if any(names.values()) else list(_USUAL[role])
        row = next((rows[token] for token in tokens if token in rows), None)
        if row is not None and (role in ("bos", "eos") or row not in found.values()):
            found[role] = row
    return found


def _spelling(declared: Any) -> str | None:
    """A declaration is a string or an object with the string as its content."""
    if isinstance(declared, dict):
        declared = declared.get("content")
    return declared if isinstance(declared, str) and declared else None
