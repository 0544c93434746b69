"""`embinit_fairseq.embeddings`: the numbers of the flag, for whoever has no fairseq."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from torch import nn

import embinit_fairseq as ei
from embinit_fairseq.cli.main import main
from embinit_fairseq.embeddings import _vocabulary
from embinit_fairseq.errors import CoverageError, DimensionError, OptionError
from embinit_fairseq.hooks.apply import embed_init
from embinit_fairseq.hooks.options import request_from
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


@pytest.mark.parametrize("std", [None, "0.25x"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_numbers_are_those_of_the_flag(strategy: str, std: str | None, vectors: Path) -> None:
    if std is not None and not STRATEGIES[strategy].scaled:
        pytest.skip("keeps the sigma it has")
    dictionary = Dictionary()
    for word in [*WORDS, "&apos;s"]:
        dictionary.add_symbol(word)
    model, paths = Model(dictionary), [f"encoder={vectors}"] if STRATEGIES[strategy].needs_source else None
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    cfg = Namespace(embed_init=strategy, embed_init_path=paths, embed_init_std=std, embed_init_oov="mean", seed=3)
    embed_init(model, task, cfg, request_from(cfg))
    matrix, report = ei.embedding_matrix(dictionary, vectors, strategy, dim=8, oov="mean", seed=3, std=std)
    np.testing.assert_array_equal(matrix, model.encoder.embed_tokens.weight.detach())
    assert report["rows"] == len(dictionary)
    assert report.get("found", 4) == 4


def test_an_embedding_is_filled_in_place_and_stays_tied(vectors: Path) -> None:
    embedding, output = nn.Embedding(8, 8, padding_idx=0), nn.Linear(8, 8, bias=False)
    output.weight = embedding.weight
    before, state = embedding.weight.detach().clone(), torch.get_rng_state()
    report = ei.init_embedding_(embedding, {"<pad>": 0, "haus": 1, "HAUS": 5}, vectors, "pretrained")
    assert torch.equal(torch.get_rng_state(), state)
    assert output.weight is embedding.weight
    assert report["rows_by_rule"] == {"exact": 1, "casefold": 1}
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


def test_neighbours_are_those_with_the_largest_cosine(vectors: Path, tmp_path: Path, capsys) -> None:
    loaded = ei.load_vectors(vectors)
    cosines = nn.functional.cosine_similarity(torch.tensor(loaded.matrix), torch.tensor(loaded["haus"]))
    order = [loaded.words[row] for row in cosines.argsort(descending=True)]
    assert [word for word, _ in loaded.most_similar("haus", 9)] == order[1:]
    assert loaded.most_similar(loaded["haus"], 2)[0] == ("haus", pytest.approx(1, abs=1e-6))
    assert main(["save-vectors", "--vectors", str(vectors), "--output", str(tmp_path / "all.npz")]) == 0
    for output in (vectors, tmp_path / "all.npz"):  # what is read, and what is there
        content = Path(output).read_bytes()
        assert main(["save-vectors", "--vectors", str(vectors), "--output", str(output)]) == 2
        assert Path(output).read_bytes() == content
    assert main(["save-vectors", "--vectors", str(vectors), "--output", str(vectors), "--force"]) == 2
    assert main(["neighbors", "haus", "--vectors", str(tmp_path / "all.npz"), "--count", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"haus: {order[1]} {loaded.most_similar('haus')[0][1]:.3f}, {order[2]}" in printed
    np.testing.assert_array_equal(ei.load_vectors(tmp_path / "all.npz", words=["rot"]).matrix, [loaded["rot"]])
    assert main(["neighbors", "Haus", "--vectors", str(vectors)]) == 2


@pytest.mark.parametrize(
    ("options", "error", "remedy"),
    [
        ({"strategy": "xavir"}, OptionError, "pretrained_xavier"),
        ({"source": None}, OptionError, "source"),
        ({"source": None, "strategy": "xavier"}, OptionError, "dim"),
        ({"std": 0.1, "strategy": "pretrained"}, OptionError, "pretrained_xavier, shuffled"),
        ({"oov": "ones"}, OptionError, "zeros"),
        ({"match": ["fuzzy"]}, OptionError, "casefold"),
        ({"pad": "<pad>"}, OptionError, "pad"),
        ({"dim": 9}, DimensionError, "9"),
        ({"symbols": ["Hütte"]}, CoverageError, "Hütte"),
        ({"symbols": []}, OptionError, "symbols"),
    ],
)
def test_bad_input_says_what_to_do(options: dict, error: type[Exception], remedy: str, vectors: Path) -> None:
    with pytest.raises(error, match=remedy):
        ei.embedding_matrix(**{"symbols": WORDS, "source": vectors, **options})


def test_an_embedding_that_does_not_fit(vectors: Path) -> None:
    with pytest.raises(DimensionError, match=r"6 symbols .* 5 rows"):
        ei.init_embedding_(nn.Embedding(5, 8), WORDS, vectors)
    with pytest.raises(OptionError, match="Linear"):
        ei.init_embedding_(nn.Linear(5, 8), WORDS, vectors)
