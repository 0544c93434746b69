"""Trained models for use from Python: `model.from_pretrained(FOLDER)`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from fairseq import hub_utils, utils
from fairseq.data import encoders
from torch import Tensor, nn

from embinit_fairseq.errors import CheckpointError, DataError
from embinit_fairseq.vocab.codes import codes_text
from embinit_fairseq.vocab.preparation import MASK, Preparation, Segmenter

#: arguments of `Preparation.of` that leave the preparation to the dictionary
NOT_SAID = {"preparation": None, "lowercase": None, "lang": None}


def load_trained(
    model_class: type[nn.Module], model_name_or_path: str, checkpoint_file: str, data_name_or_path: str, **kwargs: Any
) -> dict[str, Any]:
    """Return fairseq's `args`, `task` and `models` of one checkpoint, or of several separated by `:`.

    Raises:
        CheckpointError: a checkpoint is missing, or of another model.
        DataError: the data folder or a dictionary is missing.
    """
    folder, data = model_name_or_path, data_name_or_path
    # fairseq continues with None if a folder does not exist; URLs and archives are left to it
    if "://" not in folder and not os.path.exists(folder):
        raise CheckpointError(f"{folder}: no such folder; give the one in which {checkpoint_file} is")
    for name in checkpoint_file.split(os.pathsep) if os.path.isdir(folder) else ():
        if not os.path.isfile(os.path.join(folder, name)):
            raise CheckpointError(f"{os.path.join(folder, name)}: no such checkpoint")
    if not data.startswith(".") and "://" not in data and not os.path.exists(data):
        raise DataError(f"{data}: no such folder; give the data folder that the model was trained with")
    try:
        loaded = hub_utils.from_pretrained(model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)
    except FileNotFoundError as error:
        raise DataError(
            f"{error.filename}: not found; give from_pretrained as third argument the data folder that the model was "
            f"trained with, for its dictionaries; here it is {data_name_or_path!r}"
        ) from None
    for model in loaded["models"]:
        if not isinstance(model, model_class):
            raise CheckpointError(
                f"{os.path.join(model_name_or_path, checkpoint_file)}: holds a {type(model).__name__}, no "
                f"{model_class.__name__}: load it with {type(model).__name__}.from_pretrained"
            )
    return loaded


def load_hub(
    model_class: type[nn.Module],
    model_name_or_path: str,
    checkpoint_file: str,
    data_name_or_path: str,
    preparation: str | None = None,
    lowercase: bool | None = None,
    lang: str | None = None,
    **kwargs: Any,
) -> Any:
    """Return a `TranslationHub`, or for an encoder a `TupeHub`, of `model_name_or_path/checkpoint_file`.

    Dictionaries are in `data_name_or_path`.

    Args:
        preparation, lowercase, lang: how raw text becomes words (`vocab/preparation.py`). By default as the dictionary
            shows if `bpe_codes` are given, else text is taken as finished words.
        kwargs: override options of the checkpoint, such as bpe_codes="bpe.codes". Options that decide the meaning of
            its weights are refused.
    """
    if "bpe_codes" in kwargs:
        kwargs.setdefault("bpe", "subword_nmt")
    loaded = load_trained(model_class, model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)
    how = {"preparation": preparation, "lowercase": lowercase, "lang": lang}
    cfg, task, models = loaded["args"], loaded["task"], loaded["models"]
    if hasattr(models[0], "decoder"):
        return TranslationHub(cfg, task, models, **how)
    return TupeHub(cfg, task, models[0], **how)


def _segmenter(cfg: Any, task: Any, how: dict[str, Any]) -> Segmenter | _FairseqsSegmenter:
    """Return what segments text as an exported tokenizer does. how: arguments of `Preparation.of`."""
    bpe, tokenizer = (getattr(node, "_name", None) for node in (cfg.bpe, cfg.tokenizer))
    if bpe not in (None, "subword_nmt", "sentencepiece") or tokenizer not in (None, "moses"):
        return _FairseqsSegmenter(cfg)
    symbols, prepare = task.source_dictionary.symbols, Preparation()
    if bpe or tokenizer or any(value is not None for value in how.values()):
        source_lang = getattr(getattr(task, "cfg", None), "source_lang", None)
        default = "none" if bpe == "sentencepiece" else None
        how = {**how, "preparation": how["preparation"] or default, "lang": how["lang"] or source_lang}
        prepare = Preparation.of(symbols, **how, translation=source_lang is not None)
        if tokenizer == "moses" and prepare.preparation == "none":
            prepare = dataclasses.replace(prepare, preparation="moses")
    codes, model = getattr(cfg.bpe, "bpe_codes", None), getattr(cfg.bpe, "sentencepiece_model", None)
    return Segmenter(symbols, prepare, None if codes is None else codes_text(codes, "bpe_codes"), model)


class _FairseqsSegmenter:
    """fairseq's own tokenizer and BPE, such as GPT-2's, around `<mask>`, which they do not know."""

    def __init__(self, cfg: Any) -> None:
        self._tokenizer, self._bpe = encoders.build_tokenizer(cfg.tokenizer), encoders.build_bpe(cfg.bpe)

    def __call__(self, text: str) -> list[str]:
        """Return the symbols of a text."""
        text = text if self._tokenizer is None else self._tokenizer.encode(text)
        *parts, last = text.split(MASK)
        parts = [*map(str.rstrip, parts), last]
        return f" {MASK} ".join(parts if self._bpe is None else map(self._bpe.encode, parts)).split()

    def join(self, symbols: list[str]) -> str:
        """Return the text of symbols."""
        text = " ".join(symbols) if self._bpe is None else self._bpe.decode(" ".join(symbols))
        return text if self._tokenizer is None else self._tokenizer.decode(text)


class TranslationHub(hub_utils.GeneratorHubInterface):
    """fairseq's hub, whose sources are prepared and segmented as those of `TupeHub` and of exported tokenizers."""

    def __init__(self, cfg: Any, task: Any, models: list[Any], **how: Any) -> None:
        """how: preparation, lowercase and lang, see `load_hub`."""
        super().__init__(cfg, task, models)
        self.segment = _segmenter(cfg, task, how or NOT_SAID)

    def encode(self, sentence: str) -> Tensor:
        """Return the ids (src_len,) of raw text, or of text in subwords."""
        return self.binarize(" ".join(self.segment(sentence)))


class TupeHub(nn.Module):
    """An encoder: text in, features, predictions or fillings out.

    Gradients are kept, and dropout acts, only after `train()`.
    """

    def __init__(self, cfg: Any, task: Any, model: Any, **how: Any) -> None:
        """how: preparation, lowercase and lang, see `load_hub`."""
        super().__init__()
        self.cfg, self.task, self.model = cfg, task, model
        self.eval()
        self.segment = _segmenter(cfg, task, how or NOT_SAID)

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        return next(self.model.parameters()).device

    def encode(self, *sentences: str) -> Tensor:
        """Return token ids (src_len,): `<s> a </s>`, or for a pair `<s> a </s> </s> b </s>`."""
        if not sentences:
            raise DataError("encode() needs a sentence, or two of a pair")
        first, *others = map(self.segment, sentences)
        return self._ids([*first, *(symbol for other in others for symbol in ("</s>", "</s>", *other))])

    def decode(self, tokens: Tensor) -> str:
        """Return the text of token ids (src_len,), without the special symbols at both ends."""
        return self.segment.join(self.task.source_dictionary.string(tokens).split())

    def extract_features(self, tokens: Tensor, return_all_hiddens: bool = False) -> Tensor | list[Tensor]:
        """Return features (batch, src_len, C), or all hidden states, of tokens (src_len,) or (batch, src_len).

        Raises:
            DataError: tokens are not integers of the dictionary, too many or none.
        """
        tokens = self._checked(tokens).to(self.device)
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            features, extra = self.model(tokens, features_only=True, return_all_hiddens=return_all_hiddens)
        return extra["inner_states"] if return_all_hiddens else features

    def predict(self, head: str, tokens: Tensor, return_logits: bool = False) -> Tensor:
        """Return log-probabilities (or logits) (batch, num_classes) of tokens (src_len,) or (batch, src_len).

        A head of one column is a regression: its numbers (batch, 1).

        Raises:
            OptionError: the model has no head of this name.
        """
        classify = self.model.classification_head(head)
        features = self.extract_features(tokens)
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            logits = classify(features)
            return logits if return_logits or logits.shape[-1] == 1 else logits.log_softmax(-1)

    @torch.no_grad()
    def fill_mask(self, masked_input: str, topk: int = 5) -> list[tuple[str, float, str]]:
        """Return the `topk` best (text, probability, token) for a text with one `<mask>`, best first."""
        symbols = self.segment(masked_input)
        if symbols.count(MASK) != 1:
            raise DataError(f"fill_mask needs one <mask>, as in 'a <mask> in the grass'; got: {masked_input!r}")
        dictionary = self.task.source_dictionary
        if not 1 <= topk <= len(dictionary):
            raise DataError(f"topk={topk}: the dictionary has {len(dictionary)} symbols; ask for 1 to that many")
        tokens, at = self._checked(self._ids(symbols)), symbols.index(MASK)
        with utils.model_eval(self.model):
            logits, _ = self.model(tokens.to(self.device))
        best, ids = logits[0, 1 + at].float().softmax(-1).topk(topk)
        results = []
        for probability, index in zip(best.tolist(), ids.tolist()):
            text = self.segment.join([*symbols[:at], dictionary[index], *symbols[at + 1 :]])
            results.append((text, probability, dictionary[index]))
        return results

    def _checked(self, tokens: Tensor) -> Tensor:
        """Return tokens as (batch, src_len); raise DataError if they cannot be an input."""
        if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
            raise DataError(
                f"tokens are {tokens.dtype}, but must be whole numbers: those that encode() gives, or .long()"
            )
        if tokens.dim() not in (1, 2) or tokens.numel() == 0:
            raise DataError(
                f"tokens have the shape {tuple(tokens.shape)}, but must be one sentence (src_len,) or several "
                "(batch, src_len), none of them empty: encode() gives one, torch.stack or padding several"
            )
        longest, symbols = self.model.max_positions(), len(self.task.source_dictionary)
        if tokens.shape[-1] > longest:
            raise DataError(f"an input has {tokens.shape[-1]} tokens, the model has {longest} positions: shorten it")
        smallest, largest = int(tokens.min()), int(tokens.max())
        if smallest < 0 or largest >= symbols:
            raise DataError(
                f"tokens from {smallest} to {largest}, the dictionary has 0 to {symbols - 1}: encode the text with the "
                "dict.txt of this model"
            )
        return torch.atleast_2d(tokens.long())

    def _ids(self, symbols: list[str]) -> Tensor:
        """Return the ids of symbols between `<s>` and `</s>`."""
        text = " ".join(["<s>", *symbols, "</s>"])
        return self.task.source_dictionary.encode_line(text, append_eos=False, add_if_not_exist=False).long()
