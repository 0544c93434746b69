"""Are new words reachable, and is old text cut as before? What `embinit expand-vocab` writes beside a dictionary.

    python benchmarks/reachable.py --train wiki.train.txt --text wiki.valid.txt        # or .gz; a sentence a line

Learns a segmentation of 8,000 pieces on the training text with subword-nmt, and with sentencepiece (unigram, BPE). New
are the 50 most frequent words of the training text that it cuts and whose symbol is no piece yet. Counted are words
that are one piece, alone and in a sentence; their occurrences in the first sentences of the text; those of them that
are a part of a longer word; sentences that differ in more than pieces joined into a new word. Beside that what one
would do by hand: plain words as glossary, further merges, user-defined pieces.
"""

from __future__ import annotations

import argparse
import gzip
import io
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from embinit_fairseq.resize.segmentation import is_reachable, only_joined
from embinit_fairseq.vocab import segmentation
from embinit_fairseq.vocab.segmentation import Segmentation, Sentencepiece, SubwordNmt


def read(path: str, limit: int | None = None) -> list[str]:
    """Sentences, words separated by one blank."""
    with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as lines:
        return [" ".join(line.split()) for line in lines if line.split()][:limit]


def subword_nmt(lines: Iterable[str], size: int, folder: Path) -> SubwordNmt:
    from subword_nmt.learn_bpe import learn_bpe

    with open(folder / "codes", "w", encoding="utf-8") as codes:
        learn_bpe(io.StringIO("\n".join(lines)), codes, size)
    return SubwordNmt(str(folder / "codes"))


def sentencepiece(lines: Iterable[str], size: int, folder: Path, kind: str) -> Sentencepiece:
    from sentencepiece import SentencePieceTrainer

    prefix = str(folder / kind)
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=prefix, vocab_size=size, model_type=kind, minloglevel=2
    )
    return Sentencepiece(f"{prefix}.model")


def new_words(old: Segmentation, lines: Iterable[str], count: int, mark: str) -> list[str]:
    """The most frequent words of letters that are cut. mark: in front of a symbol that begins a word."""
    words = Counter(word for line in lines for word in line.split() if word.isalpha())
    pieces = {piece for word in words for piece in old.segment_symbol(mark + word)}
    cut = (mark + word for word, _ in words.most_common() if len(old.segment_symbol(mark + word)) > 1)
    return [symbol for symbol in cut if symbol not in pieces][:count]


def by_hand(old: Segmentation, words: list[str], folder: Path) -> dict[str, Segmentation]:
    """What keeps words whole, too: name -> segmentation."""
    if isinstance(old, Sentencepiece):
        pieces = (segmentation._piece(word, 0.0, 4) for word in words)
        content = b"".join(segmentation._field(1, piece) for piece in pieces)
        (folder / "user.model").write_bytes(Path(old.path).read_bytes() + content)
        return {"user-defined pieces": Sentencepiece(str(folder / "user.model"))}
    merges = []
    for word in words:
        pieces = [piece.removesuffix("@@") for piece in old.segment_symbol(word)]
        pieces[-1] += "</w>"
        merges += [f"{''.join(pieces[:end])} {pieces[end]}\n" for end in range(1, len(pieces))]
    (folder / "more").write_text(Path(old.path).read_text(encoding="utf-8") + "".join(merges), encoding="utf-8")
    plain = SubwordNmt(old.path)
    plain._bpe = segmentation.read_codes(old.path, glossary="|".join(words))
    return {"plain words as glossary": plain, "merges behind the codes": SubwordNmt(str(folder / "more"))}


def row(name: str, old: Segmentation, new: Segmentation, words: list[str], text: list[str], sizes: list[int]) -> str:
    """A line of the table; the first `sizes` sentences each have a number in the cells behind the second."""
    cuts = [(old.segment(line), new.segment(line)) for line in text]
    before = [sum(piece in words for piece in cut) for cut, _ in cuts]
    after = [sum(piece in words for piece in cut) for _, cut in cuts]
    longer = [sum(piece in words and not new.is_word(cut, at) for at, piece in enumerate(cut)) for _, cut in cuts]
    other = [not only_joined(*pair, words, old) for pair in cuts]
    reached = [sum(is_reachable(each, word, "the") for word in words) for each in (old, new)]
    cells = (" / ".join(f"{sum(numbers[:size]):,}" for size in sizes) for numbers in (before, after, longer, other))
    return f"| {name} | {reached[0]} -> {reached[1]} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="text that the segmentation is learned on, in words")
    parser.add_argument("--text", required=True, help="text that is looked at")
    parser.add_argument("--sentences", type=int, nargs="+", default=[400], help="of it (default: %(default)s)")
    parser.add_argument("--size", type=int, default=8000, help="merges or pieces (default: %(default)s)")
    parser.add_argument("--words", type=int, default=50, help="new ones (default: %(default)s)")
    args = parser.parse_args()
    train, text = read(args.train), read(args.text, max(args.sentences))
    print("| segmentation | words reachable | occur before | after | in longer words | cut otherwise |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        folder, written = Path(made), Path(made) / "written"
        written.mkdir()
        learned: dict[str, Segmentation] = {"subword-nmt": subword_nmt(train, args.size, folder)}
        for kind in ("unigram", "bpe"):
            learned[f"sentencepiece, {kind}"] = sentencepiece(train, args.size, folder, kind)
        for name, old in learned.items():
            words = new_words(old, train, args.words, "" if isinstance(old, SubwordNmt) else "▁")
            print(row(name, old, old.write(words, written), words, text, args.sentences), flush=True)
            for other, new in by_hand(old, words, folder).items():
                print(row(f"{name}: {other}", old, new, words, text, args.sentences), flush=True)


if __name__ == "__main__":
    main()
