"""Write the segmentation that belongs to an expanded or trimmed dictionary, and compare it with the old one on text.

A word that no segmenter produces is not in the vocabulary: the old codes split it into old subwords. So the
segmentation is written with the dictionary and read back. Is every new word one subword? Is old text segmented as
before, except where a new word is?

A subword that the dictionary has lost but the segmenter still produces is `<unk>`. So the segmentation is restricted to
the subwords that stay. Subwords that spell the removed ones stay, too, mostly single characters. A text of characters
that stay gets no new `<unk>`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError
from embinit_fairseq.io import read_lines
from embinit_fairseq.vocab.segmentation import Segmentation
from embinit_fairseq.vocab.step_files import SEGMENTATION_FILES
from embinit_fairseq.vocab.subword_styles import PREFIX, ignores_spaces
from embinit_fairseq.vocab.text_checks import check_not_segmented, check_tokens


def write_segmentation(
    segmentation: Segmentation,
    words: Sequence[str],
    symbols: Sequence[str],
    texts: Sequence[str],
    folder: Path,
    output: str,
) -> dict[str, Any]:
    """Write the segmentation with the new words to `folder`, read it back and return its record.

    Args:
        segmentation: the old one.
        words: the new words.
        symbols: the old dictionary's symbols that mean text.
        texts: files of old text.
        folder: an existing folder.
        output: name that the folder will have.

    Raises:
        DataError: a text is segmented already, or a part of a sentence without a new word changes.
    """
    new = segmentation.write(words, folder)
    around = next((new.text_of(symbol) for symbol in symbols if _is_whole(new, symbol, "")), "")
    missed = {word: new.segment(new.text_of(word)) for word in words if not is_reachable(new, word, around)}
    record = {
        **_written(new, folder, output),
        "reachable": len(words) - len(missed),
        "unreachable": missed,
    }
    return {**record, "text": compare(segmentation, new, words, texts, symbols)} if texts else record


def _written(new: Segmentation, folder: Path, output: str) -> dict[str, Any]:
    """Return the entries of a record that describe the files of a segmentation."""
    files = [name for name in SEGMENTATION_FILES if (folder / name).exists()]
    return {"kind": new.kind, "files": files, "command": new.command(output)}


def is_reachable(segmentation: Segmentation, word: str, around: str) -> bool:
    """Return True if text can become the word: between spaces or, in scripts without spaces, after a letter."""
    after_letter = f"a{segmentation.text_of(word)}" if ignores_spaces(word) else ""
    return _is_whole(segmentation, word, around) or word in segmentation.segment(after_letter)


def _is_whole(segmentation: Segmentation, word: str, around: str) -> bool:
    """Return True if `word` is one subword, alone and between two words `around`."""
    text = segmentation.text_of(word)
    alone, neighbour = segmentation.segment(text), segmentation.segment(around)
    sentence = segmentation.segment(f"{around} {text} {around}")
    return alone in ([word], [PREFIX["sentencepiece"], word]) and sentence == [*neighbour, *alone, *neighbour]


def compare(
    old: Segmentation, new: Segmentation, words: Collection[str], texts: Sequence[str], symbols: Collection[str]
) -> dict[str, Any]:
    """Segment texts with both segmentations and count; raise DataError if a part without a new word changes."""
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


# ---- a smaller dictionary -------------------------------------------------------------------------------------------


def symbols_that_spell(
    segmentation: Segmentation, kept_symbols: Collection[str], symbols: Sequence[str], texts: Iterable[str]
) -> list[str]:
    """Return further symbols that must stay, so that subwords that stay spell removed symbols of the same characters.

    Args:
        segmentation: the old one.
        kept_symbols: symbols that stay in any case.
        symbols: the old dictionary's symbols that mean text.
        texts: words of characters that count as kept; they need not be symbols.
    """
    characters = set().union(*map(segmentation.surface, texts))
    length = {symbol: len(segmentation.surface(symbol)) for symbol in symbols if symbol not in kept_symbols}
    removed = [symbol for symbol in length if characters.issuperset(segmentation.surface(symbol))]
    # characters, bytes, and runs that the model of the text does not know, which it leaves whole
    added = [symbol for symbol in removed if length[symbol] < 2 or segmentation.is_unknown(symbol)]
    removed = [symbol for symbol in removed if length[symbol] > 1 and segmentation.makes(symbol)]
    while removed:  # the shortest first, since longer ones may consist of them
        stays = frozenset({*kept_symbols, *added})
        split = segmentation.restricted(stays).split
        # the segmenter may split a symbol that stays, if other merges come first
        removed = [symbol for symbol in removed if symbol not in stays and not stays.issuperset(split(symbol))]
        shortest = min((length[symbol] for symbol in removed), default=0)
        added += [symbol for symbol in removed if length[symbol] == shortest]
    return added


def write_restricted(
    old: Segmentation,
    symbols: Collection[str],
    new_symbols: Collection[str],
    texts: Sequence[str],
    folder: Path,
    output: str,
) -> dict[str, Any]:
    """Write the segmentation of a smaller dictionary to `folder`, read it back and return its record.

    Args:
        old: the segmentation of the old dictionary.
        symbols: symbols of the lines of the old dictionary.
        new_symbols: the symbols of the new dictionary.
        texts: files of segmented text.
        folder: an existing folder.
        output: name that the folder will have.

    Raises:
        DataError: a text has a character that only the old segmentation spells.
    """
    new = old.restricted(frozenset(new_symbols)).write((), folder)
    counts, gone = Counter(lines=0, changed=0, subwords=0, unknown_before=0, unknown_after=0), set[str]()
    for path in texts:
        for number, line in read_lines(path, DataError, "--keep-text"):
            text = old.text_of(old.join(line.split()))
            before, after = old.symbols_of(text), new.symbols_of(text)
            unknown_before = [subword for subword in before if subword not in symbols]
            unknown_after = [subword for subword in after if subword not in new_symbols]
            characters = {*"".join(map(old.surface, unknown_after))}
            if lost := characters - {*"".join(map(old.surface, unknown_before))}:
                raise DataError(
                    f"--keep-text {path}:{number}: {min(lost)!r} would become <unk>, since no subword that stays has "
                    "it here; give --keep a list of subwords that have it"
                )
            gone |= characters
            counts["lines"] += 1
            counts["changed"] += before != after
            counts["subwords"] += len(after)
            counts["unknown_before"] += len(unknown_before)
            counts["unknown_after"] += len(unknown_after)
    text_record = {"kept_text": {**counts, "gone": sorted(gone)}} if texts else {}
    return {**_written(new, folder, output), **text_record}
