"""New words for models of transformers (`ei.expand_hf`)."""

import copy
import math

import numpy as np
import pytest
import torch
import transformers
from expand_checkpoints import assert_same, divergence
from safetensors.torch import save_file
from test_new_words import gpt2_tokenizer
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from torch import nn

import embinit_fairseq as ei
from embinit_fairseq.errors import EmbinitError, OptionError
from embinit_fairseq.vocab.preparation_steps import Preparation

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
    with pytest.raises(OptionError, match=r"'Ġstreet' is added; remove it, or give ' street'$"):
        ei.expand_hf(model, tokenizer, ["Ġstreet"])
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


@pytest.mark.parametrize(
    ("word", "is_normalised", "remedy"),
    [
        ("▁stent", False, "'▁stent' is added; remove it, or give ' stent'$"),
        ("▁stent", True, "'▁stent' is added; remove it, or give ' stent'$"),
        (" stent", True, r"' stent' is added; .*give AddedToken\(' stent', normalized=False\)$"),
        (" stent", False, None),
        ("stent", False, None),
        ("stent", True, None),
        (AddedToken(" stent", normalized=False), True, None),
    ],
)
def test_words_are_found_in_the_middle_of_a_text(word, is_normalised, remedy):
    """Llama's tokenizers write ▁ for spaces, before or after they look for added words; some found them alone only."""
    pieces = ["<unk>", "[PAD]", "▁", "a", "▁a", "s", "t", "e", "n", "▁st", "ent", "(", ")"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(row)) for row, piece in enumerate(pieces)], unk_id=0))
    if is_normalised:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="[PAD]")
    model = model_of("LlamaForCausalLM", vocab_size=len(pieces))
    if remedy is not None:
        with pytest.raises(OptionError, match=f"words: the tokenizer reads .* also when {remedy}"):
            ei.expand_hf(model, fast, [word])
        return
    (row,) = ei.expand_hf(model, fast, [word])["rows"].values()
    assert row in fast("a stent a")["input_ids"]


def test_a_tokenizer_that_drops_merges_is_used_without_that(tmp_path):
    """BPE-dropout of a training is stored with its tokenizer: subwords, and so means of them, were drawn."""
    vocabulary = {token: row for row, token in enumerate(["[UNK]", "[PAD]", "a", "b", "c", "ab"])}
    dropping = Tokenizer(models.BPE(vocabulary, [("a", "b")], dropout=1.0, unk_token="[UNK]"))
    dropping.save(str(tmp_path / "tokenizer.json"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=dropping, unk_token="[UNK]", pad_token="[PAD]")
    assert tokenizer.tokenize("abc") == ["a", "b", "c"]
    model = model_of("GPT2LMHeadModel", vocab_size=len(vocabulary))
    old = model.lm_head.weight.detach().clone()
    save_file({"wte.weight": old.float()}, tmp_path / "model.safetensors")
    matrix, _ = ei.embedding_matrix(["c", "abc"], tmp_path, "pretrained", oov="subword")
    np.testing.assert_allclose(matrix[1], old[[5, 4]].mean(0), rtol=1e-6)
    assert Preparation([{"step": "huggingface"}], {"tokenizer": dropping.to_str()})("abc") == ["ab", "c"]
    row = ei.expand_hf(model, tokenizer, ["abc"], "subword")["rows"]["abc"]
    torch.testing.assert_close(model.lm_head.weight[row], old[[5, 4]].mean(0))
    assert tokenizer.backend_tokenizer.model.dropout == 1.0


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
