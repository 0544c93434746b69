"""`ei.expand`, `ei.transfer` and `ei.expand_hf`: rows by their definition in float64, the numbers of the commands,
small models of transformers, and input that is refused without a trace."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import transformers
from expand_checkpoints import assert_same, dictionary, divergence, make
from safetensors.torch import save_file
from tokenizers import AddedToken, ByteLevelBPETokenizer, Tokenizer, models, normalizers, pre_tokenizers
from torch import nn
from torch.nn.utils import parametrizations

import embinit_fairseq as ei
from embinit_fairseq.errors import EmbinitError, OptionError
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


# ---- Models of transformers -----------------------------------------------------------------------------------------

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"haus ##tor rot ##lich ab a b c d".split()]
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 14}
GPT2 = {"vocab_size": 14, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 2, "eos_token_id": 3}
SEQ2SEQ = {"vocab_size": 14, "d_model": 8, "pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2}
SIDES = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")}
MODELS = {
    "GPT2LMHeadModel": GPT2,
    "BertForMaskedLM": SMALL,
    "RobertaForMaskedLM": SMALL | {"tie_word_embeddings": False},
    "T5ForConditionalGeneration": {**SEQ2SEQ, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2},
    "BartForConditionalGeneration": {**SEQ2SEQ, **SIDES},
    "MarianMTModel": {**SEQ2SEQ, **SIDES},
    "LlamaForCausalLM": SMALL,
    "PhiForCausalLM": SMALL,
}


def tokenizer_of(tokens=TOKENS):
    rows = tokens if isinstance(tokens, dict) else {token: row for row, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(rows, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    specials = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials)


def model_of(name: str, **options):
    kind = getattr(transformers, name)
    torch.manual_seed(1)
    model = kind(kind.config_class(**MODELS[name] | options)).double().eval()
    biases = [value for name, value in model.named_buffers() if name == "final_logits_bias"]
    for value in [*(value for value in model.parameters() if value.requires_grad), *biases]:  # biases are not 0
        value.data += 0.3 * torch.randn_like(value)
    return model


def logits_of(model, ids):
    with torch.inference_mode():
        more = {"decoder_input_ids": torch.tensor([ids])} if model.config.is_encoder_decoder else {}
        return model(input_ids=torch.tensor([ids]), **more).logits[0]


def ties(model) -> list[list[str]]:
    names: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [of_one for of_one in names.values() if len(of_one) > 1]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers(name, tmp_path):
    model, tokenizer = model_of(name), tokenizer_of()
    ids, state, tied = [5, 6, 9, 10, 12], copy.deepcopy(model.state_dict()), ties(model)
    before = logits_of(model, ids)
    report = ei.expand_hf(model, tokenizer, ["haustor", AddedToken("rotlich", single_word=True)], "subword")
    assert report["rows"] == {"haustor": 14, "rotlich": 15}
    assert model.config.vocab_size == len(tokenizer) == 16
    assert tokenizer("haustor ab")["input_ids"] == [14, 9]
    grown = [key for key, value in model.state_dict().items() if value.shape != state[key].shape]
    assert ties(model) == tied
    assert len(grown) == {"GPT2": 2, "Llam": 2, "PhiF": 3, "Bart": 5, "Mari": 5}.get(name[:4], 4)
    for key in grown:
        old, new = (value[0] if len(value) == 1 else value for value in (state[key], model.state_dict()[key]))
        expected = torch.cat([old, old[[5, 6]].mean(0, keepdim=True), old[[7, 8]].mean(0, keepdim=True)])
        torch.testing.assert_close(new, expected, rtol=1e-14, atol=0)
    assert_same(
        {key: value for key, value in model.state_dict().items() if key not in grown},
        {key: value for key, value in state.items() if key not in grown},
    )
    after = logits_of(model, ids)
    torch.testing.assert_close(after[:, :14], before, rtol=1e-12, atol=1e-12)
    assert 0 < divergence(before, after).max() <= report["bound"]
    if model.can_generate():
        assert model.generate(torch.tensor([[5, 14, 15]]), max_new_tokens=3, min_new_tokens=3).shape[1] >= 4
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert torch.equal(logits_of(again, [14, 15]), logits_of(model, [14, 15]))


def test_free_rows_are_taken_first_and_the_rest_is_rounded_up():
    """Three rows have no token. Rows that fill up are means, too, and count in k."""
    model, tokenizer = model_of("LlamaForCausalLM", vocab_size=17), tokenizer_of()
    old = model.lm_head.weight.detach().clone()
    report = ei.expand_hf(model, tokenizer, ["x", "y"], average_over="words")
    assert model.lm_head.weight.shape == (17, 8)
    assert report["rows"] == {"x": 14, "y": 15}
    assert report["n"] == 9
    torch.testing.assert_close(model.lm_head.weight[14:16], old[5:14].mean(0).expand(2, 8))
    assert torch.equal(model.lm_head.weight[16], old[16])
    assert report["bound"] == math.log1p(2 / 9)
    model(torch.tensor([[14]])).logits.sum().backward()  # a gradient of the old shape must not stay
    report = ei.expand_hf(model, tokenizer, iter(["z", "zz"]), pad_to_multiple_of=8)
    model(torch.tensor([[17]])).logits.sum().backward()
    assert (report["n"], report["k"], len(model.lm_head.weight), model.lm_head.out_features) == (16, 8, 24, 24)
    assert report["bound"] == math.log1p(8 / 16)


def test_generated_text_has_the_new_word():
    """Its letters are no bytes, as GPT-2's decoder takes them for: without the space `ß` would be half a character."""
    tokenizer = gpt2_tokenizer("die größe der stadt")
    model = model_of("GPT2LMHeadModel", vocab_size=len(tokenizer))
    with pytest.raises(OptionError, match=r"'Straße'.*give it with the space before it, ' Straße'"):
        ei.expand_hf(model, tokenizer, ["Straße"])
    row = ei.expand_hf(model, tokenizer, [" Straße", "street"])["rows"][" Straße"]
    ids = tokenizer("die Straße in der street")["input_ids"]
    assert row in ids
    assert tokenizer.decode(ids) == "die Straße in der street"


def test_words_that_were_added_with_a_space_begin_a_word(tmp_path):
    """They have the vector of the word, and are the word of another tokenizer, also beyond ASCII."""
    tokenizer = gpt2_tokenizer("die größe der stadt")
    model = model_of("GPT2LMHeadModel", vocab_size=len(tokenizer))
    vectors = {"größe": [1, 0], "Straße": [1, 0.1], "stadt": [-1, 0]}
    ei.Vectors([*vectors], np.array([*vectors.values()], dtype=np.float32)).save(tmp_path / "v.vec")
    rows = ei.expand_hf(model, tokenizer, [" Straße"], "focus", vectors=tmp_path / "v.vec")["rows"]
    table = model.lm_head.weight.detach()
    torch.testing.assert_close(table[rows[" Straße"]], table[tokenizer.convert_tokens_to_ids("ĠgrÃ¶ÃŁe")])
    for new in (["▁der", "▁Straße", "Straße"], ["ĠStraÃŁe", "StraÃŁe"]):
        moved = ei.transfer(np.arange(len(table))[:, None] * np.ones((1, 2)), tokenizer, new, "avg")
        of_word = [row for row, name in enumerate(moved.symbols) if name in ("▁Straße", "ĠStraÃŁe")]
        assert moved.matrices[of_word, 0].tolist() == [rows[" Straße"]] * len(of_word)
        others = [row for row, name in enumerate(moved.symbols) if name in ("Straße", "StraÃŁe")]
        assert rows[" Straße"] not in moved.matrices[others, 0].tolist()


def test_words_of_scripts_without_spaces_are_means_of_what_text_has(tmp_path):
    """Sentencepiece writes ▁ before them only where a text begins; in vectors and in a word after a space it counts."""
    pieces = ["<unk>", "[PAD]", "▁", "我们", "北京", "大学", "▁the", "st", "ent", "😂"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(row)) for row, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="[PAD]")
    model = model_of("GPT2LMHeadModel", vocab_size=len(pieces))
    old = model.lm_head.weight.detach().clone()
    save_file({"wte.weight": old.float()}, tmp_path / "model.safetensors")
    means = {"北京大学": [4, 5], "😂😂": [9, 9], " stent": [2, 7, 8]}
    assert all(fast(f"我们{word}", add_special_tokens=False)["input_ids"][2:] == rows for word, rows in means.items())
    rows = ei.expand_hf(model, fast, [*means], "subword")["rows"]
    for word, parts in means.items():
        torch.testing.assert_close(model.lm_head.weight[rows[word]], old[parts].mean(0))
    words = ["我们", *map(str.strip, means)]
    matrix, _ = ei.embedding_matrix(words, tmp_path, "pretrained", oov="subword")
    for row, parts in zip(matrix[1:], means.values()):
        np.testing.assert_allclose(row, old[parts].mean(0), rtol=1e-6)


def test_no_bound_without_a_softmax_or_linear_logits():
    for kind, options in (("BertForSequenceClassification", {}), ("Gemma2ForCausalLM", {"head_dim": 4})):
        model_class = getattr(transformers, kind)
        model = model_class(model_class.config_class(**SMALL, **options))
        assert ei.expand_hf(model, tokenizer_of(), ["haustor"])["bound"] is None


def test_similar_words_of_a_model(tmp_path):
    """By FOCUS, words that were added have no marker: `rotwein` is between `rot` and `ab`, which have vectors."""
    vectors = {"rot": [1, 0, 0], "ab": [0, 1, 0], "a": [0, 0, 1], "rotwein": [1, 0.9, 0]}
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in vectors.items()))
    model = model_of("LlamaForCausalLM")
    report = ei.expand_hf(model, tokenizer_of(), ["rotwein"], "focus", vectors=path)
    rows, share = model.lm_head.weight, (1 + 0.1 / math.hypot(1, 0.9)) / 2  # sparsemax of two cosines
    torch.testing.assert_close(rows[14], share * rows[7] + (1 - share) * rows[9], rtol=1e-6, atol=1e-7)
    assert report["words"]["composed"] == 1
    assert report["bound"] > 0


# ---- Refused --------------------------------------------------------------------------------------------------------


def untied(equal: bool):
    model = model_of("GPT2LMHeadModel")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone() + (not equal))
    model.config.tie_word_embeddings = not equal
    return model


def two_vocabularies():
    return model_of("MarianMTModel", share_encoder_decoder_embeddings=False, decoder_vocab_size=14)


def two_configured_vocabularies():
    kind, sizes = transformers.FSMTForConditionalGeneration, {"src_vocab_size": 14, "tgt_vocab_size": 14}
    return kind(kind.config_class(langs=["de", "en"], **{"d_model": 8, **sizes, **SIDES}))


class HiddenLanguage(transformers.PreTrainedTokenizerFast):
    """M2M100's: texts have the id of a language, which is not in the vocabulary."""

    def __call__(self, *args, **options):
        ids = super().__call__(*args, **options)["input_ids"]
        return {"input_ids": ids if "add_special_tokens" in options else [len(TOKENS) - 1, *ids]}


def hidden_language():
    return HiddenLanguage(tokenizer_object=tokenizer_of(TOKENS[:-1]).backend_tokenizer)


def with_gaps():
    return tokenizer_of({token: row + 2 * (row == 11) for row, token in enumerate(TOKENS[:12])})


def transposed():
    kind = transformers.MobileBertForMaskedLM
    sizes = {"embedding_size": 4, "hidden_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8}
    return kind(kind.config_class(**SMALL | sizes))


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"tokenizer": lambda: tokenizer_of([*TOKENS, "e"])}, "tokenizer of this model|without words"),
        ({"tokenizer": lambda: tokenizer_of({t: n + (n == 13) for n, t in enumerate(TOKENS)})}, "15 tokens"),
        ({"tokenizer": lambda: tokenizer_of().backend_tokenizer}, "PreTrainedTokenizerFast"),
        ({"model": lambda: untied(True)}, r"tie_weights\(\)"),
        ({"model": lambda: untied(False)}, r"tie_weights\(\)"),
        ({"model": lambda: nn.Embedding(14, 8)}, "ei.expand"),
        ({"words": ["haustor", "rot"]}, "'rot'.*remove it"),
        ({"words": ["ROT"]}, "one token already, 'rot'.*remove it"),
        ({"words": ["haustor", "haustor"]}, "remove it"),
        ({"words": ["haustor", "Haustor"]}, "normalized=False"),
        ({"words": ["ä"], "method": "subword"}, "take avg"),
        ({"words": "haustor"}, r"words=\['haustor'\]"),
        ({"method": "focus"}, "needs vectors"),
        ({"method": "distill"}, "expand-vocab"),
        ({"method": "best"}, "choose from avg"),
        ({"vectors": "x.txt"}, "leave it out"),
        ({"average_over": "some"}, "choose from all, words"),
        ({"bogus": 1}, r"^expand_hf: .*'bogus'.*pad_to_multiple_of, seed, .*vectors"),
        ({"counts": {"rot": -1}}, "counts"),
        ({"pad_to_multiple_of": 0}, "at least 1"),
        ({"words": ["haustor\r"]}, "take it off"),
        ({"tokenizer": with_gaps, "words": ["haustor", "rotlich"]}, "gaps"),
        ({"model": two_vocabularies}, "of each"),
        ({"model": two_configured_vocabularies}, "of each"),
        ({"tokenizer": hidden_language}, r"id 13.*add_tokens\("),
        ({"model": lambda: model_of("GPT2LMHeadModel").to("meta")}, "offloading"),
        ({"model": transposed}, "ei.expand the matrices"),
    ],
)
def test_what_is_refused_leaves_model_and_tokenizer_as_they_were(change, remedy):
    given = {"model": lambda: model_of("GPT2LMHeadModel"), "tokenizer": tokenizer_of, "words": ["haustor"]} | change
    model, tokenizer = given.pop("model")(), given.pop("tokenizer")()
    state, vocabulary = copy.deepcopy(model.state_dict()), tokenizer.get_vocab()
    with pytest.raises(EmbinitError, match=remedy) as refused:
        ei.expand_hf(model, tokenizer, given.pop("words"), **given)
    assert "\n" not in str(refused.value)
    assert_same(model.state_dict(), state) if not any(value.is_meta for value in state.values()) else None
    assert tokenizer.get_vocab() == vocabulary
    if hasattr(model, "config"):
        assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == 14


def test_the_remedy_for_a_tied_model_that_is_untied():
    model = untied(True)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    ei.expand_hf(model, tokenizer_of(), ["haustor"])
    assert model.lm_head.weight is model.transformer.wte.weight


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
