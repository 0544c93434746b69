"""`ei.expand`, `ei.transfer` and `ei.expand_hf`: rows by their definition in float64, the numbers of the commands,
small models of transformers, and input that is refused without a trace."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import transformers
from expand_checkpoints import assert_same, dictionary, make
from tokenizers import AddedToken, ByteLevelBPETokenizer, Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from torch.nn.utils import parametrizations

import embinit_fairseq as ei
from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.methods import EXPANSION, METHODS, TRANSFER
from embinit_fairseq.resize.transfer import TransferRequest, transferring

SYMBOLS = ["<pad>", "fro", "do", "cat", "dog"]
PARTS = {"frodo": ["fro", "do"], "dodo": ["do", "do"], "catdog": {"cat": 0.25, "dog": 0.75}}
W = np.array([[0, 0.5, 0.5, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0.25, 0.75]])


@pytest.fixture
def tables() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    return {"in": generator.normal(size=(5, 3)), "out": generator.normal(size=(5, 3)), "bias": generator.normal(size=5)}


def test_rows_are_w_times_the_old_ones_and_the_bound_is_that_of_w(tables):
    before = copy.deepcopy(tables)
    new = ei.expand(tables, SYMBOLS, list(PARTS), "subword", subwords=PARTS)
    assert new.symbols == [*SYMBOLS, *PARTS]
    for name, old in tables.items():
        np.testing.assert_array_equal(old, before[name])
        np.testing.assert_array_equal(new.matrices[name][:5], old)
        np.testing.assert_allclose(new.matrices[name][5:], W @ old, rtol=1e-14)
    # p_do and p_cat^(1/4) p_dog^(3/4) and sqrt(p_fro p_do): every p stays below the limit, a search comes near to it
    p = np.random.default_rng(0).dirichlet(np.full(4, 0.5), 20000)
    measured = np.log1p(np.exp(np.log(p) @ W[:, 1:].T).sum(axis=1)).max()
    assert 0.95 * new.report["bound"] < measured <= new.report["bound"] * (1 + 1e-9)
    assert new.report["words"] == {"copied": 0, "composed": 3, "averaged": 0, "drawn": 0}
    rounded = {"frodo": {"fro": 0.33333334, "do": 0.66666670}}  # float32: they miss 1 by 4e-8
    assert ei.expand(tables, SYMBOLS, ["frodo"], "subword", subwords=rounded).report["bound"] > 0
    average = ei.expand(tables["out"], SYMBOLS, ["a", "b"], average_over="all")
    np.testing.assert_allclose(average.matrices[5:], np.tile(tables["out"].mean(axis=0), (2, 1)), rtol=1e-14)
    assert average.report["bound"] == math.log1p(2 / 5)
    assert ei.expand(tables["out"], SYMBOLS, ["a"], "gaussian").report["bound"] is None


def test_the_report_has_the_shares_of_a_text(tables):
    counts = {"cat": 5, "frodo": 3, "nobody": 2}
    report = ei.expand(tables, SYMBOLS, ["frodo"], counts=counts).report
    assert report["tokens"] == pytest.approx(
        {"copied": 0.5, "composed": 0, "averaged": 0.3, "drawn": 0, "unknown": 0.2}
    )
    new = ei.transfer(
        tables, SYMBOLS, ["cat", "frodo", "x"], "subword", subwords={"frodo": ["fro", "do"]}, counts=counts
    )
    assert new.report["tokens"] == pytest.approx(
        {"copied": 0.5, "composed": 0.3, "averaged": 0, "drawn": 0, "unknown": 0.2}
    )


def test_modules_and_precisions_stay_what_they_are(tables):
    embedding, output = nn.Embedding(5, 4, padding_idx=0).bfloat16(), nn.Linear(4, 5).bfloat16()
    output.weight = embedding.weight
    output.bias.requires_grad_(False)
    state = copy.deepcopy(output.state_dict())
    new = ei.expand(
        {"in": embedding, "out": output}, SYMBOLS, ["frodo"], "subword", subwords={"frodo": ["fro", "do"]}
    ).matrices
    assert_same(output.state_dict(), state)
    assert new["in"].weight is new["out"].weight
    assert (new["in"].num_embeddings, new["in"].padding_idx, new["out"].out_features) == (6, 0, 6)
    assert isinstance(new["in"], nn.Embedding)
    assert new["in"].weight.requires_grad
    assert not new["out"].bias.requires_grad
    for name, old in state.items():
        longer = new["out"].state_dict()[name]
        assert torch.equal(longer, torch.cat([old, old[1:3].double().mean(0, keepdim=True).bfloat16()]))
    moved = ei.transfer(embedding, SYMBOLS, ["dog", "cat", "<pad>"], "subword").matrices
    assert torch.equal(moved.weight, embedding.weight[[4, 3, 0]])
    assert moved.padding_idx == 2
    half = ei.expand(tables["in"].astype(np.float16), SYMBOLS, ["x"]).matrices
    assert half.dtype == np.float16


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gaussian", {"noise_scale": 0.5}),
        ("normal", {"seed": 3}),
        ("subword", {}),
        ("focus", {}),
        ("avg", {"average_over": "words"}),
    ],
)
def test_numbers_are_those_of_the_command(tmp_path, method, options):
    checkpoint = make(tmp_path, "lm")
    if method == "focus":
        options["vectors"] = str(tmp_path / "vectors.txt")
        numbers = np.random.default_rng(1).normal(size=(8, 4))
        lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip("w0 w1 w2 w3 w4 w5 x y".split(), numbers)]
        (tmp_path / "vectors.txt").write_text("".join(lines))
    record = checkpoint.expand(method, words=["x\tw0 w1", "y\tw3 w8"], **options)
    old, new = checkpoint.state["model"], checkpoint.written()["model"]
    names = [name for name, value in new.items() if value.shape != old[name].shape]
    subwords = {"x": ["w0", "w1"], "y": ["w3", "w8"]} if method == "subword" else None
    got = ei.expand({n: old[n] for n in names}, checkpoint.dictionary, ["x", "y"], method, subwords=subwords, **options)
    assert_same(got.matrices, {name: new[name] for name in names})
    assert [got.report[name] for name in ("n", "k", "bounds")] == [record[name] for name in ("n", "k", "bounds")]


@pytest.mark.parametrize("method", ["copy", "subword", "gaussian", "random"])
def test_transfer_has_the_numbers_of_the_command(tmp_path, method):
    checkpoint = make(tmp_path, "lm")
    path = tmp_path / "new.txt"
    path.write_text(dictionary(["w3", "new", "w1w2", "w0"]))
    files = {"checkpoint": checkpoint.path, "dictionary": checkpoint.dictionary, "output": str(checkpoint.output)}
    with transferring(TransferRequest(**files, new_dict=str(path), method=method, seed=2)) as (done, _, record):
        tables = {table.name: checkpoint.state["model"][table.keys[0]] for table in done.old_model.tables}
        keys = {table.name: table.keys[0] for table in done.old_model.tables}
    got = ei.transfer(tables, checkpoint.dictionary, path, method, seed=2)
    new = checkpoint.written()["model"]
    assert_same(got.matrices, {name: new[key] for name, key in keys.items()})
    assert (got.report["words"], got.report["bounds"]) == (record["words"], record["bounds"])


FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]


def test_the_mean_of_a_transfer_is_a_sum_divided_once():
    """49 x (1 / 49) is not 1: integers, and the bound of 3 new words for 49, are right to the last digit."""
    table = np.random.default_rng(1).integers(-9, 9, size=(53, 8)).astype(np.float64)
    words = [f"w{number}" for number in range(49)]
    new = ei.transfer(table, [*FAIRSEQ, *words], [*FAIRSEQ, *words, "x", "y", "z"], "avg")
    expected = [float(Fraction(sum(map(int, column)), 49)) for column in table[4:].T]
    assert new.matrices[53:].tolist() == [expected] * 3
    assert new.report["bounds"]["uniform"] == math.log1p(3 / 49)


OLD_WORDS, NEW_WORDS = "w0 w1 w2 w3 w4 w0w1 <mask> [SEP]".split(), "w3 w1w2 w0 new <mask>".split()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "distill"])
def test_a_list_is_the_dictionary_with_its_symbols(tmp_path, method):
    """Bit for bit; a mapping in another order, too. What is special keeps its row, and is no word."""
    numbers = np.random.default_rng(1).normal(size=(8, 4))
    words = "w0 w1 w2 w3 w4 x y new".split()
    (tmp_path / "v.txt").write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, numbers)))
    options = {"vectors": tmp_path / "v.txt"} if METHODS[method].needs_vectors else {}
    out, bias = torch.from_numpy(numbers[[*range(8), *range(4)]]), torch.from_numpy(numbers.reshape(-1)[:12])
    table, forms = {"out": out, "bias": bias}, []
    for name in ("old", "new"):
        (tmp_path / name).write_text(dictionary({"old": OLD_WORDS, "new": NEW_WORDS}[name]))
        symbols = [*FAIRSEQ, *{"old": OLD_WORDS, "new": NEW_WORDS}[name]]
        mapping = {symbol: row for row, symbol in reversed([*enumerate(symbols)])}
        forms.append((str(tmp_path / name), symbols, mapping))
    made = []
    for old, new in zip(*forms):
        if method in EXPANSION:
            more = options | ({"subwords": {"x": ["w0", "w1"], "y": ["w3"]}} if method == "subword" else {})
            made += [ei.expand(table, old, ["x", "y"], method, average_over=over, **more) for over in ("all", "words")]
        if method in TRANSFER:
            made.append(ei.transfer(table, old, new, method, **options))
            for row, before in ((0, 0), (1, 1), (2, 2), (3, 3), (8, 10)):
                np.testing.assert_array_equal(made[-1].matrices["out"][row], table["out"][before])
    assert {new.report["n"] for new in made} <= {12, 7}, "all rows, or the words, of which [SEP] is one of fairseq's"
    for at, of_a_list in enumerate(made):
        of_the_file = made[at % (len(made) // 3)]
        assert of_a_list.symbols == of_the_file.symbols
        assert {**of_a_list.report, "tokens": 0} == {**of_the_file.report, "tokens": 0}
        assert_same(of_a_list.matrices, of_the_file.matrices)


def test_special_symbols_of_other_lists(tables):
    """Of BERT, of a course, of GPT-2: no words; those of one role share a row, with or without the same name."""
    table = np.arange(18.0).reshape(6, 3)
    others = (
        ["[CLS]", "[PAD]", "[UNK]", "the", "dog", "<|endoftext|>"],
        ["<sos>", "<PAD>", "<unk>", "the", "dog", "<|im_end|>"],
    )
    for symbols in (*others, {name: row for row, name in enumerate(others[0])}):
        new = ei.expand(table, symbols, ["x"], average_over="words")
        assert (new.matrices[6].tolist(), new.report["n"]) == ([10.5, 11.5, 12.5], 2)
        new = ei.transfer(table, symbols, [*FAIRSEQ, "dog", "cat"], "random")
        assert new.matrices[[0, 1, 3]].tolist() == table[:3].tolist()
        assert new.report["words"] == {"copied": 0, "composed": 0, "averaged": 0, "drawn": 2}
        new = ei.transfer(table, symbols, ["cat", "<pad>", "<s>"], "avg")
        assert new.matrices.tolist() == [[10.5, 11.5, 12.5], [3, 4, 5], [0, 1, 2]]
    moved = ei.transfer(nn.Embedding(6, 3, padding_idx=1), others[0], ["dog", "cat", "<pad>"], "avg").matrices
    assert moved.padding_idx == 2


def test_a_token_that_begins_and_ends_texts():
    """GPT-2's `<|endoftext|>` is `<s>` and `</s>`; in the reverse direction what is generated at an end, `</s>`."""

    def tokenizer(words: str, **specials: str):
        model = WordLevel({word: row for row, word in enumerate(words.split())}, unk_token=words.split()[0])
        return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), **specials)

    end = "<|endoftext|>"
    gpt2 = tokenizer(f"{end} Ġcat ing", bos_token=end, eos_token=end, unk_token=end)
    llama = tokenizer("<unk> <s> </s> ▁cat", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    bert = tokenizer("[UNK] [CLS] [SEP] cat", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]")

    def moved(old, new):
        return ei.transfer(np.arange(len(old))[:, None] * np.ones((1, 2)), old, new, "avg").matrices[:, 0].tolist()

    assert moved(gpt2, llama)[1:] == moved(gpt2, bert)[1:] == [0, 0, 1]
    assert moved(llama, gpt2)[:2] == moved(bert, gpt2)[:2] == [2, 3]
    assert moved(llama, bert) == [0, 1, 2, 3]


def test_rows_without_a_symbol_are_never_averaged():
    table = np.arange(12.0).reshape(4, 3)
    new = ei.expand(table, {"a": 0, "b": 3}, ["x"])
    assert (new.matrices[4].tolist(), new.report["n"]) == ([4.5, 5.5, 6.5], 2)


def test_what_is_tied():
    """The same numbers in memory, whatever object has them; not what only begins there."""
    big = torch.arange(32.0).reshape(4, 8)
    square = torch.arange(16.0).reshape(4, 4)
    symbols = list("abcd")
    for one, other in ((big[:, :4], big[:, ::2]), (square, square.T), (square.numpy(), square.numpy().T)):
        new = ei.expand({"in": one, "out": other}, symbols, ["x"]).matrices
        for name, old in (("in", one), ("out", other)):
            expected = np.vstack([old, np.asarray(old).mean(0)])
            np.testing.assert_allclose(new[name], expected)
    for one, other in ((square, square.detach()), (square.numpy(), square.numpy())):
        new = ei.expand({"in": one, "out": other}, symbols, ["x"], "normal").matrices
        assert new["in"] is new["out"]


def gpt2_tokenizer(text: str, *specials: str):
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([text] * 3, vocab_size=275, special_tokens=[*specials], show_progress=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer)


@pytest.mark.parametrize("form", ["tokenizer", "list"])
def test_tokens_of_bytes_are_those_of_their_tokenizer(form):
    """GPT-2's: a part of a character keeps its row in a tokenizer with other rows. One token beyond ASCII is enough."""
    both = gpt2_tokenizer("die größe"), gpt2_tokenizer("größe fox", "<s>", "<pad>")
    names = [of_one.convert_ids_to_tokens(range(len(of_one))) for of_one in both]
    table = np.arange(len(names[0]))[:, None] * np.ones((1, 2))
    old, new = both if form == "tokenizer" else names
    moved = ei.transfer(table, old, new, "avg")
    row_of = {name: row for row, name in enumerate(names[0])}
    shared = [row for row, name in enumerate(names[1]) if name in row_of]
    assert len(shared) > 256
    assert moved.matrices[shared, 0].tolist() == [row_of[names[1][row]] for row in shared]
    assert moved.symbols == names[1]
    subwords = both[0].tokenize("ürg")
    grown = ei.expand(table, old, ["ürg"], "subword", subwords={"ürg": subwords})
    np.testing.assert_allclose(grown.matrices[-1, 0], np.mean([row_of[part] for part in subwords]))


def test_added_words_keep_their_rows_whatever_white_space_they_have():
    """Tokenizers of code have tokens of several spaces, tabs and line breaks, as GPT-NeoX's and Gemma's."""
    blanks = ["    ", "  ", " \n", "\n\n", "\n", "\t", " stent", "stent", "ö"]
    both = gpt2_tokenizer("ö die é è"), gpt2_tokenizer("ö fox é è")  # which have ö in bytes, too
    other = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"▁die": 0, "▁new": 1})))
    for tokenizer, added in zip((*both, other), (blanks, ["new", *reversed(blanks)], blanks[::-1])):
        tokenizer.add_tokens([AddedToken(blank, normalized=False) for blank in added])
    old, same, others = (tokenizer.get_vocab() for tokenizer in (*both, other))
    table = np.arange(len(old))[:, None] * np.ones((1, 2))
    moved, of_other = (ei.transfer(table, both[0], new, "avg").matrices[:, 0] for new in (both[1], other))
    shared = old.keys() & same.keys()
    assert shared > {*blanks, "Ã¶", "Ċ"}
    assert {name: moved[same[name]] for name in shared} == {name: old[name] for name in shared}
    assert {blank: of_other[others[blank]] for blank in blanks[:-1]} == {blank: old[blank] for blank in blanks[:-1]}


# ---- Refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"subwords": {"frodo": {"fro": 0.5, "do": 0.4}}}, "sum to 0.9; divide"),
        ({"subwords": {"frodo": {"fro": math.nan}}}, "sum to nan"),
        ({"subwords": {"frodo": ["fro", "xx"]}}, "'xx', of 'frodo'"),
        ({"subwords": {"bilbo": ["fro"]}}, "'bilbo' is no new word"),
        *(({"subwords": {"frodo": bad}}, "'frodo' has .*list of old symbols") for bad in ([], "fro do", None, 3)),
        ({"subwords": None}, "needs the old subwords of 'frodo'"),
        ({"matrices": np.ones((4, 3))}, "4 x 3 for 5 symbols; give one symbol for each row$"),
        ({"matrices": np.ones((8, 3))}, r"8 x 3 for 5 symbols; .*first rows, \[:5\]"),
        ({"matrices": np.ones((5, 3), dtype=int)}, "float32"),
        ({"matrices": [[1.0]] * 5}, "an array, a tensor"),
        ({"matrices": np.full((5, 3), np.nan)}, "NaN"),
        ({"matrices": {}}, "none"),
        ({"matrices": nn.LayerNorm(5)}, "LayerNorm.*give an nn.Embedding"),
        ({"matrices": nn.Sequential(nn.Embedding(5, 3))}, "Sequential.*give an nn.Embedding"),
        ({"matrices": parametrizations.weight_norm(nn.Linear(3, 5))}, "Linear.*or the tensors"),
        ({"bogus": 1}, r"^expand: .*'bogus'.*subwords, average_over, .*seed"),
        ({"words": ["cat"]}, "already; remove"),
        ({"words": []}, "at least one"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_arrays_refuse(tables, change, remedy):
    arguments = {"matrices": tables, "words": ["frodo"], "method": "subword", "subwords": PARTS} | change
    arguments["subwords"] = (
        {word: arguments["subwords"][word] for word in change.get("subwords") or ["frodo"]}
        if arguments["subwords"]
        else None
    )
    with pytest.raises(OptionError, match=remedy):
        ei.expand(arguments.pop("matrices"), SYMBOLS, arguments.pop("words"), **arguments)


def test_what_has_no_word_is_refused(tables):
    with pytest.raises(OptionError, match=r"^transfer: .*'average_over'.*subwords, counts"):
        ei.transfer(tables, SYMBOLS, ["cat"], average_over="all")
    for symbols, over in ((["<pad>", "<s>"], "words"), ({"madeupword0001": 1}, "all")):
        with pytest.raises(OptionError, match="average_over"):
            ei.expand(np.ones((2, 3)), symbols, ["x"], average_over=over)


def test_the_functions_are_shown():
    assert [name for name in dir(ei) if not name.startswith("__")] == sorted(ei.__all__)
    assert "__version__" in dir(ei)
    assert all(callable(getattr(ei, name)) for name in ei.__all__)
