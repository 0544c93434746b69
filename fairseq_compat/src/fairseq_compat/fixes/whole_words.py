"""``--mask-whole-words``, and the other ways to mask words of several pieces.

Symptom: (a) ``--task masked_lm --mask-whole-words`` ends with ``AttributeError: 'MaskedLMTask' object has no
    attribute 'args'``. (b) With ``--bpe subword_nmt`` or ``fastbpe`` masked_lm, multilingual_masked_lm and denoising
    (``--mask-length word`` and ``span-poisson``) end with ``no attribute 'is_beginning_of_word'``. (c) Without
    ``--bpe`` masked_lm would mask single pieces; multilingual_masked_lm ends with ``UnboundLocalError``. (d) denoising
    with ``--bpe sentencepiece`` asks for a model called ``???``.
Versions: (a) to (c) all; (d) fairseq 0.12.3 and main, whose task knows the name of the segmentation only.
Where: fairseq/tasks/masked_lm.py:182, fairseq/data/encoders/utils.py:10, fairseq/tasks/multilingual_masked_lm.py:116,
    fairseq/tasks/denoising.py:219, fairseq/tasks/multilingual_denoising.py:137 (both of 0.12.3).
Remedy: the task takes the segmentation from the whole configuration. Pieces of subword-nmt say whether their word
    goes on, so a word begins after a piece that does not. ``--mask-whole-words`` without ``--bpe`` is an error.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

REASON = "--mask-whole-words ends with AttributeError, and so do words of subword-nmt in denoising"
BROKEN = r"def get_whole_word_mask\(|self\.(cfg|args)\.mask_whole_words|get_whole_word_mask\(self\.cfg\.bpe,"
MENDED = r"get_whole_word_mask\(self\.args,"


def needed() -> bool:
    return True


class WordsThatGoOn:
    """Stands in for fairseq's mask of the symbols that begin a word, for pieces that say whether their word goes on."""

    def __init__(self, dictionary, separator: str) -> None:
        import torch

        goes_on = [symbol.endswith(separator) for symbol in dictionary.symbols]
        self.goes_on, self.nspecial = torch.tensor(goes_on), dictionary.nspecial

    def gather(self, dim: int, tokens):
        """Return 1 for each token that begins a word, (tokens,); special symbols are words of their own."""
        begins = tokens.new_ones(len(tokens)).byte()
        begins[1:] = ~self.goes_on[tokens[:-1]]
        return begins | (tokens < self.nspecial)


def bpe_options(task):
    """The options of ``--bpe`` in the configuration of which those of a task are a part; None without."""
    root = task.cfg._get_parent() if hasattr(task.cfg, "_get_parent") else None
    return root.get("bpe") if root else None


def whole_words(original):
    """``get_whole_word_mask``, also for segmentations like subword-nmt's."""

    @functools.wraps(original)
    def get_whole_word_mask(args, dictionary):
        from fairseq.data import encoders

        bpe = encoders.build_bpe(args)
        if bpe is None or hasattr(bpe, "is_beginning_of_word"):
            return original(args, dictionary)
        if hasattr(bpe, "bpe_symbol"):
            return WordsThatGoOn(dictionary, bpe.bpe_symbol.strip())
        raise ValueError(
            f"--bpe: the pieces of {type(bpe).__name__} do not show where a word begins; mask single pieces: without "
            "--mask-whole-words, or with --mask-length subword"
        )

    return get_whole_word_mask


def asked_for(original):
    """``get_whole_word_mask`` where it was asked for by an option: without a segmentation an error."""

    def get_whole_word_mask(args, dictionary):
        mask = original(args, dictionary)
        if mask is None:
            raise ValueError(
                "--mask-whole-words needs the segmentation of the text: give --bpe and its options, such as --bpe "
                "sentencepiece --sentencepiece-model FILE; if every symbol is a word, leave --mask-whole-words out"
            )
        return mask

    return get_whole_word_mask


def patch_masked_lm(module) -> None:
    module.get_whole_word_mask = asked_for(module.get_whole_word_mask)
    module.MaskedLMTask.args = property(bpe_options)


def patch_multilingual_masked_lm(module) -> None:
    from fairseq.data.encoders.utils import get_whole_word_mask

    def mask(self):
        return asked_for(get_whole_word_mask)(self.args, self.dictionary) if self.args.mask_whole_words else None

    module.MultiLingualMaskedLMTask._get_whole_word_mask = mask


def patch_denoising(module, task) -> None:
    """The mask that a task asks for with the name of a segmentation is made with its options."""
    load_dataset, get_whole_word_mask = task.load_dataset, module.get_whole_word_mask

    @functools.wraps(load_dataset)
    def with_options(self, *args, **options):
        module.get_whole_word_mask = lambda name, dictionary: get_whole_word_mask(bpe_options(self), dictionary)
        return load_dataset(self, *args, **options)

    task.load_dataset = with_options


@contextmanager
def patching(module):
    yield
    name = module.__name__.rpartition(".")[2]
    if name == "utils":
        module.get_whole_word_mask = whole_words(module.get_whole_word_mask)
    elif name == "masked_lm":
        patch_masked_lm(module)
    elif name == "multilingual_masked_lm":
        patch_multilingual_masked_lm(module)
    else:
        patch_denoising(module, module.DenoisingTask if name == "denoising" else module.MultilingualDenoisingTask)
