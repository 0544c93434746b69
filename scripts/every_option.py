"""Call the fairseq commands with each of their options, one at a time, and print the outcome.

    nice python scripts/every_option.py OPTIONS.tsv [COMMAND ...]      # preprocess train generate ...; default: all

Each call is a fork of this process, on tiny data in a temporary folder. What OPTIONS.tsv has is not called again. A
line per option, and one per choice that brings options (`--optimizer adam`): command, choice and option, value,
outcome, last line of the output.

    read      status 0, and the command read the value
    unread    status 0, and nothing read it
    named     status 0, and a line on stderr says that the command does not read it
    refused   another status, and the last line names the option, or what to install
    error     another status, and the last line does not
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

SIZES = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 --decoder-embed-dim 8"
SIZES += " --encoder-ffn-embed-dim 8 --decoder-ffn-embed-dim 8 --encoder-attention-heads 2 --decoder-attention-heads 2"
OPTIMIZER = "--optimizer adam --lr 0.01 --max-tokens 200 --max-update 2 --num-workers 0 --cpu --no-epoch-checkpoints"
LM = "--task language_modeling --tokens-per-sample 32 --sample-break-mode eos"
TEXT = "--source-lang de --target-lang en --trainpref {root}/train --validpref {root}/valid --workers 1 --destdir {out}"
MONOLINGUAL = "--only-source --trainpref {root}/train.de --validpref {root}/valid.de --workers 1 --destdir {root}/lm"
TRAIN = f"{{root}}/bin --arch transformer {SIZES} {OPTIMIZER} --save-dir {{out}}"
#: command -> its other arguments
COMMANDS = {
    "preprocess": TEXT,
    "train": TRAIN,
    "generate": "{root}/bin --path {root}/model/checkpoint_last.pt --gen-subset valid --cpu",
    "interactive": "{root}/bin --path {root}/model/checkpoint_last.pt --cpu",
    "validate": "{root}/bin --task translation --path {root}/model/checkpoint_last.pt --cpu --max-tokens 200",
    "eval_lm": f"{{root}}/lm --path {{root}}/lm_model/checkpoint_last.pt --gen-subset valid --cpu {LM}",
    "score": "--sys {root}/valid.en --ref {root}/valid.en",
}
#: choices whose options are tried as well
CHOICES = {
    "--criterion": "cross_entropy label_smoothed_cross_entropy label_smoothed_cross_entropy_with_alignment nat_loss",
    "--optimizer": "adam adagrad adadelta adafactor adamax nag sgd lamb composite",
    "--lr-scheduler": "cosine fixed inverse_sqrt manual pass_through polynomial_decay reduce_lr_on_plateau step "
    "tri_stage triangular",
    "--scoring": "bleu sacrebleu chrf wer",
    "--bpe": "sentencepiece subword_nmt fastbpe gpt2 bytes characters byte_bpe bert hf_byte_bpe",
    "--tokenizer": "moses nltk space",
    "--arch": "transformer_align lstm fconv transformer_lm levenshtein_transformer",
    "--task": "translation_lev language_modeling masked_lm denoising",
}
#: command -> the choices that it reads
CHOICES_OF = {
    "train": " ".join(CHOICES),
    "generate": "--scoring --bpe --tokenizer",
    "interactive": "--bpe --tokenizer",
    "validate": "--criterion --task",
    "eval_lm": "--bpe --tokenizer",
}
LEVENSHTEIN = "--task translation_lev --arch levenshtein_transformer --criterion nat_loss --noise random_delete"
#: choice -> the other options that it needs
NEEDS = {
    "cosine": "--max-update 2 --lr-period-updates 4",
    "manual": '--update2lr {"1":0.1}',
    "step": "--lr-deacy-period 2",
    "tri_stage": "--warmup-steps 1 --hold-steps 1 --decay-steps 1",
    "triangular": "--max-lr 0.1 --lr-period-updates 4",
    "label_smoothed_cross_entropy_with_alignment": "--arch transformer_align",
    "subword_nmt": "--bpe-codes {root}/codes",
    "fastbpe": "--bpe-codes {root}/codes",
    "sentencepiece": "--sentencepiece-model {root}/sentences.model",
    "byte_bpe": "--sentencepiece-model-path {root}/sentences.model",
    "gpt2": "--gpt2-encoder-json {root}/bytes.json --gpt2-vocab-bpe {root}/merges",
    "hf_byte_bpe": "--bpe-vocab {root}/bytes.json --bpe-merges {root}/merges",
    "bert": "--bpe-vocab-file {root}/words",
    "moses": "--source-lang de --target-lang en",
    "composite_loss": "--underlying-criterion cross_entropy",
    "transformer_lm": LM,
    "language_modeling": f"{LM} --arch transformer_lm",
    "masked_lm": "--arch masked_lm --criterion masked_lm",
    "denoising": "--arch transformer --replace-length 1",
    **dict.fromkeys(("nat_loss", "levenshtein_transformer", "translation_lev"), LEVENSHTEIN),
}
#: choices for a text in one language
OF_ONE_LANGUAGE = "transformer_lm language_modeling masked_lm denoising".split()
#: values of options that are words
WORDS = {
    "adam_betas": "(0.9, 0.98)",
    "alignfile": "{root}/train.align",
    "align_suffix": "align",
    "arch": "lstm",
    "batch_size_valid": "4",
    "bpe_codes": "{root}/codes",
    "combine_valid_subsets": "",
    "config_dir": "{root}",
    "criterion": "label_smoothed_cross_entropy",
    "curriculum": "1",
    "data": "{root}/bin",
    "decoder_embed_path": "{root}/vectors.txt",
    "encoder_embed_path": "{root}/vectors.txt",
    "decoder_layers_to_keep": "0",
    "encoder_layers_to_keep": "0",
    "destdir": "{out}",
    "device_id": "0",
    "distributed_init_method": "tcp://localhost:0",
    "dataset_impl": "mmap",
    "epoch2lr": '{"1":0.1}',
    "update2lr": '{"1":0.1}',
    "eval_bleu_args": '{"beam": 1}',
    "eval_bleu_detok_args": "{}",
    "eval_tokenized_bleu": "",
    "finetune_from_model": "{root}/model/checkpoint_last.pt",
    "gen_subset": "valid",
    "ignore_unused_valid_subsets": "",
    "input": "{root}/valid.de",
    "keep_interval_updates_pattern": "2",
    "lm_path": "{root}/lm_model/checkpoint_last.pt",
    "load_checkpoint_on_all_dp_ranks": "",
    "log_file": "{out}/log",
    "lr": "0.02",
    "model_overrides": '{"dropout": 0.0}',
    "optimizer": "sgd",
    "optimizer_overrides": '{"lr": 0.1}',
    "order": "3",
    "path": "{root}/model/checkpoint_last.pt",
    "ref": "{root}/valid.en",
    "replace_unk": "{root}/dictionary",
    "restore_file": "{root}/model/checkpoint_last.pt",
    "results_path": "{out}/results",
    "save_dir": "{out}",
    "scoring": "sacrebleu",
    "sentencepiece_model": "{root}/sentences.model",
    "sentencepiece_model_path": "{root}/sentences.model",
    "gpt2_encoder_json": "{root}/bytes.json",
    "gpt2_vocab_bpe": "{root}/merges",
    "bpe_vocab": "{root}/bytes.json",
    "bpe_merges": "{root}/merges",
    "bpe_vocab_file": "{root}/words",
    "source_lang": "de",
    "srcdict": "{root}/bin/dict.de.txt",
    "sys": "{root}/valid.en",
    "target_lang": "en",
    "task": "translation",
    "tensorboard_logdir": "{out}/board",
    "testpref": "{root}/valid",
    "tgtdict": "{root}/bin/dict.en.txt",
    "train_subset": "train",
    "trainpref": "{root}/train",
    "update_freq": "2",
    "user_dir": "{root}/plugin",
    "valid_subset": "valid",
    "validpref": "{root}/valid",
    "wandb_project": "name",
}


def prepare(root: Path) -> None:
    """Write a parallel text and other files, binarise the text, and train a translator and a language model."""
    numbers = random.Random(1)
    for split, count in (("train", 40), ("valid", 8)):
        rows = [[numbers.randrange(9) for _ in range(numbers.randint(3, 6))] for _ in range(count)]
        for side in ("de", "en"):
            text = "".join(" ".join(f"{side}{number}" for number in row) + "\n" for row in rows)
            (root / f"{split}.{side}").write_text(text)
        (root / f"{split}.align").write_text(
            "".join(" ".join(f"{i}-{i}" for i in range(len(row))) + "\n" for row in rows)
        )
    vectors = "".join(f"{side}{number} " + " ".join(["0.1"] * 8) + "\n" for side in ("de", "en") for number in range(9))
    (root / "vectors.txt").write_text(f"18 8\n{vectors}")
    write_segmenters(root)
    (root / "dictionary").write_text("de1 en1\n")
    (root / "plugin").mkdir()
    (root / "plugin" / "__init__.py").touch()
    calls = [
        ("preprocess", TEXT.replace("{out}", "{root}/bin")),
        ("preprocess", MONOLINGUAL),
        ("train", TRAIN.replace("{out}", "{root}/model")),
        (
            "train",
            f"{{root}}/lm --arch transformer_lm {LM} --decoder-layers 1 {OPTIMIZER} --save-dir {{root}}/lm_model",
        ),
    ]
    for command, words in calls:
        status, output, _ = call(command, words.split(), "", root)
        assert status == 0, output


def write_segmenters(root: Path) -> None:
    """Write the files of BPE, SentencePiece, byte-level BPE and WordPiece."""
    import sentencepiece
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    (root / "codes").write_text("#version: 0.2\nd e\n")
    (root / "merges").write_text("#version: 0.2\nd e\n")
    letters = [*bytes_to_unicode().values(), "de"]
    (root / "bytes.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    (root / "words").write_text("".join(f"{word}\n" for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "de1")))
    options = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        input=str(root / "train.de"), model_prefix=str(root / "sentences"), **options
    )


def call(command: str, words: list[str], dest: str, root: Path) -> tuple[int, str, bool]:
    """Run a command in a fork; return its status, its output, and True if something read the option `dest`."""
    with tempfile.TemporaryDirectory() as out:
        filled = [word.replace("{root}", str(root)).replace("{out}", out) for word in words]
        log, mark = Path(out) / "output", Path(out) / "read"
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            signal.alarm(100)
            run(command, filled, dest, root, log, mark)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # workers
        return os.waitstatus_to_exitcode(status), log.read_text(errors="replace"), mark.exists()


def run(command: str, words: list[str], dest: str, root: Path, log: Path, mark: Path) -> None:
    """Run the command in this process; never return."""
    import importlib
    import traceback

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    source = os.open(root / "valid.de" if (root / "valid.de").exists() else os.devnull, os.O_RDONLY)
    for number, target in enumerate((source, descriptor, descriptor)):
        os.dup2(target, number)
    sys.argv = [f"fairseq-{command}", *words]
    status = 1
    try:
        module = importlib.import_module(f"fairseq_cli.{command}")
        watch(module, dest, mark)
        module.cli_main()
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else bool(exit_.code)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def watch(module, dest: str, mark: Path) -> None:
    """Let every read of a configuration's key `dest`, and of an argument's, make the file `mark`."""
    from omegaconf import DictConfig

    get_node, get = DictConfig._get_impl, argparse.Namespace.__getattribute__

    def from_config(self, key, *args, **options):
        if key == dest and is_reader(sys._getframe()):
            mark.touch()
        return get_node(self, key, *args, **options)

    def from_namespace(self, name):
        if name == dest and is_reader(sys._getframe()):
            mark.touch()
        return get(self, name)

    DictConfig._get_impl = from_config
    argparse.Namespace.__getattribute__ = from_namespace


#: files that copy all options
COPIES = re.compile(
    r"/(omegaconf|hydra)/|/argparse\.py|fairseq/(options|dataclass/\w+|registry)\.py|fairseq_compat|every_option"
)


def is_reader(frame) -> bool:
    """Return True unless the reading code copies all options from one place to another."""
    while (frame := frame.f_back) and re.search(r"/omegaconf/|every_option", frame.f_code.co_filename):
        pass
    return frame is not None and not COPIES.search(frame.f_code.co_filename)


def value_of(action: argparse.Action) -> str | None:
    """Return a value that is not the default; None for an option without one."""
    if action.nargs == 0:
        return None
    if action.dest in WORDS:
        return WORDS[action.dest]
    if action.choices:
        return str(next((one for one in action.choices if one != action.default), action.default))
    kinds = (action.type, type(action.default))
    if bool in kinds:
        return str(not action.default)
    if int in kinds or float in kinds:
        default = 0.0 if action.default == argparse.SUPPRESS else float(action.default or 0)
        if int in kinds:
            return str(int(default + 1 if abs(default) < 100 else default // 2))
        return str((default or 1) / 2)
    return "2"


def options_of(command: str, words: list[str]) -> dict[str, argparse.Action]:
    """Return the options that a command has with these arguments, by their first spelling."""
    from fairseq import options

    if command == "score":
        from fairseq_cli import score

        parser = score.get_parser()
    else:
        parser = getattr(options, f"get_{PARSERS[command]}_parser")()
        with contextlib.suppress(SystemExit, Exception), contextlib.redirect_stderr(io.StringIO()):
            options.parse_args_and_arch(parser, words, parse_known=True)  # adds the options of the choices
    actions = {}
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            actions.setdefault(max(action.option_strings, key=len), action)
    return actions


PARSERS = {
    "preprocess": "preprocessing",
    "train": "training",
    "generate": "generation",
    "interactive": "interactive_generation",
    "validate": "validation",
    "eval_lm": "eval_lm",
}


def outcome(status: int, output: str, is_read: bool, option: str, dest: str) -> str:
    """Return the outcome of an option."""
    last = output.strip().rpartition("\n")[2]
    if status == 0:
        if f"does not read {option}" in output:
            return "named"
        return "read" if is_read else "unread"
    return "refused" if any(word in last for word in (option, dest, "install", "PyTorch finds no GPU")) else "error"


def warm_up() -> None:
    """Compose a configuration once, and remember what was parsed: the forks need a tenth of the time."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "warm_start"))
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from hydra_caches import cache_hydra

    cache_hydra()
    words = TRAIN.replace("{out}", "out").split()
    convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))


def without_others(words: list[str], own_options: Collection[str]) -> list[str]:
    """Return the arguments without the options, and their values, of other models."""
    others = {
        place for place, word in enumerate(words) if word.startswith("--encoder-") or word.startswith("--decoder-")
    }
    others = {place for place in others if words[place] not in own_options}
    return [word for place, word in enumerate(words) if not {place, place - 1} & others]


def calls_of(command: str) -> Iterator[tuple[list[str], list[str], argparse.Action | None]]:
    """Yield the calls of a command: its arguments, the choice among them, and the option to add (None: no option)."""
    words = COMMANDS[command].split()
    base = dict(options_of(command, words))
    yield words, [], None
    for action in base.values():
        yield words, [], action
    for option in CHOICES_OF.get(command, "").split():
        for choice in CHOICES[option].split():
            own = [word.replace("{root}/bin", "{root}/lm") if choice in OF_ONE_LANGUAGE else word for word in words]
            needs = NEEDS.get(choice, "")
            own += [option, choice, *(needs if command == "train" else re.sub(r"--arch \S+", "", needs)).split()]
            own_options = options_of(command, own)
            own = without_others(own, own_options)  # sizes of a transformer
            yield own, [option, choice], None
            for name, action in own_options.items():
                if name not in base:
                    yield own, [option, choice], action


def main() -> None:
    """Try the options that the file lacks."""
    import fairseq_cli.eval_lm
    import fairseq_cli.generate
    import fairseq_cli.interactive
    import fairseq_cli.preprocess
    import fairseq_cli.score
    import fairseq_cli.train
    import fairseq_cli.validate  # noqa: F401 # forks have it

    file, commands = Path(sys.argv[1]), sys.argv[2:] or list(COMMANDS)
    done = {tuple(line.split("\t")[:2]) for line in (file.read_text().splitlines() if file.exists() else ())}
    warm_up()
    with tempfile.TemporaryDirectory() as folder, file.open("a") as table:
        root = Path(folder)
        prepare(root)
        for command in commands:
            for words, choice, action in calls_of(command):
                option = max(action.option_strings, key=len) if action else ""
                place = (command, " ".join([*choice, option]).strip())
                if place in done:
                    continue
                value, dest = (value_of(action), action.dest) if action else (None, choice[-1] if choice else "data")
                arguments = [word for word in (option, value) if word]
                status, output, is_read = call(command, [*words, *arguments], dest, root)
                result = outcome(status, output, is_read or not action, option or "-", dest)
                last = output.strip().rpartition("\n")[2][-200:]
                print(*place, value, result, last, sep="\t", file=table, flush=True)
    lines = [line.split("\t") for line in file.read_text().splitlines()]
    for (command, result), count in sorted(collections.Counter((row[0], row[3]) for row in lines if row[1]).items()):
        print(command, result, count, sep="\t")


if __name__ == "__main__":
    main()
