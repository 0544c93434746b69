"""Options that fairseq parses and does not read.

Symptom: the command runs as if the option had not been given. ``fairseq-validate --gen-subset test`` evaluates the
    split ``valid``, ``fairseq-interactive --lm-path`` translates without the language model, ``fairseq-preprocess
    --bpe`` segments nothing.
Versions: all.
Where: fairseq/options.py:228 (``get_parser``); every command has the options of nearly all of them.
Remedy: a line on stderr for each of them that is given (``TABLE``), with what to do instead; an error where the command
    would end with ``KeyError`` or ``TypeError``.
Upstream: not reported.
Can go: row by row, with a fairseq that reads the option.
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field

REASON = "options that a command parses and does not read are ignored without a word"
BROKEN = r"def get_parser\(desc,"

#: description of a parser -> its command; that of fairseq-interactive is fairseq-generate's with ``--buffer-size``
COMMANDS = {
    "Preprocessing": "preprocess",
    "Trainer": "train",
    "Generation": "generate",
    "Evaluate Language Model": "eval-lm",
    "Validation": "validate",
}
TRANSLATION = (
    "translation",
    "translation_from_pretrained_bart",
    "translation_from_pretrained_xlm",
    "translation_multi_simple_epoch",
    "multilingual_translation",
    "semisupervised_translation",
    "language_modeling",
)


@dataclass(frozen=True)
class Row:
    """Options (as on the command line), the commands and values of other options with which nothing reads them."""

    options: str
    commands: str
    remedy: str
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fails: bool = False  # ends with KeyError or TypeError later, so it is an error at once


ALL = "train generate interactive eval-lm validate"
OTHERS = "generate interactive eval-lm validate"  # than fairseq-train
TABLE = (
    Row("--fast-stat-sync --no-early-stop", ALL, "leave it out"),
    Row("--distributed-num-procs", ALL, "give --distributed-world-size"),
    Row("--suppress-crashes --reset-logging", ALL, "fairseq-hydra-train has it"),
    Row("--num-shards --shard-id", "train", "processes share the data: --distributed-world-size"),
    Row("--bpe --tokenizer", "preprocess", "text is binarised as it is: segment it before"),
    Row("--log-file", f"preprocess {OTHERS}", "redirect the output"),
    Row("--tensorboard-logdir --wandb-project --aim-repo --azureml-logging", OTHERS, "fairseq-train has it"),
    Row("--bf16 --memory-efficient-bf16 --amp", OTHERS, "it computes in single precision; on a GPU give --fp16"),
    Row("--gen-subset", "train validate", "give --valid-subset"),
    Row("--valid-subset", "generate eval-lm", "give --gen-subset"),
    Row("--valid-subset --gen-subset", "interactive", "give the text by --input"),
    Row("--max-tokens-valid --batch-size-valid", "validate", "give --max-tokens or --batch-size"),
    Row("--combine-valid-subsets --ignore-unused-valid-subsets", "validate", "name the splits by --valid-subset"),
    Row(
        "--max-valid-steps --fixed-validation-seed",
        "validate",
        "all of the split is evaluated, with the seed of the training",
    ),
    Row("--results-path --quiet", "interactive eval-lm validate", "redirect the output"),
    Row(
        "--lm-path --lm-weight --prefix-size --scoring --sacrebleu --print-step", "interactive", "use fairseq-generate"
    ),
    Row("--score-reference", "interactive", "use fairseq-generate", fails=True),
    Row("--constraints", "generate", "use fairseq-interactive", fails=True),
    Row("--print-step", "generate", "it belongs to --task translation_lev", {"task": TRANSLATION}, fails=True),
    Row(
        "--retain-iter-history",
        "generate",
        "it belongs to --task translation_lev",
        {"task": TRANSLATION},
        fails=True,
    ),
    Row(
        "--iter-decode-max-iter --iter-decode-eos-penalty --iter-decode-force-max-iter --iter-decode-with-beam "
        "--iter-decode-with-external-reranker --decoding-format",
        "generate interactive",
        "it belongs to --task translation_lev",
        {"task": TRANSLATION},
    ),
    Row("--eos-token", "generate interactive", "leave it out", {"task": TRANSLATION}),
    Row(
        "--beam --max-len-a --max-len-b --min-len --lenpen --sampling --temperature --no-repeat-ngram-size "
        "--prefix-size",
        "generate interactive",
        "its models decode with --iter-decode-max-iter and --iter-decode-with-beam",
        {"task": ("translation_lev",)},
    ),
    Row(
        "--permute", "train", "give --permute-sentences or --rotate", {"task": ("denoising", "multilingual_denoising")}
    ),
    Row(
        "--shorten-method --shorten-data-split-list",
        "train",
        "shorten the text before",
        {"task": ("multilingual_denoising",)},
    ),
    Row(
        "--truncate-source --num-batch-buckets",
        ALL,
        "leave it out",
        {"task": ("translation_from_pretrained_bart", "translation_lev")},
    ),
    Row("--load-alignments", ALL, "leave it out", {"task": ("translation_lev",)}),
    Row("--baseline-model --baseline-model-langs", ALL, "leave it out", {"task": ("multilingual_language_modeling",)}),
    Row("--generate-one-by-one", ALL, "leave it out", {"task": ("online_backtranslation",)}),
    Row("--sentence-avg", "train", "its loss is averaged over targets", {"criterion": ("masked_lm", "nat_loss")}),
    Row(
        "--latency-var-weight --latency-var-type",
        "train",
        "leave it out",
        {"criterion": ("latency_augmented_label_smoothed_cross_entropy",)},
    ),
    Row("--anneal-eps", "train", "leave it out", {"optimizer": ("adadelta",)}),
    Row("--char-inputs", "train", "leave it out"),
)

told: set[str] = set()


def needed() -> bool:
    return True


def dead_options(command: str, given: set[str], namespace) -> dict[str, bool]:
    """Return a line for each of the given options that a command does not read, and whether it will fail."""
    lines = {}
    for row in TABLE:
        if command in row.commands.split() and all(getattr(namespace, k, None) in v for k, v in row.where.items()):
            setting = "".join(f" --{name} {getattr(namespace, name)}" for name in row.where)
            for option in given.intersection(row.options.split()):
                lines[f"fairseq-{command}{setting} does not read {option}: {row.remedy}"] = row.fails
    return lines


def given_options(parser, words: list[str]) -> set[str]:
    """Return the options in a command line, each in all its spellings."""
    known = parser._option_string_actions
    return {name for word in words for name in getattr(known.get(word.partition("=")[0]), "option_strings", ())}


@contextmanager
def patching(module):
    yield
    original = module.get_parser

    @functools.wraps(original)
    def get_parser(desc, *args, **options):
        parser = original(desc, *args, **options)
        parse = parser.parse_known_args

        def parse_known_args(args=None, namespace=None):
            namespace, others = parse(args, namespace)
            command = "interactive" if hasattr(namespace, "buffer_size") else COMMANDS.get(desc, "")
            given = given_options(parser, sys.argv[1:] if args is None else args)
            for line, fails in dead_options(command, given, namespace).items():
                if fails:
                    parser.error(line)
                if line not in told:
                    told.add(line)
                    print(f"warning: {line}", file=sys.stderr)
            return namespace, others

        parser.parse_known_args = parse_known_args
        return parser

    module.get_parser = get_parser
