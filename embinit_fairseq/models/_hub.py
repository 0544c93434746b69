"""Use trained models from Python: `model.from_pretrained(FOLDER)`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq import hub_utils, utils
from fairseq.data import encoders
from torch import Tensor, nn

from embinit_fairseq.checkpoints.trained_preparation import (
    languages_of_task,
    other_suggestion,
    record_of_side,
    refuse_options,
    stated_steps,
    unknown_preparation,
)
from embinit_fairseq.errors import CheckpointError, DataError
from embinit_fairseq.vocab.cleaning import MASK
from embinit_fairseq.vocab.preparation_record import FILE
from embinit_fairseq.vocab.preparation_steps import Preparation
from embinit_fairseq.vocab.step_files import contents, given_files

logger = logging.getLogger(__name__)
#: values of fairseq's options tokenizer and bpe -> the equal step
_FAIRSEQS = {"moses": "moses", "subword_nmt": "bpe", "sentencepiece": "sentencepiece"}


def _load_trained(
    model_class: type[nn.Module], model_name_or_path: str, checkpoint_file: str, data_name_or_path: str, **kwargs: Any
) -> dict[str, Any]:
    """Return fairseq's `args`, `task` and `models` of one checkpoint, or of several separated by `:`.

    Raises:
        CheckpointError: a checkpoint is missing, or of another model.
        DataError: the data folder or a dictionary is missing.
    """
    folder, data = os.fspath(model_name_or_path), os.fspath(data_name_or_path)
    kwargs = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in kwargs.items()}
    # fairseq continues with None if a path does not exist; fairseq opens URLs and archives
    if "://" not in folder and not os.path.isfile(folder):
        for path in (folder, *(os.path.join(folder, name) for name in checkpoint_file.split(os.pathsep))):
            if not os.path.exists(path):
                raise CheckpointError(f"{path}: not found; give from_pretrained the folder and the checkpoint's name")
    try:
        if not data.startswith(".") and "://" not in data and not os.path.exists(data):
            raise FileNotFoundError(None, None, data)
        loaded = hub_utils.from_pretrained(folder, checkpoint_file, data, **kwargs)
    except FileNotFoundError as error:
        raise DataError(
            f"{error.filename}: not found; give from_pretrained as third argument the data folder that the model was "
            f"trained with, for its dictionaries; here it is {data!r}"
        ) from None
    for model in loaded["models"]:
        if not isinstance(model, model_class):
            raise CheckpointError(
                f"{os.path.join(folder, checkpoint_file)}: holds a {type(model).__name__}, no {model_class.__name__}: "
                f"load it with {type(model).__name__}.from_pretrained"
            )
    return loaded


def load_hub(
    model_class: type[Any],
    model_name_or_path: str,
    checkpoint_file: str,
    data_name_or_path: str,
    preparation: str | None = None,
    lowercase: bool | None = None,
    lang: str | None = None,
    **kwargs: Any,
) -> Any:
    """Return the hub of `model_name_or_path/checkpoint_file`.

    Args:
        model_class: its attribute `hub` is the class of the hub.
        data_name_or_path: the folder of the dictionaries.
        preparation: the steps from raw text to symbols, such as "lowercase,moses,bpe" (`vocab/preparation_steps.py`);
            "none": text has finished words or subwords. By default the steps come from `preparation.json` next to the
            dictionary or in the checkpoint, else from fairseq's options tokenizer and bpe, else there are none.
        lowercase, lang: with `preparation`: whether text is lower-cased, and its language.
        kwargs: options that override the checkpoint's, such as bpe_codes="bpe.codes". Options that decide the meaning
            of the weights or contradict the preparation are refused.
    """
    if "bpe_codes" in kwargs:
        kwargs.setdefault("bpe", "subword_nmt")
    how = {"preparation": preparation, "lowercase": lowercase, "lang": lang}
    how |= {name: kwargs.get(name) for name in ("tokenizer", "bpe")}
    if preparation is not None:  # it replaces the records
        kwargs["preparation"] = preparation
    loaded = _load_trained(model_class, model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)
    return model_class.hub(loaded["args"], loaded["task"], loaded["models"], **how)


def preparation_of(cfg: Any, task: Any, how: Mapping[str, Any], side: int = 0) -> Preparation | _FairseqsSegmenter:
    """Return the object that prepares the text of a side (0: source, 1: target).

    The user's options come first, then the record of the preparation, then fairseq's options `tokenizer` and `bpe`.

    Args:
        cfg, task: configuration and task of the loaded checkpoint.
        how: preparation, lowercase, lang, tokenizer and bpe of `load_hub`.
        side: 0 for the source, 1 for the target.
    """
    dictionary = task.target_dictionary if side else task.source_dictionary
    lang = how.get("lang") or languages_of_task(task)[side]
    user_files = given_files(cfg.bpe)
    if how.get("preparation") is not None:
        steps = stated_steps(how["preparation"], lang, how.get("lowercase"), user_files, "preparation")
        refuse_options(_contradictions(how, steps), "preparation", "preparation")
        return Preparation(steps, contents(user_files, dictionary.symbols))
    recorded = record_of_side(task, side)
    if recorded is not None:
        more = [f"{name}={how[name]!r}" for name in ("lowercase", "lang") if how.get(name) is not None]
        refuse_options([*more, *_contradictions(how, recorded.steps)], FILE, "preparation")
        return recorded.preparation(dictionary.symbols, user_files)
    bpe, tokenizer = (
        node if isinstance(node, str) else getattr(node, "_name", None) for node in (cfg.bpe, cfg.tokenizer)
    )
    if bpe is None and tokenizer is None and how.get("lowercase") is None:
        return Preparation()
    is_translation = languages_of_task(task)[0] is not None
    if bpe in ("subword_nmt", "sentencepiece") and tokenizer is None:
        steps = stated_steps("none", lang, how.get("lowercase"), user_files, "preparation")
        if (other := other_suggestion(steps, dictionary.symbols, is_translation)) is not None:
            logger.warning(other)
        return Preparation(steps, contents(user_files, dictionary.symbols))
    if bpe is None and tokenizer is None:
        raise unknown_preparation("lowercase", "preparation", dictionary.symbols, is_translation)
    return _FairseqsSegmenter(cfg)


def _contradictions(how: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the user's options of fairseq that name none of the steps."""
    named_options = [(name, how[name]) for name in ("tokenizer", "bpe") if how.get(name) is not None]
    names = {step["step"] for step in steps}
    return [f"{name}={value!r}" for name, value in named_options if _FAIRSEQS.get(value) not in names]


def tokens_of_input(task: Any) -> tuple[list[int], list[int]]:
    """Return the ids before a sentence, and before the second sentence of a pair, in the data of an encoder's task.

    Sentence tasks have the ids of --init-token and --separator-token, other tasks `<s>` and `</s>`.
    """
    options, dictionary = task.cfg or task.args, task.source_dictionary  # sentence_ranking has args
    if not hasattr(options, "init_token"):
        return [dictionary.bos()], [dictionary.eos()]
    first, second = ([] if token is None else [int(token)] for token in (options.init_token, options.separator_token))
    return first, second


def input_of(task: Any, texts: Sequence[Sequence[str]]) -> Tensor:
    """Return the ids (src_len,) of the symbols of one text or several, as in the task's data.

    `</s>` ends each text. Too long inputs are shortened if those of the training were (--shorten-method truncate).
    """
    before, between = tokens_of_input(task)
    ids: list[int] = []
    for number, symbols in enumerate(texts):
        line = task.source_dictionary.encode_line(" ".join(symbols), append_eos=True, add_if_not_exist=False)
        ids += [*(between if number else before), *line.tolist()]
    return _shortened(task, torch.tensor(ids))


def _shortened(task: Any, ids: Tensor) -> Tensor:
    """Return the ids (src_len,) of a sentence task as its data are shortened by --shorten-method truncate.

    The last token stays, as fairseq_compat's `long_texts` keeps it in training. Masked models keep all ids: a cut could
    take the `<mask>` away.
    """
    options = task.cfg or task.args
    is_shortened = hasattr(options, "init_token") and getattr(options, "shorten_method", None) == "truncate"
    limit = task.max_positions() if is_shortened else None
    return ids if limit is None or len(ids) <= limit else torch.cat([ids[: limit - 1], ids[-1:]])


class _FairseqsSegmenter:
    """Segment by fairseq's tokenizer and BPE, such as GPT-2's, around `<mask>`, which they do not know."""

    def __init__(self, cfg: Any) -> None:
        self._tokenizer, self._bpe = encoders.build_tokenizer(cfg.tokenizer), encoders.build_bpe(cfg.bpe)

    def __call__(self, text: str, mask: bool = True) -> list[str]:
        """Return the symbols of a text."""
        text = text if self._tokenizer is None else self._tokenizer.encode(text)
        *parts, last = text.split(MASK)
        parts = [*map(str.rstrip, parts), last]
        return f" {MASK} ".join(parts if self._bpe is None else map(self._bpe.encode, parts)).split()

    def words(self, symbols: Sequence[str]) -> str:
        """Return the text of symbols."""
        text = " ".join(symbols) if self._bpe is None else self._bpe.decode(" ".join(symbols))
        return text if self._tokenizer is None else self._tokenizer.decode(text)


class TranslationHub(hub_utils.GeneratorHubInterface):
    """Translate as fairseq's hub; text is prepared and segmented as by `TupeHub` and exported tokenizers."""

    def __init__(self, cfg: Any, task: Any, models: list[Any], **how: Any) -> None:
        """Wrap the models. how: preparation, lowercase and lang, see `load_hub`."""
        super().__init__(cfg, task, models)
        self.prepare = preparation_of(cfg, task, how)
        self._back = preparation_of(cfg, task, {**how, "lang": None}, side=1)

    def encode(self, sentence: str) -> Tensor:
        """Return the ids (src_len,) of raw text."""
        return self.binarize(" ".join(self.prepare(sentence)))

    def decode(self, tokens: Tensor) -> str:
        """Return the text of a translation's ids (tgt_len,), whose words are joined as the preparation split them."""
        if not isinstance(self._back, Preparation):
            return super().decode(tokens)
        return self._back.text(self.string(tokens).split())


class TupeHub(nn.Module):
    """Compute features, predictions and fillings of text by an encoder.

    Results have gradients, and dropout acts, only after `train()`.
    """

    def __init__(self, cfg: Any, task: Any, models: list[Any], **how: Any) -> None:
        """Wrap the first model in evaluation mode. how: preparation, lowercase and lang, see `load_hub`."""
        super().__init__()
        self.cfg, self.task, self.model = cfg, task, models[0]
        self.eval()
        self.prepare = preparation_of(cfg, task, how)

    @property
    def device(self) -> torch.device:
        """Return the device of the model's parameters."""
        return next(self.model.parameters()).device

    def encode(self, sentence: str, *others: str) -> Tensor:
        """Return token ids (src_len,) of raw text, one input for several sentences; see `input_of`."""
        return input_of(self.task, [self.prepare(text, mask=True) for text in (sentence, *others)])

    def decode(self, tokens: Tensor) -> str:
        """Return the text of token ids (src_len,), without the special symbols at both ends."""
        return self.prepare.words(self.task.source_dictionary.string(tokens).split())

    def extract_features(self, tokens: Tensor, return_all_hiddens: bool = False) -> Tensor | list[Tensor]:
        """Return features (batch, src_len, C), or all hidden states, of tokens (src_len,) or (batch, src_len).

        Raises:
            DataError: tokens are not of the dictionary.
            OptionError: tokens are more than the model's positions.
        """
        features, extra = self._compute(tokens, features_only=True, return_all_hiddens=return_all_hiddens)
        return extra["inner_states"] if return_all_hiddens else features

    def predict(self, head: str, tokens: Tensor, return_logits: bool = False) -> Tensor:
        """Return log-probabilities (or logits) (batch, num_classes) of tokens (src_len,) or (batch, src_len).

        A head of one column is a regression: its numbers (batch, 1).

        Raises:
            OptionError: the model has no head of this name.
        """
        logits, _ = self._compute(tokens, classification_head_name=head)
        return logits if return_logits or logits.shape[-1] == 1 else logits.log_softmax(-1)

    @torch.no_grad()
    def fill_mask(self, masked_input: str, topk: int = 5) -> list[tuple[str, float, str]]:
        """Return the `topk` best (text, probability, token) for a text with one `<mask>`, best first."""
        symbols = self.prepare(masked_input, mask=True)
        if symbols.count(MASK) != 1:
            raise DataError(f"fill_mask needs one <mask>, as in 'a <mask> in the grass'; got: {masked_input!r}")
        dictionary, at = self.task.source_dictionary, symbols.index(MASK)
        with utils.model_eval(self.model):
            logits, _ = self._compute(input_of(self.task, [symbols]))
        best, ids = logits[0, 1 + at].float().softmax(-1).topk(topk)
        results = []
        for probability, index in zip(best.tolist(), ids.tolist()):
            text = self.prepare.words([*symbols[:at], dictionary[index], *symbols[at + 1 :]])
            results.append((text, probability, dictionary[index]))
        return results

    def _compute(self, tokens: Tensor, **options: Any) -> Any:
        """Return the model's results for tokens (src_len,) or (batch, src_len)."""
        smallest, largest, symbols = int(tokens.min()), int(tokens.max()), len(self.task.source_dictionary)
        if smallest < 0 or largest >= symbols:
            raise DataError(
                f"tokens from {smallest} to {largest}, the dictionary has 0 to {symbols - 1}: encode the text with the "
                "dict.txt of this model"
            )
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            return self.model(torch.atleast_2d(tokens).to(self.device), **options)
