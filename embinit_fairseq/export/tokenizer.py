"""The tokenizer of an exported directory: the ids that fairseq's pipeline gives a text, or no tokenizer at all.

words    text is finished tokens, separated by blanks: tokenizer.json
bpe      sub-words of subword-nmt: tokenizer.json if every merge is a symbol of the dictionary, else Python
spm      pieces of a sentencepiece model: MarianTokenizer, which puts nothing in front of a text
gpt2     GPT-2's pieces, whose numbers are the dictionary's symbols: tokenizer.json
given    a tokenizer of transformers whose ids are the dictionary's
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.errors import DataError, OptionError, counted
from embinit_fairseq.expand.segmentation import Sentencepiece, check_segmentation, codes_text, read_codes
from embinit_fairseq.export.bundle import source_of
from embinit_fairseq.export.gpt2 import FLAG, Gpt2, is_numbers
from embinit_fairseq.export.trained import Side, Trained
from embinit_fairseq.export.verify import DifferentOutput
from embinit_fairseq.files import write_json
from embinit_fairseq.vectors.hf_vocab import load_sentencepiece
from embinit_fairseq.vocab.dictionary import vocabulary_of
from embinit_fairseq.vocab.tokens import CONTINUES

# ---- tokenizer.json and tokenizer_config.json for a fairseq dictionary ----------------------------------------------
# Written by the library tokenizers. Letters: V, rows of the embeddings.

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
    def of(cls, trained: Trained, side: Side) -> Layout:
        """As the task made its inputs: sentence_prediction begins as --init-token says, translation with nothing
        special, others with `<s>`."""
        dictionary, options = side.dictionary, trained.task_options
        before, between = [dictionary.bos()], [dictionary.eos()]
        if trained.task.startswith("sentence_"):
            named = (options.get("init_token"), options.get("separator_token"))
            before, between = ([] if token is None else [int(token)] for token in named)
        elif trained.task == "translation":
            before, between = [], []
        return cls(
            dict(dictionary.indices), side.symbols, before, between, dictionary.eos(), dictionary.unk(), side.longest
        )

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
            inside = symbol.endswith(CONTINUES) and symbol != CONTINUES
            vocabulary[symbol.removesuffix(CONTINUES) if inside else symbol + _END] = row
    merges: list[Any] = list(
        dict.fromkeys(tuple(line.strip("\r\n ").split(" ")) for line in codes.rstrip("\n").split("\n")[1:])
    )
    pieces = {piece for left, right in merges for piece in (left, right, left + right)}
    lacking = len(pieces - vocabulary.keys())
    if lacking or len(vocabulary) != len(layout.rows):
        return {}, max(lacking, 1)
    model = models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix=_END, fuse_unk=False)
    return _files(layout, model, {layout.rows[symbol] for symbol in whole}, decoders.BPEDecoder(suffix=_END)), 0


def gpt2_json(layout: Layout, gpt2: Gpt2) -> dict[str, str]:
    """Pieces of bytes; `<mask>` takes the blank in front of it, as in fairseq's hub."""
    model, cut, decoder = gpt2.tokenizer()
    return _files(layout, model, set(layout.special_ids().values()), decoder, cut)


def _files(layout: Layout, model: Any, added: set[int], decoder: Any = None, cut: Any = None) -> dict[str, str]:
    """added: ids of symbols that are found in the text before it is cut. cut: into words, by GPT-2."""
    from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = cut or pre_tokenizers.Split(Regex(_WHITE), behavior="removed")
    if decoder is not None:
        tokenizer.decoder = decoder
    special = set(layout.special_ids().values())
    for row in sorted(added):
        symbol = layout.symbols[row]
        token = AddedToken(symbol, normalized=False, special=row in special, lstrip=bool(cut) and symbol == "<mask>")
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


# ----------------------------------------------------------------------------------------------------------------------

#: what a tokenizer may consist of
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "bpe.codes", "tokenization_tupe.py", "vocab.json", "merges.txt", "spiece.model"),
    *("source.spm", "target.spm", "sentencepiece.bpe.model", "tokenizer.model", "chat_template.jinja"),
)
_PYTHON = f"{__name__.rpartition('.')[0]}.remote.tokenization_tupe"
_WHOLE = re.compile(r"<\w+>$")  # <url> and the like are no text, and were kept whole when the data were made
_LINES = 200
_SPM = "--sentencepiece-model"


@dataclass(frozen=True)
class Tokenizer:
    """kind: see above. files: name -> text, or a function that writes to a folder. lines: of text, for the check.
    expected: fairseq's ids of every line. why: of the kind, for people. own: how many of the lines, the first ones, are
    the user's."""

    kind: str
    files: dict[str, str] | Callable[[str], Any]
    lines: list[str]
    expected: list[list[int]]
    why: str
    own: int

    def write(self, folder: Path) -> list[str]:
        """Write the files; returns their names."""
        if not isinstance(self.files, dict):
            before = {path.name for path in folder.iterdir()}
            self.files(str(folder))
            return sorted({path.name for path in folder.iterdir()} - before)
        for name, text in self.files.items():
            (folder / name).write_bytes(text.encode("utf-8"))
        return list(self.files)


def choose_tokenizer(
    trained: Trained,
    codes: str | None,
    given: str | None,
    verify_text: str | None,
    gpt2: str | None = None,
    side: Side | None = None,
    sentencepiece: str | None = None,
) -> Tokenizer:
    """What goes with a dictionary (default: the source's). Raises DataError for codes, a text or a tokenizer that do
    not fit."""
    side = side or trained.source
    layout = Layout.of(trained, side)
    own = [] if verify_text is None else _verify_lines("--verify-text", verify_text)
    encode = _encoder(side)
    if given is not None:
        return _given(side, layout, given, own)
    if gpt2 is not None:
        return _gpt2(side, layout, gpt2, own)
    if sentencepiece is not None:
        return _spm(side, layout, sentencepiece, own)
    if codes is None:
        lines = own + _sample(side.symbols, joined=False)
        cut = any(symbol.endswith(CONTINUES) for symbol in side.symbols)
        why = "words separated by blanks" + (", cut into sub-words before (--bpe-codes does it here)" if cut else "")
        if is_numbers(side.symbols):
            why = f"words separated by blanks, which are numbers here: is this GPT-2's BPE? ({FLAG} reads text)"
        return Tokenizer(
            "words", words_json(layout), lines, [layout.wrap(encode(line)) for line in lines], why, len(own)
        )
    bpe, text = _subword_nmt(codes, side.symbols)
    lines = own + _sample(side.symbols, joined=True)
    expected = [layout.wrap(encode(" ".join(map(bpe, line.split())))) for line in lines]
    files, lacking = bpe_json(layout, text)
    if not lacking and _ids(files["tokenizer.json"], lines) == expected:
        return Tokenizer("bpe", files, lines, expected, "sub-words of subword-nmt", len(own))
    lack = f"the dictionary lacks {counted(lacking, 'piece')} of the codes"
    why = lack if lacking else "tokenizer.json would give other ids"
    python = {"vocab.txt": "".join(f"{symbol}\n" for symbol in side.symbols), "bpe.codes": text}
    python["tokenization_tupe.py"] = source_of(_PYTHON)
    python["tokenizer_config.json"] = layout.config("TupeTokenizer", python=True)
    return Tokenizer("bpe", python, lines, expected, f"sub-words of subword-nmt, in Python: {why}", len(own))


def _gpt2(side: Side, layout: Layout, folder: str, own: list[str]) -> Tokenizer:
    gpt2 = Gpt2(folder, layout.rows, f"--dict {side.path}")
    lines = own + gpt2.sample(random.Random(1), _LINES)
    expected = [layout.wrap(gpt2.encode(line)) for line in lines]
    return Tokenizer("gpt2", gpt2_json(layout, gpt2), lines, expected, "GPT-2's byte-level BPE", len(own))


def _spm(side: Side, layout: Layout, path: str, own: list[str]) -> Tokenizer:
    """Each side has its own, with the model twice: as that of the source, and of a target with the same dictionary."""
    if layout.before:
        raise OptionError(
            f"{_SPM} {path}: transformers has no tokenizer of such models that begins with "
            f"{layout.symbols[layout.before[0]]}; leave it out, and give text that is cut, or a folder by --tokenizer"
        )
    model = load_sentencepiece(path, DataError, _SPM)
    check_segmentation(Sentencepiece(path, _SPM), vocabulary_of(side.dictionary), side.path)
    drawn = [line.split() for line in _sample(side.symbols, joined=False)[3:]]
    lines = [*own, "", "  two  blanks ", "Ünknøwn 未知 ???", *map(model.decode_pieces, drawn)]
    encode = _encoder(side)
    expected = [layout.wrap(encode(" ".join(model.encode(line, out_type=str)))) for line in lines]

    def write(folder: str) -> None:
        for name in ("source.spm", "target.spm"):
            shutil.copyfile(path, Path(folder, name))
        write_json(Path(folder, "vocab.json"), layout.rows)
        Path(folder, "tokenizer_config.json").write_text(layout.config("MarianTokenizer"), encoding="utf-8")

    return Tokenizer("spm", write, lines, expected, "pieces of sentencepiece", len(own))


def check_text(trained: Trained, tokenizer: Tokenizer, theirs: Sequence[list[int]]) -> str | None:
    """Compares theirs, the ids that the exported tokenizer gave its `lines`, with fairseq's; -> why it cannot stay.

    Raises DifferentOutput if that is so on a text of the user's own, or for a tokenizer of theirs.
    """
    for number, (line, expected, ids) in enumerate(zip(tokenizer.lines, tokenizer.expected, theirs)):
        if ids != expected:
            reason = f"{line[:80]!r} would get the ids {ids[:20]}, in fairseq {expected[:20]}"
            if number < tokenizer.own or tokenizer.kind == "given":
                raise DifferentOutput(
                    f"{trained.path}: {reason} ({tokenizer.why}); nothing is written: prepare the text as that of the "
                    "training was, or leave --verify-text and --tokenizer out"
                )
            return f"none, since {reason}"
    return None


def _encoder(side: Side) -> Callable[[str], list[int]]:
    dictionary = side.dictionary
    return lambda line: dictionary.encode_line(line, append_eos=False, add_if_not_exist=False).tolist()


def _subword_nmt(path: str, symbols: Sequence[str]) -> tuple[Callable[[str], str], str]:
    """(word -> its pieces, as fairseq's --bpe subword_nmt cuts it; the text of the codes). DataError for bad codes."""
    bpe, text = read_codes(path), codes_text(path)
    whole = {symbol for symbol in symbols if _WHOLE.match(symbol)}
    return lambda word: word if word in whole else bpe.process_line(word), text


def _ids(text: str, lines: Sequence[str]) -> list[list[int]]:
    from tokenizers import Tokenizer as Fast

    return [encoding.ids for encoding in Fast.from_str(text).encode_batch(list(lines))]


def _verify_lines(flag: str, path: str) -> list[str]:
    lines = [line for _, line in read_lines(path, DataError, flag)]
    if not any(map(str.strip, lines)):
        raise DataError(f"{flag} {path}: no text in it; give a sentence a line, prepared as that of the training")
    return lines


def _sample(symbols: Sequence[str], joined: bool) -> list[str]:
    """Text over the dictionary, with unknown words and superfluous blanks. joined: `lo@@ w` becomes `low`."""
    draw = random.Random(1)
    symbols = [symbol for symbol in symbols[4:] if not symbol.startswith("<")]
    letters = sorted({letter for symbol in symbols for letter in symbol}) or ["a"]
    lines = ["", "  two  blanks ", "Ünknøwn 未知 ???"]
    for _ in range(_LINES):
        words = [draw.choice(symbols) for _ in range(draw.randint(1, 12))] if symbols else []
        words.insert(draw.randrange(len(words) + 1), "".join(draw.choices(letters, k=draw.randint(1, 9))))
        text = " ".join(words) + " "
        lines.append((text.replace(f"{CONTINUES} ", "").replace(CONTINUES, "") if joined else text).strip())
    return lines


def _given(side: Side, layout: Layout, path: str, own: list[str]) -> Tokenizer:
    """A tokenizer of transformers; DataError unless its ids are the dictionary's."""
    from transformers import AutoTokenizer

    try:
        # without that argument transformers asks on the terminal whether to run the folder's code
        opened = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a damaged or foreign folder may cause
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"--tokenizer {path}: transformers cannot open it without running code of that folder or at all "
            f"({reason[:200]}); give a folder with a tokenizer.json"
        ) from error
    opened.init_kwargs.pop("auto_map", None)  # or what we write would name that code, and opening it would run it
    special = layout.special_ids()
    roles = {role: opened.convert_tokens_to_ids(getattr(opened, role)) for role in special if getattr(opened, role)}
    symbols = side.dictionary.indices
    vocabulary = opened.get_vocab()
    wrong: list[tuple[str, Any, Any]] = [
        (role, row, special[role]) for role, row in roles.items() if row != special[role]
    ]
    wrong += [
        (symbol, vocabulary[symbol], row) for symbol, row in symbols.items() if vocabulary.get(symbol, row) != row
    ]
    wrong += [(symbol, row, "none") for symbol, row in vocabulary.items() if row >= len(side.symbols)]
    if wrong:
        name, theirs, ours = wrong[0]
        raise DataError(
            f"--tokenizer {path}: {name} has the id {theirs}, in {side.path} {ours} ({len(wrong):,} differ): "
            "give the tokenizer that the dictionary was made of"
        )
    lines = own + [opened.convert_tokens_to_string(line.split()) for line in _sample(side.symbols, joined=False)]
    unknown = layout.unk
    ids = [[symbols.get(token, unknown) for token in opened.tokenize(line)] for line in lines]
    expected = [layout.wrap(line) for line in ids]
    return Tokenizer("given", opened.save_pretrained, lines, expected, f"copied from {path}", len(own))
