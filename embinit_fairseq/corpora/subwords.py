"""Learn subwords: merges of subword-nmt from words and their counts, or a model of sentencepiece from lines."""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from embinit_fairseq.errors import DataError
from embinit_fairseq.io import whole_file, write_text
from embinit_fairseq.vocab.cleaning import library

#: largest number of lines from which a sentencepiece model is learned, evenly spaced
MOST_LINES = 1_000_000
#: bytes of a line from which on sentencepiece leaves it out, and letters of its parts
_LONGEST, _PART = 4192, 1000


def learn_codes(counts: Mapping[str, int], size: int, path: Path) -> int:
    """Write the merges that `subword-nmt learn-bpe` learns from these words and counts; return their number."""
    if not any(len(word) > 1 for word in counts):
        raise DataError("TEXT: no word of two letters in the training text, so that no subwords can be learned")
    words = (f"{word} {count}" for word, count in counts.items())
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):  # a bar, and the number of pairs
        library("subword_nmt.learn_bpe").learn_bpe(words, codes, size, is_dict=True)
    write_text(path, codes.getvalue())
    return codes.getvalue().count("\n") - 1


def learn_model(
    texts: Iterable[str], size: int, kind: str, path: Path, jobs: int = 16, option: str = "--sentencepiece-size"
) -> int:
    """Write a sentencepiece model of texts, `unigram` or `bpe`; return the number of its pieces.

    jobs: threads; the default is sentencepiece's. option: the user's option with the size.
    """
    sentencepiece, model = library("sentencepiece"), io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_parts(texts),
            model_writer=model,
            vocab_size=size,
            model_type=kind,
            character_coverage=1.0,
            hard_vocab_limit=False,  # a small text cannot fill a large vocabulary
            num_threads=jobs,
            minloglevel=2,
        )
    except RuntimeError as error:  # more characters than pieces, no text
        raise DataError(f"{option} {size}: {' '.join(str(error).split())[-200:]}; give another") from error
    with whole_file(path) as file:
        file.write(model.getvalue())
    return int(sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size())


def _parts(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts that are not empty; long ones, which sentencepiece would leave out, in parts that end at spaces."""
    for text in filter(None, texts):
        if len(text) > _LONGEST // 4 and len(text.encode()) > _LONGEST:
            yield from textwrap.wrap(text, _PART, expand_tabs=False, replace_whitespace=False, break_on_hyphens=False)
        else:
            yield text
