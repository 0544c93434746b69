"""Symptoms (see symptoms.py) of a training's data: labels, shortened texts, folders, parts of a split, dictionaries."""

from __future__ import annotations

import inspect
import os
import shutil
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from fairseq import options
from fairseq import tasks as fairseq_tasks
from fairseq.criterions.sentence_prediction import SentencePredictionCriterion
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask
from fairseq.tasks.sentence_ranking import SentenceRankingTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.trainer import Trainer
from training_symptoms import in_folder, refused, write_split


def labelled(folder: Path, labels: list[str], num_classes: int = 2, regression: bool = False):
    """The split ``valid`` of a sentence_prediction task with these labels."""
    write_split(folder / "input0", "valid", ["a b"] * len(labels), "a b")
    write_split(folder / "label", "valid", [] if regression else labels, "no yes maybe")
    (folder / "label" / "valid.label").write_text("".join(f"{label}\n" for label in labels))
    config = SentencePredictionConfig(data=str(folder), num_classes=num_classes, regression_target=regression, seed=1)
    return SentencePredictionTask.setup_task(config).load_dataset("valid")


@in_folder
def checked_labels(folder: Path) -> None:
    """A class too many, in the first batch that has it; a number that is none."""
    with refused("label/valid, line 2", "'maybe'", "--num-classes"):
        dataset = labelled(folder / "classes", ["yes", "maybe"])
        targets = dataset.collater([dataset[0], dataset[1]])["target"]
        torch.nn.functional.nll_loss(torch.zeros(2, 2), targets.view(-1))
    with refused("label/valid.label, line 2", "'nan'"):
        labelled(folder / "numbers", ["0.5", "nan"], 1, True)
    assert labelled(folder / "marked", ["\ufeff0.5"], 1, True)[0]["target"] == [0.5]
    labels_in_another_order(folder)
    uneven_labels(folder)


def uneven_labels(folder: Path) -> None:
    """Fewer labels than texts, none at all, and labels of a ranking that are no answers."""
    for name in ("input0", "input1", "input2"):
        write_split(folder / name, "valid", ["a b"] * 3, "a b")
    write_split(folder / "label", "valid", ["no"] * 2, "no yes")
    settings = {"data": str(folder), "num_classes": 2}
    config = SentencePredictionConfig(**settings, regression_target=False, seed=1)
    with refused(f"{folder}/input0/valid has 3 lines", "label/valid has 2 lines"):
        SentencePredictionTask.setup_task(config).load_dataset("valid")
    head = "sentence_classification_head"
    model = mock.Mock(classification_heads={head: None}, return_value=(torch.zeros(1, 2), {}))
    model.get_targets = lambda sample, _output: sample["target"]
    criterion = SentencePredictionCriterion(Namespace(classification_head_name=head, regression_target=False), None)
    criterion.task = SimpleNamespace(cfg=config)
    with refused("ValueError", f"{folder}/label has no labels", "--valid-subset", "--regression-target"):
        criterion(model, {"net_input": {}})
    unlabelled = folder / "unlabelled"
    shutil.copytree(folder / "input0", unlabelled / "input0")
    config = SentencePredictionConfig(data=str(unlabelled), num_classes=2, regression_target=False)
    with refused("ValueError", f"{unlabelled}/label/dict.txt: no such file", "add --regression-target"):
        SentencePredictionTask.setup_task(config)
    shared = {
        "criterion": "sentence_ranking",
        "dataset_impl": None,
        "separator_token": None,
        "init_token": 0,
        "seed": 1,
    }
    shorten = {"max_option_length": None, "shorten_data_split_list": "", "shorten_method": "none", "max_positions": 9}
    task = SentenceRankingTask.setup_task(Namespace(**settings, **shared, **shorten, no_shuffle=True))
    numbers = folder / "label" / "valid.label"
    for text, *message in (
        ("0\n1\n2\n", "valid.label, line 3", "'2'", "from 0 to 1"),
        ("0\n\n1\n", "valid.label, line 2", "''"),
        ("0\n1\n", "valid.label has 2 lines", "input2/valid has 3 lines"),
    ):
        numbers.write_text(text)
        with refused(*message):
            torch.tensor([row["target"] for row in task.load_dataset("valid")]).eq(2).nonzero().item()
    numbers.write_text("0\n1\n0\n")
    assert [row["target"] for row in task.load_dataset("valid")] == [0, 1, 0]


def labels_in_another_order(folder: Path) -> None:
    """The most frequent label is the first of a dictionary, so that a test set can have another order."""
    made = []
    for name, labels in (("trained", "no yes"), ("same", "no yes"), ("other", "yes no"), ("fewer", "yes")):
        write_split(folder / name / "input0", "test", ["a b"], "a b")
        write_split(folder / name / "label", "test", ["yes"], labels)
        config = SentencePredictionConfig(data=str(folder / name), num_classes=2, regression_target=False, seed=1)
        made.append(SentencePredictionTask.setup_task(config))
    trained, same, *others = made
    same.load_state_dict(trained.state_dict())
    for other in others:
        with refused("label/dict.txt", "'yes' is class 0, in the training", "1 (no, yes)", "--srcdict"):
            other.load_state_dict(trained.state_dict())
        other.load_state_dict({})  # of an earlier checkpoint


@in_folder
def long_texts(folder: Path) -> None:
    """Counted before the first update; shortened with `</s>`."""
    write_split(folder / "input0", "valid", ["a", "a b a b a", "a b a b"], "a b")
    write_split(folder / "label", "valid", ["no"] * 3, "no yes")
    options = {"data": str(folder), "num_classes": 2, "max_positions": 4, "regression_target": False, "seed": 1}
    task = SentencePredictionTask.setup_task(SentencePredictionConfig(**options))
    task.load_dataset("valid")
    model = SimpleNamespace(max_positions=lambda: 4)
    data = SimpleNamespace(disable_validation=False, skip_invalid_size_inputs_valid_test=False, valid_subset="valid")
    trainer = SimpleNamespace(task=task, model=model, cfg=SimpleNamespace(dataset=data))
    start = Trainer.get_train_iterator
    with refused("2 of 3 texts", "6, it has 4", "--shorten-method truncate"):
        start(trainer, 1)
    data.skip_invalid_size_inputs_valid_test = True
    with refused("AttributeError"):  # beyond the check the stand-in has nothing
        start(trainer, 1)
    config = SentencePredictionConfig(**options, shorten_method="truncate", no_shuffle=True)
    dataset = SentencePredictionTask.setup_task(config).load_dataset("valid")
    shortened = [dataset[row]["net_input.src_tokens"].tolist() for row in range(3)]
    assert shortened == [[4, 2], [4, 5, 4, 2], [4, 5, 4, 2]]
    write_split(folder / "input0", "valid", ["a a b a b a b b"] * 20, "a b")
    write_split(folder / "label", "valid", ["no"] * 20, "no yes")
    config = SentencePredictionConfig(**options, shorten_method="random_crop", init_token=0, no_shuffle=True)
    dataset = SentencePredictionTask.setup_task(config).load_dataset("valid")
    shortened = [dataset[row]["net_input.src_tokens"].tolist() for row in range(20)]
    assert {tuple(tokens) for tokens in shortened} == {(0, *inside, 2) for inside in ((4, 4), (4, 5), (5, 4), (5, 5))}
    shortened_blocks(folder)


def shortened_blocks(folder: Path) -> None:
    """A shortened sentence has room for what the task adds: `<s>` in masked_lm, also `</s>` in denoising."""
    write_split(folder, "valid", ["a b a b a b a", "a b"], "a b")
    shorten = "--arch lstm --tokens-per-sample 5 --shorten-method truncate --sample-break-mode eos".split()
    for task, part, *more in (
        ("masked_lm", "net_input.src_tokens", "--mask-prob", "1e-6"),
        ("denoising", "target", "--mask", "0", "--replace-length", "1"),
    ):
        parser = options.get_training_parser()
        args = options.parse_args_and_arch(parser, [str(folder), "--task", task, *shorten, *more])
        loaded = fairseq_tasks.setup_task(convert_namespace_to_omegaconf(args).task)
        loaded.load_dataset("valid")
        blocks = [loaded.dataset("valid")[row][part].tolist() for row in range(2)]
        assert sorted(blocks) == [[0, 4, 5, 2], [0, 4, 5, 4, 2]], f"{task}: {blocks}"


@in_folder
def several_folders(folder: Path) -> None:
    """One dictionary for all; counts may differ, as those of the parts of a corpus do."""
    for name, words in (("first", "a b"), ("same", "a b"), ("other", "b a")):
        write_split(folder / name, "train", ["a b"], words)
    (folder / "same" / "dict.txt").write_text("a 7\nb 7\n")
    first, same, other = (str(folder / name) for name in ("first", "same", "other"))
    args = Namespace(task="masked_lm", data=os.pathsep.join([first, same]))
    assert fairseq_tasks.setup_task(args).source_dictionary.symbols[4:6] == ["a", "b"]
    args.data += os.pathsep + other
    with refused(f"{other}/dict.txt", f"--srcdict {first}/dict.txt"):
        fairseq_tasks.setup_task(args)


class Words(Dictionary):
    """One as plugins write them for a release."""

    def __init__(self, mask: str = "<mask>") -> None:
        super().__init__()
        self.mask_index = self.add_symbol(mask)


class AnyOptions(Dictionary):
    def __init__(self, **options) -> None:
        super().__init__(**options)


@in_folder
def numbered_splits(folder: Path) -> None:
    """Parts of a split are put together, each once; several validation sets of pairs are named as splits."""
    rows = {"train": ["a b", "b"], "train1": ["a"], "valid": ["b"], "valid1": ["a b"]}
    for split, texts in rows.items():
        for language in ("de", "en"):
            dictionary = write_split(folder, f"{split}.de-en.{language}", texts, "a b")
            dictionary.save(str(folder / f"dict.{language}.txt"))
    data = {"data": str(folder), "dataset_impl": "mmap", "train_subset": "train"}
    task = TranslationTask.setup_task(TranslationConfig(**data, source_lang="de", target_lang="en"))
    task.load_dataset("train", combine=True)
    read = [dictionary.string(pair["source"]) for pair in task.dataset("train")]
    assert read == rows["train"] + rows["train1"]
    splits = {"ignore_unused_valid_subsets": False, "combine_valid_subsets": None, "disable_validation": False}
    config = Namespace(task=task.cfg, dataset=Namespace(**splits, valid_subset="valid,valid1"))
    data_utils.raise_if_valid_subsets_unintentionally_ignored(config)
    config.dataset.valid_subset = "valid"
    with refused("'valid1'", "--ignore-unused-valid-subsets"):
        data_utils.raise_if_valid_subsets_unintentionally_ignored(config)


@in_folder
def dictionary_classes(folder: Path) -> None:
    (folder / "dict.txt").write_text("a 1\n")
    words = Words.load(str(folder / "dict.txt"))
    assert (words.mask_index, words.index("a"), len(words)) == (4, 5, 6)
    plain = Dictionary.load(str(folder / "dict.txt"))
    assert (plain.index("a"), plain.bos()) == (4, 0)
    if "add_special_symbols" in inspect.signature(Dictionary.load).parameters:  # fairseq's main branch
        for kind in (Dictionary, AnyOptions):
            assert len(kind.load(str(folder / "dict.txt"), add_special_symbols=False)) == 1


@in_folder
def large_data(folder: Path) -> None:
    """The parts of two workers; the lengths of the second one are those of 2.8 GB."""
    whole = indexed_dataset.MMapIndexedDatasetBuilder(str(folder / "whole.bin"), np.int32)
    for part, lengths in enumerate(([5, 7], [400_000_000, 300_000_000])):
        path = str(folder / str(part))
        (folder / f"{part}.bin").touch()
        with indexed_dataset.MMapIndexedDataset.Index.writer(f"{path}.idx", np.int32) as index:
            index.write(lengths)
        whole.merge_file_(path)
    whole.add_item(torch.arange(3))
    whole.finalize(str(folder / "whole.idx"))
    index = indexed_dataset.MMapIndexedDataset.Index(str(folder / "whole.idx"))
    begins = [int(index[number][0]) for number in range(5)]
    assert begins == [0, 20, 48, 1_600_000_048, 2_800_000_048], begins
