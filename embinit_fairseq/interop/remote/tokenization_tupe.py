"""Turn raw text into the ids of a fairseq dictionary, and back, prepared as the text of the training.

preparation_steps.py: the steps of the preparation.
vocab.txt: one symbol per line, line n is row n of the embeddings. bpe.codes: the merges of subword-nmt, best first;
glossary.txt: the words that they leave whole. spiece.model: a model of sentencepiece; subwords.json:
the tokenizer.json of a segmenter. The steps of the preparation are in tokenizer_config.json.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer

from embinit_fairseq.vocab.cleaning import MASK
from embinit_fairseq.vocab.preparation_steps import Preparation

#: special symbols that count as text if they are written in a text; `<mask>` is always a token
_TEXT = ("<s>", "<pad>", "</s>", "<unk>", MASK)


class TupeTokenizer(PreTrainedTokenizer):
    """Tokenize by words, by subword-nmt or by sentencepiece.

    Args:
        vocab_file, codes_file, glossary_file, model_file, subwords_file: paths.
        steps: steps of the preparation.
        before, between: symbols before a sentence, and before the second sentence of a pair.
        only_known: split subwords that vocab.txt lacks.
    """

    vocab_files_names = {
        "vocab_file": "vocab.txt",
        "codes_file": "bpe.codes",
        "glossary_file": "glossary.txt",
        "model_file": "spiece.model",
        "subwords_file": "subwords.json",
    }
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        vocab_file: str,
        codes_file: str | None = None,
        glossary_file: str | None = None,
        model_file: str | None = None,
        subwords_file: str | None = None,
        steps: list[dict[str, Any]] | None = None,
        before: list[str] | None = None,
        between: list[str] | None = None,
        only_known: bool = False,
        **kwargs: Any,
    ) -> None:
        file_paths = (vocab_file, codes_file, glossary_file, model_file, subwords_file)
        paths = zip(self.vocab_files_names.values(), file_paths)
        self.files = {name: Path(path) for name, path in paths if path is not None}
        self.symbols = self._text("vocab.txt").removesuffix("\n").split("\n")
        self.row_of = {symbol: row for row, symbol in enumerate(self.symbols)}
        content = {
            "codes": self._text("bpe.codes"),
            "glossary": self._text("glossary.txt").strip() or None,
            "vocabulary": frozenset(self.symbols) if only_known else None,
            "symbols": frozenset(self.symbols),
            "tokenizer": self._text("subwords.json") or None,
            "model": None if model_file is None else Path(model_file).read_bytes(),
        }
        self.prepare = Preparation(steps or [], content)
        self.before, self.between = before or [], between or []
        settings = {"steps": steps or [], "before": self.before, "between": self.between, "only_known": only_known}
        super().__init__(**settings, **kwargs)

    def _text(self, name: str) -> str:
        return self.files[name].read_bytes().decode("utf-8") if name in self.files else ""

    @property
    def vocab_size(self) -> int:
        """Return the number of rows of the embedding matrix."""
        return len(self.symbols)

    def get_vocab(self) -> dict[str, int]:
        """Return symbol -> row."""
        return {**self.row_of, **self.added_tokens_encoder}

    def tokenize(
        self, text: str, split_special_tokens: bool | None = None, return_offsets_mapping: bool = False, **_: Any
    ) -> list[str]:
        """Return the symbols of a whole raw text, in which `<mask>` and added tokens are words of their sentence.

        Other special symbols that are written in a text, such as `</s>`, are text, as in the training.

        Args:
            text: raw text.
            split_special_tokens: True if added special tokens are text, too.
            return_offsets_mapping: refused, since symbols are not parts of the raw text.
        """
        if return_offsets_mapping:
            raise NotImplementedError(
                "return_offsets_mapping: text is changed before it is segmented, so no symbol has offsets; leave it out"
            )
        with_special = not (self.split_special_tokens if split_special_tokens is None else split_special_tokens)
        masked: list[str] = []

        def mask(match: re.Match[str]) -> str:
            masked.append(match.group())
            return f" {MASK} "

        text = self._added_pattern(with_special).sub(mask, text)
        tokens = iter(masked)  # no step changes or moves a `<mask>`: masks of the result are in the text's order
        symbols = ((next(tokens) if symbol == MASK else symbol) for symbol in self.prepare(text, mask=True))
        return [MASK if symbol.lower() == MASK else symbol for symbol in symbols]

    def _added_pattern(self, with_special: bool) -> re.Pattern[str]:
        """Return the pattern of `<mask>` and of added tokens, the longest first."""
        patterns = [f"(?i:{re.escape(MASK)})"]
        for token in sorted(self.added_tokens_decoder.values(), key=lambda token: -len(token.content)):
            if token.content not in _TEXT and (with_special or not token.special):
                pattern = re.escape(token.content)
                patterns.append(rf"(?<!\w){pattern}(?!\w)" if token.single_word else pattern)
        return re.compile("|".join(patterns))

    def _convert_token_to_id(self, token: str) -> int:
        return self.row_of.get(token, self.row_of["<unk>"])

    def _convert_id_to_token(self, index: int) -> str:
        return self.symbols[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join subwords, and words as people write them."""
        return self.prepare.text(tokens)

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Return `<s> A </s>`, or for a pair `<s> A </s> </s> B </s>`: `before`, A, </s>, `between`, B, </s>."""
        before, between = ([self.row_of[symbol] for symbol in symbols] for symbols in (self.before, self.between))
        end = [self.eos_token_id]
        return before + token_ids_0 + end + ([] if token_ids_1 is None else between + token_ids_1 + end)

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """Return 1 for a special symbol, 0 for text."""
        if already_has_special_tokens:
            return [int(index in self.all_special_ids) for index in token_ids_0]
        pair = [] if token_ids_1 is None else [1] * len(self.between) + [0] * len(token_ids_1) + [1]
        return [1] * len(self.before) + [0] * len(token_ids_0) + [1] + pair

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Copy the files and return their paths."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        saved = []
        for name, path in self.files.items():
            target = Path(save_directory) / (prefix + name)
            if target.resolve() != path.resolve():
                shutil.copyfile(path, target)
            saved.append(str(target))
        return tuple(saved)
