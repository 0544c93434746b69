"""The options of `embinit export-hf`."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from embinit_fairseq.errors import OptionError

DTYPES = ("float32", "float16", "bfloat16")
#: options that name a tokenizer
_KINDS = ("bpe_codes", "gpt2_bpe", "sentencepiece_model", "tokenizer")
#: options that say how raw text is prepared
_PREPARATION = ("preparation", "lowercase", "lang")


@dataclass(frozen=True)
class ExportRequest:
    """The options of `embinit export-hf`."""

    checkpoint: str
    output: str
    dictionary: str | None = None
    target_dictionary: str | None = None
    label_dictionary: str | None = None
    head: str | None = None
    bpe_codes: str | None = None
    tokenizer: str | None = None
    gpt2_bpe: str | None = None
    sentencepiece_model: str | None = None
    preparation: str | None = None
    lowercase: str | None = None
    lang: str | None = None
    dtype: str = "float32"
    verify_text: str | None = None
    force: bool = False

    @property
    def inputs(self) -> dict[str, str | None]:
        """Option -> file that is read."""
        names = ["checkpoint", "dictionary", "target_dictionary", "label_dictionary", "bpe_codes"]
        names += ["sentencepiece_model", "verify_text"]
        return {name: getattr(self, name) for name in names}

    @property
    def prepares_text(self) -> bool:
        """Return True if the tokenizer takes raw text by code of ours or by a model of sentencepiece."""
        return bool(self.bpe_codes or self.sentencepiece_model or self.given(_PREPARATION))

    def given(self, names: tuple[str, ...]) -> str:
        """The flags among these options that have a value, joined by `and`; empty if there are none."""
        return " and ".join(f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None)

    def check(self) -> None:
        """Raise OptionError for what cannot be used together, or without libraries."""
        missing = [name for name in ("transformers", "safetensors") if importlib.util.find_spec(name) is None]
        if missing:
            raise OptionError(
                f"export-hf needs {' and '.join(missing)}: pip install transformers safetensors, which is the extra hf "
                "of this package"
            )
        if self.dtype not in DTYPES:
            raise OptionError(f"--dtype {self.dtype}: choose from {', '.join(DTYPES)}")
        kinds = self.given(_KINDS)
        if " and " in kinds:
            raise OptionError(f"{kinds} all say what the tokenizer is: give one of them")
        if kinds in ("--gpt2-bpe", "--tokenizer") and self.given(_PREPARATION):
            raise OptionError(f"{kinds} takes raw text as it is: leave {self.given(_PREPARATION)} out")
