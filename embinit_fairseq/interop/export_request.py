"""Hold the options of `embinit export-hf`, and check that they do not exclude each other."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from embinit_fairseq.errors import OptionError

DTYPES = ("float32", "float16", "bfloat16")
#: options that name a tokenizer, and options that say how raw text is prepared
_TOKENIZERS = ("bpe_codes", "gpt2_bpe", "sentencepiece_model", "tokenizer")
_PREPARATION = ("preparation", "lowercase", "lang")


@dataclass(frozen=True)
class ExportRequest:
    """Hold the options of `embinit export-hf`."""

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
    verify_bin: str | None = None
    user_dir: str | None = None
    language: tuple[str, ...] = ()
    license: str | None = None
    force: bool = False

    def check(self) -> None:
        """Raise OptionError for options that exclude each other, or for libraries that are missing."""
        missing = [name for name in ("transformers", "safetensors") if importlib.util.find_spec(name) is None]
        if missing:
            raise OptionError(
                f"export-hf needs {' and '.join(missing)}: pip install transformers safetensors, which is the extra hf "
                "of this package"
            )
        tokenizers, preparation = self._flags(_TOKENIZERS), self._flags(_PREPARATION)
        if len(tokenizers) > 1:
            raise OptionError(f"{' and '.join(tokenizers)} each choose a tokenizer: give one of them")
        if self.verify_bin is not None and self.verify_text is None:
            raise OptionError(f"--verify-bin {self.verify_bin}: give the raw text of this data by --verify-text")
        takes_raw_text = self.gpt2_bpe is not None or (self.tokenizer is not None and not self.segments_by_tokenizer)
        if preparation and takes_raw_text:
            raise OptionError(f"{tokenizers[0]} takes raw text as it is: leave {' and '.join(preparation)} out")

    @property
    def segments_by_tokenizer(self) -> bool:
        """Return True if --tokenizer is for the step `huggingface`; else the exported tokenizer is a copy of it."""
        return self.tokenizer is not None and "huggingface" in (self.preparation or "").split(",")

    def _flags(self, names: tuple[str, ...]) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
