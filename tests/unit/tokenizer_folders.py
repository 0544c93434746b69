"""Folders of small tokenizers with the files that their family is published with: a family per way of numbering tokens.

They are trained by the libraries that train the real ones: tokenizers and sentencepiece.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from source_files import TEXT

FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
XLM = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{number}>" for number in range(10))]


def write_json(folder: Path, **files: object) -> None:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def wordpiece(folder: Path) -> None:
    from tokenizers import BertWordPieceTokenizer

    trained = BertWordPieceTokenizer()
    trained.train_from_iterator(TEXT, vocab_size=90, special_tokens=BERT_SPECIALS, show_progress=False)
    tokens = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")


def bytelevel(folder: Path, specials: list[str], last: str = "") -> None:
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXT, vocab_size=330, special_tokens=specials, show_progress=False)
    trained.save_model(str(folder))
    write_json(folder, vocab=trained.get_vocab() | {token: len(trained.get_vocab()) for token in last.split()})


def end_of_word(folder: Path, specials: list[str], counts: bool = False, is_bytes: bool = False) -> None:
    """vocab.json and merges.txt of pieces such as `the</w>`; counts: with fastBPE's count after each merge."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = [pre_tokenizers.BertPreTokenizer(), *[to_bytes] * is_bytes]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    options = {"special_tokens": specials, "end_of_word_suffix": "</w>", "show_progress": False}
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=150, **options))
    tokenizer.model.save(str(folder))
    rows = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    letters = pre_tokenizers.ByteLevel.alphabet() if is_bytes else set("".join(TEXT)) - {" "}
    for piece in sorted({*letters, *(letter + "</w>" for letter in letters)} - rows.keys()):
        rows[piece] = len(rows)
    if is_bytes:
        rows |= {"<|startoftext|>": len(rows), "<|endoftext|>": len(rows) + 1}
    write_json(folder, vocab=rows)
    if counts:
        merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
        (folder / "merges.txt").write_text("".join(f"{merge} 7\n" for merge in merges), encoding="utf-8")


def sentencepiece(
    folder: Path, name: str = "spiece.model", kind: str = "unigram", size: int = 45, **options: Any
) -> Any:
    """Train a model and return its processor."""
    import sentencepiece as library

    stream = io.BytesIO()
    options |= {"vocab_size": size, "model_type": kind, "hard_vocab_limit": False, "minloglevel": 2}
    library.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=stream, **options)
    (folder / name).write_bytes(stream.getvalue())
    return library.SentencePieceProcessor(model_proto=stream.getvalue())


def pieces(processor: Any) -> list[str]:
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def marian(folder: Path) -> None:
    own = {piece for name in ("source.spm", "target.spm") for piece in pieces(sentencepiece(folder, name))}
    tokens = ["</s>", "<unk>", *sorted(own - {*FAIRSEQ}), "<pad>"]
    write_json(folder, vocab={token: row for row, token in enumerate(tokens)})


def phobert(folder: Path) -> None:
    words = "the@@ house hou@@ se old a@@ b@@ c d t@@ h@@ e cat dog".split()
    (folder / "vocab.txt").write_text("".join(f"{word} {99 - row}\n" for row, word in enumerate(words)))
    (folder / "bpe.codes").write_text("s e</w> 9\nh o 8\nho u 7\nhou se</w> 6\n")


def fsmt(folder: Path) -> None:
    """Two vocabularies with the same tokens in another order, and one more for the target language."""
    end_of_word(folder, FAIRSEQ, counts=True)
    tokens = list(json.loads((folder / "vocab.json").read_text()))
    (folder / "vocab.json").rename(folder / "vocab-src.json")
    target = [*FAIRSEQ, *tokens[: len(FAIRSEQ) - 1 : -1], "nur</w>"]
    write_json(folder, **{"vocab-tgt": {token: row for row, token in enumerate(target)}})
    write_json(folder, tokenizer_config={"langs": ["en", "de"], "tokenizer_class": "FSMTTokenizer"})


@dataclass(frozen=True)
class Family:
    """tokenizer: the class of transformers. write: writes the files of its vocabulary. markers: how they are spelled.

    model_type: in config.json. needs: packages that the class needs to read the files. settings: in
    tokenizer_config.json.
    """

    tokenizer: str
    model_type: str
    write: Callable[[Path], Any]
    markers: str
    needs: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def make(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        self.write(folder)
        write_json(folder, config={"model_type": self.model_type})
        if not (folder / "tokenizer_config.json").is_file():
            write_json(folder, tokenizer_config={"tokenizer_class": self.tokenizer, **self.settings})
        return folder


_MODEL = {"markers": "sentencepiece", "needs": ("google.protobuf",)}  # of sentencepiece, converted by transformers 5
_PIECES = {"markers": "sentencepiece", "needs": ("sentencepiece",)}
_SACREMOSES = {"markers": "end_of_word", "needs": ("sacremoses",)}
_BPE_MODEL = partial(sentencepiece, name="sentencepiece.bpe.model")
_T5 = partial(sentencepiece, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
_LLAMA = partial(sentencepiece, name="tokenizer.model", kind="bpe", size=320, byte_fallback=True)
_GEMMA = partial(_LLAMA, size=60, byte_fallback=False, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3)

FAMILIES = {
    "bert": Family("BertTokenizer", "bert", wordpiece, "wordpiece"),
    "gpt2": Family("GPT2Tokenizer", "gpt2", partial(bytelevel, specials=["<|endoftext|>"]), "bytelevel"),
    "roberta": Family("RobertaTokenizer", "roberta", partial(bytelevel, specials=FAIRSEQ, last="<mask>"), "bytelevel"),
    "herbert": Family("HerbertTokenizer", "bert", partial(end_of_word, specials=[*FAIRSEQ, "<mask>"]), "end_of_word"),
    "clip": Family("CLIPTokenizer", "clip", partial(end_of_word, specials=[], is_bytes=True), "end_of_word"),
    "xlm": Family("XLMTokenizer", "xlm", partial(end_of_word, specials=XLM, counts=True), **_SACREMOSES),
    "fsmt": Family("FSMTTokenizer", "fsmt", fsmt, **_SACREMOSES),
    "phobert": Family("PhobertTokenizer", "roberta", phobert, "subword_nmt"),
    "marian": Family(
        "MarianTokenizer", "marian", marian, **_PIECES, settings={"source_lang": "en", "target_lang": "de"}
    ),
    "t5": Family("T5Tokenizer", "t5", _T5, **_MODEL),
    "pegasus": Family("PegasusTokenizer", "pegasus", _T5, **_MODEL),
    "xlm-roberta": Family("XLMRobertaTokenizer", "xlm-roberta", _BPE_MODEL, **_MODEL),
    "llama": Family("LlamaTokenizer", "llama", _LLAMA, **_MODEL),
    "gemma": Family("GemmaTokenizer", "gemma", partial(_GEMMA, eos_piece="<eos>", bos_piece="<bos>"), **_MODEL),
}
