"""`embinit_fairseq.embeddings`: the numbers of the flag, for whoever has no fairseq."""

import json
import re
import textwrap
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from tokenizers import ByteLevelBPETokenizer
from torch import nn
from torch.nn.utils import parametrizations

import embinit_fairseq as ei
from embinit_fairseq.cli.main import main
from embinit_fairseq.embed_init.fill import embed_init
from embinit_fairseq.embed_init.request import request_from
from embinit_fairseq.embed_init.slots import find_slots
from embinit_fairseq.embeddings import vocabulary_of_rows
from embinit_fairseq.errors import (
    CoverageError,
    DimensionError,
    EmbinitError,
    OptionError,
    OutputError,
    VectorFileError,
)
from embinit_fairseq.init.strategies import STRATEGIES

WORDS = ["haus", "Baum", "rot", "ein", "zwei", "drei"]


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    rows = np.random.default_rng(1).normal(0, 0.4, (5, 8))
    path = tmp_path / "vectors.vec"
    ei.Vectors([*WORDS[:4], "wort"], rows.astype(np.float32)).save(path)
    return path


def filled_by_the_flag(dictionary: Dictionary, **options: object) -> tuple[np.ndarray, dict]:
    """Return the matrix of an encoder that `--embed-init` has filled, and its record."""
    model, cfg = nn.Module(), Namespace(**{f"embed_init{name}": value for name, value in options.items()}, seed=3)
    model.encoder = nn.Module()
    model.encoder.embed_tokens = nn.Embedding(len(dictionary), 8, padding_idx=dictionary.pad())
    model.encoder.dictionary = dictionary
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    embed_init(find_slots(model, task), task, cfg, request_from(cfg))
    return model.encoder.embed_tokens.weight.detach().numpy(), json.loads(cfg.embed_init_record)["slots"]["encoder"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("oov", ["mean", "gaussian", "zeros", "subword"])
def test_the_numbers_are_those_of_the_flag(strategy: str, oov: str, vectors: Path) -> None:
    kind = STRATEGIES[strategy]
    if oov == "subword" and kind.fills:
        ei.Vectors(["▁haus", *"zweidr", "▁rot"], np.random.default_rng(2).normal(size=(8, 8))).save(vectors)
    std, paths, dictionary = "0.25x" if kind.scaled else None, [f"encoder={vectors}"] * kind.needs_source, Dictionary()
    for word in [*WORDS, "&apos;s"]:
        dictionary.add_symbol(word)
    expected, record = filled_by_the_flag(dictionary, **{"": strategy, "_path": paths, "_std": std, "_oov": oov})
    matrix, _ = ei.embedding_matrix(dictionary, vectors, strategy, dim=8, oov=oov, seed=3, std=std)
    np.testing.assert_array_equal(matrix, expected)
    assert record["oov"] == (oov if kind.fills else None)
    assert record.get("composed", 0) == (3 if oov == "subword" and kind.fills else 0)  # ein, zwei, drei


def test_rules_can_be_switched_off_and_a_slot_has_draws_of_its_own(vectors: Path) -> None:
    def matrix_of(**options: object):
        return ei.embedding_matrix(["haus", "HAUS", "zwei"], vectors, "pretrained", oov="xavier", **options)

    both, one, other = matrix_of(), matrix_of(match=["exact"]), matrix_of(match=["exact"], slot="decoder")
    assert [each.report["rows_by_rule"] for each in (both, one)] == [{"exact": 1, "casefold": 1}, {"exact": 1}]
    assert (one.matrix == both.matrix).all(axis=1).tolist() == [True, False, True]
    assert (one.matrix == other.matrix).all(axis=1).tolist() == [True, False, False]


def test_an_embedding_is_filled_in_place_and_stays_tied(vectors: Path) -> None:
    embedding, output = nn.Embedding(8, 8, padding_idx=0), nn.Linear(8, 8, bias=False)
    output.weight = embedding.weight
    before, state = embedding.weight.detach().clone(), torch.get_rng_state()
    report = ei.init_embedding_(embedding, {"<pad>": 0, "haus": 1, "HAUS": 5}, vectors, "pretrained")
    assert torch.equal(torch.get_rng_state(), state)
    assert output.weight is embedding.weight
    assert (report["rows_by_rule"], report["rows_left"]) == ({"exact": 1, "casefold": 1}, 2)
    np.testing.assert_array_equal(embedding.weight[1].detach(), ei.load_vectors(vectors)["haus"])
    assert torch.equal(embedding.weight[1], embedding.weight[5])
    assert not embedding.weight[0].any()
    assert torch.equal(embedding.weight[6:], before[6:])  # rows that no symbol has


def test_special_tokens_of_a_tokenizer_are_no_words(vectors: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "haus", "##haus", "rot"]
    (vectors.parent / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(str(vectors.parent / "vocab.txt"))
    assert vocabulary_of_rows(tokenizer, None).roles == dict(
        enumerate(["pad", "unk", "bos", "eos", "mask"])
    )  # as fairseq's
    assert vocabulary_of_rows(tokenizer, "rot").roles == dict(enumerate(["unk", "bos", "eos", "mask"], 1)) | {7: "pad"}
    matrix, _ = ei.embedding_matrix(tokenizer, vectors, "pretrained", oov="zeros")
    assert [word for word, row in zip(words, matrix) if row.any()] == ["haus", "rot"]
    for padding, options in ((None, {}), (1, {"pad": 1})):
        report = ei.init_embedding_(nn.Embedding(8, 8, padding_idx=padding), tokenizer, vectors, **options)
        assert report["pad"] == (padding or 0)
    with pytest.raises(OptionError, match=r"^module: .* row 1.* row 0.*tokenizer of this model.*pad="):
        ei.init_embedding_(nn.Embedding(8, 8, padding_idx=1), tokenizer, vectors)
    for other, role in (("[SEP]", "eos"), ("[UNK]", "unk")):  # as GPT-2 and Llama are padded: the token is read, too
        tokenizer.pad_token = other
        assert vocabulary_of_rows(tokenizer, None).roles[words.index(other)] == role
        matrix, report = ei.embedding_matrix(tokenizer, vectors, oov="xavier")
        assert report["pad"] is None
        assert matrix.any(axis=1).all()


def test_pieces_of_bytes_are_the_text_they_spell(tmp_path: Path) -> None:
    """As GPT-2 has them; what was added to a tokenizer is text as it is. The report has its own spelling."""

    class Tokenizer:
        def get_vocab(self) -> dict[str, int]:
            return {"ĠÃ¼ber": 0, "naÃ¯ve": 1, "Ã": 2, "Ã¼": 3, "Ġhaus": 4}

        def get_added_vocab(self) -> dict[str, int]:
            return {"Ã¼": 3}

    ei.Vectors(["über", "haus", "Ã", "ü"], np.eye(4, dtype=np.float32)).save(tmp_path / "v.vec")
    matrix, report = ei.embedding_matrix(Tokenizer(), tmp_path / "v.vec", "pretrained", oov="zeros")
    np.testing.assert_array_equal(matrix, np.eye(4)[[0, 0, 0, 0, 1]] * [[1], [0], [0], [0], [1]])
    assert report["missing"] == ["naÃ¯ve", "Ã", "Ã¼"]


@pytest.mark.filterwarnings("ignore:overflow")
def test_vectors_too_large_for_a_strategy(tmp_path: Path) -> None:
    """Their sigma is beyond single precision."""
    ei.Vectors(["a", "b", "c"], np.float32([[3e38, -3e38], [1e38, 2e38], [-3e38, 1e38]])).save(tmp_path / "v.txt")
    given = ["a", "b", "c", "d", "e"], tmp_path / "v.txt"
    with pytest.raises(OptionError, match=r"beyond float32; .*take another"):
        ei.embedding_matrix(*given, "xavier_pretrained")
    assert abs(ei.embedding_matrix(*given, "pretrained_xavier").matrix).max() < 10


def test_neighbours_are_those_with_the_largest_cosine(vectors: Path, shown, refused, capsys) -> None:
    loaded = ei.load_vectors(vectors)
    cosines = nn.functional.cosine_similarity(torch.tensor(loaded.matrix), torch.tensor(loaded["haus"]))
    order = [loaded.words[row] for row in cosines.argsort(descending=True)]
    assert [word for word, _ in loaded.most_similar("haus", 9)] == order[1:]
    assert loaded.most_similar(loaded["haus"], 2)[0] == ("haus", pytest.approx(1, abs=1e-6))
    large = ei.Vectors(["a", "b"], np.full((2, 4), 1e30, np.float32))  # its squares leave single precision
    assert large.most_similar("a") == [("b", pytest.approx(1, abs=1e-6))]
    line = shown("neighbors", "haus", "--vectors", vectors, "--count", "2")
    assert line.startswith(f"haus: {order[1]} {loaded.most_similar('haus')[0][1]:.3f}, {order[2]}")
    message = refused("neighbors", "Haus", "--vectors", vectors)
    assert "'Haus' has no vector" in message
    assert "words like ['haus'" in message
    assert main(["neighbors", "Haus", "rot", "--vectors", str(vectors)]) == 0
    said = capsys.readouterr()
    assert ("Haus" in said.err, said.out.startswith("rot: ")) == (True, True)


def test_save_vectors_writes_the_words_of_a_dictionary_and_not_over_what_it_reads(
    vectors, tmp_path, shown, refused, monkeypatch
):
    (tmp_path / "dict.txt").write_text("rot 3\nother 1\n")
    save, dictionary = ("save-vectors", "--vectors", vectors), ("--dict", tmp_path / "dict.txt")
    shown(*save, *dictionary, "--output", tmp_path / "some.npz")
    some, loaded = ei.load_vectors(tmp_path / "some.npz"), ei.load_vectors(vectors)
    np.testing.assert_array_equal(some.matrix, [loaded["rot"]])
    (tmp_path / "dict.txt").write_text("other 1\n")
    message = refused(*save, *dictionary, "--output", tmp_path / "none.vec")
    assert f"--dict {tmp_path / 'dict.txt'}: none of its words" in message
    for name in ("v.bin", "v.txt.bz2", "v.npz.gz"):  # names of formats that are not written
        message = refused(*save, "--output", tmp_path / name)
        assert f"--output {tmp_path / name}: " in message
        with pytest.raises(OutputError, match=r"^/.*\.vec"):
            loaded.save(tmp_path / name)
        assert not (tmp_path / name).exists()
    monkeypatch.setenv("HOME", str(vectors.parent))
    shown(*("neighbors", "rot", "--vectors", f"~/{vectors.name}"))
    several = f"avg:{vectors},{vectors}"
    for command in (("save-vectors", "--output", tmp_path / "x.vec"), ("neighbors", "rot")):
        assert "expected one file" in refused(*command, "--vectors", several)
    before = vectors.read_bytes()
    assert "another --output" in refused(*save, "--output", vectors, "--force")
    assert vectors.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "error", "remedy"),
    [
        ({"strategy": "xavir"}, OptionError, "^strategy=.*pretrained_xavier"),
        ({"source": None}, OptionError, "^source: "),
        ({"source": "nowhere"}, VectorFileError, "^source nowhere.*check"),
        ({"source": None, "strategy": "xavier"}, OptionError, "^dim: "),
        ({"std": 0.1, "strategy": "pretrained"}, OptionError, "^std=.*pretrained_xavier, shuffled"),
        ({"std": "wide"}, OptionError, "^std wide.*0.25x"),
        ({"oov": "ones"}, OptionError, "^oov=.*zeros"),
        ({"oov": "subword"}, OptionError, "oov `subword`.*another oov.*save-vectors"),
        ({"match": ["fuzzy"]}, OptionError, "^match=.*casefold"),
        ({"pad": "<pad>"}, OptionError, "^pad="),
        ({"seed": -1}, OptionError, "^seed "),
        ({"dim": 9}, DimensionError, "expected 9.*dim=8"),
        ({"symbols": ["Hütte"]}, CoverageError, "Hütte"),
        ({"symbols": []}, OptionError, "^symbols: "),
        ({"symbols": [7]}, OptionError, "^symbols: "),
        ({"symbols": set(WORDS)}, OptionError, "^symbols: .*list"),
        *(({"symbols": {"haus": 0, "rot": row}}, OptionError, "^symbols: .*its own, from 0") for row in (0, -1)),
    ],
)
def test_bad_input_says_what_to_do(options: dict, error: type[Exception], remedy: str, vectors: Path) -> None:
    """The argument, as Python knows it."""
    with pytest.raises(error, match=remedy) as caught:
        ei.embedding_matrix(**{"symbols": WORDS, "source": vectors, **options})
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "options", "remedy"),
    [
        (nn.Embedding(5, 8), {}, r"6 symbols .* 5 rows.*resize_token_embeddings"),
        (nn.Embedding(6, 9), {}, r"Embedding\(6, 8\)"),
        (nn.Linear(6, 8), {}, "Linear"),
        (nn.Embedding(6, 8, device="meta"), {}, "to_empty"),
        (nn.Embedding(6, 8).half(), {"std": 1e6}, r"float16.*float\(\)"),
        (parametrizations.weight_norm(nn.Embedding(6, 8)), {}, "before"),  # what is written there would be lost
        (nn.Embedding.from_pretrained(torch.zeros(6, 8, dtype=torch.int8)), {}, r"float\(\)"),
    ],
)
def test_an_embedding_that_does_not_fit(module: nn.Module, options: dict, remedy: str, vectors: Path) -> None:
    before = module.weight.detach().clone()
    with pytest.raises(EmbinitError, match=f"^module: .*{remedy}"):
        ei.init_embedding_(module, WORDS, **{"source": vectors, **options})
    assert module.weight.is_meta or torch.equal(module.weight, before)


def test_what_was_read_and_what_is_missing(vectors: Path) -> None:
    assert vectors.read_text().startswith("5 8\n")  # gensim reads no .vec without its head
    loaded = ei.load_vectors(vectors, words=iter(["rot", "blau", "haus", "blau"]))
    assert repr(loaded) == f"Vectors({vectors}: 2 words x 8, 1 missing)"
    assert (loaded.words, loaded.missing) == (["haus", "rot"], ["blau"])
    with pytest.raises(OptionError, match=r"words=\['rot'\]"):
        ei.load_vectors(vectors, words="rot")
    with pytest.raises(VectorFileError, match=r"^path nowhere: .*check the path"):
        ei.load_vectors("nowhere")
    matrix, report = ei.embedding_matrix(iter(["<pad>", *WORDS]), vectors, seed=np.int64(1), pad=np.int64(0))
    assert (len(matrix), report["missing"]) == (7, ["zwei", "drei"])


def test_the_page_can_be_typed_in(tmp_path: Path, monkeypatch) -> None:
    """All blocks of docs/python.md, in their order, in a folder with small files of these names."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    words = ["cat", "dog", "the", "house"]
    ei.Vectors(words, np.random.default_rng(1).normal(0, 0.4, (4, 300)).astype(np.float32)).save("glove.6B.300d.txt")
    Path("vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, "##s"]))
    transformers.BertTokenizerFast("vocab.txt").save_pretrained("bert-base-uncased")
    bytes_of_gpt2 = ByteLevelBPETokenizer()
    bytes_of_gpt2.train_from_iterator(words, vocab_size=256, show_progress=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_of_gpt2._tokenizer).save_pretrained("gpt2")
    small = {"vocab_size": 256, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**small)).save_pretrained("gpt2")
    page = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE)
    known: dict = {}
    models = {}
    for block in blocks:
        exec(textwrap.dedent(block), known)
        models[type(known.get("model")).__name__] = known.get("model")
    assert len(blocks) > 2
    assert models["BertModel"].get_input_embeddings().weight[5].std() > 0.02  # cat: BERT's own sigma is 0.02
    assert len(models["GPT2LMHeadModel"].lm_head.weight) == 258
