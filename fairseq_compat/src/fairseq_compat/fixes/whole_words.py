"""--mask-whole-words and --mask-length word end with AttributeError.

Symptom: (a) ``--task masked_lm --mask-whole-words`` ends with ``AttributeError: 'MaskedLMTask' object has no
    attribute 'args'``. (b) With ``--bpe subword_nmt`` or ``fastbpe`` masked_lm, multilingual_masked_lm and denoising
    (``--mask-length word`` and ``span-poisson``) end with ``no attribute 'is_beginning_of_word'``. (c) Without
    ``--bpe`` masked_lm would mask single subwords; multilingual_masked_lm ends with ``UnboundLocalError``. (d)
    denoising with ``--bpe sentencepiece`` asks for a model called ``???``.
Versions: (a) to (c) all; (d) fairseq 0.12.3 and main, whose task knows the name of the segmentation only.
Where: fairseq/tasks/masked_lm.py:182, fairseq/data/encoders/utils.py:10, fairseq/tasks/multilingual_masked_lm.py:116,
    fairseq/tasks/denoising.py:219, fairseq/tasks/multilingual_denoising.py:137 (both of 0.12.3).
Remedy: the task takes the segmentation from the whole configuration. Subwords of subword-nmt say whether their word
    continues, so a word begins after a subword that does not. ``--mask-whole-words`` without ``--bpe`` is an error.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"def get_whole_word_mask\(|self\.(cfg|args)\.mask_whole_words|get_whole_word_mask\(self\.cfg\.bpe,"
FIXED = r"get_whole_word_mask\(self\.args,"


class ContinuedWords:
    """Replace fairseq's mask of the symbols that begin a word, for subwords that show whether their word continues.

    Args:
        dictionary: fairseq's dictionary.
        separator: end of a subword that is not the last one of its word.
    """

    def __init__(self, dictionary, separator: str) -> None:
        import torch

        continues = [symbol.endswith(separator) for symbol in dictionary.symbols]
        self.continues, self.nspecial = torch.tensor(continues), dictionary.nspecial

    def gather(self, dim: int, tokens):
        """Return 1 for each token that begins a word, (tokens,); a special symbol is one word."""
        begins = tokens.new_ones(len(tokens)).byte()
        begins[1:] = ~self.continues[tokens[:-1]]
        return begins | (tokens < self.nspecial)


def bpe_options(task):
    """Return the options of ``--bpe`` in the configuration that contains the options of a task; None without."""
    root = task.cfg._get_parent() if hasattr(task.cfg, "_get_parent") else None
    return root.get("bpe") if root else None


def patch_mask(module) -> None:
    """Let ``get_whole_word_mask`` accept segmentations like subword-nmt's."""

    @wrap(module)
    def get_whole_word_mask(original, args, dictionary):
        from fairseq.data import encoders

        bpe = encoders.build_bpe(args)
        if bpe is None or hasattr(bpe, "is_beginning_of_word"):
            return original(args, dictionary)
        if hasattr(bpe, "bpe_symbol"):
            return ContinuedWords(dictionary, bpe.bpe_symbol.strip())
        raise ValueError(
            f"--bpe: the subwords of {type(bpe).__name__} do not show where a word begins; mask single subwords: "
            "without --mask-whole-words, of --task denoising with --mask-length subword"
        )


def required_mask(get_whole_word_mask, args, dictionary):
    """Return the mask of ``get_whole_word_mask``; without a segmentation raise ValueError."""
    mask = get_whole_word_mask(args, dictionary)
    if mask is None:
        raise ValueError(
            "--mask-whole-words needs the segmentation of the text: give --bpe and its options, such as --bpe "
            "sentencepiece --sentencepiece-model FILE; if every symbol is a word, leave --mask-whole-words out"
        )
    return mask


def patch_masked_lm(module) -> None:
    wrap(module, "get_whole_word_mask")(required_mask)
    module.MaskedLMTask.args = property(bpe_options)


def patch_multilingual_masked_lm(module) -> None:
    from fairseq.data.encoders.utils import get_whole_word_mask

    @wrap(module.MultiLingualMaskedLMTask)
    def _get_whole_word_mask(original, self):
        return required_mask(get_whole_word_mask, self.args, self.dictionary) if self.args.mask_whole_words else None


def patch_denoising(module, task) -> None:
    """Make the mask with the options of the segmentation; the task passes only its name."""
    get_whole_word_mask = module.get_whole_word_mask

    @wrap(task)
    def load_dataset(original, self, *args, **options):
        module.get_whole_word_mask = lambda name, dictionary: get_whole_word_mask(bpe_options(self), dictionary)
        return original(self, *args, **options)


PATCHES = {
    "fairseq.data.encoders.utils": patch_mask,
    "fairseq.tasks.masked_lm": patch_masked_lm,
    "fairseq.tasks.multilingual_masked_lm": patch_multilingual_masked_lm,
    "fairseq.tasks.denoising": lambda module: patch_denoising(module, module.DenoisingTask),
    "fairseq.tasks.multilingual_denoising": lambda module: patch_denoising(module, module.MultilingualDenoisingTask),
}
