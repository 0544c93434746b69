"""`expand-vocab --method distill`. Oracles: the loss stated again in float64, sentence by sentence, from what enters
the output layer; its gradient; Adam by its equations; the same expansion by `avg` and `subword`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from expand_checkpoints import (
    FAMILIES,
    TWO_TABLES,
    USER_DIR,
    argv,
    as_fairseq,
    divergence,
    logits,
    make,
    replaced,
    text_of,
)
from fairseq.data import Dictionary

from embinit_fairseq.errors import OptionError
from embinit_fairseq.resize import expand as expand_module
from embinit_fairseq.resize.distill import Saved, add_gradients, make_updates, train
from embinit_fairseq.resize.distill_text import Joiner, Sentence, choose, model_inputs, read_columns

NEW = ("x\tw1 w2", "y\tw3", "z\tw4 w5 w6")
#: old segmentation, new segmentation, and for each new token the old one whose text it ends
TEXT = [
    ("w0 w1 w2 w7", "w0 x w7", [0, 2, 3]),
    ("w3 w4 w5 w6 w1 w2", "y z x", [0, 3, 5]),
    ("w8 w8", "w8 w8", [0, 1]),
    ("w1 w2 w4 w5 w0", "x w4 w5 w0", [1, 2, 3, 4]),
    ("w7 w1 w2 w0", "w7 x w0", [0, 2, 3]),
]
OLD_TEXT = "".join(f"{old}\n" for old, *_ in TEXT)


def expand(checkpoint, method="distill", family="lm", **options) -> dict:
    if method == "distill":
        paths = [text_of(checkpoint, OLD_TEXT, name) for name in ("source", "text")]
        options = {"distill_text": tuple(paths if "translation" in FAMILIES[family] else paths[1:]), **options}
    options = {"user_dir": USER_DIR, "side": "decoder" if family in TWO_TABLES else None, "force": True, **options}
    return checkpoint.expand(method, NEW, **options)


def last_states(model, source: torch.Tensor, target: torch.Tensor, side: str) -> torch.Tensor:
    """What enters the output layer for one sentence, or what the decoder gets of the encoder; (T, D)."""
    seen = []
    layer = {"lm_head": "encoder.lm_head", "output": "decoder.output_projection"}
    name = next(path for path in layer.values() if path in dict(model.named_modules()))
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    if side == "encoder":
        states = model.encoder(source, src_lengths=torch.tensor([source.shape[1]]))["encoder_out"][0][:, 0]
    elif hasattr(model.encoder if hasattr(model, "encoder") else model, "lm_head"):
        model(source)
        states = seen[0][0]
    elif hasattr(model, "encoder"):
        model(source, torch.tensor([source.shape[1]]), target)
        states = seen[0][0]
    else:
        model(target)
        states = seen[0][0]
    hook.remove()
    return states


CASES = [
    ("lm_tied", "decoder"),
    ("roberta", "masked"),
    ("transformer", "encoder"),
    ("transformer", "decoder"),
    ("transformer_shared", "both"),
]


@pytest.mark.parametrize(("family", "which"), CASES)
def test_the_loss_and_its_gradient(family, which, tmp_path) -> None:
    """Both sides of a shared dictionary have a loss each. The decoder reads the source as it reads it, old or new."""
    checkpoint = make(tmp_path, family)
    side = {"encoder": "encoder", "decoder": "decoder"}.get(which) if family == "transformer" else None
    dict_file = str(tmp_path / "data" / "dict.de.txt") if which == "encoder" else checkpoint.dictionary
    expand(checkpoint, "subword", side=side, dictionary=dict_file)
    model, task = as_fairseq(checkpoint)
    model = model.double()
    words = task.source_dictionary if which == "encoder" else task.target_dictionary or task.source_dictionary
    other = task.source_dictionary
    names = ["src_tokens"] if which in ("encoder", "masked") or family.startswith("lm") else ["prev_output_tokens"]
    names = ["src_tokens", "prev_output_tokens"] if which == "both" else names
    sentences, naive = [], []
    for old, new, last in TEXT:
        before, after = ([words.index(word) for word in text.split()] for text in (old, new))
        bos, eos = words.bos(), words.eos()
        if which == "masked":
            pair = [{"src_tokens": [bos, *ids, eos]} for ids in (before, after)]
            positions = {"src_tokens": [0, *(at + 1 for at in last), len(before) + 1]}
        elif family.startswith("lm"):
            pair = [{"src_tokens": [eos, *ids]} for ids in (before, after)]
            positions = {"src_tokens": [0, *(at + 1 for at in last)]}
        else:
            fixed = [other.index(word) for word in "w8 w0 w3".split()] + [eos]
            sources = [[*ids, eos] for ids in (before, after)] if "src_tokens" in names else [fixed, fixed]
            pair = [
                {"src_tokens": src, "src_lengths": [len(src)], "prev_output_tokens": [eos, *ids]}
                for src, ids in zip(sources, (before, after))
            ]
            positions = {"src_tokens": [*last, len(before)], "prev_output_tokens": [0, *(at + 1 for at in last)]}
        sentences.append(Sentence(*pair, {name: positions[name] for name in names}, frozenset()))
        naive.append((pair, positions))
    made = torch.tensor([words.index(word) for word in "xyz"])
    embedding = next(
        name
        for name, value in model.named_parameters()
        if name.endswith("embed_tokens.weight") and not (which == "decoder" and name.startswith("encoder"))
    )
    weight = model.get_parameter(embedding)

    model.requires_grad_(False)
    weight.requires_grad_()
    expected = 0.0
    for name in names:
        errors = []
        which_side = "encoder" if name == "src_tokens" and which in ("encoder", "both") else "decoder"
        for (old, new), positions in naive:
            states = []
            for inputs in (old, new):
                source = torch.tensor([inputs["src_tokens"]])
                target = torch.tensor([inputs.get("prev_output_tokens", inputs["src_tokens"])])
                states.append(last_states(model, source, target, which_side))
            for j, i in enumerate(positions[name]):
                errors += [(after - before.detach()) ** 2 for before, after in zip(states[0][i], states[1][j])]
        expected = expected + sum(errors) / len(errors)
    (gradient,) = torch.autograd.grad(expected, [weight])
    loss = add_gradients(model, sentences)
    assert loss == pytest.approx(expected.item(), rel=1e-9)
    assert loss > 1e-3
    assert gradient[made].abs().min() > 1e-9
    torch.testing.assert_close(weight.grad[made], gradient[made], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("family", ["lm", "electra", "transformer_shared", "duo", "lstm", "lstm encoder"])
def test_only_the_rows_of_new_words_that_are_read_are_trained(family, tmp_path) -> None:
    """Everything else is as `avg` makes it: old rows, layers, output layers and their bias, and moments."""
    family, _, side = family.partition(" ")
    checkpoint = make(tmp_path, family)
    options, training = {}, {"distill_epochs": 2, "distill_tokens": 12, "distill_lr": 0.01}
    if side:  # one text is enough
        options = {"side": side, "dictionary": str(tmp_path / "data" / "dict.de.txt")}
        training["distill_text"] = (text_of(checkpoint, OLD_TEXT),)
    checkpoint.state["extra_state"]["ema"] = {name: value + 1 for name, value in checkpoint.state["model"].items()}
    checkpoint.save()
    expand(checkpoint, "avg", family, **options)
    avg, tables = checkpoint.written(), json.loads((checkpoint.output / "expansion.json").read_text())["tables"]
    expand(checkpoint, "subword", family, **options)
    subword = checkpoint.written()
    compared = set()

    def recorded(updates):
        compared.update(name for update in updates for sentence in update for name in sentence.last)
        return updates

    record = expand(checkpoint, "distill", family, progress=recorded, **options, **training)
    expected = {
        "transformer_shared": ["src_tokens", "prev_output_tokens"],
        "lm": ["src_tokens"],
        "electra": ["src_tokens"],
    }
    assert compared == {*expected.get(family, ["src_tokens" if side else "prev_output_tokens"])}
    written, words = checkpoint.written(), [word["row"] for word in record["words"]]
    read = [name for names in tables.values() if any("embed_tokens" in each for each in names) for name in names]
    ema = "extra_state"
    for trained, plain, start in (
        (written["model"], avg["model"], subword["model"]),
        (written[ema]["ema"], avg[ema]["ema"], subword[ema]["ema"]),
    ):
        assert trained.keys() == plain.keys()
        for name, value in trained.items():
            if name not in read:
                assert torch.equal(value, plain[name]), name
                continue
            old = torch.ones(len(value), dtype=torch.bool)
            old[words] = False
            assert torch.equal(value[old], plain[name][old]), name
            moved = (value - start[name])[words]
            assert moved.abs().max() > 1e-3, name
            torch.testing.assert_close(
                moved, (written["model"][name] - subword["model"][name])[words], rtol=0, atol=1e-6
            )
    own_output = family in ("lm", "lstm")
    assert record["bound"] == (pytest.approx(np.log(1 + 3 / record["n"])) if own_output and not side else None)
    assert (record["distill"]["kl"] is None) == own_output
    assert len(record["distill"]["loss"]) == 2


def test_the_divergence_of_a_tied_model_is_measured(tmp_path, shown) -> None:
    """On the lines in old subwords, from both distributions."""
    checkpoint = make(tmp_path, "lm_tied")
    kl = expand(checkpoint)["distill"]["kl"]
    (model, _), symbols, kls = as_fairseq(checkpoint), checkpoint.task.target_dictionary, []
    for line in OLD_TEXT.splitlines():
        ids = [symbols.eos(), *map(symbols.index, line.split())]
        kls.append(divergence(logits(checkpoint.model, ids, ids), logits(model, ids, ids)).numpy())
    kls = np.concatenate(kls)
    assert (kl["mean"], kl["max"]) == (pytest.approx(kls.mean(), rel=1e-4), pytest.approx(kls.max(), rel=1e-4))
    assert kl["tokens"] == len(kls)
    options = ("--method", "distill", "--distill-text", checkpoint.folder / "text", "--force")
    text = shown(*argv(checkpoint, *options, words=NEW))
    assert re.search(r"KL\(old\|\|new\)   \S+ nats, at most .*26 tokens.*; no bound", text), text
    assert re.search(r"distilled      3 updates on 4 sentences, .* CPU seconds", text), text


def test_adam_by_its_equations(tmp_path) -> None:
    """Three updates, the rate falls by a third each time."""
    checkpoint = make(tmp_path, "lm_tied")
    expand(checkpoint, "subword")
    model, task = as_fairseq(checkpoint)
    index, name = task.target_dictionary.index, "decoder.embed_tokens.weight"
    sentences = []
    for old, new, last in TEXT:
        pair = ({"src_tokens": [2, *map(index, text.split())]} for text in (old, new))
        sentences.append(Sentence(*pair, {"src_tokens": [0, *(at + 1 for at in last)]}, frozenset()))
    made, updates, lr = torch.tensor([13, 14, 15]), [sentences[:2], sentences[2:], sentences[:3]], 0.05
    weight = model.double().get_parameter(name)
    original, m, v, losses = weight.detach().clone(), 0.0, 0.0, []
    expected = original[made]
    for number, update in enumerate(updates, 1):
        weight.data[made], weight.grad = expected, None
        losses.append(add_gradients(model, update))
        gradient = weight.grad[made]
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        step = (m / (1 - 0.9**number)) / ((v / (1 - 0.999**number)).sqrt() + 1e-8)
        expected = expected - lr * (1 - (number - 1) / 3) * step
    weight.data[made], weight.grad = original[made], None
    assert train(model, [name], made, updates, lr, list) == pytest.approx(losses)
    torch.testing.assert_close(weight.detach()[made], expected, rtol=1e-9, atol=1e-12)
    weight.data[made] = original[made]
    assert torch.equal(weight.detach(), original)
    weight.data[13] = torch.inf
    with pytest.raises(OptionError, match=r"--distill-lr 0\.05"):
        train(model, [name], made, updates, lr, list)


def test_the_same_seed_is_the_same_rows(tmp_path) -> None:
    """Another one is another order of the sentences; global random states are not moved."""
    checkpoint, losses, rows = make(tmp_path, "lm"), [], []
    state = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    for seed in (1, 1, 2):
        losses.append(expand(checkpoint, seed=seed, distill_tokens=12, distill_lr=0.01)["distill"]["loss"])
        rows.append(checkpoint.written()["model"]["decoder.embed_tokens.weight"][13:])
    assert (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()) == state
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_each_epoch_has_all_sentences_in_an_order_of_its_own(tmp_path) -> None:
    checkpoint, epochs = make(tmp_path, "lm"), 6
    seen = []

    def recorded(updates):
        seen.extend(sentence for update in updates for sentence in update)
        return updates

    expand(checkpoint, progress=recorded, distill_epochs=epochs)
    orders = [tuple(map(id, part)) for part in np.array_split(np.array(seen, dtype=object), epochs)]
    assert len({frozenset(order) for order in orders}) == 1 < len({*orders})


def test_a_word_of_the_other_dictionary_is_not_a_new_word(tmp_path) -> None:
    """Row 4 of the source is an old word, row 4 of the target a new one, which its text may have."""
    source, target = Dictionary(), Dictionary()
    for word in "abc":
        source.add_symbol(word)
    for word in "ab", "a@@", "b":
        target.add_symbol(word)
    (tmp_path / "source").write_text("c a\n")
    (tmp_path / "target").write_text("b ab\n")
    texts = [str(tmp_path / name) for name in ("source", "target")]
    columns = read_columns(texts, SimpleNamespace(sides={"decoder"}), [source, target], {4: [5, 6]}, None)
    assert [[ids.tolist() for ids in column] for column in columns] == [[[6, 4]], [[6, 5, 6]]]


def test_sentences_of_a_source_alone(tmp_path) -> None:
    """They end with </s>; empty ones and those that are too long with it are left out."""
    checkpoint = make(tmp_path, "transformer")
    longest, words = checkpoint.model.max_positions()[0], checkpoint.task.source_dictionary
    columns = [np.full(length, 5) for length in (3, 0, longest - 1, longest)]
    rows = list(model_inputs(checkpoint.model, [columns], [words], ["text"]))
    assert rows[0] == {"src_tokens": [5, 5, 5, words.eos()], "src_lengths": [4]}
    assert [row["src_lengths"] for row in rows] == [[4], [longest]]


def test_a_loss_that_rises_is_said(tmp_path, shown) -> None:
    checkpoint = make(tmp_path, "lm")
    options = ("--method", "distill", "--distill-text", text_of(checkpoint, OLD_TEXT), "--distill-epochs", "4")
    for rate, rises in (("100", True), ("0.001", False)):
        text = shown(*argv(checkpoint, *options, "--distill-lr", rate, "--force", words=NEW))
        assert ("lower --distill-lr" in text) == rises, text


def test_a_killed_training_continues(tmp_path, monkeypatch) -> None:
    """To the same bits; the state of other options is not taken, and nothing is left."""
    monkeypatch.setattr(expand_module, "Saved", functools.partial(Saved, seconds=0.0))
    checkpoint, options = make(tmp_path, "lm_tied"), {"distill_epochs": 3, "distill_tokens": 12}
    whole = expand(checkpoint, **options)
    rows, seen = checkpoint.written()["model"]["decoder.embed_tokens.weight"], []

    def killed_after(limit: int, updates):
        for number, update in enumerate(updates):
            if number == limit:
                raise KeyboardInterrupt
            seen.append(update)
            yield update

    for limit, more in ((2, {}), (1, {"seed": 2}), (2, {}), (99, {})):
        with contextlib.suppress(KeyboardInterrupt):
            expand(checkpoint, progress=functools.partial(killed_after, limit), **options, **more)
        assert (tmp_path / ".out.distill").exists() == (limit < 99)
    # the second training, of another seed, replaced the first one's state
    assert len(seen) == 2 + 1 + 2 + (whole["distill"]["updates"] - 2)
    assert torch.equal(checkpoint.written()["model"]["decoder.embed_tokens.weight"], rows)
    record = json.loads((checkpoint.output / "expansion.json").read_text())
    assert record["distill"]["loss"] == whole["distill"]["loss"]
    assert record["distill"]["cpu_seconds"] is None  # those of the last start would be too few


@pytest.mark.parametrize("length", [0, 1, 100, -50])
def test_a_state_that_was_cut_off_is_ignored(tmp_path, length: int) -> None:
    saved = Saved(tmp_path / "state", "key")
    saved.save(losses=[1.0])
    saved.path.write_bytes(saved.path.read_bytes()[:length])
    assert saved.load() == {}


def test_the_state_of_a_killed_training_belongs_to_the_content_of_its_files(tmp_path) -> None:
    files = {"checkpoint": "c", "dictionary": "d", "words": "w", "output": str(tmp_path / "out")}
    request, text, keys = expand_module.ExpandRequest(**files, method="distill"), tmp_path / "text", set()
    for content in ("a b", "a c", "a b"):
        text.write_text(content)
        keys.add(expand_module._saved(request, {"--distill-text": str(text)}).key)
    assert len(keys) == 2


JOINED = [
    ("a b c a b", {"ab": "a b", "abc": "a b c"}, "abc ab", [2, 4]),
    ("a@@ b c@@ a@@ b", {"ab": "a@@ b"}, "ab c@@ a@@ b", [1, 2, 3, 4]),  # c@@ a@@ b is another word
    ("▁a b ▁a b c", {"▁ab": "▁a b"}, "▁ab ▁ab c", [1, 3, 4]),  # as sentencepiece joins them
    ("a ##b a ##b ##c", {"ab": "a ##b"}, "ab a ##b ##c", [1, 2, 3, 4]),
    ("a b</w> c a b</w>", {"ab</w>": "a b</w>"}, "ab</w> c a b</w>", [1, 2, 3, 4]),
    ("</s> a b</w> a b</w>", {"ab</w>": "a b</w>"}, "</s> ab</w> ab</w>", [0, 2, 4]),
]


@pytest.mark.parametrize(("text", "words", "expected", "last"), JOINED)
def test_subwords_are_joined_where_the_new_word_is_a_word(text, words, expected, last) -> None:
    symbols = [*dict.fromkeys([*text.split(), *" ".join(words.values()).split()]), *words]
    subwords = {symbols.index(word): [*map(symbols.index, parts.split())] for word, parts in words.items()}
    ids, places = Joiner(subwords, symbols).join([*map(symbols.index, text.split())])
    assert ([symbols[row] for row in ids], places) == (expected.split(), last)


def test_sentences_are_the_first_with_each_word_and_updates_have_so_many_tokens() -> None:
    def sentence(length: int, *words: int) -> Sentence:
        ids = {"src_tokens": [0] * length}
        return Sentence(ids, ids, {"src_tokens": [0] * length}, frozenset(words))

    given = [sentence(3, 1), sentence(4, 1), sentence(5), sentence(6, 1), sentence(7, 1, 2), sentence(8, 2)]
    chosen, counts = choose(iter(given), 2)
    assert chosen == [given[0], given[1], given[4], given[5]]
    assert counts == {1: 3, 2: 2}
    generator = np.random.default_rng(1)
    epochs = [[[each.tokens for each in update] for update in make_updates(chosen, 10, generator)] for _ in range(5)]
    assert len({str(epoch) for epoch in epochs}) > 1
    for sizes in epochs:
        assert sorted(itertools.chain(*sizes)) == [3, 4, 7, 8]
        assert all(sum(update[:-1]) < 10 for update in sizes)
        assert all(sum(update) >= 10 for update in sizes[:-1])


SUBWORDS = ["lo@@", "low", "w@@", "e@@", "r", "o@@", "l@@", "r@@", "x"]


def test_text_may_be_raw_segmented_or_have_the_new_words(tmp_path) -> None:
    """The same rows three times; of a longer word, `lower` is not the end."""
    checkpoint = make(tmp_path, "lm", words=SUBWORDS)
    (tmp_path / "codes").write_text("#version: 0.2\nl o\nlo w</w>\n")
    rows = []
    for text, codes in (
        ("low r lower r\nrlower lower\n", str(tmp_path / "codes")),
        ("low r lo@@ w@@ e@@ r r\nr@@ lo@@ w@@ e@@ r lo@@ w@@ e@@ r\n", None),
        ("low r lower r\nr@@ lo@@ w@@ e@@ r lower\n", None),
    ):
        path = (text_of(checkpoint, text),)
        record = checkpoint.expand(
            "distill", ("lower\tlo@@ w@@ e@@ r",), distill_text=path, bpe_codes=codes, force=True
        )
        assert record["distill"]["sentences"] == 2
        rows.append(checkpoint.written()["model"]["decoder.embed_tokens.weight"][13])
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


def test_bad_input_is_one_line_and_writes_nothing(tmp_path, refused) -> None:
    models = {family: make(tmp_path / family, family) for family in ("lm_tied", "transformer", "classifier")}
    models["many"] = make(tmp_path / "many", "multilingual_shared")
    for checkpoint in models.values():
        text = text_of(checkpoint, OLD_TEXT)
    one, two = ("--distill-text", text), ("--distill-text", text, text)
    (tmp_path / "codes").write_text("#version: 0.2\nw 1\n")
    short = text_of(models["lm_tied"], "w1 w2\nw0\n", "short")
    marked = text_of(models["lm_tied"], "w@@ w@@ w1 w2\n", "marked")
    empty = text_of(models["lm_tied"], "\n", "empty")
    for family, more, said in (
        ("lm_tied", (), ("--method distill needs --distill-text TEXT",)),
        ("lm_tied", ("--distill-text", short), ("2 of 3 new words", "(y, z)", "give a text that has them")),
        ("lm_tied", ("--distill-text", marked), ("--distill-text", "segment")),
        ("lm_tied", ("--distill-text", empty), ("--distill-text", "no words in it")),
        ("lm_tied", ("--distill-text", "nowhere"), ("--distill-text nowhere", "no such file")),
        ("lm_tied", two, ("--distill-text", "takes one file, not 2")),
        ("transformer", one, ("--distill-text", "two files, SOURCE TARGET")),
        ("transformer", ("--distill-text", short, text), ("--distill-text", "has 2 lines", "line by line")),
        ("lm_tied", (*one, "--distill-epochs", "0"), ("--distill-epochs 0", "above 0")),
        ("lm_tied", (*one, "--method", "avg"), ("--distill-text", "avg", "leave it out")),
        ("lm_tied", ("--distill-tokens", "5", "--method", "avg"), ("--distill-tokens", "leave it out")),
        ("classifier", one, ("--method distill", "no hidden state of each token", "--method subword")),
        ("many", one, ("--method distill", "no hidden state of each token")),
    ):
        checkpoint = models[family]
        error = refused(*argv(checkpoint, *replaced(["--method", "distill"], *more), words=NEW))
        assert all(part in error for part in said), error
        assert not checkpoint.output.exists()
