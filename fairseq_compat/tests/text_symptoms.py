"""Symptoms (see symptoms.py) of text that is read wrongly, and of options that are ignored or end with an error."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from fairseq import checkpoint_utils, hub_utils, options, tasks, utils
from fairseq.data import Dictionary, FairseqDataset, encoders, indexed_dataset
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.file_chunker_utils import Chunker, find_offsets
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import generate, interactive, preprocess, score
from fairseq_compat.fixes.replaced_words import with_words
from training_symptoms import in_folder, refused, write_split

#: lines as a file holds them, and their words
LINES = {
    "a\rb c": ["a", "b", "c"],
    "d\u2028e\r": ["d", "e"],
    "f\x85g\x0b\x0c\x1c\x1d\x1eh\r\r": ["f", "g", "h"],
    "": [],
    "\r": [],
    "i": ["i"],
}


@contextlib.contextmanager
def standard_input(path: Path):
    """Standard input is a file."""
    with path.open(encoding="utf-8") as file, mock.patch.object(sys, "stdin", file):
        yield


@in_folder
def line_ends(folder: Path) -> None:
    """All readers of fairseq see as many lines as there are LF, and the words of each."""
    text, expected = folder / "text", [words for words in LINES.values() for _ in range(9)]
    text.write_bytes("".join(f"{line}\n" for line in LINES for _ in range(9)).encode())

    marked = folder / "marked"
    marked.write_bytes(b"\xef\xbb\xbf" + text.read_bytes())
    for file, parts in itertools.product((text, marked), (1, 3)):
        offsets, found = find_offsets(str(file), parts), []
        for begin, end in zip(offsets, offsets[1:]):
            with Chunker(str(file), begin, end) as lines:
                found += [line.split() for line in lines]
        assert found == expected, f"{file.name} in {parts} parts: {found}"

    dictionary = write_split(folder, "train", [], "a b c d e f g h i")
    raw = indexed_dataset.IndexedRawTextDataset(str(text), dictionary)
    assert [line.split() for line in raw.lines] == expected
    with standard_input(text):
        read = [list(interactive.buffered_read(name, 4)) for name in (str(text), "-")]
    with standard_input(marked):
        read += [list(interactive.buffered_read(name, 4)) for name in (str(marked), "-")]
    for buffers in read:
        assert [line.split() for buffer in buffers for line in buffer] == expected
        assert not any(set(line) - set("abcdefghi ") for buffer in buffers for line in buffer)

    for language in ("de", "en"):
        (folder / f"train.{language}").write_bytes(text.read_bytes())
    (folder / "pairs").write_text("".join(" ".join(f"{n}-{n}" for n in range(len(words))) + "\n" for words in expected))
    aligned = set(align(folder, folder / "pairs", dictionary))
    assert aligned == {f"{word} {word}" for word in "abcdefghi"}, aligned

    (folder / "system").write_text("a b c d\na b c d e f\n")
    (folder / "reference").write_text("\ufeffa b\rc d\na b c d e f\n", newline="")
    with standard_input(folder / "reference"):
        said = scored("--ref", folder / "system")
    assert "BLEU4 = 100.00" in said, said

    (folder / "windows").write_bytes(b"a b\r\n")
    with Chunker(str(folder / "windows"), 0, 5) as lines:
        assert list(lines) == ["a b\n"]

    hub, seen = mock.Mock(), []
    hub.encode = lambda line: torch.tensor([seen.append(line)] and [0])
    hub.generate = lambda *_, **__: []
    hub_utils.GeneratorHubInterface.score(hub, ["a\u2028b\nc"], replace_newline_with_eos=True)
    assert seen == ["a b", "c"], seen


def align(folder: Path, pairs: Path, dictionary: Dictionary) -> list[str]:
    """The lines of the dictionary that ``fairseq-preprocess --alignfile`` makes of train.de and train.en."""
    given = {"trainpref": f"{folder}/train", "source_lang": "de", "target_lang": "en", "destdir": str(folder)}
    preprocess._align_files(Namespace(alignfile=str(pairs), **given), dictionary, dictionary)
    return (folder / "alignment.de-en.txt").read_text().splitlines()


def scored(*arguments: str | Path) -> str:
    """What fairseq-score says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), mock.patch.object(sys, "argv", ["fairseq-score", *map(str, arguments)]):
        score.cli_main()
    return said.getvalue()


def subword_nmt(self, cfg) -> None:
    """Takes the place of a constructor that needs the package of this name."""
    assert cfg.bpe_codes == "codes"
    self.bpe_symbol = f"{cfg.bpe_separator} "


def sentencepiece(self, cfg) -> None:
    assert cfg.sentencepiece_model == "model"


SEGMENTATIONS = {
    "--bpe subword_nmt --bpe-codes codes": ("x a@@ b@@ c a@@ c", "a@@ b@@ x c"),
    "--bpe sentencepiece --sentencepiece-model model": ("▁x ▁a b c ▁a c", "▁x ▁a b c"),
}


@in_folder
def whole_words(folder: Path) -> None:
    """Words of masked_lm are masked as a whole, and denoising knows where they begin."""
    first = mock.patch.object(SubwordNMTBPE, "__init__", subword_nmt)
    with first, mock.patch.object(SentencepieceBPE, "__init__", sentencepiece):
        for bpe, (row, symbols) in SEGMENTATIONS.items():
            write_split(folder, "valid", [row] * 30, symbols)
            masked_words(folder, bpe)
            noise = "--task denoising --mask-length word --mask 0.3 --replace-length 1 --sample-break-mode eos".split()
            data = load(folder, *noise, *bpe.split())
            begins = data.mask_whole_word.gather(0, data.dataset[0])
            assert begins.tolist() == [1, 1, 1, 0, 0, 1, 0, 1], begins
            data[0]
        with refused("--mask-whole-words needs", "--bpe"):
            load(folder, "--task", "masked_lm", "--mask-whole-words")
        (folder / "de").mkdir()
        write_split(folder / "de", "valid", [row] * 30, symbols)
        task = ["--task", "multilingual_masked_lm", "--mask-whole-words"]
        load(folder, *task, *next(iter(SEGMENTATIONS)).split())
        with refused("--mask-whole-words needs", "--bpe"):
            load(folder, *task)


@in_folder
def bpe_vocabularies(folder: Path) -> None:
    """A subword that the vocabulary next to the codes lacks is split."""
    codes = folder / "codes"
    codes.write_text("#version: 0.2\na b\nab c</w>\nab d</w>\n")
    (folder / "codes.vocabulary").write_text("ab@@ 3\nabd 2\nc 1\n")
    config = composed("data", "--bpe", "subword_nmt", "--bpe-codes", str(codes)).bpe
    found = encoders.build_bpe(config).encode("abc abd abb")
    assert found == "ab@@ c abd ab@@ b", found
    (folder / "codes.vocabulary").write_text("\ufeffab@@ 3\n", encoding="utf-8")
    assert encoders.build_bpe(config).encode("abb") == "ab@@ b"
    (folder / "codes.vocabulary").write_text("ab@@\n")
    with refused("codes.vocabulary:1", "count"):
        encoders.build_bpe(config)
    (folder / "codes.vocabulary").unlink()
    assert encoders.build_bpe(config).encode("abc") == "abc"
    (folder / "glossary.txt").write_text("^(?:abb|d\\.)$\n")
    assert encoders.build_bpe(config).encode("abb abbb d. xd.") == "abb ab@@ b@@ b d. x@@ d@@ ."
    (folder / "glossary.txt").write_text("^(?:abb)|(?:d)$\n")  # `abbb` only begins as one of its words
    own = importlib.import_module("subword_nmt.apply_bpe").BPE(
        codes.open(encoding="utf-8"), glossaries=["^(?:abb)|(?:d)$"]
    )
    assert encoders.build_bpe(config).encode("abb abbb xd") == own.segment("abb abbb xd") == "abb ab@@ b@@ b x@@ d"
    (folder / "glossary.txt").write_text("abb\n")
    with refused("glossary.txt", "another folder"):
        encoders.build_bpe(config)


def pair_in(folder: Path) -> Namespace:
    """Options of fairseq-preprocess for two lines in two languages, with dictionaries in `old`."""
    for lang, text in (("de", "a\nb"), ("en", "a\nb\n")):
        (folder / f"train.{lang}").write_text(text)
        (folder / "old").mkdir(exist_ok=True)
        (folder / "old" / f"dict.{lang}.txt").write_text("a 1\nb 1\n")
    words = ["-s", "de", "-t", "en", "--trainpref", str(folder / "train"), "--workers", "1"]
    words += ["--srcdict", str(folder / "old" / "dict.de.txt"), "--destdir", str(folder / "new" / "bin")]
    return options.get_preprocessing_parser().parse_args(words)


@in_folder
def text_pairs(folder: Path) -> None:
    """Sides of other lengths are refused before anything is written; a missing side is named."""
    args = pair_in(folder)
    preprocess.main(args)
    (folder / "other.de").write_text("a\nb")
    (folder / "other.en").write_text("a\nb\nc\n")
    args.destdir, good, args.srcdict = str(folder / "none"), args.trainpref, None
    for name, prefixes in (("trainpref", "other"), ("validpref", "train,other"), ("testpref", "train,other")):
        setattr(args, name, ",".join(str(folder / prefix) for prefix in prefixes.split(",")))
        with refused("other.de has 2 lines", "other.en 3"):
            preprocess.main(args)
        assert not (folder / "none").exists()
        setattr(args, name, good)
    task = FairseqTask(Namespace(data="bin", source_lang="de", target_lang="en"))
    task.datasets = {"train": SimpleNamespace(tgt=None), "valid": SimpleNamespace(tgt=[1])}
    for target, parts in ((None, ("bin: has no target side (train.de-en.en ", "--only-source")), (1, ("its own",))):
        with refused(*parts):
            task.valid_step({"target": target}, mock.Mock(), mock.Mock(side_effect=TypeError("its own")))


@in_folder
def carried_records(folder: Path) -> None:
    """A record goes with its dictionary."""
    args = pair_in(folder)
    entry = {"steps": [{"step": "bpe"}], "files": {"codes": {"path": "../codes", "sha256": "0"}}}
    record = {"preparation": 1, "dictionaries": {"dict.de.txt": entry}}
    (folder / "old" / "preparation.json").write_text(json.dumps(record))
    preprocess.main(args)
    moved = json.loads((folder / "new" / "bin" / "preparation.json").read_text())
    assert moved["dictionaries"]["dict.de.txt"]["files"]["codes"]["path"] == "../../codes", moved
    records_of_other_calls(folder, args, record)


def records_of_other_calls(folder: Path, args, record: dict) -> None:
    """The record in a folder is that of the dictionaries there; one that cannot be read is said at once."""
    old, bin = folder / "old" / "preparation.json", folder / "new" / "bin" / "preparation.json"

    def steps(path: Path) -> dict:
        return {name: own["steps"] for name, own in json.loads(path.read_text())["dictionaries"].items()}

    lower = {**record["dictionaries"]["dict.de.txt"], "steps": [{"step": "lowercase"}]}
    english = {"steps": [], "files": {}, "symbols": "of English"}
    old.write_text(json.dumps({**record, "dictionaries": {"dict.de.txt": lower, "dict.en.txt": english}}))
    args.tgtdict = str(folder / "old" / "dict.en.txt")
    preprocess.main(args)
    assert steps(bin) == {"dict.de.txt": [{"step": "lowercase"}], "dict.en.txt": []}
    (folder / "bare").mkdir()
    (folder / "bare" / "dict.txt").write_text("a 1\nb 1\n")
    args.tgtdict = str(folder / "bare" / "dict.txt")
    preprocess.main(args)
    assert steps(bin) == {"dict.de.txt": [{"step": "lowercase"}]}
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "deep" / "er")
    (folder / "codes").write_text("")
    args.destdir = str(folder / "link" / "bin")
    preprocess.main(args)
    (entry,) = json.loads(Path(args.destdir, "preparation.json").read_text())["dictionaries"].values()
    assert Path(args.destdir, entry["files"]["codes"]["path"]).samefile(folder / "codes"), entry
    (folder / "linked").symlink_to(folder / "deep" / "er")
    shutil.copytree(folder / "old", folder / "deep" / "er", dirs_exist_ok=True)
    (folder / "deep" / "codes").write_text("")
    args.srcdict, args.tgtdict = str(folder / "linked" / "dict.de.txt"), None
    args.only_source = args.joined_dictionary = True
    preprocess.main(args)
    (entry,) = json.loads(Path(args.destdir, "preparation.json").read_text())["dictionaries"].values()
    assert Path(args.destdir, entry["files"]["codes"]["path"]).samefile(folder / "deep" / "codes"), entry
    args.srcdict, args.only_source = str(folder / "old" / "dict.de.txt"), False
    args.destdir, args.source_lang, args.target_lang = str(folder / "none"), "en", "de"
    with refused("dict.de.txt", "not the dictionary of en"):
        preprocess.main(args)
    args.source_lang, args.target_lang = "de", "en"
    for damaged in ("", "[]", '{"dictionaries": {"dict.de.txt": {"steps": []}}}'):
        old.write_text(damaged)
        with refused("old/preparation.json", "damaged"):
            preprocess.main(args)
    assert not (folder / "none").exists()


def composed(*arguments: str):
    """fairseq's configuration for a command line of fairseq-train."""
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, ["--arch", "lstm", *arguments]))


def load(folder: Path, *arguments: str):
    """The data of a task with these options."""
    config = composed(str(folder), *arguments)
    task = tasks.setup_task(config.task)
    task.load_dataset("valid")
    return task.dataset("valid")


def masked_words(folder: Path, bpe: str) -> None:
    """Every token of a word is a target, or none; with three quarters of the words both occur."""
    mask = "--task masked_lm --mask-whole-words --mask-prob 0.75 --sample-break-mode eos --max-epoch 1".split()
    data, seen = load(folder, *mask, *bpe.split()), set()
    for number in range(len(data)):
        target = data[number]["target"].ne(1).tolist()
        for begin, end in ((2, 5), (5, 7)):  # <s> x abc ac
            assert len(set(target[begin:end])) == 1, f"{bpe}: {target}"
            seen.add(target[begin])
    assert seen == {True, False}


class FourBatches(FairseqDataset):
    """Of four sentences each."""

    def __len__(self) -> int:
        return 16

    def num_tokens(self, index: int) -> int:
        return 3


def shards() -> None:
    """Two shards have all batches between them, and so have five of four batches; fairseq-interactive shares lines.

    (test_commands.py has the commands.)
    """
    FairseqTask.target_dictionary = None
    config = composed("data")
    config.common_eval.path = "x"
    for shards, size in ((1, 4), (2, 4), (5, 4), (2, 16)):
        found = []
        for shard in range(shards):
            config.dataset.num_shards, config.dataset.shard_id = shards, shard

            def batches(cfg, file, size=size):
                task = generate.tasks.setup_task(cfg.task)
                return task.get_batch_iterator(FourBatches(), max_sentences=size).frozen_batches

            with mock.patch.object(generate, "_main", batches), mock.patch.object(tasks, "setup_task") as setup:
                setup.return_value = FairseqTask(Namespace())
                own = generate.main(config)
            assert own, f"shard {shard} of {shards} has nothing"
            found += [number for batch in own for number in batch]
        assert sorted(found) == list(range(16)), f"{shards} shards: {found}"
    config.dataset.num_shards = config.dataset.shard_id = 2
    with refused("--shard-id 2", "--num-shards 2"):
        generate.main(config)


@in_folder
def byte_order_marks(folder: Path) -> None:
    """A mark before the first symbol, word or code changes nothing; U+FEFF elsewhere is a character."""
    (folder / "marked").write_text("\ufeffa 3\nb\ufeff 2\n\ufeffc 1\n", encoding="utf-8")
    assert Dictionary.load(str(folder / "marked")).symbols[4:] == ["a", "b\ufeff", "\ufeffc"]
    (folder / "marked").write_text("\ufeffhaus house\nkatze cat\n", encoding="utf-8")
    assert utils.load_align_dict(str(folder / "marked")) == {"haus": "house", "katze": "cat"}
    cut = importlib.import_module("subword_nmt.apply_bpe").BPE
    for codes in ("#version: 0.2\na b\nab c</w>\n", "a b\nab c\nabc </w>\n"):
        (folder / "marked").write_text(f"\ufeff{codes}", encoding="utf-8")
        assert cut((folder / "marked").open(encoding="utf-8")).segment("abc abd") == "abc ab@@ d", codes
        config = SimpleNamespace(bpe_codes=str(folder / "marked"), bpe_separator="@@")
        assert SubwordNMTBPE(config).encode("abc abd") == "abc ab@@ d", codes


@in_folder
def overwritten_symbols(folder: Path) -> None:
    """A dictionary that repeats special symbols and a word, as CamemBERT's does, saved and loaded again."""
    lines = ["<s> 0 #fairseq:overwrite", "a b 3", "a b 1 #fairseq:overwrite", "#fairseq:overwrite 2", "c -1"]
    (folder / "dict.txt").write_text("".join(f"{line}\n" for line in lines))
    Dictionary.load(str(folder / "dict.txt")).save(str(folder / "again" / "dict.txt"))
    assert (folder / "again" / "dict.txt").read_text().splitlines() == lines


def replaced_words() -> None:
    """`x<unk> y` is the translation of `p q@@ r`: the unknown subword takes the one that it attends to most."""
    words = Dictionary()
    tokens = torch.tensor([words.add_symbol("x@@"), words.unk(), words.add_symbol("y"), words.eos()])
    assert utils.load_align_dict("@@ ") == {}
    attention = torch.tensor([[0.9, 0.0, 0.1, 0.0, 0.0], [0.2, 0.7, 0.1, 0.0, 0.0], [0.0, 0.1, 0.9, 0.0, 0.0]])
    source = torch.tensor([words.pad(), 10, 11, 12, words.eos()])  # of an LSTM, whose weights have the padding last
    pairs = utils.extract_hard_alignment(attention, source, tokens, words.pad(), words.eos())
    assert [(int(place), int(target)) for place, target in pairs] == [(0, 0), (1, 1), (2, 2)]
    soft = utils.extract_soft_alignment(attention, source, tokens[:3], words.pad(), words.eos())
    assert [[float(weight) for weight in row] for row in soft] == [
        [0.9, 0.0, 0.1, 0.0],
        [0.2, 0.7, 0.1, 0.0],
        [0.0, 0.1, 0.9, 0.0],
    ]
    task = SimpleNamespace(inference_step=lambda *_: [[{"alignment": pairs}]])
    alignment = with_words(task, lambda sample: ["p q@@ r"]).inference_step(None, None, {})[0][0]["alignment"]
    for translated, expected in (({}, "xqy"), ({"q@@": "z"}, "xz y")):
        assert utils.post_process_prediction(tokens, "", alignment, translated, words, "@@ ")[1] == expected
    tokens[0] = words.bos()
    assert utils.post_process_prediction(tokens, "", alignment, {}, words, "@@ ", {words.index("y")})[1] == "q"
    parser = options.get_interactive_generation_parser()
    given = options.parse_args_and_arch(parser, ["data", "--path", "model.pt", "--print-alignment", "soft"])
    with refused("--print-alignment soft", "fairseq-generate"):
        interactive.main(convert_namespace_to_omegaconf(given))
    parser = options.get_generation_parser()
    given = options.parse_args_and_arch(
        parser, ["data", "--path", "model.pt", "--print-alignment", "soft", "--score-reference"]
    )
    with refused("--score-reference", "--print-alignment hard"):
        generate.main(convert_namespace_to_omegaconf(given))
    given.print_alignment = "hard"
    with refused("'data'"):  # there is no such folder
        generate.main(convert_namespace_to_omegaconf(given))
    each_sentence_has_its_words()


@in_folder
def each_sentence_has_its_words(folder: Path) -> None:
    """A model translates every sentence by one unknown word; batches have sentences of several lengths."""
    lines = ["p q", "r s t u", "v", "w x y"]
    for lang in ("de", "en"):
        (folder / f"test.de-en.{lang}").write_text("".join(f"{line}\n" for line in lines))
        Dictionary().save(str(folder / f"dict.{lang}.txt"))
    given = ["-s", "de", "-t", "en", "--path", "x", "--cpu", "--replace-unk", "--batch-size", "3"]

    def inference_step(task, generator, models, sample, **_):
        tokens = torch.tensor([task.target_dictionary.unk(), task.target_dictionary.eos()])
        hypothesis = {"tokens": tokens, "score": 0.0, "positional_scores": torch.zeros(2), "attention": None}
        return [[{**hypothesis, "alignment": [(0, 0)]}] for _ in sample["net_input"]["src_tokens"]]

    for program, parser, more in (
        (generate, options.get_generation_parser(), ["--dataset-impl", "raw"]),
        (interactive, options.get_interactive_generation_parser(), ["--input", str(folder / "test.de-en.de")]),
    ):
        more += ["--buffer-size", "9"] if program is interactive else []
        config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [str(folder), *given, *more]))
        model, said = mock.Mock(max_positions=lambda: (9, 9)), io.StringIO()
        with (
            mock.patch.object(checkpoint_utils, "load_model_ensemble", return_value=([model], config)),
            mock.patch.object(TranslationTask, "build_generator"),
            mock.patch.object(TranslationTask, "inference_step", inference_step),
            contextlib.redirect_stdout(said),
        ):
            program.main(config)
        rows = sorted(line.split("\t") for line in said.getvalue().splitlines() if line[:2] == "H-")
        assert [row[-1] for row in rows] == ["p", "r", "v", "w"], f"{program.__name__}: {rows}"
