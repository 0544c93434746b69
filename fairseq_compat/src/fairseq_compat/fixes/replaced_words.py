"""--replace-unk fails, or replaces an unknown word by another one than the source's.

Symptom: ``fairseq-generate --dataset-impl raw --replace-unk`` and ``fairseq-interactive --replace-unk`` end with
    ``FileNotFoundError: '@@ '``. With a file: ``IndexError`` without ``--print-alignment``, ``TypeError`` with it; the
    words of ``fairseq-interactive`` come from the dictionary, ``<unk>`` for an unknown one; with ``--remove-bpe``
    words are counted in the translation, but subwords in the alignment. The alignments of an LSTM are shifted by the
    padding of its batch. ``fairseq-interactive --print-alignment soft``: ``too many values to unpack``, or pairs of
    weights for a source of one word; ``fairseq-generate --score-reference --print-alignment soft``: ``TypeError``.
Where: fairseq/dataclass/configs.py:866 (the option's value without a file), fairseq/utils.py:164 (``load_align_dict``)
    and :235 (``post_process_prediction``), fairseq_cli/generate.py, fairseq_cli/interactive.py.
Remedy: an unknown token of the translation becomes the token of the source text that it attends to most, or the file's
    translation of this token, before subwords are joined. The alignment is printed, as with ``--print-alignment``.
    Alignments that fairseq-interactive cannot print are refused.
Can go: with a fairseq that aligns when it replaces.
"""

from __future__ import annotations

import argparse
from functools import partial

from fairseq_compat.patches import shadow, wrap

BROKEN = r"align_dict\[cols\[0\]\] = cols\[1\]|utils\.load_align_dict\(cfg\.generation\.replace_unk\)"


class Alignment(list):
    """Hold pairs of a token of the source and one of the translation, with the source's tokens as in the text."""

    words: list[str]


def patch_utils(module) -> None:
    @wrap(module)
    def load_align_dict(original, replace_unk):
        return original("" if replace_unk == "@@ " else replace_unk)

    def with_moved_padding(original, attn, src_sent, tgt_sent, pad, eos):
        padding = src_sent == pad
        if attn[:, padding].any():  # an LSTM moves the padding after the words
            src_sent = module.torch.cat([src_sent[~padding], src_sent[padding]])
        return original(attn, src_sent, tgt_sent, pad, eos)

    for name in ("extract_hard_alignment", "extract_soft_alignment"):
        wrap(module, name)(with_moved_padding)

    @wrap(module)
    def post_process_prediction(
        original, hypo_tokens, src_str, alignment, align_dict, tgt_dict, remove_bpe=None, extra_symbols_to_ignore=None
    ):
        if not isinstance(alignment, Alignment):
            return original(hypo_tokens, src_str, alignment, align_dict, tgt_dict, remove_bpe, extra_symbols_to_ignore)
        from fairseq.data.data_utils import post_process

        ignored = {tgt_dict.bos(), *(extra_symbols_to_ignore or ())}
        pairs = replaced(hypo_tokens.tolist(), alignment, align_dict, tgt_dict)
        words = [word for token, word in pairs if token not in ignored]
        text = post_process(" ".join(words), remove_bpe)
        return tgt_dict.encode_line(text, add_if_not_exist=True), text, alignment


def replaced(tokens, alignment: Alignment, align_dict: dict[str, str], tgt_dict):
    """Yield token and word of a translation without its end; the word of an unknown token is the source's."""
    sources = {target: source for source, target in alignment}
    counted = [token for token in tokens if token not in (tgt_dict.eos(), tgt_dict.pad())]
    for place, token in enumerate(counted):
        word, source = tgt_dict[token], sources.get(place, len(alignment.words))
        if token == tgt_dict.unk() and source < len(alignment.words):
            word = align_dict.get(alignment.words[source], alignment.words[source])
        yield token, word


def with_words(task, words_of):
    """Let a task add the tokens of the source text to its alignments; return the task.

    Args:
        task: the task.
        words_of: returns the text of each sentence of a batch.
    """

    @wrap(task)
    def inference_step(original, generator, models, sample, *others, **options):
        translations = original(generator, models, sample, *others, **options)
        for text, hypotheses in zip(words_of(sample), translations):
            for hypothesis in hypotheses:
                hypothesis["alignment"] = Alignment(hypothesis["alignment"])
                hypothesis["alignment"].words = text.split()
        return translations

    return task


def name_sources(module, cfg) -> None:
    """Let fairseq-generate name the text of the data set."""
    setup_task = module.tasks.setup_task

    def setup(*args, **options):
        task = setup_task(*args, **options)

        def texts(sample):
            source = task.dataset(cfg.dataset.gen_subset).src
            return map(source.get_original_text, sample["id"].tolist())

        return with_words(task, texts)

    shadow(module, "tasks.setup_task", setup)


def name_lines(module, cfg) -> None:
    """Let fairseq-interactive name the lines that it reads."""
    texts: list[str] = []  # texts of the current batch

    @wrap(module)
    def make_batches(original, lines, cfg, task, max_positions, encode_fn):
        for batch in original(lines, cfg, task, max_positions, encode_fn):
            own = [lines[number] for number in batch.ids.tolist()]
            texts[:] = [encode_fn(line.partition("\t")[0] if cfg.generation.constraints else line) for line in own]
            yield batch

    setup_task = module.tasks.setup_task
    shadow(
        module, "tasks.setup_task", lambda *args, **options: with_words(setup_task(*args, **options), lambda _: texts)
    )


def patch_command(name_texts, module) -> None:
    """Let a command name the texts that it translates, for calls with ``--replace-unk``."""

    @wrap(module)
    def main(original, cfg, *args, **options):
        if isinstance(cfg, argparse.Namespace):
            cfg = module.convert_namespace_to_omegaconf(cfg)
        if cfg.generation.print_alignment == "soft" and module.__name__ == "fairseq_cli.interactive":
            raise ValueError("--print-alignment soft: fairseq-interactive prints hard ones; use fairseq-generate")
        if cfg.generation.print_alignment == "soft" and cfg.generation.score_reference:
            raise ValueError("--score-reference aligns references by the largest weight: give --print-alignment hard")
        if cfg.generation.replace_unk is None:
            return original(cfg, *args, **options)
        if cfg.generation.print_alignment == "soft":
            raise ValueError("--replace-unk takes the word with the largest weight: give --print-alignment hard")
        cfg.generation.print_alignment = "hard"
        before = dict(vars(module))
        name_texts(module, cfg)
        try:
            return original(cfg, *args, **options)
        finally:
            vars(module).update(before)


PATCHES = {
    "fairseq.utils": patch_utils,
    "fairseq_cli.generate": partial(patch_command, name_sources),
    "fairseq_cli.interactive": partial(patch_command, name_lines),
}
