"""The tokenizer of an exported directory: the ids that fairseq's pipeline gives a text, or no tokenizer at all.

words    text is finished words or sub-words, separated by spaces: tokenizer.json
text     raw text, or text in sub-words: `remote/tokenization_tupe.py`, with codes of subword-nmt, a model of
         sentencepiece, or neither
marian   a model of sentencepiece and text that needs no preparation: MarianTokenizer, which begins with no symbol
gpt2     GPT-2's pieces, whose numbers are the dictionary's symbols: tokenizer.json
given    a tokenizer of transformers whose ids are the dictionary's
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.errors import DataError, OptionError, counted
from embinit_fairseq.export.files import code_files
from embinit_fairseq.export.gpt2 import FLAG, Gpt2, is_numbers
from embinit_fairseq.export.request import ExportRequest
from embinit_fairseq.export.trained import TARGET, Side, Trained
from embinit_fairseq.export.verify import DifferentOutput
from embinit_fairseq.vectors.hf_vocab import load_sentencepiece
from embinit_fairseq.vocab.codes import codes_text
from embinit_fairseq.vocab.dictionary import vocabulary_of
from embinit_fairseq.vocab.preparation import GLUED, Preparation, Segmenter
from embinit_fairseq.vocab.segmentation import check_segmentation, read_segmentation
from embinit_fairseq.vocab.text import MOST_MARKED, pieces_left
from embinit_fairseq.vocab.tokens import CONTINUES, detect_style

# ---- tokenizer.json and tokenizer_config.json for a fairseq dictionary ----------------------------------------------
# Written by the library tokenizers. Letters: V, rows of the embeddings.

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

    def config(self, tokenizer_class: str, prepare: Preparation | None = None) -> str:
        """The text of tokenizer_config.json. prepare: of a tokenizer with code of ours."""
        content: dict[str, Any] = {
            "tokenizer_class": tokenizer_class,
            **{role: self.symbols[row] for role, row in self.special_ids().items()},
            "model_max_length": self.longest,
            "padding_side": "right",
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
        }
        if prepare is not None:
            content["preparation"] = asdict(prepare)
            content["auto_map"] = {"AutoTokenizer": [f"tokenization_tupe.{tokenizer_class}", None]}
            content["before"] = [self.symbols[row] for row in self.before]
            content["between"] = [self.symbols[row] for row in self.between]
        return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def words_json(layout: Layout) -> dict[str, str]:
    """Words separated by white space; one that the dictionary lacks is `<unk>`."""
    from tokenizers import models

    return _files(layout, models.WordLevel(layout.rows, unk_token="<unk>"), set(layout.special_ids().values()))


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
    *("vocab.txt", "bpe.codes", "tokenization_tupe.py", "preparation.py", "vocab.json", "merges.txt", "spiece.model"),
    *("source.spm", "target.spm", "sentencepiece.bpe.model", "tokenizer.model", "chat_template.jinja"),
)
_LINES = 200
_TEXT = "--verify-text"


@dataclass(frozen=True)
class Tokenizer:
    """What a folder gets.

    Args:
        files: name -> content, or a function that writes to a folder.
        lines: of text, for the check; the first ones are the user's.
        expected: fairseq's ids of each line.
        why: its kind and the text that it takes, for people.
        own: number of the user's lines.
        form: of the user's text, one of `_FORMS`.
    """

    files: Mapping[str, str | bytes] | Callable[[str], Any]
    lines: list[str]
    expected: list[list[int]]
    why: str
    own: int
    form: str

    def checked(self, path: str | None, dictionary: Any) -> dict[str, Any] | None:
        """The user's text: path, number of lines, form, share of `<unk>` in its symbols; None if there is none."""
        if path is None:
            return None
        ends = dictionary.bos(), dictionary.eos()
        ids = [row for line in self.expected[: self.own] for row in line if row not in ends]
        unknown = ids.count(dictionary.unk()) / max(1, len(ids))
        return {"path": path, "lines": self.own, "form": _FORMS[self.form], "unknown": unknown}

    def write(self, folder: Path) -> list[str]:
        """Write the files; returns their names."""
        if callable(self.files):
            before = {path.name for path in folder.iterdir()}
            self.files(str(folder))
            return sorted({path.name for path in folder.iterdir()} - before)
        for name, content in self.files.items():
            (folder / name).write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return list(self.files)


def choose_tokenizer(request: ExportRequest, trained: Trained, name: str = "") -> Tokenizer:
    """What goes with the dictionary of `trained.sides[name]`; the text of `request` is the source's.

    Raises DataError for codes, a text or a tokenizer that do not fit, OptionError if a library is missing.
    """
    side = trained.sides[name]
    if name == TARGET:
        given = None if request.tokenizer is None else str(Path(request.tokenizer, name))
        given = given if given is not None and Path(given).is_dir() else None
        request = replace(request, verify_text=None, lang=None, tokenizer=given)
    layout = Layout.of(trained, side)
    if request.tokenizer is not None:
        return _given(request, side, layout, request.tokenizer)
    if request.gpt2_bpe is not None:
        return _gpt2(request, side, layout, request.gpt2_bpe)
    if request.prepares_text:
        return _text(request, side, layout, trained.task == "translation")
    return _words(request, side, layout, trained.task == "translation")


def _words(request: ExportRequest, side: Side, layout: Layout, translation: bool) -> Tokenizer:
    shown = Preparation.of(side.symbols, translation=translation).preparation
    form = {"subword_nmt": "bpe", "sentencepiece": "sentencepiece"}.get(detect_style(side.symbols), "raw")
    form = "numbers" if is_numbers(side.symbols) else "words" if form == "raw" and shown != "none" else form
    cutter = _CUTTERS.get(form, f"--preparation {shown}")
    own, _ = _own_text(request, side, (form,), cutter)
    lines = own + _sample(side.symbols, " ".join)
    why = f"{_FORMS[form]} between spaces, as in dict.txt" + ("" if form == "raw" else f" (raw text: {cutter})")
    return Tokenizer(words_json(layout), lines, _ids(side, layout, lines), why, len(own), form)


def _gpt2(request: ExportRequest, side: Side, layout: Layout, folder: str) -> Tokenizer:
    own, form = _own_text(request, side, ("raw",))
    gpt2 = Gpt2(folder, layout.rows, f"--dict {side.path}")
    lines = own + gpt2.sample(random.Random(1), _LINES)
    expected = [layout.wrap(gpt2.encode(line)) for line in lines]
    return Tokenizer(gpt2_json(layout, gpt2), lines, expected, "GPT-2's byte-level BPE of raw text", len(own), form)


def _text(request: ExportRequest, side: Side, layout: Layout, translation: bool) -> Tokenizer:
    """Raw text, prepared as the dictionary shows or as the options say, or text in sub-words."""
    codes, path = request.bpe_codes, request.sentencepiece_model
    how = request.preparation or (None if path is None else "none")
    lowercase = None if request.lowercase is None else request.lowercase == "yes"
    prepare = Preparation.of(side.symbols, how, lowercase, _language(request, side), translation)
    segmentation, doubt = read_segmentation(codes, path), ""
    try:
        if segmentation is not None:
            check_segmentation(segmentation, vocabulary_of(side.dictionary), side.path)
    except DataError as error:
        if codes is None:
            raise
        doubt = f". Doubtful: {error}"  # words of the dictionary stay whole, so that the codes may have little to do
    if path is not None and prepare.is_identity and not layout.before:
        return _marian(request, side, layout, path)
    try:
        segment = Segmenter(layout.rows, prepare, None, path)
    except ImportError as error:
        raise OptionError(f"{error}, or say how text is prepared by --preparation") from error
    if codes is not None and segmentation is not None:
        segment.cut = segmentation.cut  # by the library, which the exported code is compared with
    own, form = _own_text(request, side, ("raw", "bpe" if path is None else "sentencepiece"))
    if form == "bpe":
        _check_cut(request, own, segment)
    made_up = _sample(side.symbols, segment.join) + _sample(side.symbols, " ".join)
    cut = [" ".join(segment(line)) for line in (own if form == "raw" else []) + made_up]
    files: dict[str, str | bytes] = {"vocab.txt": "".join(f"{symbol}\n" for symbol in side.symbols)}
    if codes is not None:
        files["bpe.codes"] = codes_text(codes)
    if path is not None:
        files["spiece.model"] = Path(path).read_bytes()
    files.update(code_files("export.remote.tokenization_tupe", "vocab.preparation"))
    files["tokenizer_config.json"] = layout.config("TupeTokenizer", prepare)
    kind = "sub-words of subword-nmt" if codes else "sub-words of sentencepiece" if path else "words"
    why = f"{kind}, in Python{prepare.needs}. Raw text is prepared ({prepare}); text in sub-words stays as it is"
    why += doubt
    expected = _ids(side, layout, cut if form == "raw" else own + cut)
    return Tokenizer(files, own + made_up, expected, why, len(own), form)


def _language(request: ExportRequest, side: Side) -> str:
    """The two-letter code of a text's language: `zh` for `zh_CN`; `en` for what a training named `source`, say."""
    from fairseq_compat.languages import UnknownLanguageError, language

    try:
        return language(request.lang or side.language or "en")
    except UnknownLanguageError as error:
        if request.lang:
            raise OptionError(f"--lang {error}") from error
        return "en"


def _check_cut(request: ExportRequest, lines: Sequence[str], segment: Segmenter) -> None:
    """Raise DataError if text in sub-words would be cut otherwise from its words."""
    words = (segment.join(line.split()).split() for line in lines)
    again = [[piece for word in each for piece in segment.pieces(word)] for each in words]
    others = [line for line, pieces in zip(lines, again) if line.split() != pieces]
    if others:
        raise DataError(
            f"{_TEXT} {request.verify_text}: {counted(len(others), 'line')} of {len(lines):,} ({others[0][:60]!r}) cut "
            f"otherwise by --bpe-codes {request.bpe_codes}: give the codes that cut this text, or leave {_TEXT} out"
        )


def _marian(request: ExportRequest, side: Side, layout: Layout, path: str) -> Tokenizer:
    """It wants the model twice: as that of the source, and of a target with the same dictionary."""
    model = load_sentencepiece(path, DataError, "--sentencepiece-model")
    own, form = _own_text(request, side, ("raw",))
    lines = own + _sample(side.symbols, model.decode_pieces)
    expected = _ids(side, layout, [" ".join(model.encode(line, out_type=str)) for line in lines])
    files = dict.fromkeys(("source.spm", "target.spm"), Path(path).read_bytes())
    texts = {"vocab.json": json.dumps(layout.rows), "tokenizer_config.json": layout.config("MarianTokenizer")}
    return Tokenizer({**files, **texts}, lines, expected, "sub-words of sentencepiece, of raw text", len(own), form)


# ---- text for the check ----------------------------------------------------------------------------------------------

#: form of a text -> its name for people
_FORMS = {
    "raw": "raw text",
    "bpe": f"sub-words (`or{CONTINUES} an{CONTINUES} ge`)",
    "sentencepiece": "sub-words (`▁or ange`)",
    "numbers": "numbers of GPT-2's pieces",
    "words": "Moses' words",
}
#: form of a dictionary -> the option that makes it of raw text
_CUTTERS = {"bpe": "--bpe-codes", "sentencepiece": "--sentencepiece-model", "numbers": FLAG}


def _own_text(request: ExportRequest, side: Side, forms: Sequence[str], cutter: str = "") -> tuple[list[str], str]:
    """The lines of --verify-text and their form; DataError unless it is among `forms`.

    cutter: the option by which the tokenizer would take raw text.
    """
    path = request.verify_text
    if path is None:
        return [], "raw"
    lines = [line for _, line in read_lines(path, DataError, _TEXT)]
    words = [word for line in lines for word in line.split()]
    if not words:
        raise DataError(f"{_TEXT} {path}: no text in it; give a sentence a line")
    marked, form = pieces_left(lines) or (0, "raw")
    if marked <= MOST_MARKED * len(lines):
        form = "numbers" if is_numbers(side.symbols) and is_numbers(words) else "raw"
        form = "words" if "words" in forms and not any(map(GLUED.search, words)) else form
    if form not in forms:
        remedy = f"{cutter}, which cuts it, or the text after" if form == "raw" else "the text before"
        expected = " or ".join(_FORMS[each] for each in forms)
        raise DataError(f"{_TEXT} {path}: found {_FORMS[form]}, expected {expected}: give {remedy} it was cut")
    return lines, form


def _ids(side: Side, layout: Layout, lines: Sequence[str]) -> list[list[int]]:
    """fairseq's ids of lines in words or sub-words."""
    encode = side.dictionary.encode_line
    return [layout.wrap(encode(line, append_eos=False, add_if_not_exist=False).tolist()) for line in lines]


def check_text(trained: Trained, tokenizer: Tokenizer, theirs: Sequence[list[int]]) -> str | None:
    """Compares theirs, the ids that the exported tokenizer gave its `lines`, with fairseq's; -> why it cannot stay.

    Raises DifferentOutput if that is so on a text of the user's own, or for a tokenizer of theirs.
    """
    for number, (line, expected, ids) in enumerate(zip(tokenizer.lines, tokenizer.expected, theirs)):
        if ids != expected:
            reason = f"{line[:80]!r} would get the ids {ids[:20]}, in fairseq {expected[:20]}"
            if number < tokenizer.own or callable(tokenizer.files):
                raise DifferentOutput(
                    f"{trained.path}: {reason} ({tokenizer.why}); nothing is written: give text of the training, "
                    "or leave --verify-text and --tokenizer out"
                )
            return f"none, since {reason}"
    return None


def _sample(symbols: Sequence[str], join: Callable[[list[str]], str]) -> list[str]:
    """Text over the dictionary, with unknown words and superfluous spaces."""
    draw = random.Random(1)
    symbols = [symbol for symbol in symbols[4:] if not symbol.startswith("<")]
    letters = sorted({letter for symbol in symbols for letter in symbol}) or ["a"]
    lines = ["", "  two  blanks ", "Ünknøwn 未知 ???"]
    for _ in range(_LINES):
        words = [draw.choice(symbols) for _ in range(draw.randint(1, 12))] if symbols else []
        words.insert(draw.randrange(len(words) + 1), "".join(draw.choices(letters, k=draw.randint(1, 9))))
        lines.append(join(words))
    return lines


def _given(request: ExportRequest, side: Side, layout: Layout, path: str) -> Tokenizer:
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
    own, form = _own_text(request, side, tuple(_FORMS))
    lines = own + _sample(side.symbols, opened.convert_tokens_to_string)
    kept = len(own) if form != "raw" else 0
    cut = lines[:kept] + [" ".join(opened.tokenize(line)) for line in lines[kept:]]
    return Tokenizer(opened.save_pretrained, lines, _ids(side, layout, cut), f"copied from {path}", len(own), form)
