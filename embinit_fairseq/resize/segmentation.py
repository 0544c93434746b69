"""Write the segmentation that belongs to an expanded dictionary, and compare it with the old one on text.

A word that no segmenter produces is not in the vocabulary: the old codes split it into old subwords. So the
segmentation is written with the dictionary and read back. Is every new word one subword? Is old text segmented as
before, except where a new word is?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError
from embinit_fairseq.io import read_lines
from embinit_fairseq.vocab.segmentation import SEGMENTATION_FILES, Segmentation
from embinit_fairseq.vocab.text import check_not_segmented, check_tokens
from embinit_fairseq.vocab.tokens import PREFIX


def write_segmentation(
    segmentation: Segmentation, words: Sequence[str], symbols: Sequence[str], texts: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Write the segmentation with the new words to `folder`, read it back and return its record.

    Args:
        segmentation: the old one.
        words: the new words.
        symbols: the old dictionary's symbols that mean text.
        texts: files of old text.
        folder: an existing folder.

    Raises:
        DataError: a text is segmented already, or a sentence changes where no new word is.
    """
    new = segmentation.write(words, folder)
    around = next((new.text_of(symbol) for symbol in symbols if is_reachable(new, symbol, "")), "")
    missed = {word: new.segment(new.text_of(word)) for word in words if not is_reachable(new, word, around)}
    record = {
        "kind": new.kind,
        "files": [name for name in SEGMENTATION_FILES if (folder / name).exists()],
        "reachable": len(words) - len(missed),
        "unreachable": missed,
    }
    return {**record, "text": compare(segmentation, new, words, texts, symbols)} if texts else record


def is_reachable(segmentation: Segmentation, word: str, around: str) -> bool:
    """Return True if the word is one subword, alone and between two words `around`."""
    text = segmentation.text_of(word)
    alone, neighbour = segmentation.segment(text), segmentation.segment(around)
    sentence = segmentation.segment(f"{around} {text} {around}")
    return alone in ([word], [PREFIX["sentencepiece"], word]) and sentence == [*neighbour, *alone, *neighbour]


def compare(
    old: Segmentation, new: Segmentation, words: Collection[str], texts: Sequence[str], symbols: Collection[str]
) -> dict[str, Any]:
    """Segment texts with both and count; raise DataError for a sentence that changes where no new word is."""
    words, sentences, changed, inside = frozenset(words), 0, 0, Counter[str]()
    counts = {"before": Counter[str](), "after": Counter[str]()}
    for path in texts:
        check_not_segmented("--segment-text", path)
        for number, line in read_lines(path, DataError, "--segment-text"):
            before, after = old.segment(line), new.segment(line)
            sentences, changed = sentences + bool(before), changed + (before != after)
            if not only_joined(before, after, words, old):
                raise DataError(
                    f"--segment-text {path}:{number}: segmented otherwise where no new word is, {' '.join(before)!r} "
                    f"now {' '.join(after)!r}; leave out the word that does it"
                )
            counts["before"].update(before)
            counts["after"].update(after)
            inside.update(word for at, word in enumerate(after) if word in words and not new.is_word(after, at))
    if not sentences:
        raise DataError(f"--segment-text {texts[0]}: no sentence in it; give a text as it is before its segmentation")
    return {
        "files": list(texts),
        "sentences": sentences,
        "known": check_tokens(f"--segment-text {' '.join(texts)}", counts["before"], {*symbols}),
        "changed": changed,
        **{
            name: {subword: number for subword, number in count.items() if subword in words}
            for name, count in counts.items()
        },
        "inside_longer_words": dict(inside),
    }


def only_joined(before: Sequence[str], after: Sequence[str], words: Collection[str], old: Segmentation) -> bool:
    """Return True if `after` is `before` with some neighbouring subwords joined into new words."""
    if before == after:
        return True
    at = 0
    for subword in after:
        if list(before[at : at + 1]) == [subword]:
            at += 1
            continue
        ends = range(at + 1, at + len(subword) + 1) if subword in words else ()
        joined = next((end for end in ends if old.join(before[at:end]) == subword), None)
        if joined is None:
            return False
        at = joined
    return at == len(before)
