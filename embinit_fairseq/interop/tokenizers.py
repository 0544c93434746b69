"""Choose the tokenizer of an exported folder: it gives text the ids of fairseq's pipeline, or there is none.

kind     made by                            text
words    without either, or none            finished words or subwords, separated by spaces: tokenizer.json
python   a record, or --preparation         raw text, prepared as the training's was: `remote/tokenization_tupe.py`
marian   the same, of sentencepiece only    raw text, for inputs that begin with no symbol
gpt2     --gpt2-bpe                         raw text, in GPT-2's pieces: tokenizer.json
copied   --tokenizer                        text for that tokenizer of transformers

Every kind is compared with fairseq on made-up lines and on the lines of --verify-text. V: rows of the embedding matrix.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embinit_fairseq.checkpoints.trained_preparation import (
    other_suggestion,
    refuse_options,
    stated_steps,
    unknown_preparation,
)
from embinit_fairseq.errors import DataError, OptionError, counted
from embinit_fairseq.interop.compared_text import FORMS, are_numbers, binarised_ids, made_up_lines, user_text
from embinit_fairseq.interop.export_request import ExportRequest
from embinit_fairseq.interop.remote import code_files
from embinit_fairseq.interop.trained import TARGET, Side, Trained
from embinit_fairseq.interop.verify_export import DifferentOutput
from embinit_fairseq.io import read_json, read_lines, temporary_folder
from embinit_fairseq.vectors.hf_vocab import EXPORTED_CLASS, EXPORTED_FILES
from embinit_fairseq.vocab.cleaning import MASK
from embinit_fairseq.vocab.dictionary import vocabulary_of
from embinit_fairseq.vocab.preparation_options import suggested
from embinit_fairseq.vocab.preparation_record import FILE
from embinit_fairseq.vocab.preparation_steps import STEPS, Preparation
from embinit_fairseq.vocab.segmentation import check_segmentation, read_segmentation
from embinit_fairseq.vocab.step_files import STEP_FILES, contents, given_files
from embinit_fairseq.vocab.subword_styles import detect_style

#: files that a tokenizer may consist of
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "bpe.codes", "glossary.txt", "spiece.model", "tokenization_tupe.py", "cleaning.py"),
    *("subwords.json", "vocab.json", "merges.txt", "preparation_steps.py"),
    *("steps.py", "preparation.py"),  # names in earlier exports
    *("source.spm", "target.spm", "sentencepiece.bpe.model", "tokenizer.model", "chat_template.jinja"),
)
_GPT2 = "--gpt2-bpe"
#: subword style of a dictionary -> form of a text in its symbols, option for a tokenizer that takes raw text
_SEGMENTERS = {"subword_nmt": ("bpe", "--bpe-codes"), "sentencepiece": ("sentencepiece", "--sentencepiece-model")}


@dataclass(frozen=True)
class Tokenizer:
    """Hold the tokenizer of a side and the text on which it is compared.

    Args:
        files: name -> content.
        why: description of its kind and of its input, for people.
        side: the side.
        symbols_of: fairseq's pipeline, from text to symbols separated by spaces.
        made_up: lines of text.
        text: the user's lines, and their form (a key of `FORMS`). All forms but `raw` are symbols already.
        recorded: the recorded pipeline, with which the user's lines are compared; None without a record.
        binarised: fairseq's ids of the user's lines in the data of --verify-bin; None without the option.
        is_given: True if the user names the tokenizer: it is exported or refused.
    """

    files: Mapping[str, str | bytes]
    why: str
    side: Side
    symbols_of: Callable[[str], str]
    made_up: list[str]
    text: tuple[list[str], str]
    recorded: Callable[[str], str] | None = None
    binarised: list[list[int]] | None = None
    is_given: bool = False

    @functools.cached_property
    def lines(self) -> list[str]:
        """Return all lines of text, the user's first."""
        return [*self.text[0], *self.made_up]

    @functools.cached_property
    def expected(self) -> list[list[int]]:
        """Return fairseq's ids of each line."""
        lines, form = self.text
        symbols = lines if form != "raw" else [(self.recorded or self.symbols_of)(line) for line in lines]
        return [self.side.encode(line) for line in (*symbols, *map(self.symbols_of, self.made_up))]

    def write(self, folder: Path) -> None:
        """Write the files."""
        folder.mkdir(exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content.encode("utf-8") if isinstance(content, str) else content)

    def check(self, path: str, exported_ids: Sequence[list[int]]) -> str | None:
        """Return why the tokenizer is left out; None if the ids of all lines are fairseq's.

        Args:
            path: the checkpoint's path, for the message.
            exported_ids: ids that the exported tokenizer gave each line.

        Raises:
            DifferentOutput: the ids of the user's text, or of the user's tokenizer, differ from fairseq's.
        """
        own, compared = len(self.text[0]), list(zip(self.lines, self.expected, exported_ids))
        of_data = [
            (line, ids, exported)
            for line, ids, exported in zip(self.lines, self.binarised or (), exported_ids)
            if MASK not in line.lower()  # in data `<mask>` is text
        ]
        made_up = compared[own:]
        for where, pairs in (("the data", of_data), ("fairseq", compared[:own]), ("fairseq", made_up)):
            different = [pair for pair in pairs if pair[1] != pair[2]]
            if not different:
                continue
            line, expected, ids = different[0]
            reason = f"{line[:80]!r} would get the ids {ids[:20]}, in {where} {expected[:20]}"
            if pairs is made_up and not self.is_given:
                return f"none, since {reason}"
            raise DifferentOutput(
                f"{path}: {len(different):,} of {counted(len(pairs), 'line')} differ: {reason} ({self.why}); nothing "
                "is written: give text of the training, or leave --verify-text and --tokenizer out"
            )
        return None

    def verified_text(self, path: str | None) -> dict[str, Any] | None:
        """Describe the user's text: path, lines, form, share of `<unk>` in its symbols; None if there is none."""
        if path is None:
            return None
        (lines, form), dictionary = self.text, self.side.dictionary
        ends = dictionary.bos(), dictionary.eos()
        ids = [row for line in self.expected[: len(lines)] for row in line if row not in ends]
        unknown = ids.count(dictionary.unk()) / max(1, len(ids))
        compared = None if self.binarised is None else sum(MASK not in line.lower() for line in lines)
        return {"path": path, "lines": len(lines), "form": FORMS[form], "unknown": unknown, "binarised": compared}


def choose_tokenizer(request: ExportRequest, trained: Trained, name: str = "") -> Tokenizer:
    """Return the tokenizer of `trained.sides[name]`. --verify-text, --verify-bin, --lang, --tokenizer: for the source.

    Raises:
        DataError: codes, a text or a tokenizer do not belong to the dictionary.
        OptionError: a library is missing.
    """
    side = trained.sides[name]
    if name == TARGET:
        folder = None if request.tokenizer is None else Path(request.tokenizer, name)
        tokenizer = str(folder) if folder is not None and folder.is_dir() else None
        request = replace(request, verify_text=None, verify_bin=None, lang=None, tokenizer=tokenizer)
    chosen = _chosen(request, side)
    if request.verify_bin is None:
        return chosen
    return replace(chosen, binarised=binarised_ids(request.verify_bin, side, len(chosen.text[0])))


def _chosen(request: ExportRequest, side: Side) -> Tokenizer:
    """Return the tokenizer of a side, of the first kind that the options or the record name."""
    if request.tokenizer is not None and not request.segments_by_tokenizer:
        return _copied(request, side)
    if request.gpt2_bpe is not None:
        return _gpt2(request, side)
    files = request.bpe_codes, request.sentencepiece_model
    if request.preparation is None and side.recorded is not None:
        values = {"--lowercase": request.lowercase, "--lang": request.lang}
        options = [f"{flag} {value}" for flag, value in values.items() if value is not None]
        refuse_options(options, f"{FILE} of {side.path}", "--preparation")
    raw = (*files, request.preparation, request.lowercase, request.lang, side.recorded)
    has_steps = any(value is not None for value in raw) and (request.preparation, *files) != ("none", None, None)
    return _python(request, side) if has_steps else _words(request, side)


# ---- files of the library tokenizers --------------------------------------------------------------------------------


def _config(side: Side, tokenizer_class: str, prepare: Preparation | None = None) -> str:
    """Return the text of tokenizer_config.json. prepare: preparation of a tokenizer with code of this package."""
    content: dict[str, Any] = {
        "tokenizer_class": tokenizer_class,
        **side.special_symbols(),
        "model_max_length": side.longest,
        "padding_side": "right",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    if prepare is not None:
        content["steps"] = prepare.steps
        content["auto_map"] = {"AutoTokenizer": [f"tokenization_tupe.{tokenizer_class}", None]}
        content["before"] = [side.symbols[row] for row in side.before]
        content["between"] = [side.symbols[row] for row in side.between]
        content["only_known"] = prepare.content.get("vocabulary") is not None
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _fast_files(side: Side, model: Any, split: Any, decoder: Any = None, mask_takes_space: bool = False) -> dict:
    """Return tokenizer.json and its configuration.

    Args:
        side: the side, whose special symbols are found before a text is segmented.
        model, split, decoder: the library's objects: words to ids, text to words, tokens to text.
        mask_takes_space: `<mask>` includes the space before it, as in fairseq's hub.
    """
    from tokenizers import AddedToken, Tokenizer, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split
    if decoder is not None:
        tokenizer.decoder = decoder
    for row in sorted({side.dictionary.indices[symbol] for symbol in side.special_symbols().values()}):
        symbol = side.symbols[row]
        lstrip = mask_takes_space and symbol == MASK
        tokenizer.add_special_tokens([AddedToken(symbol, normalized=False, special=True, lstrip=lstrip)])
    eos = side.dictionary.eos()
    before, between, end = ([side.symbols[row] for row in rows] for rows in (side.before, side.between, [eos]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *end],
        pair=[*before, "$A", *end, *between, "$B:0", *end],
        special_tokens=[(side.symbols[row], row) for row in {*side.before, *side.between, eos}],
    )
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": _config(side, "PreTrainedTokenizerFast"),
    }


# ---- the kinds ------------------------------------------------------------------------------------------------------


def _words(request: ExportRequest, side: Side) -> Tokenizer:
    """Take symbols of the dictionary, separated by white space where fairseq splits; others are `<unk>`."""
    from tokenizers import Regex, models, pre_tokenizers

    form, segmenter = _form_of_symbols(side)
    text = user_text(request, side, (form,), segmenter)
    split = pre_tokenizers.Split(Regex(r"[\s\x1c-\x1f]+"), behavior="removed")
    files = _fast_files(side, models.WordLevel(dict(side.dictionary.indices), unk_token="<unk>"), split)
    why = f"{FORMS[form]} between spaces, as in dict.txt" + ("" if form == "raw" else f" (raw text: {segmenter})")
    return Tokenizer(files, why, side, str, made_up_lines(side.symbols, " ".join), text)


def _form_of_symbols(side: Side) -> tuple[str, str]:
    """Return the form of a text in the symbols of a dictionary, and the option for a tokenizer that takes raw text."""
    if are_numbers(side.symbols):
        return "numbers", _GPT2
    style = detect_style(side.symbols)
    if style in _SEGMENTERS:
        return _SEGMENTERS[style]
    steps = suggested(side.symbols, side.language is not None)
    return "raw" if steps == "none" else "words", f"--preparation {steps}"


def _prepared(request: ExportRequest, side: Side) -> Preparation:
    """Return the preparation of a side's text, by the user's options, else by its record.

    Raises:
        OptionError: neither names the steps, or a library is missing.
        DataError: codes or a model differ from the record's.
    """
    user_files = _user_files(request)
    lowercase = None if request.lowercase is None else request.lowercase == "yes"
    if request.preparation is not None:
        steps = stated_steps(request.preparation, request.lang or side.language, lowercase, user_files)
        return Preparation(steps, contents(user_files, side.symbols))
    if side.recorded is None and user_files:
        return Preparation(stated_steps("none", None, lowercase, user_files), contents(user_files, side.symbols))
    if side.recorded is None:
        what = f"--lang {request.lang}" if request.lowercase is None else f"--lowercase {request.lowercase}"
        raise unknown_preparation(what, "--preparation", side.symbols, side.language is not None)
    return side.recorded.preparation(side.symbols, user_files)


def _user_files(request: ExportRequest) -> dict[str, str]:
    """Return option of a step -> the user's file."""
    files = given_files(request)
    if request.segments_by_tokenizer:
        files["tokenizer"] = str(Path(str(request.tokenizer), STEP_FILES["tokenizer"].name))
    return files


def _python(request: ExportRequest, side: Side) -> Tokenizer:
    """Take raw text, prepared as the record or the user says."""
    codes, model = request.bpe_codes, request.sentencepiece_model
    segmentation, doubt = read_segmentation(codes, model), ""
    try:
        if segmentation is not None:
            check_segmentation(segmentation, vocabulary_of(side.dictionary), side.path)
    except DataError as error:
        if codes is None:
            raise
        doubt = f". Doubtful: {error}"  # words of the dictionary may stay whole, so that the codes have little to do
    prepare = _prepared(request, side)
    if request.preparation is None and side.recorded is None:
        other = other_suggestion(prepare.steps, side.symbols, side.language is not None)
        doubt += "" if other is None else f". Attention: {other}"
    if [step["step"] for step in prepare.steps] == ["sentencepiece"] and not side.before:
        return replace(tokenizer := _marian(request, side, prepare), why=tokenizer.why + doubt)
    try:
        prepare("")
    except ImportError as error:
        raise OptionError(f"{error}, or say how text is prepared by --preparation") from error
    text = user_text(request, side, ("raw",))
    content = prepare.content
    files: dict[str, str | bytes] = {"vocab.txt": "".join(f"{symbol}\n" for symbol in side.symbols)}
    files |= {name: content[option] for option, name in EXPORTED_FILES.items() if content.get(option) is not None}
    files |= code_files("interop.remote.tokenization_tupe", "vocab.preparation_steps", "vocab.cleaning")
    files["tokenizer_config.json"] = _config(side, EXPORTED_CLASS, prepare)
    needs = sorted({library for step in prepare.steps for library in STEPS[step["step"]].needs})
    described = ", ".join(STEPS[step["step"]].help for step in prepare.steps) or "words between spaces"
    why = f"raw text ({described}), in Python{f' (needs {chr(32).join(needs)})' if needs else ''}{doubt}"
    made_up = made_up_lines(side.symbols, prepare.text) + made_up_lines(side.symbols, " ".join)
    recorded = None
    if side.recorded is not None:
        recorded = _pipeline(side.recorded.preparation(side.symbols, _user_files(request)))
    return Tokenizer(files, why, side, _pipeline(prepare), made_up, text, recorded)


def _pipeline(prepare: Preparation) -> Callable[[str], str]:
    return lambda line: " ".join(prepare(line, mask=True))


def _marian(request: ExportRequest, side: Side, prepare: Preparation) -> Tokenizer:
    """Return transformers' MarianTokenizer, which takes the model twice: for a source and for a target."""
    files: dict[str, str | bytes] = dict.fromkeys(("source.spm", "target.spm"), prepare.content["model"])
    files["vocab.json"] = json.dumps(dict(side.dictionary.indices))
    files["tokenizer_config.json"] = _config(side, "MarianTokenizer")
    made_up, text = made_up_lines(side.symbols, prepare.text), user_text(request, side, ("raw",))
    why = "subwords of sentencepiece, of raw text"
    return Tokenizer(files, why, side, lambda line: " ".join(prepare(line)), made_up, text)


def _gpt2(request: ExportRequest, side: Side) -> Tokenizer:
    """Take raw text by GPT-2's byte-level BPE (Radford et al. 2019), as fairseq's RoBERTa and BART (`--bpe gpt2`).

    `encoder.json` numbers the pieces, and the dictionary's symbols are these numbers as text (`318`): row r belongs to
    the piece whose number is symbol r. The exported tokenizer has row numbers as ids.
    """
    from fairseq.data.encoders.gpt2_bpe_utils import Encoder
    from tokenizers import decoders, models, pre_tokenizers

    where, rows = f"{_GPT2} {request.gpt2_bpe}", dict(side.dictionary.indices)
    encoder_json, vocab_bpe = (Path(str(request.gpt2_bpe), name) for name in ("encoder.json", "vocab.bpe"))
    numbers = read_json(encoder_json, DataError, _GPT2, remedy="download it again")
    pairs = [line.split() for _, line in read_lines(vocab_bpe, DataError, _GPT2)][1:]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    made = {piece for merge in merges for piece in (*merge, "".join(merge))}
    if not isinstance(numbers, dict) or not made <= numbers.keys():
        raise DataError(f"{where}: encoder.json and vocab.bpe do not belong together; download both again")
    lacking = [piece for piece, number in numbers.items() if str(number) not in rows]
    if lacking:
        raise DataError(
            f"{where}: {counted(len(lacking), 'piece')} ({lacking[0]!r}, say) of {len(numbers):,} have no row in "
            f"--dict {side.path}, which a tokenizer of transformers cannot say: give the files that the dictionary was "
            f"made with, or leave {_GPT2} out"
        )
    pieces = {piece: rows[str(number)] for piece, number in numbers.items()}
    taken = set(pieces.values())
    vocabulary = {**{symbol: row for symbol, row in rows.items() if row not in taken}, **pieces}
    encoder = Encoder(numbers, merges)

    def symbols_of(line: str) -> str:
        """Encode as fairseq's encoder, and `<mask>` as its hub."""
        *parts, last = line.split(MASK)
        encoded = [" ".join(map(str, encoder.encode(part))) for part in (*map(str.rstrip, parts), last)]
        return f" {MASK} ".join(encoded)

    split, decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    model = models.BPE(vocabulary, merges, fuse_unk=False)
    files = _fast_files(side, model, split, decoder, mask_takes_space=True)
    made_up, text = made_up_lines(list(numbers), decoder.decode), user_text(request, side, ("raw",))
    why = "GPT-2's byte-level BPE of raw text, in which a written </s> is that symbol (in fairseq it is text)"
    return Tokenizer(files, why, side, symbols_of, made_up, text)


def _copied(request: ExportRequest, side: Side) -> Tokenizer:
    """Return the user's tokenizer of transformers; raise DataError if its ids are not the dictionary's."""
    from transformers import AutoTokenizer

    path, special = str(request.tokenizer), side.special_symbols()
    try:
        # without the last argument transformers asks on the terminal whether to run the folder's code
        opened = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged or foreign folder may cause any
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"--tokenizer {path}: transformers cannot open it without running code of that folder or at all "
            f"({reason[:200]}); give a folder with a tokenizer.json"
        ) from error
    opened.init_kwargs.pop("auto_map", None)  # or the export would name that code, and opening it would run it
    rows, vocabulary = side.dictionary.indices, opened.get_vocab()
    tokens = {role: getattr(opened, role) for role in special if getattr(opened, role)}
    pairs: list[tuple[str, Any, Any]] = [
        *((role, opened.convert_tokens_to_ids(token), rows[special[role]]) for role, token in tokens.items()),
        *((symbol, vocabulary.get(symbol, row), row) for symbol, row in rows.items()),
        *((symbol, row, "none") for symbol, row in vocabulary.items() if row >= len(side.symbols)),
    ]
    if different := [pair for pair in pairs if pair[1] != pair[2]]:
        name, row, expected = different[0]
        raise DataError(
            f"--tokenizer {path}: {name} has the id {row}, in {side.path} {expected} ({len(different):,} differ): "
            "give the tokenizer that the dictionary was made of"
        )
    made_up, text = made_up_lines(side.symbols, opened.convert_tokens_to_string), user_text(request, side, tuple(FORMS))
    with temporary_folder() as folder:
        opened.save_pretrained(str(folder))
        files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}

    def symbols_of(line: str) -> str:
        return " ".join(opened.tokenize(line))

    return Tokenizer(files, f"copied from {path}", side, symbols_of, made_up, text, is_given=True)
