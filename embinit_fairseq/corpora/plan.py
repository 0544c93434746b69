"""Plan `embinit prepare` before any text is read: steps of each column, their files, dictionaries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embinit_fairseq.corpora.raw_texts import LABEL, PLAIN, Columns, RawText, find_raw_texts
from embinit_fairseq.corpora.reading import suffix_of
from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import check_folder, check_is_file, check_place
from embinit_fairseq.vocab.codes import WRITE_TOKENIZER
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_options import in_language, parse_steps, suggested, written
from embinit_fairseq.vocab.preparation_record import FILE, libraries, read_preparation
from embinit_fairseq.vocab.preparation_steps import STEPS, Preparation
from embinit_fairseq.vocab.step_files import STEP_FILES, contents, given_files

#: option of a step whose file can be learned -> field of the request with its size
LEARNED = {"codes": "bpe_size", "model": "sentencepiece_size"}
#: files that the command writes
OURS = (*(STEP_FILES[option].name for option in LEARNED), "text/*", "bin/*", "bin/input?/*", "bin/label/*")


@dataclass(frozen=True)
class PrepareRequest:
    """Hold the options of `embinit prepare`; see its --help."""

    texts: tuple[str, ...]
    output: str
    steps: str | None = None
    bpe_size: int | None = None
    bpe_codes: str | None = None
    sentencepiece_size: int | None = None
    sentencepiece_type: str = "unigram"
    sentencepiece_model: str | None = None
    tokenizer: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    regression: bool = False
    dictionary: str | None = None
    target_dict: str | None = None
    joined_dictionary: bool = False
    min_count: int = 1
    jobs: int = 1
    force: bool = False


@dataclass
class Column:
    """Hold the preparation of one column of text.

    Args:
        name: name of the column.
        lang: language of its text.
        shares: name of the column with which it shares a dictionary.
        dictionary: path of the user's dictionary, or of its copy with this language's record.
        has_other_record: True if the dictionary is of both languages, and its record of the other language.
        steps, files, preparation: as in `Recorded`.
    """

    name: str
    lang: str
    shares: str
    dictionary: str | None = None
    has_other_record: bool = False
    steps: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    preparation: Preparation = field(default_factory=Preparation)


@dataclass
class Plan:
    """Hold the work of one call: texts, steps, dictionaries, names of files.

    Args:
        request, raw_texts, columns: the options, files and columns of the call.
        learns: the option of a step whose file is learned (`codes`, `model`), else ``.
        label_dictionary: path of the classes of the trained classifier for which the texts are prepared.
    """

    request: PrepareRequest
    raw_texts: list[RawText]
    columns: dict[str, Column]
    learns: str = ""
    label_dictionary: str | None = None

    @property
    def task(self) -> str:
        """Return the task of fairseq-train."""
        if any(raw_text.is_label for raw_text in self.raw_texts):
            return "sentence_prediction"
        return "translation" if len(self.columns) == 2 else "language_modeling"

    def dictionary_file(self, column: str) -> str:
        """Return fairseq's path of a column's dictionary in the folder of the data."""
        if self.task == "sentence_prediction":
            return f"{column}/dict.txt"
        return f"dict.{column}.txt" if column else "dict.txt"

    def prefix(self, raw_text: RawText) -> str:
        """Return fairseq's path of a text's binary files, without ending."""
        if self.task == "sentence_prediction":
            return f"{raw_text.column}/{raw_text.split}"
        pair = "-".join(self.columns)
        return f"{raw_text.split}.{pair}.{raw_text.column}" if raw_text.column else raw_text.split


def make_plan(request: PrepareRequest) -> Plan:
    """Return the plan; raise OptionError, DataError or OutputError if the options or the files do not allow it."""
    columns = Columns(request.source_lang, request.target_lang, request.text_columns, request.label_column)
    raw_texts = find_raw_texts(request.texts, columns)
    files = (request.bpe_codes, request.sentencepiece_model, request.dictionary, request.target_dict)
    read: list[str | Path] = [*(raw_text.path for raw_text in raw_texts), *filter(None, files)]
    check_folder(request.output, request.force, OURS, read)
    check_place(request.output)
    names = list(dict.fromkeys(raw_text.column for raw_text in raw_texts if not raw_text.is_label))
    if request.regression and request.label_column is None:
        raise OptionError("--regression: for numbers as labels; name their column by --label-column")
    plan = Plan(request, raw_texts, {name: Column(name, _lang(name, request, raw_texts), name) for name in names})
    _choose_dictionaries(plan)
    _check_training_text(plan)
    for column in plan.columns.values():
        _choose_steps(column, plan)
    return plan


def _lang(name: str, request: PrepareRequest, raw_texts: Sequence[RawText]) -> str:
    """Return the language of a column, by its name, else the user's option, else the files' endings, else English."""
    if name and request.label_column is None:
        return name
    suffix = suffix_of(raw_texts[0].path) if raw_texts[0].field is None else ""
    return request.source_lang or ("en" if suffix.lower() in PLAIN else suffix)


def _check_training_text(plan: Plan) -> None:
    """Raise OptionError if a dictionary or classes must be made from training text and there is none."""
    request = plan.request
    if any(raw_text.split == "train" for raw_text in plan.raw_texts):
        return
    if request.dictionary is None:
        raise OptionError("TEXT: no training text, of which the dictionary is made; name it train=FILE, or give --dict")
    if plan.task == "sentence_prediction" and not request.regression and plan.label_dictionary is None:
        raise OptionError(
            "TEXT: no training text, which has the classes; name it train=FILE, or give the classifier's "
            "--dict DATA/input0/dict.txt, so that DATA/label/dict.txt has them"
        )


def _label_dictionary(request: PrepareRequest) -> str | None:
    """Return the dictionary of a trained classifier's classes; --dict: DATA/input0/dict.txt, or its copy in DATA."""
    if request.label_column is None or request.regression or request.dictionary is None:
        return None
    folder = Path(os.path.abspath(request.dictionary)).parent
    file = (folder.parent if folder.name in ("input0", "input1") else folder) / LABEL / "dict.txt"
    return os.path.relpath(file) if file.is_file() else None


def _choose_dictionaries(plan: Plan) -> None:
    """Set the dictionaries of all columns."""
    request, names, is_pair = plan.request, list(plan.columns), plan.task == "translation"
    _check_dictionaries(request, is_pair)
    plan.label_dictionary = _label_dictionary(request)
    is_one = request.joined_dictionary or request.dictionary == request.target_dict
    suffix = suffix_of(plan.raw_texts[0].path)
    for at, column in enumerate(plan.columns.values()):
        is_shared = request.joined_dictionary or not is_pair
        column.shares = names[0] if is_shared else column.name
        column.dictionary = request.dictionary if is_shared or not at else request.target_dict
        if column.dictionary is not None and (is_pair or column.lang in (request.source_lang, suffix)):
            langs = dict.fromkeys([column.lang, *(other.lang for other in plan.columns.values() if is_one)])
            column.dictionary = _copy_of(column.dictionary, [*langs], request.joined_dictionary)
            column.has_other_record = is_pair and is_one and Path(column.dictionary).name != f"dict.{column.lang}.txt"


def _check_dictionaries(request: PrepareRequest, is_pair: bool) -> None:
    """Raise OptionError if the options of dictionaries do not fit the texts, or each other."""
    dictionary, other, joined = request.dictionary, request.target_dict, request.joined_dictionary
    of_pairs = {"--joined-dictionary": joined, "--target-dict": other, "--target-lang": request.target_lang}
    if not is_pair and (unused := [flag for flag, value in of_pairs.items() if value]):
        raise OptionError(f"{unused[0]}: for text in two languages; leave it out")
    if other and (joined or not dictionary):
        raise OptionError("--target-dict: together with --dict, of the source, and without --joined-dictionary")
    if is_pair and dictionary and not (other or joined):
        raise OptionError("--dict: of the source; give --target-dict, too, or --joined-dictionary if it is of both")
    for flag, path in (("--dict", dictionary), ("--target-dict", other)):
        if path is not None:
            check_is_file(path, flag)


def _copy_of(dictionary: str, langs: Sequence[str], is_joined: bool) -> str:
    """Return the copy of a dictionary with a record: the first language's, else the user's, else the others'."""
    own, *others = (Path(dictionary).with_name(f"dict.{lang}.txt") for lang in langs)
    for copy in filter(Path.is_file, (own, Path(dictionary), *others)):
        if read_dictionary(copy).symbols == read_dictionary(dictionary).symbols:
            if read_preparation(copy) is not None:
                return str(copy)
        elif is_joined:
            raise OptionError(
                f"--joined-dictionary: {copy} has other symbols than {dictionary}; give it by --target-dict"
            )
        elif copy == own and len(langs) == 1:
            raise OptionError(
                f"{dictionary}: is not the dictionary of {langs[0]}, which is {own.name} next to it; give --dict that "
                "of the source and --target-dict that of the target"
            )
    return dictionary


def _choose_steps(column: Column, plan: Plan) -> None:
    """Set steps, files and preparation of a column, by the record next to its dictionary or by the user's options."""
    request, user_files = plan.request, _user_files(plan.request)
    recorded = None if column.dictionary is None else read_preparation(column.dictionary)
    symbols = [] if column.dictionary is None else read_dictionary(column.dictionary).symbols
    if recorded is not None:
        column.steps = [dict(step) for step in recorded.steps]
        own, said = written(column.steps), request.steps
        if said is not None and written(parse_steps(said, column.lang, "--steps")) != own:
            raise OptionError(f"--steps {said}: the {FILE} next to {column.dictionary} says {own}; leave --steps out")
        column.preparation = recorded.preparation(symbols, user_files)
        column.files = {name: recorded.path_of(name, user_files.get(name)) for name in recorded.files}
        if column.has_other_record:
            column.steps = _in_language(column, own)
            column.preparation = Preparation(column.steps, contents(column.files, symbols))
    elif request.steps is None:
        looks = f" (the dictionary looks like {suggested(symbols, len(plan.columns) == 2)})" if symbols else ""
        raise OptionError(
            f"--steps: say how raw text becomes symbols{looks}, such as lowercase,moses,bpe; none for finished words"
        )
    else:
        column.steps = parse_steps(request.steps, column.lang, "--steps")
    names = {step["step"] for step in column.steps}
    _check_options(names, plan, user_files, column.files)
    if recorded is None:
        column.files = {name: path for name, path in user_files.items() if _uses(names, name)}
        column.preparation = Preparation(column.steps, contents(column.files, symbols))
    with libraries():
        column.preparation.parts("")
        if not plan.learns:
            column.preparation("")


def _in_language(column: Column, own: str) -> list[dict[str, Any]]:
    """Return the other language's steps with the rules of the column's language; own: the steps as text."""
    if (steps := in_language(column.steps, column.lang)) is not None:
        return steps
    raise OptionError(
        f"--dict {column.dictionary}: its steps ({own}) are recorded for another language, and {column.lang} is not "
        "the code of a known one; give the dictionary of each language by --dict and --target-dict, or let the names "
        "of the texts end in codes of languages"
    )


def _user_files(request: PrepareRequest) -> dict[str, str]:
    """Return option of a step -> the user's file."""
    files = given_files(request)
    if request.tokenizer is not None:
        place = Path(request.tokenizer)
        files["tokenizer"] = str(place / STEP_FILES["tokenizer"].name if place.is_dir() else place)
    for name, path in files.items():
        remedy = WRITE_TOKENIZER if name == "tokenizer" else "check the path"
        check_is_file(path, STEP_FILES[name].flag, remedy=remedy)
    return files


def _uses(names: set[str], option: str) -> bool:
    return any(option in STEPS[name].content for name in names)


def _check_options(names: set[str], plan: Plan, user_files: dict[str, str], recorded: dict[str, str]) -> None:
    """Raise OptionError for a step without file or size, or for these without the step; set `plan.learns`."""
    request = plan.request
    for option, file in STEP_FILES.items():
        flag, size = file.flag, LEARNED.get(option)
        size_flag, wanted = f"--{size}".replace("_", "-"), None if size is None else getattr(request, size)
        if not _uses(names, option):
            if option in user_files or wanted is not None:
                unused = flag if option in user_files else size_flag
                raise OptionError(f"{unused}: the steps are {', '.join(sorted(names)) or 'none'}; leave it out")
            continue
        if request.dictionary is not None and wanted is not None:
            raise OptionError(f"{size_flag}: the dictionary has its subwords already; give {flag} instead")
        if option in user_files and wanted is not None:
            raise OptionError(f"{flag} and {size_flag}: give one of them")
        if wanted is not None:
            plan.learns = option
        elif option not in user_files and option not in recorded:
            learn = f", or {size_flag} N to learn it" if size else ""
            raise OptionError(f"--steps {request.steps}: needs the file of its subwords; give it by {flag}{learn}")
    if "known" in names and request.dictionary is None:
        raise OptionError("--steps known: keeps the words of a dictionary; give it by --dict")
