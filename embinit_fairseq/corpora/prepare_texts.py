"""Turn raw text into a folder for fairseq-train, with the record of the preparation.

DIR/text/train.de                prepared lines
DIR/bpe.codes                    or sentencepiece.model, if learned here
DIR/bin/train.de-en.de.bin ...   fairseq-preprocess's names; text in one language: train.bin; with labels:
                                 input0/train.bin, input1/, label/
DIR/bin/preparation.json         the record (with labels: in input0/)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from embinit_fairseq.corpora import fairseq_data
from embinit_fairseq.corpora.checks import Checked, check_raw_text, check_together, class_counts, class_of
from embinit_fairseq.corpora.plan import LEARNED, OURS, Column, Plan
from embinit_fairseq.corpora.raw_texts import LABEL, RawText
from embinit_fairseq.corpora.subwords import MOST_LINES, learn_codes, learn_model
from embinit_fairseq.corpora.workers import SEPARATOR, parts_of, segmented, symbols_of, workers
from embinit_fairseq.io import whole_folder
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_options import written
from embinit_fairseq.vocab.preparation_record import tried, write_preparation
from embinit_fairseq.vocab.preparation_steps import STEPS, Preparation
from embinit_fairseq.vocab.step_files import STEP_FILES, contents

#: description, total, unit -> tqdm's bar
Bars = Callable[[str, int, str], Any]
#: number of raw lines on which the record is tried
_TRIED = 20


def check_texts(plan: Plan) -> tuple[list[Checked], list[str]]:
    """Read all texts once; return the facts about each, and the classes; raise DataError for unusable texts."""
    checked = [check_raw_text(raw_text, _steps(plan, raw_text)) for raw_text in plan.raw_texts]
    makes_subwords = any(STEPS[step["step"]].subwords for column in plan.columns.values() for step in column.steps)
    trained = None
    if plan.label_dictionary is not None:
        labels = read_dictionary(plan.label_dictionary)
        trained = [symbol for symbol, is_class in zip(labels.symbols, labels.regular) if is_class]
    return checked, check_together(checked, makes_subwords, plan.request.regression, trained)


def _steps(plan: Plan, raw_text: RawText) -> list[str]:
    """Return the names of a text's steps."""
    return [] if raw_text.is_label else [step["step"] for step in plan.columns[raw_text.column].steps]


def prepare(plan: Plan, checked: Sequence[Checked], classes: Sequence[str], bars: Bars) -> dict[str, Any]:
    """Prepare and binarise all texts; return a record for people.

    Args:
        plan: the steps and dictionaries of each text.
        checked, classes: results of `check_texts`.
        bars: shows progress.
    """
    request = plan.request
    lines = {one.raw_text: one.lines for one in checked}
    with whole_folder(request.output, request.force, OURS) as folder:
        for name in ("text", "bin"):
            (folder / name).mkdir()
        learned = _learn(plan, folder, lines, bars) if plan.learns else None
        counts = _write_texts(plan, folder, lines, bars)
        with closing(bars("binarise", len(plan.raw_texts), "text")) as bar:
            splits, sizes = _binarise(plan, folder, counts, classes, bar)
        _record(plan, folder)
    return {
        "output": request.output,
        "task": plan.task,
        "steps": {name: written(column.steps) for name, column in plan.columns.items()},
        "languages": sorted({step["lang"] for one in plan.columns.values() for step in one.steps if "lang" in step}),
        "checks": [one.entry() for one in checked],
        "learned": learned,
        "dictionaries": sizes,
        "splits": splits,
        "classes": list(classes),
        "class_counts": class_counts(checked, "train") if classes else {},
        "label_dictionary": plan.label_dictionary,
        "spaces_in_classes": bool(classes) and any(" " in label for one in checked for label in one.labels),
        "next": _next(plan, classes),
    }


def _text_file(folder: Path, raw_text: RawText) -> Path:
    return folder / "text" / f"{raw_text.split}.{raw_text.column or 'txt'}"


def _texts(plan: Plan) -> list[RawText]:
    return [raw_text for raw_text in plan.raw_texts if not raw_text.is_label]


def _write(chunks: Iterable[Any], path: Path, bar: Any) -> Counter[str]:
    """Write chunks of lines and return the counts of their words."""
    counts: Counter[str] = Counter()
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for chunk in chunks:
            file.write(chunk.text)
            counts.update(chunk.counts)
            bar.update(chunk.lines)
    return counts


def _learn(plan: Plan, folder: Path, lines: dict[RawText, int], bars: Bars) -> dict[str, Any]:
    """Apply the steps before the subwords, learn subwords from the training text, and set them in the plan."""
    size, counts = getattr(plan.request, LEARNED[plan.learns]), Counter[str]()
    name = STEP_FILES[plan.learns].name
    preparations = {name: column.preparation for name, column in plan.columns.items()}
    with workers(preparations, plan.request.jobs) as mapped:
        for raw_text in _texts(plan):
            with closing(bars(f"prepare {raw_text}", lines[raw_text], "line")) as bar:
                tokens = _write(mapped(parts_of, raw_text.column, raw_text.lines()), _parts_file(folder, raw_text), bar)
            if raw_text.split == "train":
                counts.update(tokens)
    with closing(bars("learn subwords", 1, "model")):
        if plan.learns == "codes":
            number = learn_codes(counts, size, folder / name)
        else:
            number = learn_model(_spaced(plan, folder, lines), size, plan.request.sentencepiece_type, folder / name)
    for column in plan.columns.values():
        column.files[plan.learns] = str(folder / name)
        column.preparation = Preparation(column.steps, contents(column.files, ()))
    return {"file": name, "asked": size, "made": number}


def _parts_file(folder: Path, raw_text: RawText) -> Path:
    return _text_file(folder, raw_text).with_name(f"{raw_text.split}.{raw_text.column}.parts")


def _spaced(plan: Plan, folder: Path, lines: dict[RawText, int]) -> Iterable[str]:
    """Yield at most MOST_LINES lines of the training text of all columns, evenly spaced."""
    training = [raw_text for raw_text in _texts(plan) if raw_text.split == "train"]
    step = max(1, -(-sum(lines[raw_text] for raw_text in training) // MOST_LINES))
    for raw_text in training:
        with open(_parts_file(folder, raw_text), encoding="utf-8", newline="\n") as file:
            for line in islice(file, 0, None, step):
                yield from line.rstrip("\n").split(SEPARATOR)


def _write_texts(plan: Plan, folder: Path, lines: dict[RawText, int], bars: Bars) -> dict[str, Counter[str]]:
    """Write the prepared lines of all texts; return column with a dictionary -> counts of its training text."""
    counts: dict[str, Counter[str]] = {column.shares: Counter() for column in plan.columns.values()}
    preparations = {name: column.preparation for name, column in plan.columns.items()}
    how = segmented if plan.learns else symbols_of
    with workers(preparations, plan.request.jobs) as mapped:
        for raw_text in _texts(plan):
            parts = _parts_file(folder, raw_text)
            texts = _lines_of(parts) if plan.learns else raw_text.lines()
            with closing(bars(f"{'segment' if plan.learns else 'prepare'} {raw_text}", lines[raw_text], "line")) as bar:
                tokens = _write(mapped(how, raw_text.column, texts), _text_file(folder, raw_text), bar)
            parts.unlink(missing_ok=True)
            if raw_text.split == "train":
                counts[plan.columns[raw_text.column].shares].update(tokens)
    for raw_text in plan.raw_texts:
        if raw_text.is_label:
            labels = "".join(f"{class_of(label)}\n" for label in raw_text.lines())
            _text_file(folder, raw_text).write_text(labels, encoding="utf-8")
    return counts


def _lines_of(path: Path) -> Iterable[str]:
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")


def _binarise(
    plan: Plan, folder: Path, counts: dict[str, Counter[str]], classes: Sequence[str], bar: Any
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Write dictionaries and binary files; return numbers of each text, and file of a dictionary -> its symbols."""
    request, data, made = plan.request, folder / "bin", {}
    for name, column in plan.columns.items():
        if column.shares not in made:
            dictionary_path = column.dictionary
            made[column.shares] = (
                fairseq_data.load_dictionary(dictionary_path)
                if dictionary_path is not None
                else fairseq_data.make_dictionary(counts[column.shares], request.min_count)
            )
        made[name] = made[column.shares]
    if plan.task == "sentence_prediction" and not request.regression:
        labels = plan.label_dictionary
        made[LABEL] = fairseq_data.label_dictionary(classes) if labels is None else fairseq_data.load_dictionary(labels)
    for name, dictionary in made.items():
        file = data / plan.dictionary_file(name)
        file.parent.mkdir(exist_ok=True)
        dictionary.save(str(file))
    splits = []
    for raw_text in plan.raw_texts:
        text, prefix = _text_file(folder, raw_text), data / plan.prefix(raw_text)
        if raw_text.column not in made:  # numbers: fairseq reads them as text
            prefix.parent.mkdir(exist_ok=True)
            prefix.with_name(f"{prefix.name}.label").write_bytes(text.read_bytes())
        elif raw_text.is_label:
            fairseq_data.binarise(text, made[LABEL], prefix, 1)
        else:
            numbers = fairseq_data.binarise(text, made[raw_text.column], prefix, request.jobs)
            splits.append(
                {"split": raw_text.split, "column": raw_text.column, **numbers._asdict(), "share": numbers.share}
            )
        bar.update()
    return splits, {plan.dictionary_file(name): len(made[name]) for name in plan.columns}


def _record(plan: Plan, folder: Path) -> None:
    """Write `preparation.json` next to the dictionaries, after its steps were tried on the first lines."""
    recorded: dict[Path, dict[str, Any]] = {}
    for name, column in plan.columns.items():
        file = folder / "bin" / plan.dictionary_file(name)
        pairs = _first_pairs(plan, folder, column)
        recorded.setdefault(file.parent, {})[file.name] = tried(file, column.steps, column.files, pairs)
    for place, entries in recorded.items():
        write_preparation(place, entries, "embinit prepare")


def _first_pairs(plan: Plan, folder: Path, column: Column) -> list[tuple[str, str]]:
    """Return the first raw lines of a column, with their symbols."""
    raw_text = next(raw_text for raw_text in plan.raw_texts if raw_text.column == column.name)
    with open(_text_file(folder, raw_text), encoding="utf-8", newline="\n") as prepared:
        return list(islice(zip(raw_text.lines(), (line.rstrip("\n") for line in prepared)), _TRIED))


def _next(plan: Plan, classes: Sequence[str]) -> str:
    """Return the first part of the command that reads the folder: a training, or without training text a test."""
    splits = [raw_text.split for raw_text in plan.raw_texts]
    trains, test = "train" in splits, min(splits)  # rather than valid
    task, data = f"--user-dir embinit_fairseq --task {plan.task}", f"{plan.request.output}/bin"
    if plan.task == "sentence_prediction":
        kind = "--num-classes 1 --regression-target" if plan.request.regression else f"--num-classes {len(classes)}"
        tokens = "--init-token 0 --separator-token 2" if len(plan.columns) == 2 else "--init-token 0"
        task = f"{task} {tokens} {kind} --criterion sentence_prediction --batch-size 16"
        if trains:
            return f"fairseq-train {data} {task} --arch roberta_base ..."
        return f"fairseq-validate {data} {task} --valid-subset {test} --path MODEL.pt ..."
    if plan.task == "translation":
        source, target = plan.columns
        task = f"{task} --source-lang {source} --target-lang {target}"
        if trains:
            dictionaries = {Path(data, plan.dictionary_file(name)).read_bytes() for name in plan.columns}
            tied = " --share-all-embeddings" if len(dictionaries) == 1 else ""  # a joined dictionary
            return f"fairseq-train {data} {task} --arch transformer_iwslt_de_en{tied} ..."
        return f"fairseq-generate {data} {task} --gen-subset {test} --path MODEL.pt ..."
    if trains:
        return f"fairseq-train {data} {task} --arch transformer_lm ... (--task masked_lm --arch roberta_base ...)"
    masked = f"{task.replace('language_modeling', 'masked_lm')} --criterion masked_lm --batch-size 16"
    return (
        f"fairseq-eval-lm {data} {task} --gen-subset {test} --path MODEL.pt ... (a masked model: "
        f"fairseq-validate {data} {masked} --valid-subset {test} --path MODEL.pt ...)"
    )
