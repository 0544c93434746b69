"""Options that a command does not read are ignored; now a line on stderr names them and the remedy.

Symptom: the command runs as if the option had not been given. ``fairseq-validate --gen-subset test`` evaluates the
    split ``valid``, ``fairseq-interactive --lm-path`` translates without the language model, ``fairseq-preprocess
    --bpe`` segments nothing.
Where: fairseq/options.py:228 (``get_parser``); every command has the options of nearly all of them.
Remedy: a line on stderr for each such option that would change a result (``TABLE``), with the remedy.
Can go: row by row, with a fairseq that reads the option.
"""

from __future__ import annotations

import sys

from fairseq_compat.patches import wrap

BROKEN = r"def get_parser\(desc,"

#: description of a parser -> its command; fairseq-interactive has fairseq-generate's description and ``--buffer-size``
COMMANDS = {
    "Preprocessing": "preprocess",
    "Trainer": "train",
    "Generation": "generate",
    "Evaluate Language Model": "eval-lm",
    "Validation": "validate",
}
ALIGNED = "label_smoothed_cross_entropy_with_alignment"
#: option -> (commands that do not read it, `train:CRITERION` with this criterion; remedy)
TABLE = {
    "--gen-subset": ("train validate", "give --valid-subset"),
    "--valid-subset": ("generate eval-lm", "give --gen-subset"),
    "--max-tokens-valid": ("validate", "give --max-tokens"),
    "--batch-size-valid": ("validate", "give --batch-size"),
    "--max-valid-steps": ("validate", "all of the split is evaluated"),
    "--bpe": ("preprocess", "text is binarised as it is: segment it before"),
    "--tokenizer": ("preprocess", "text is binarised as it is: segment it before"),
    "--num-shards": ("train", "processes share the data: --distributed-world-size"),
    "--distributed-num-procs": ("train", "give --distributed-world-size"),
    "--no-early-stop": ("train generate interactive", "leave it out: a search ends with --beam whole translations"),
    "--bf16": ("generate interactive eval-lm validate", "it computes in single precision; on a GPU give --fp16"),
    "--amp": ("generate interactive eval-lm validate", "it computes in single precision; on a GPU give --fp16"),
    "--log-file": ("preprocess generate interactive eval-lm validate", "redirect the output"),
    "--results-path": ("interactive eval-lm validate", "redirect the output"),
    "--lm-path": ("interactive", "use fairseq-generate"),
    "--prefix-size": ("interactive", "use fairseq-generate"),
    "--scoring": ("interactive", "use fairseq-generate"),
    "--truncate-source": ("interactive", "shorten the lines before, or use fairseq-generate"),
    "--sacrebleu": ("interactive", "use fairseq-generate"),
    "--score-reference": ("interactive", "use fairseq-generate"),
    "--constraints": ("generate", "use fairseq-interactive"),
    "--anneal-eps": ("train", "adadelta's eps is constant: give another --adadelta-eps"),
    "--report-accuracy": ("train:" + ALIGNED, "use label_smoothed_cross_entropy"),
    "--ignore-prefix-size": ("train:" + ALIGNED, "use label_smoothed_cross_entropy"),
}

#: lines that this process has printed
printed: set[str] = set()


def dead_options(command: str, options: set[str], criterion: str | None = None) -> list[str]:
    """Return a line for each option that a command does not read."""
    return [
        f"fairseq-{command} does not read {option}: {remedy}"
        for option, (commands, remedy) in TABLE.items()
        if option in options and {command, f"{command}:{criterion}"} & {*commands.split()}
    ]


def options_in(parser, words: list[str]) -> set[str]:
    """Return the options in a command line, each in all its spellings."""
    actions = parser._option_string_actions
    names = {str(word).partition("=")[0] for word in words}  # programs in Python may give None as a value
    return {spelling for name in names for spelling in getattr(actions.get(name), "option_strings", ())}


def patch(module):
    @wrap(module)
    def get_parser(original, desc, *args, **options):
        parser = original(desc, *args, **options)

        @wrap(parser)
        def parse_known_args(parse, args=None, namespace=None):
            namespace, others = parse(args, namespace)
            command = "interactive" if hasattr(namespace, "buffer_size") else COMMANDS.get(desc, "")
            user_options = options_in(parser, sys.argv[1:] if args is None else args)
            for line in dead_options(command, user_options, getattr(namespace, "criterion", None)):
                if line not in printed:
                    printed.add(line)
                    print(f"warning: {line}", file=sys.stderr)
            return namespace, others

        return parser
