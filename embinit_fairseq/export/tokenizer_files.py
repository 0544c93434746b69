"""tokenizer.json and tokenizer_config.json for a fairseq dictionary.

Written by the library tokenizers. Letters: V, rows of the embeddings.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from embinit_fairseq.export.trained import Trained

_END = "</w>"
_WHITE = r"[\s\x1c-\x1f]+"  # what fairseq splits at


@dataclass(frozen=True)
class Layout:
    """rows: symbol -> id. before, between: ids in front of a sentence and of the second of a pair; `</s>` ends both."""

    rows: dict[str, int]
    symbols: list[str]
    before: list[int]
    between: list[int]
    eos: int
    unk: int
    longest: int

    @classmethod
    def of(cls, trained: Trained) -> Layout:
        """As the task made its inputs: masked_lm begins with `<s>`, sentence_prediction as --init-token says."""
        dictionary, options = trained.model.encoder.dictionary, trained.task_options
        before, between = [dictionary.bos()], [dictionary.eos()]
        if str(options.get("_name") or options.get("task")).startswith("sentence_"):
            named = (options.get("init_token"), options.get("separator_token"))
            before, between = ([] if token is None else [int(token)] for token in named)
        ends = dictionary.eos(), dictionary.unk()
        return cls(dict(dictionary.indices), trained.symbols, before, between, *ends, trained.model.max_positions())

    def wrap(self, ids: list[int]) -> list[int]:
        """A sentence as the model's input."""
        return [*self.before, *ids, self.eos]

    def special_ids(self) -> dict[str, int]:
        """Role of transformers -> id."""
        roles = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>"}
        if "<mask>" in self.rows:
            roles["mask"] = "<mask>"
        return {f"{role}_token": self.rows[symbol] for role, symbol in roles.items()}

    def config(self, tokenizer_class: str, python: bool = False) -> str:
        """The text of tokenizer_config.json."""
        content: dict[str, Any] = {
            "tokenizer_class": tokenizer_class,
            **{role: self.symbols[row] for role, row in self.special_ids().items()},
            "model_max_length": self.longest,
            "padding_side": "right",
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
        }
        if python:
            content["auto_map"] = {"AutoTokenizer": [f"tokenization_tupe.{tokenizer_class}", None]}
            content["before"] = [self.symbols[row] for row in self.before]
            content["between"] = [self.symbols[row] for row in self.between]
        return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def words_json(layout: Layout) -> dict[str, str]:
    """Words separated by white space; one that the dictionary lacks is `<unk>`."""
    from tokenizers import models

    return _files(layout, models.WordLevel(layout.rows, unk_token="<unk>"), set(layout.special_ids().values()))


def bpe_json(layout: Layout, codes: str) -> tuple[dict[str, str], int]:
    """Sub-words: (files, 0), or ({}, n) if n pieces of the codes are no symbols, which tokenizers cannot express.

    There a piece that ends a word is `er</w>`, and others are as they are; in the dictionary `er` and `low@@`.
    """
    from tokenizers import decoders, models

    if not codes.startswith("#version: 0.2"):
        return {}, len(codes.splitlines())
    whole = {symbol for symbol in layout.rows if re.match(r"<\w+>$|</s>$", symbol)}
    vocabulary = {symbol: layout.rows[symbol] for symbol in whole}
    for symbol, row in layout.rows.items():
        if symbol not in whole:
            inside = symbol.endswith("@@") and symbol != "@@"
            vocabulary[symbol[:-2] if inside else symbol + _END] = row
    merges = list(dict.fromkeys(tuple(line.strip("\r\n ").split(" ")) for line in codes.rstrip("\n").split("\n")[1:]))
    pieces = {piece for left, right in merges for piece in (left, right, left + right)}
    lacking = len(pieces - vocabulary.keys())
    if lacking or len(vocabulary) != len(layout.rows):
        return {}, max(lacking, 1)
    model = models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix=_END, fuse_unk=False)
    return _files(layout, model, {layout.rows[symbol] for symbol in whole}, decoders.BPEDecoder(suffix=_END)), 0


def _files(layout: Layout, model: Any, added: set[int], decoder: Any = None) -> dict[str, str]:
    """added: ids of symbols that are found in the text before it is cut."""
    from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WHITE), behavior="removed")
    if decoder is not None:
        tokenizer.decoder = decoder
    special = set(layout.special_ids().values())
    for row in sorted(added):
        token = AddedToken(layout.symbols[row], normalized=False, special=row in special)
        (tokenizer.add_special_tokens if row in special else tokenizer.add_tokens)([token])
    before, between, end = (
        [layout.symbols[row] for row in rows] for rows in (layout.before, layout.between, [layout.eos])
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *end],
        pair=[*before, "$A", *end, *between, "$B:0", *end],
        special_tokens=[(layout.symbols[row], row) for row in {*layout.before, *layout.between, layout.eos}],
    )
    return {"tokenizer.json": tokenizer.to_str(pretty=True), "tokenizer_config.json": layout.config(_FAST)}


_FAST = "PreTrainedTokenizerFast"
