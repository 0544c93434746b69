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
from torch import nn
from torch.nn.utils import parametrizations

import embinit_fairseq as ei
from embinit_fairseq.cli.main import main
from embinit_fairseq.embed_init.fill import embed_init
from embinit_fairseq.embed_init.request import request_from
from embinit_fairseq.embed_init.slots import find_slots
from embinit_fairseq.embeddings import _vocabulary
from embinit_fairseq.errors import CoverageError, DimensionError, EmbinitError, OptionError, VectorFileError
from embinit_fairseq.init.strategies import STRATEGIES

WORDS = ["haus", "Baum", "rot", "ein", "zwei", "drei"]


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    rows = np.random.default_rng(1).normal(0, 0.4, (5, 8))
    path = tmp_path / "vectors.vec"
    ei.Vectors([*WORDS[:4], "wort"], rows.astype(np.float32)).save(path)
    return path


class Model(nn.Module):
    """An encoder, as far as the flag looks."""

    def __init__(self, dictionary: Dictionary) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.embed_tokens = nn.Embedding(len(dictionary), 8, padding_idx=dictionary.pad())
        self.encoder.dictionary = dictionary


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_numbers_are_those_of_the_flag(strategy: str, vectors: Path) -> None:
    std = "0.25x" if STRATEGIES[strategy].scaled else None
    dictionary = Dictionary()
    for word in [*WORDS, "&apos;s"]:
        dictionary.add_symbol(word)
    model, paths = Model(dictionary), [f"encoder={vectors}"] if STRATEGIES[strategy].needs_source else None
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    for oov in ("mean", "gaussian", "zeros", "subword"):
        if oov == "subword" and STRATEGIES[strategy].fills:
            ei.Vectors(["▁haus", *"zweidr", "▁rot"], np.random.default_rng(2).normal(size=(8, 8))).save(vectors)
        cfg = Namespace(embed_init=strategy, embed_init_path=paths, embed_init_std=std, embed_init_oov=oov, seed=3)
        embed_init(find_slots(model, task), task, cfg, request_from(cfg))
        matrix, report = ei.embedding_matrix(dictionary, vectors, strategy, dim=8, oov=oov, seed=3, std=std)
        np.testing.assert_array_equal(matrix, model.encoder.embed_tokens.weight.detach())
        record = json.loads(cfg.embed_init_record)["slots"]["encoder"]
        assert record["oov"] == (oov if STRATEGIES[strategy].fills else None)
        if oov == "zeros":
            zero_rows = [row for row in range(len(matrix)) if not matrix[row].any()]
            assert zero_rows == ([0, 1, 2, 3, 8, 9, 10] if STRATEGIES[strategy].fills else [1])
    if STRATEGIES[strategy].fills:
        assert record["composed"] == 3  # ein, zwei, drei
        return
    assert (report["rows"], report.get("found", 4)) == (len(dictionary), 4)


def test_rules_can_be_switched_off_and_a_slot_has_draws_of_its_own(vectors: Path) -> None:
    symbols = ["haus", "HAUS", "ha", "zwei"]
    tables = [
        ei.embedding_matrix(symbols, vectors, "pretrained", oov="xavier", slot=slot, match=match)
        for slot, match in (("encoder", ("exact", "casefold")), ("encoder", ("exact",)), ("decoder", ("exact",)))
    ]
    assert [table.report["rows_by_rule"] for table in tables] == [{"exact": 1, "casefold": 1}, *[{"exact": 1}] * 2]
    assert [table.report["coverage_types"] for table in tables] == [0.5, 0.25, 0.25]
    same = [(tables[1].matrix == table.matrix).all(axis=1).tolist() for table in tables]
    assert same == [[True, False, True, True], [True] * 4, [True, False, False, False]]
    assert tables[1].report["matched"]["std"] == pytest.approx(ei.load_vectors(vectors)["haus"].std(ddof=1), rel=1e-5)
    with pytest.raises(VectorFileError, match="npz"):
        ei.load_vectors(vectors, format="npz")


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
    assert _vocabulary(tokenizer, None).roles == dict(enumerate(["pad", "unk", "bos", "eos", "mask"]))  # as fairseq's
    assert _vocabulary(tokenizer, "rot").roles == dict(enumerate(["unk", "bos", "eos", "mask"], 1)) | {7: "pad"}
    matrix, report = ei.embedding_matrix(tokenizer, vectors, "pretrained", oov="zeros")
    assert [word for word, row in zip(words, matrix) if row.any()] == ["haus", "rot"]
    assert report["pad"] == 0
    assert ei.init_embedding_(nn.Embedding(8, 8), tokenizer, vectors)["pad"] == 0
    with pytest.raises(OptionError, match=r"^module: .* row 1.* row 0.*tokenizer of this model.*pad="):
        ei.init_embedding_(nn.Embedding(8, 8, padding_idx=1), tokenizer, vectors)
    assert ei.init_embedding_(nn.Embedding(8, 8, padding_idx=1), tokenizer, vectors, pad=1)["pad"] == 1


def test_pieces_of_bytes_are_the_text_they_spell(tmp_path: Path) -> None:
    """As GPT-2 has them; what was added to a tokenizer is text as it is."""

    class Tokenizer:
        def get_vocab(self) -> dict[str, int]:
            return {"ĠÃ¼ber": 0, "naÃ¯ve": 1, "Ã": 2, "Ã¼": 3, "Ġhaus": 4}

        def get_added_vocab(self) -> dict[str, int]:
            return {"Ã¼": 3}

    ei.Vectors(["über", "haus", "Ã", "ü"], np.eye(4, dtype=np.float32)).save(tmp_path / "v.vec")
    matrix, report = ei.embedding_matrix(Tokenizer(), tmp_path / "v.vec", "pretrained", oov="zeros")
    np.testing.assert_array_equal(matrix, np.eye(4)[[0, 0, 0, 0, 1]] * [[1], [0], [0], [0], [1]])
    assert report["missing"] == ["naïve", "Ã¼"]


def test_neighbours_are_those_with_the_largest_cosine(vectors: Path, tmp_path: Path, capsys) -> None:
    loaded = ei.load_vectors(vectors)
    cosines = nn.functional.cosine_similarity(torch.tensor(loaded.matrix), torch.tensor(loaded["haus"]))
    order = [loaded.words[row] for row in cosines.argsort(descending=True)]
    assert [word for word, _ in loaded.most_similar("haus", 9)] == order[1:]
    assert loaded.most_similar(loaded["haus"], 2)[0] == ("haus", pytest.approx(1, abs=1e-6))
    large = ei.Vectors(["a", "b"], np.full((2, 4), 1e30, np.float32))  # its squares leave single precision
    assert large.most_similar("a") == [("b", pytest.approx(1, abs=1e-6))]
    assert main(["save-vectors", "--vectors", str(vectors), "--output", str(tmp_path / "all.npz")]) == 0
    for output in (vectors, tmp_path / "all.npz"):  # what is read, and what is there
        content = Path(output).read_bytes()
        assert main(["save-vectors", "--vectors", str(vectors), "--output", str(output)]) == 2
        assert Path(output).read_bytes() == content
    assert main(["save-vectors", "--vectors", str(vectors), "--output", str(vectors), "--force"]) == 2
    (tmp_path / "dict.txt").write_text("other 1\n")
    less = ["--dict", str(tmp_path / "dict.txt"), "--output", str(tmp_path / "less.vec")]
    assert main(["save-vectors", "--vectors", str(vectors), *less]) == 2
    assert f"--dict {less[1]}: none of its words" in capsys.readouterr().err
    assert main(["neighbors", "haus", "--vectors", str(tmp_path / "all.npz"), "--count", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"haus: {order[1]} {loaded.most_similar('haus')[0][1]:.3f}, {order[2]}" in printed
    np.testing.assert_array_equal(ei.load_vectors(tmp_path / "all.npz", words=["rot"]).matrix, [loaded["rot"]])
    assert main(["neighbors", "Haus", "--vectors", str(vectors)]) == 2
    capsys.readouterr()
    assert main(["neighbors", "Haus", "rot", "--vectors", str(vectors)]) == 0
    said = capsys.readouterr()
    assert ("Haus" in said.err, said.out.startswith("rot: ")) == (True, True)


@pytest.mark.parametrize(
    ("options", "error", "remedy"),
    [
        ({"strategy": "xavir"}, OptionError, "^strategy=.*pretrained_xavier"),
        ({"source": None}, OptionError, "^source: "),
        ({"source": "nowhere"}, VectorFileError, "^source nowhere.*check"),
        ({"source": "concat:a"}, OptionError, "^source concat:a"),
        ({"source": None, "strategy": "xavier"}, OptionError, "^dim: "),
        ({"std": 0.1, "strategy": "pretrained"}, OptionError, "^std=.*pretrained_xavier, shuffled"),
        ({"std": "wide"}, OptionError, "^std wide.*0.25x"),
        ({"oov": "ones"}, OptionError, "^oov=.*zeros"),
        ({"oov": "subword"}, OptionError, "oov `subword`.*another oov"),
        ({"format": "pdf"}, OptionError, "format pdf.*npz"),
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
        (nn.utils.spectral_norm(nn.Embedding(6, 8)), {}, "before"),
        (nn.Embedding.from_pretrained(torch.zeros(6, 8, dtype=torch.int8)), {}, r"float\(\)"),
        (nn.Embedding(6, 8), {"source": "nowhere"}, "check"),
    ],
)
def test_an_embedding_that_does_not_fit(module: nn.Module, options: dict, remedy: str, vectors: Path) -> None:
    before = module.weight.detach().clone()
    with pytest.raises(EmbinitError, match=f"^(module|source nowhere): .*{remedy}"):
        ei.init_embedding_(module, WORDS, **{"source": vectors, **options})
    assert module.weight.is_meta or torch.equal(module.weight, before)


def test_what_was_read_and_what_is_missing(vectors: Path) -> None:
    assert vectors.read_text().startswith("5 8\n")  # gensim reads no .vec without its head
    loaded = ei.load_vectors(vectors, words=["rot", "blau", "haus", "blau"])
    assert repr(loaded) == f"Vectors({vectors}: 2 words x 8, 1 missing)"
    assert (loaded.words, loaded.missing) == (["haus", "rot"], ["blau"])
    assert ei.load_vectors(vectors, words=(word for word in ["rot", "blau"])).missing == ["blau"]
    with pytest.raises(OptionError, match=r"words=\['rot'\]"):
        ei.load_vectors(vectors, words="rot")
    assert len(ei.embedding_matrix((word for word in WORDS), vectors, seed=np.int64(1), pad=np.int64(0)).matrix) == 6
    assert ei.embedding_matrix(["<pad>", *WORDS], vectors, pad=0).report["missing"] == ["zwei", "drei"]
    with pytest.raises(VectorFileError, match=r"^path nowhere: .*check the path"):
        ei.load_vectors("nowhere")
    other = vectors.with_name("other.txt")
    other.write_text("casa " + " ".join("1" for _ in range(8)) + "\n")
    with pytest.raises(CoverageError, match=r"other\.txt: none"):  # each of several files must have a word
        ei.embedding_matrix(WORDS, f"concat:{vectors},{other}")
    report = ei.embedding_matrix([*WORDS, "casa"], f"avg:{vectors},{other}").report
    assert [source["found"] for source in report["sources"]] == [report["found"] - 1, 1]


def test_the_page_can_be_typed_in(tmp_path: Path, monkeypatch) -> None:
    """All blocks of docs/python.md, in their order, in a folder with small files of these names."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    words = ["cat", "dog", "the", "house"]
    ei.Vectors(words, np.random.default_rng(1).normal(0, 0.4, (4, 300)).astype(np.float32)).save("glove.6B.300d.txt")
    Path("vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, "##s"]))
    transformers.BertTokenizerFast("vocab.txt").save_pretrained("bert-base-uncased")
    page = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE)
    known: dict = {}
    for block in blocks:
        exec(textwrap.dedent(block), known)
    assert len(blocks) > 2
    assert known["model"].get_input_embeddings().weight[5].std() > 0.02  # cat: BERT's own sigma is 0.02
