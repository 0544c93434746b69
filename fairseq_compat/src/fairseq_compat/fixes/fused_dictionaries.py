"""fairseq-generate --lm-path adds the scores of other words if the language model has another dictionary.

Symptom: a language model whose dictionary has the words of the target's in another order (``fairseq-preprocess`` sorts
    by frequency in its text) makes meaningless translations, with exit status 0. Without ``DATA/dict.txt`` the command
    fails. If any file is copied there, the words of the model's training are not compared with the target's.
Where: fairseq_cli/generate.py:108, fairseq/sequence_generator.py:361 (scores are added by number).
Remedy: the words of DATA/dict.txt must be the target's, and the dictionary of the language model's data, too, if it is
    there.
Can go: with a fairseq whose checkpoints have their dictionary.
"""

from __future__ import annotations

import os

from fairseq_compat.patches import shadow, wrap

BROKEN = r"^    def __init__\(\s*self,\s*models,\s*tgt_dict,|load_model_ensemble\("

REMEDY = (
    "train the language model with the target's dictionary (fairseq-preprocess --only-source --srcdict "
    "DATA/dict.TARGET.txt), and copy this file to DATA/dict.txt"
)


def check_same(name: str, words: list[str], expected: list[str], other: str) -> None:
    """Raise ValueError for the first word that two dictionaries have in different places."""
    if words != expected:
        pairs = enumerate(zip([*words, "nothing"], [*expected, "nothing"]), start=1)
        at, (symbol, other_symbol) = next((at, pair) for at, pair in pairs if len(set(pair)) > 1)
        raise ValueError(f"--lm-path: symbol {at} of {name} is {symbol!r}, and {other_symbol!r} in {other}; {REMEDY}")


def words_in(file: str) -> list[str]:
    """Return the symbols of a dictionary; none if there is no such file."""
    from fairseq.data import Dictionary

    return Dictionary.load(file).symbols if os.path.isfile(file) else []


def patch_generator(module) -> None:
    @wrap(module.SequenceGenerator)
    def __init__(original, self, models, tgt_dict, *args, **options):
        original(self, models, tgt_dict, *args, **options)
        dictionary = getattr(getattr(self.lm_model, "decoder", None), "dictionary", None)
        if dictionary is not None:
            check_same("the language model (DATA/dict.txt)", dictionary.symbols, tgt_dict.symbols, "the target")


def patch_generate(module) -> None:
    from fairseq import checkpoint_utils

    def load_model_ensemble(filenames, arg_overrides=None, task=None, **options):
        models, config = checkpoint_utils.load_model_ensemble(filenames, arg_overrides, task, **options)
        if task is None:  # loads --lm-path, whose task has the translation's data here
            trained = checkpoint_utils.load_checkpoint_to_cpu(filenames[0])["cfg"]["task"]
            file = os.path.join(str(getattr(trained, "data", "")).partition(os.pathsep)[0], "dict.txt")
            words, used = words_in(file), models[0].decoder.dictionary.symbols
            if len(words) == len(used):  # another length: the path belongs to another machine
                check_same(f"its training ({file})", words, used, "DATA/dict.txt")
        return models, config

    shadow(module, "checkpoint_utils.load_model_ensemble", load_model_ensemble)


PATCHES = {"fairseq.sequence_generator": patch_generator, "fairseq_cli.generate": patch_generate}
