"""Turn raw text into the symbols of a dictionary, step by step, and symbols back into text.

step           the text becomes                                     options (default)      back
cleaned        sentences without addresses (`cleaning.py`)          lang                   -
lowercase      lower case                                                                  -
normalised     Moses' punctuation                                   lang                   -
moses          Moses' words                                         lang, escape (yes),    Moses' detokeniser
                                                                    dashes (no)
spacy          words of spaCy's rules                               lang                   Moses' detokeniser
bpe            subwords of subword-nmt (Sennrich et al. 2016)       codes, glossary,       subwords joined
                                                                    vocabulary
sentencepiece  pieces of a sentencepiece model                      model                  the model
huggingface    tokens of a Hugging Face tokenizer                   tokenizer              the tokenizer
kim            English words of Kim 2014, in lower case                                    -
without        the words that are not in a list                     words                  -
known          the words that the dictionary has                    symbols                -

A preparation is a list of them, as `preparation.json` has it: [{"step": "moses", "lang": "de"}, {"step": "bpe"}].
Nothing is guessed from the text: a line that looks as if it were prepared already is prepared like any other.

This file is written into exported folders and runs there without this package: it imports only exported modules.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from embinit_fairseq.vocab.cleaning import (
    CARRIER,
    MASK,
    UNKNOWN,
    carry,
    cleaner,
    library,
    moses_punctuation,
    restore,
    spacy_rules,
    without_carriers,
)

#: subword-nmt: the word continues
_CONTINUES = "@@"
#: fairseq would take these words of a text for the ends of a sentence and for padding
_STRUCTURE = frozenset(("<s>", "</s>", "<pad>"))
_MASK = CARRIER[MASK]
#: Kim's clean_str: characters that are dropped, endings that begin a word, marks that are words
_FOREIGN = re.compile(rf"[^A-Za-z0-9(),!?'`{_MASK}]")
_ENDINGS = re.compile(r"(?='s|'ve|'re|'d|'ll|n't)")
_MARKS = re.compile(r"([,!()?])")


# ---- Text -----------------------------------------------------------------------------------------------------------


def _lowercase() -> Callable[[str], str]:
    # of İ Python makes i and a dot of its own, which Moses splits off
    return lambda text: text.lower().replace("i\u0307", "i")


def _moses(lang: str, escape: bool, dashes: bool) -> Callable[[str], str]:
    tokenize = library("sacremoses").MosesTokenizer(lang=lang).tokenize
    return partial(tokenize, return_str=True, escape=escape, aggressive_dash_splits=dashes)


def _joined(lang: str, escape: bool = False, **_: Any) -> Callable[[str], str]:
    """Return Moses' detokeniser, which joins `@-@` whether or not the step makes it.

    Without `escape` a written `&amp;` is text, and must survive.
    """
    detokenize = library("sacremoses").MosesDetokenizer(lang=lang).detokenize
    return lambda text: detokenize(text.split(), unescape=escape)


def _kim() -> Callable[[str], str]:
    return lambda text: " ".join(_MARKS.sub(r" \1 ", _ENDINGS.sub(" ", _FOREIGN.sub(" ", text))).split()).lower()


def _without(words: Sequence[str]) -> Callable[[str], str]:
    left_out = frozenset(words)
    return lambda text: " ".join(word for word in text.split() if word not in left_out)


def _known(symbols: Any) -> Callable[[str], str]:
    return lambda text: " ".join(word for word in text.split() if word in symbols or word == _MASK)


def _spacy(lang: str) -> Callable[[str], str]:
    tokenizer = spacy_rules(lang).tokenizer
    return lambda text: " ".join(token.text for token in tokenizer(text) if not token.is_space)


# ---- Subwords -------------------------------------------------------------------------------------------------------


def _bpe(codes: str, glossary: str | None = None, vocabulary: Any = None) -> Callable[[str], list[str]]:
    """Segment as `subword-nmt apply-bpe`, word by word.

    Args:
        codes: text of the codes.
        glossary: regular expression of the words that stay whole.
        vocabulary: the subwords that text may have, None for all.
    """
    bpe = library("subword_nmt.apply_bpe").BPE(
        io.StringIO(codes), vocab=vocabulary, glossaries=[glossary] if glossary else None
    )
    return lambda text: bpe.segment_tokens(text.split())  # a carrier of <url> is one character, and stays


def _without_bpe(**_: Any) -> Callable[[Sequence[str]], str]:
    return lambda symbols: (" ".join(symbols) + " ").replace(f"{_CONTINUES} ", "").rstrip()


def _sentencepiece(model: bytes) -> Callable[[str], list[str]]:
    encode = library("sentencepiece").SentencePieceProcessor(model_proto=model).encode
    return partial(_around_masks, partial(encode, out_type=str))


def _around_masks(encode: Callable[[str], list[str]], text: str) -> list[str]:
    """Segment the parts of a text between masks, which the libraries do not know."""
    first, *others = map(encode, text.split(_MASK))
    return [*first, *(piece for part in others for piece in (_MASK, *part))]


def _huggingface(tokenizer: str) -> Callable[[str], list[str]]:
    """Segment as a tokenizer of Hugging Face, without special tokens; its unknown token is fairseq's."""
    model = library("tokenizers").Tokenizer.from_str(tokenizer)
    without_stored_options(model)
    unknown = getattr(model.model, "unk_token", None)

    def encode(text: str) -> list[str]:
        encoding = model.encode(text, add_special_tokens=False)
        # a token that takes the space before it (RoBERTa's `<mask>`) has that space in `tokens`
        tokens = [
            token if " " not in token else model.id_to_token(row) for row, token in zip(encoding.ids, encoding.tokens)
        ]
        return [UNKNOWN if token == unknown else token for token in tokens]

    return partial(_around_masks, encode)


def without_stored_options(tokenizer: Any) -> None:
    """Switch off options that a tokenizer.json may store: each text has all its subwords, always the same ones."""
    tokenizer.no_truncation()  # folders of sentence-transformers truncate and pad
    tokenizer.no_padding()
    if hasattr(tokenizer.model, "dropout"):  # of its training: it draws the subwords
        tokenizer.model.dropout = None


def _without_tokens(tokenizer: str) -> Callable[[Sequence[str]], str]:
    decoder = library("tokenizers").Tokenizer.from_str(tokenizer).decoder
    return lambda symbols: " ".join(symbols) if decoder is None else decoder.decode(list(symbols))


def _without_pieces(model: bytes) -> Callable[[Sequence[str]], str]:
    decode = library("sentencepiece").SentencePieceProcessor(model_proto=model).decode_pieces
    return lambda symbols: decode(list(symbols))


# ---- The table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A step of a preparation.

    Args:
        help: description of the result, for people.
        apply: called with the options, returns a function of a text: to a text, with `sentences` to several, with
            `subwords` to symbols.
        undo: called with the options, returns the function back, if there is one.
        undone: description of the result of `undo`, for people.
        options: option -> default; `lang` is the text's language.
        content: options whose value is the content of a file.
        needs: libraries.
    """

    help: str
    apply: Callable[..., Callable[[str], Any]]
    undo: Callable[..., Callable[[Any], str]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    content: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    sentences: bool = False
    subwords: bool = False
    undone: str = ""


_LANG = {"lang": "en"}
_DETOKENISED = "words are put together by Moses' detokeniser"
#: name -> step; to add one, add a line
STEPS = {
    "cleaned": Step("cleaned as in scripts/wikibooks", cleaner, None, _LANG, (), ("sacremoses", "spacy"), True),
    "lowercase": Step("lower case", _lowercase),
    "normalised": Step("Moses' punctuation", moses_punctuation, None, _LANG, (), ("sacremoses",)),
    "moses": Step(
        *("Moses' words", _moses, _joined),
        options={**_LANG, "escape": True, "dashes": False},
        needs=("sacremoses",),
        undone=_DETOKENISED,
    ),
    "spacy": Step("spaCy's words", _spacy, _joined, _LANG, needs=("spacy", "sacremoses"), undone=_DETOKENISED),
    "bpe": Step(
        *("subwords of subword-nmt", _bpe, _without_bpe),
        content=("codes", "glossary", "vocabulary"),
        needs=("subword-nmt",),
        subwords=True,
        undone="subwords are joined",
    ),
    "sentencepiece": Step(
        *("pieces of sentencepiece", _sentencepiece, _without_pieces),
        content=("model",),
        needs=("sentencepiece",),
        subwords=True,
        undone="subwords are joined by the model",
    ),
    "huggingface": Step(
        *("tokens of a Hugging Face tokenizer", _huggingface, _without_tokens),
        content=("tokenizer",),
        needs=("tokenizers",),
        subwords=True,
        undone="subwords are joined by their decoder",
    ),
    "kim": Step("English words of Kim 2014, in lower case", _kim),
    "without": Step("without the words of a list", _without, options={"words": []}),
    "known": Step("without words that the dictionary lacks", _known, content=("symbols",)),
}


class Preparation:
    """A list of steps; calling it turns a raw text into symbols.

    Args:
        steps: each a dictionary with the name (`step`) and the options that differ from the defaults.
        content: option -> content of its file, for the steps that need files.

    Raises:
        ValueError: a step or an option is not known, is there twice, or follows subwords.
        ImportError: at the first call, if a library is missing.
    """

    def __init__(self, steps: Sequence[Mapping[str, Any]] = (), content: Mapping[str, Any] | None = None) -> None:
        self.steps = tuple(dict(step) for step in steps)
        self.content = dict(content or {})
        names = [step.get("step") for step in self.steps]
        for name, step in zip(names, self.steps):
            if name not in STEPS:
                raise ValueError(f"step {name}: not known; choose from {', '.join(STEPS)}")
            if unknown := step.keys() - {"step"} - STEPS[name].options.keys() - {*STEPS[name].content}:
                raise ValueError(
                    f"step {name} has no {min(unknown)}; it has {', '.join(STEPS[name].options) or 'none'}"
                )
        if len({*names}) < len(names):
            raise ValueError(f"steps {', '.join(map(str, names))}: each may occur once")
        if any(STEPS[str(name)].subwords for name in names[:-1]):
            raise ValueError(f"steps {', '.join(map(str, names))}: subwords are the last step")

    def __call__(self, text: str, mask: bool = False) -> list[str]:
        """Return the symbols of a raw text.

        Args:
            text: one line.
            mask: a written `<mask>` is that symbol; without, as in the text of a training, it is text.
        """
        return [symbol for sentence in self.sentences(text, mask) for symbol in sentence]

    def sentences(self, text: str, mask: bool = False) -> list[list[str]]:
        """Return the symbols of each sentence; only the step `cleaned` makes several of a line."""
        if not self.steps:
            return [text.split()]  # finished words: what fairseq makes of them
        return [self.segment(part) for part in self.parts(text, mask)]

    def parts(self, text: str, mask: bool = False) -> list[str]:
        """Apply the steps before subwords; return parts with carriers instead of symbols, as `segment` reads them."""
        text = without_carriers(text)
        texts = [carry(text, MASK) if mask else text]
        for apply, is_splitting in self._text_steps:
            texts = [part for text in texts for part in (apply(text) if is_splitting else [apply(text)])]
        return texts

    def segment(self, part: str) -> list[str]:
        """Return the symbols of one of the `parts` of a text."""
        segment = self._segment
        symbols = map(restore, part.split() if segment is None else segment(part))
        return [UNKNOWN if symbol in _STRUCTURE else symbol for symbol in symbols]

    def words(self, symbols: Sequence[str]) -> str:
        """Return the words of symbols, separated by spaces: subwords are joined."""
        join = self._join
        return " ".join(symbols) if join is None else join(symbols)

    def text(self, symbols: Sequence[str]) -> str:
        """Return symbols as text: subwords are joined, words put together as people write them."""
        text = self.words(symbols)
        for undo in self._undo:
            text = undo(text)
        return text

    def __getstate__(self) -> dict[str, Any]:
        """Leave the functions out, so that a tokenizer can be copied to another process."""
        return {"steps": self.steps, "content": self.content}

    def _options(self, step: Mapping[str, Any]) -> dict[str, Any]:
        entry = STEPS[step["step"]]
        content = {name: self.content[name] for name in entry.content if self.content.get(name) is not None}
        return {**entry.options, **{name: value for name, value in step.items() if name in entry.options}, **content}

    @cached_property
    def _text_steps(self) -> list[tuple[Callable[[str], Any], bool]]:
        entries = [(STEPS[step["step"]], self._options(step)) for step in self.steps]
        return [(entry.apply(**options), entry.sentences) for entry, options in entries if not entry.subwords]

    @cached_property
    def _segment(self) -> Callable[[str], list[str]] | None:
        return self._subwords("apply")

    @cached_property
    def _join(self) -> Callable[[Sequence[str]], str] | None:
        return self._subwords("undo")

    def _subwords(self, direction: str) -> Any:
        """Return the function of the last step, if that makes subwords."""
        if not self.steps or not STEPS[self.steps[-1]["step"]].subwords:
            return None
        return getattr(STEPS[self.steps[-1]["step"]], direction)(**self._options(self.steps[-1]))

    @cached_property
    def _undo(self) -> list[Callable[[str], str]]:
        entries = [(STEPS[step["step"]], self._options(step)) for step in reversed(self.steps)]
        return [entry.undo(**options) for entry, options in entries if entry.undo is not None and not entry.subwords]
