"""Add words to a model of Hugging Face and to its tokenizer, with the methods and the bound of `embinit expand-vocab`.

    report = ei.expand_hf(model, tokenizer, ["myocarditis", "stent"], "subword")

Tensors with one row per token are found as for fairseq's models: the class is built again, without numbers, for one
token more, and the tensors that became longer belong to the vocabulary (output layers, biases, tied or not).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embinit_fairseq.embeddings import vocabulary_of_rows
from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.method_inputs import rows_to_average
from embinit_fairseq.init.methods import EXPANSION
from embinit_fairseq.init.weights import Combination
from embinit_fairseq.matrices import changed_tables, check_table
from embinit_fairseq.new_words import checked_method, expansion, new_words, report_of
from embinit_fairseq.vocab.dictionary import Vocabulary, filler
from embinit_fairseq.vocab.preparation_steps import without_stored_options
from embinit_fairseq.vocab.subword_styles import PREFIX, detect_style, inside_of_text


def expand_hf(
    model: Any,
    tokenizer: Any,
    words: Sequence[Any],
    method: str = "avg",
    *,
    average_over: str = "all",
    counts: Mapping[str, int] | None = None,
    pad_to_multiple_of: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Add words to a tokenizer, and their rows to its model, both in place. If it raises, both are as before.

    Old rows and logits stay; tied matrices stay tied; new output biases are made like the rows. Words first take rows
    that the tokenizer leaves free. Make the optimizer afterwards: it must see the longer matrices.

    Args:
        model: a `PreTrainedModel`; adapters are added afterwards.
        tokenizer: its tokenizer.
        words: as for `tokenizer.add_tokens`: texts, which are found inside of longer words, too, or `AddedToken`s
            (`AddedToken("stent", single_word=True)`). For models that generate text write `" stent"`: GPT-2's
            tokenizers see the space before a word; tokenizers of sentencepiece would leave it out of generated text.
            Words of scripts without spaces have none.
        method: a name in `init.methods.EXPANSION`, except `distill`. `subword`: the tokenizer's subwords of the word.
        average_over: `all` tokens, or `words` (no special ones).
        counts: token -> its occurrences in a text, for `tokens` of the report.
        pad_to_multiple_of: the number of rows is rounded up; further rows are the mean of old ones.
        **options: `vectors`, `format`, `noise_scale`, `sparsity`, `seed` (`init.requirements.MethodOptions`).

    Returns:
        The report of `expand`, and `rows`: word -> row. There is no bound for a model without output over the
        vocabulary, or with a soft cap on its logits (Gemma 2).

    Raises:
        OptionError, DataError: naming the argument and the remedy.
    """
    chosen, spec = checked_method(expand_hf, method, EXPANSION, options)
    words = words if isinstance(words, str) else list(words)
    tables, numbers = rows_of_model(model)
    size = len(model.get_input_embeddings().weight)
    texts, rows, subwords = rows_of_words(tokenizer, words, size, chosen.chosen.needs_subwords)
    if pad_to_multiple_of < 1:
        raise OptionError(f"pad_to_multiple_of={pad_to_multiple_of}: expected a number of rows, at least 1")
    new_size = -(-max(size, max(rows) + 1) // pad_to_multiple_of) * pad_to_multiple_of
    old, new = _vocabularies(tokenizer, size, new_size, dict(zip(rows, texts)))
    old_row = np.concatenate([np.arange(size), np.full(new_size - size, -1)])
    old_row[rows] = -1
    tokens = np.unique(list(tokenizer.get_vocab().values()))
    averaged = rows_to_average(old, average_over, tokens)
    recipe = expansion(chosen, spec, old, new, old_row, averaged, dict(zip(rows, subwords)))
    has_bound = model.get_output_embeddings() is not None and not _has_soft_cap(model)
    report = report_of(recipe, new.symbols, np.isin(np.arange(new_size), rows), counts, has_bound)
    longer = changed_tables(recipe, {name: _by_row(value, size) for name, value in tables.items()})
    # From here on nothing fails: all numbers are computed, and a copy of the tokenizer has taken the words
    tokenizer.add_tokens(list(words))
    for name, value in tables.items():
        value.data, value.grad = longer[name].unsqueeze(0) if _axis(value, size) else longer[name], None
    for holder, attribute in numbers:
        setattr(holder, attribute, new_size)
    return report | {"rows": dict(zip(texts, rows))}


# ---- The model ------------------------------------------------------------------------------------------------------


def rows_of_model(model: Any) -> tuple[dict[str, Any], list[tuple[Any, str]]]:
    """Return the tensors and attributes that depend on the number of tokens.

    Returns:
        Name -> tensor, tied tensors once; (object, attribute) of each number.

    Raises:
        OptionError: the model is not one that can have more tokens.
    """
    size = _checked_size(model)
    longer = _built_for(model, size + 1)
    tables: dict[str, Any] = {}
    seen: dict[int, str] = {}
    shapes = {name: value.shape for name, value in _tensors(longer).items()}
    for name, value in _tensors(model).items():
        if shapes.get(name, value.shape) == value.shape:
            continue
        if tuple(shapes[name]) != tuple(
            size + 1 if at == _axis(value, size) else n for at, n in enumerate(value.shape)
        ):
            raise OptionError(
                f"model: the shape of {name} is not that of its config, or its tokens are not on the first axis; load "
                "both from one folder, or give ei.expand the matrices"
            )
        check_table(name, _by_row(value, size), size)
        tables.setdefault(seen.setdefault(id(value), name), value)
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if module is not None and id(module.weight) not in seen:
            raise OptionError(
                f"model: its {type(module).__name__} is not that of a {type(model).__name__}; add adapters afterwards"
            )
    modules = dict(model.named_modules())
    pairs = [(modules[name], module) for name, module in longer.named_modules() if name in modules]
    pairs += [(one.config, other.config) for one, other in pairs if hasattr(one, "config") and hasattr(other, "config")]
    pairs.append((model.config.get_text_config(), longer.config.get_text_config()))
    return tables, [
        (one, name)
        for one, other in pairs
        for name, value in vars(other).items()
        if type(value) is int and value == size + 1 and vars(one).get(name) == size
    ]


def _checked_size(model: Any) -> int:
    """Return the number of rows; raise OptionError unless configuration, embeddings and outputs agree."""
    import torch
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise OptionError(
            f"model: a PreTrainedModel of transformers is needed, this is a {type(model).__name__}; add adapters and "
            "compile afterwards, or give ei.expand the matrices"
        )
    config = model.config.get_text_config()
    inputs: Any = model.get_input_embeddings()
    outputs: Any = model.get_output_embeddings()
    for layer in (inputs, outputs):
        if layer is not None and getattr(layer, "weight", None) is None:
            raise OptionError(f"model: its {type(layer).__name__} has no .weight; give ei.expand the matrices")
        if layer is not None and layer.weight.is_meta:
            raise OptionError("model: its numbers are not in memory (device meta); load it without offloading")
    decoder: Any = model.get_decoder() if model.config.is_encoder_decoder else None
    of_decoder: Any = decoder.get_input_embeddings() if hasattr(decoder, "get_input_embeddings") else None
    of_decoder = of_decoder or getattr(decoder, "embed_tokens", None)  # FSMT's
    if of_decoder is not None and of_decoder.weight is not inputs.weight:
        raise OptionError(
            "model: its encoder and its decoder have embeddings of their own, whose rows may be of two vocabularies; "
            "give ei.expand the matrices of each"
        )
    size, stated = len(inputs.weight), getattr(config, "vocab_size", None)
    others = {"config.vocab_size": stated} | ({} if outputs is None else {"its output layer": len(outputs.weight)})
    for name, number in others.items():
        if number != size:
            raise OptionError(
                f"model: its input embeddings have {size} rows, {name} {number}; make them equal "
                f"(model.resize_token_embeddings({size})), or give ei.expand the matrices"
            )
    if outputs is not None and outputs.weight is not inputs.weight:
        one, other = inputs.weight, outputs.weight
        is_tied, are_equal = getattr(config, "tie_word_embeddings", False), one.device == other.device
        if is_tied or (are_equal and torch.equal(one, other)):
            reason, remedy = "have the same numbers", "untie them after the words are added"
            if is_tied and not torch.equal(one.cpu(), other.cpu()):
                reason, remedy = "differ, against config.tie_word_embeddings", "or set it to False if they may differ"
            raise OptionError(
                f"model: its input and output embeddings are two tensors that {reason}; set "
                f"config.tie_word_embeddings = True and call model.tie_weights() ({remedy})"
            )
    return size


def _built_for(model: Any, size: int) -> Any:
    """Return a model of the same class, built from its config for `size` tokens, without numbers."""
    import torch

    config, old_size = copy.deepcopy(model.config), len(model.get_input_embeddings().weight)
    for part in (config, config.get_text_config()):
        for name, value in list(vars(part).items()):
            if name.endswith("vocab_size") and value == old_size:
                setattr(part, name, size)
    try:
        with torch.device("meta"):
            return type(model)(config)
    except Exception as error:  # code of any model
        raise OptionError(
            f"model: {type(model).__name__} cannot be built from its config ({type(error).__name__}: {error}); give "
            "ei.expand the matrices"
        ) from error


def _axis(value: Any, size: int) -> int:
    """Return the axis of the tokens: the last of BART's (1, N) bias, else the first."""
    return 1 if tuple(value.shape) == (1, size) else 0


def _by_row(value: Any, size: int) -> Any:
    """Return a tensor with a row per token, sharing its numbers."""
    return value[0] if _axis(value, size) else value


def _tensors(model: Any) -> dict[str, Any]:
    """Return name -> parameter or buffer, tied ones under each name."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def _has_soft_cap(model: Any) -> bool:
    """Return True if logits are not linear in the output layer's rows: c tanh(z / c)."""
    options = vars(model.config.get_text_config()).items()
    caps = {name.replace("_", ""): value for name, value in options if not name.startswith(("attn", "gate"))}
    return any("softcap" in name and value for name, value in caps.items())


# ---- The tokenizer --------------------------------------------------------------------------------------------------


def rows_of_words(
    tokenizer: Any, words: Sequence[Any], size: int, needs_subwords: bool
) -> tuple[list[str], list[int], list[Combination]]:
    """Return the new words, their rows, and the means of their subwords if these are needed; a copy takes the words.

    Raises:
        OptionError: the tokenizer has more tokens than the model, or some that it hides, or a word already, or does not
            find it afterwards.
    """
    if not callable(tokenizer) or not hasattr(tokenizer, "add_tokens"):
        raise OptionError(
            f"tokenizer: a {type(tokenizer).__name__} is none of transformers; give "
            "PreTrainedTokenizerFast(tokenizer_object=...)"
        )
    ids = tokenizer.get_vocab()
    _check_ids(tokenizer, ids, size)
    word_texts = words if isinstance(words, str) else [getattr(word, "content", word) for word in words]
    texts = new_words(word_texts, list(ids))
    trial = copy.deepcopy(tokenizer)
    if hasattr(trial, "backend_tokenizer"):
        without_stored_options(trial.backend_tokenizer)
    subwords = [_subwords(trial, text, needs_subwords) for text in texts]
    trial.add_tokens(list(words))
    rows = [trial.convert_tokens_to_ids(text) for text in texts]
    old_rows, style = {*ids.values()}, detect_style(ids)
    marker = PREFIX[style] if style in ("sentencepiece", "bytelevel") else ""
    for text, row in zip(texts, rows):
        if row in old_rows:
            raise OptionError(
                f"tokenizer: its ids have gaps, so that {text!r} would have id {row}, which another token has; number "
                f"its tokens from 0 to {len(ids) - 1} without gaps"
            )
        _check_word(trial, text, row, marker)
    return texts, rows, subwords if needs_subwords else []


def _check_ids(tokenizer: Any, ids: Mapping[str, int], size: int) -> None:
    """Raise OptionError if the model has no row for a token, or the tokenizer hides tokens."""
    if max(ids.values()) >= size:
        raise OptionError(
            f"tokenizer: it has {max(ids.values()) + 1:,} tokens, the model {size:,} rows; load the tokenizer of this "
            "model without words that were added to it, and give those here, too"
        )
    if hidden := {*tokenizer("")["input_ids"]} - {*ids.values()}:
        row = min(hidden)
        raise OptionError(
            f"tokenizer: {tokenizer.convert_ids_to_tokens(row)!r} has id {row}, but is not in tokenizer.get_vocab(): a "
            "new word would take its row; add such tokens first (M2M100: "
            "tokenizer.add_tokens([*tokenizer.lang_token_to_id], special_tokens=True))"
        )


def _check_word(tokenizer: Any, text: str, row: int, marker: str) -> None:
    """Raise OptionError if the tokenizer does not read an added word alone and in a sentence, or writes other letters.

    Args:
        tokenizer: the tokenizer with the word.
        text, row: the word and its id.
        marker: character that the tokenizer writes for a space before a word; "" for none.
    """
    is_marked = bool(marker) and text.startswith(marker)
    remedy = repr(f" {text.removeprefix(marker)}") if is_marked else f"AddedToken({text!r}, normalized=False)"
    for place in (text, f"( {text.removeprefix(marker if is_marked else ' ')} )"):
        ids = _ids(tokenizer, place)
        if row not in ids:
            raise OptionError(
                f"words: the tokenizer reads {place!r} as {' '.join(tokenizer.convert_ids_to_tokens(ids))!r} also "
                f"when {text!r} is added; remove it, or give {remedy}"
            )
    if "\ufffd" in tokenizer.decode([row]) and "\ufffd" not in text:  # its letters are taken for bytes
        raise OptionError(
            f"words: the tokenizer writes {text!r} as {tokenizer.decode([row])!r} in generated text; give it with the "
            f"space before it, {f' {text}'!r}"
        )


def _subwords(tokenizer: Any, text: str, are_needed: bool) -> Combination:
    """Return the mean of the subwords; raise OptionError if the text is one token, or has no known token."""
    rows = _ids(tokenizer, text)
    tokens = tokenizer.convert_ids_to_tokens(rows)
    inner_tokens = inside_of_text(text, tokens)
    token_rows = [row for row, token in zip(rows, tokens) if token in inner_tokens]
    is_unknown = not token_rows or tokenizer.unk_token_id in token_rows
    if len(token_rows) == 1 and not is_unknown:
        raise OptionError(
            f"words: {text!r} is one token already, {tokenizer.convert_ids_to_tokens(token_rows)[0]!r}; remove it"
        )
    if are_needed and is_unknown:
        raise OptionError(
            f"words: the tokenizer has no subwords for {text!r}, which method subword needs; take avg, or remove it"
        )
    return np.array(token_rows), None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _vocabularies(tokenizer: Any, size: int, new_size: int, words: Mapping[int, str]) -> tuple[Vocabulary, Vocabulary]:
    """Return the old and new symbols of the rows; rows without a token have the name of a filler."""
    vocabulary = vocabulary_of_rows(tokenizer, None)
    names = [*vocabulary.symbols, *map(filler, range(len(vocabulary), new_size))]
    new_names = [words.get(row, name) for row, name in enumerate(names)]
    ones = np.ones(new_size, dtype=np.int64)
    old = Vocabulary(names[:size], ones[:size], vocabulary.roles, vocabulary.added)
    return old, Vocabulary(new_names, ones, vocabulary.roles, vocabulary.added | words.keys())
