"""`embinit transfer-vocab`: one matrix W for all tables of a model, by every method, and by FOCUS's own package."""

import importlib.util
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import sentencepiece
import torch
from expand_checkpoints import TWO_TABLES, USER_DIR, WORDS, as_fairseq, dictionary, logits, make, w_of
from hypothesis import given, settings
from hypothesis import strategies as st
from segmentations import train

import embinit_fairseq as ei
from embinit_fairseq.errors import DataError
from embinit_fairseq.init.methods import METHODS, TRANSFER, MethodInputs, new_rows, recipe_of
from embinit_fairseq.init.symbols import longest_subwords, shared_rows, subword_means, symbols_of
from embinit_fairseq.init.weights import Weights
from embinit_fairseq.resize.transfer import TransferRequest, transferring
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, special_rows

SPECIALS = list(SPECIAL_SYMBOLS)
OTHERS = ["w3", "new", "w0", "w1w2", "w8", "newer", "w5", "w6", "w4"]


def symbols(*words: str, appended=()):
    names = [*SPECIALS, *words]
    return symbols_of([*names, *appended], Vocabulary(names, np.ones(len(names)), special_rows(names)))


def inputs_of(old, new, **more) -> MethodInputs:
    """What a method starts from; old, new: symbols."""
    shared = shared_rows(old, new)
    subwords = subword_means(old, new, [row for row in new.words if shared[row] < 0])
    return MethodInputs(len(old.names), shared, new.word, (np.array(old.words), None), subwords, **more)


def weights_of(method: str, given: MethodInputs) -> Weights:
    return recipe_of(method, given).weights


def rows_of(method: str, given: MethodInputs, tables: dict, seed: int = 1) -> dict:
    return new_rows(recipe_of(method, given, seed=seed), tables)


def transfer(old, new: str, method: str, **options) -> tuple:
    """Return (what was done, its record, the checkpoint)."""
    files = {"checkpoint": old.path, "dictionary": old.dictionary, "new_dict": new, "output": str(old.output)}
    with transferring(TransferRequest(**files, method=method, force=True, **options)) as (done, _, record):
        pass
    return done, record, old.written()


def write(path: Path, *words: str) -> str:
    path.write_text(dictionary(words))
    return str(path)


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("lm", "copy"),
        ("roberta", "avg"),
        ("transformer_shared", "subword"),
        ("classifier", "random"),
        ("duo", "focus"),
        ("lm_tied", "omp"),
    ],
)
def test_every_table_is_w_times_the_old_one(family: str, method: str, tmp_path: Path) -> None:
    """Inputs, outputs, biases and averages, in float64; what keeps its row keeps its moments, the others have none.
    Everything else stays as it was (all families, and back: test_resize_expand.py)."""
    old = make(tmp_path, family)
    old.state["extra_state"]["ema"] = {name: value + 1 for name, value in old.state["model"].items()}
    old.save()
    vectors = tmp_path / "vectors.txt"
    numbers = np.random.default_rng(1).normal(size=(len(OTHERS), 5))
    vectors.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(OTHERS, numbers)))
    options = {"side": "decoder" if family in TWO_TABLES else None, "user_dir": USER_DIR, "keep_optimizer": True}
    options["vectors"] = str(vectors) if METHODS[method].needs_vectors else None
    new = write(tmp_path / "new.txt", *OTHERS)
    done, record, state = transfer(old, new, method, **options)
    assert (old.output / Path(old.dictionary).name).read_text() == dictionary(OTHERS)
    kinds = {"copy": (6, 0, 0, 3), "subword": (6, 0, 3, 0), "avg": (6, 0, 3, 0), "focus": (6, 3, 0, 0)}
    kinds["omp"] = kinds["focus"]
    assert tuple(record["words"].values()) == kinds.get(method, (0, 0, 0, 9))
    weights = done.weights
    matrix, drawn = torch.from_numpy(w_of(weights)), weights.rows_of("drawn")
    copied = weights.old_row >= 0
    pairs = [(old.state["model"], state["model"]), (old.state["extra_state"]["ema"], state["extra_state"]["ema"])]
    for before, after in pairs:
        changed = {key for table in done.old_model.tables for key in table.keys_in(before)}
        assert before.keys() == after.keys()
        assert all(torch.equal(after[key], value) for key, value in before.items() if key not in changed)
        for table in done.old_model.tables:
            for key in table.keys_in(before):
                expected = (matrix @ before[key].double()).float()
                expected[drawn] = after[key][drawn]
                torch.testing.assert_close(after[key], expected, rtol=1e-6, atol=1e-7)
                assert torch.equal(after[key][copied], before[key][weights.old_row[copied]])
    names = [name for name, _ in done.old_model.model.named_parameters()]
    for table in done.old_model.tables:
        for name in set(table.names) & set(names):
            before, after = (each["last_optimizer_state"]["state"][names.index(name)] for each in (old.state, state))
            for moment in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(after[moment][copied], before[moment][weights.old_row[copied]])
                assert not after[moment][~copied].any()


def test_what_is_drawn_is_spread_as_the_old_words_are() -> None:
    """Mean and standard deviation of each column, within 5 standard errors; specials and fillers are elsewhere. The
    average of a model has the same draw, since it is one word; another seed is another draw."""
    old, new = symbols("a", "b", "c", "d", "madeupword0000"), symbols("a", *(f"new{n}" for n in range(4000)))
    table = np.random.default_rng(3).normal(size=(9, 3)) * [1, 2, 3]
    table[[0, 1, 2, 3, 8]] += 20
    given = inputs_of(old, new)
    made, average = rows_of("copy", given, {"t": [table, 2 * table + 1]})["t"]
    again, other = (rows_of("copy", given, {"t": [table]}, seed)["t"][0] for seed in (1, 2))
    assert (np.array_equal(again, made), np.array_equal(other, made)) == (True, False)
    mean, std = table[4:8].mean(0), table[4:8].std(0)
    assert (abs(made.mean(0) - mean) < 5 * std / 4000**0.5).all()
    assert (abs(made.std(0) - std) < 5 * std / 8000**0.5).all()
    np.testing.assert_allclose(average, 2 * made + 1, rtol=1e-6, atol=1e-6)


def test_the_seed_of_the_command_is_a_draw(tmp_path: Path) -> None:
    """Each table has a draw of its own, and global random states are neither read nor moved."""
    old, new = make(tmp_path, "lm"), write(tmp_path / "new.txt", *OTHERS)
    begin, made = (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()), []
    for seed in (1, 1, 2):
        made.append(transfer(old, new, "copy", seed=seed)[2]["model"])
    assert (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()) == begin
    one, same, other = (model["decoder.embed_tokens.weight"] for model in made)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, made[0]["decoder.output_projection.weight"])


def test_the_gaussian_of_a_transfer() -> None:
    """New words are drawn around the mean of the old ones, as far as the scale says; shared words stay."""
    old, new = symbols("a", "b", "c", "d"), symbols("a", "x", "y")
    table, given = np.random.default_rng(3).normal(size=(8, 3)), inputs_of(old, new)
    scales = (0.0, 1.0, 4.0)
    none, one, two = (new_rows(recipe_of("gaussian", given, scale), {"t": [table]})["t"][0] for scale in scales)
    np.testing.assert_allclose(none, np.tile(table[4:].mean(0), (2, 1)))
    np.testing.assert_allclose(two - none, 2 * (one - none))
    assert abs(one - none).min() > 0
    assert recipe_of("gaussian", given).c == METHODS["gaussian"].scale


SHARED = [
    ("the a cat", "cat the dog", [6, 4, -1]),
    ("the ca@@ ing", "▁the ▁ca ing ca ▁ing", [4, 5, 6, 5, 6]),  # `ing` ends a word, or is one
    ("▁the ing ▁ca", "the ca@@ ing in@@", [4, 6, 5, -1]),
    ("▁the ing ▁ca", "the ##ing ##x ca", [4, 5, -1, 6]),
    ("the ing", "▁the ing ▁ing ▁", [4, -1, 5, -1]),  # inside a word it is not the word
    ("Ġthe ing .", "▁the ing Ġthe ▁.", [4, 5, -1, 6]),  # a sign is one with a space before it, too
    ("ĠÃ¼ber Ã¼ Ã the", "▁über ü Ã ▁the", [4, 5, -1, -1]),
    ("▁über ▁die", "ĠÃ¼ber Ã¼ Ġdie", [4, -1, 5]),
    ("the café", "The the cafe\u0301", [-1, 4, 5]),  # the same word, not one in another case
    ("the &apos; &quot; &apos;s @-@", "▁the ' ▁\" ▁'s -", [4, 5, 6, 7, 8]),  # as Moses escapes them
    ("▁the ' ▁\" ▁'s -", "the &apos; &quot; &apos;s @-@", [4, 5, 6, 7, 8]),
    ("the < & ' Ġ&lt;", "Ġ&lt; Ġ&amp; < & '", [8, -1, 5, 6, 7]),  # entities that text of the web has
    ("the a@@ madeupword0000", "the madeupword0000 madeupword0001 a@@", [4, 6, -1, 5]),
]


def test_words_are_shared_whatever_their_segmenter_writes() -> None:
    for old, new, shared in SHARED:
        assert shared_rows(symbols(*old.split()), symbols(*new.split())).tolist() == [0, 1, 2, 3, *shared], (old, new)
    # CamemBERT's lines repeat `<s>` and `</s>`: fairseq's own keep the first rows, those of text the last
    repeated, once = symbols("</s>", "a", "<s>", "<mask>"), symbols("a", "<mask>")
    assert shared_rows(repeated, symbols("<s>", "</s>", "a")).tolist() == [0, 1, 2, 3, 6, 4, 5]
    assert shared_rows(repeated, once).tolist() == [0, 1, 2, 3, 5, 7]
    assert shared_rows(once, repeated).tolist() == [0, 1, 2, 3, 2, 4, 0, 5]


def test_numbers_of_a_text_are_no_ids() -> None:
    """RoBERTa's dictionary has ids of subwords, of which 10 may be any text; another dictionary of ids has the same."""
    ids, words = symbols(*map(str, range(5, 17))), symbols("the", "of", "and", "10", "7")
    for old, new, flag in ((ids, words, "--dict d.txt"), (words, ids, "--new-dict e.txt")):
        with pytest.raises(DataError, match=rf"^{flag}: .*ids.* write the subword .*encoder\.json"):
            shared_rows(old, new, ("--dict d.txt", "--new-dict e.txt"))
    assert shared_rows(ids, symbols(*map(str, range(16, 4, -1)))).tolist() == [0, 1, 2, 3, *range(15, 3, -1)]
    grown = symbols(*map(str, range(16, 4, -1)), "stent")  # ids, and a word that was added
    assert shared_rows(ids, grown).tolist() == [0, 1, 2, 3, *range(15, 3, -1), -1]
    with pytest.raises(DataError, match=r"^old: .*ids"):
        ei.transfer(np.ones((len(ids.names), 2)), ids.names, words.names, "avg")


def test_what_a_task_appends_keeps_its_row_and_is_in_no_mean() -> None:
    """Nor are fillers, of which new ones are means."""
    appended = ["<mask>", "[de]"]
    old = symbols("a", "b", "madeupword0000", appended=appended)
    new = symbols("b", "x", "madeupword0001", appended=appended)
    weights = weights_of("avg", inputs_of(old, new))
    assert weights.old_row.tolist() == [0, 1, 2, 3, 5, -1, -1, 7, 8]
    assert w_of(weights)[5].tolist() == [0, 0, 0, 0, 0.5, 0.5, 0, 0, 0]
    weights = weights_of("random", inputs_of(old, new))
    assert weights.old_row.tolist() == [0, 1, 2, 3, -1, -1, -1, 7, 8]
    assert w_of(weights)[4:7].sum(1).tolist() == [0, 0, 1]


LONGEST = [
    ("lo@@ w@@ er low@@ e r", "lower@@ lower x", {"lower@@": [], "lower": ["low@@", "er"], "x": []}),
    ("lo@@ w@@ er low@@ e@@ r@@", "lower@@ lo@@", {"lower@@": ["low@@", "e@@", "r@@"]}),
    ("▁low er ▁l o w", "lower slower lowo@@", {"lower": ["▁low", "er"], "slower": [], "lowo@@": ["▁low", "o"]}),
    ("low ##er ##low", "▁lower lower ▁x", {"▁lower": ["low", "##er"], "lower": ["##low", "##er"]}),
    ("la@@ la", "lalala x", {"lalala": ["la@@", "la@@", "la"], "x": []}),
    ("low er", "lower low@@", {"lower": [], "low@@": []}),  # words make up no other word
    # without ▁ a word of Thai or a sign is inside of text, as most are; BERT makes words of them
    (
        "▁บ้าน บ้าน ▁กิน กิน ▁x x !",
        "บ้านกิน ▁บ้านกิน xx !! ▁",
        {"บ้านกิน": ["บ้าน", "กิน"], "▁บ้านกิน": ["▁บ้าน", "กิน"], "!!": ["!", "!"]},
    ),
    ("你 ##你 好 ##好", "▁x 你好", {"你好": ["你", "##好"]}),
]


def test_the_longest_subwords_of_the_old_dictionary() -> None:
    for old, new, expected_pieces in LONGEST:
        one, other = symbols(*old.split()), symbols(*new.split())
        dense = w_of(weights_of("subword", inputs_of(one, other)))
        for word, expected in expected_pieces.items():
            at = other.names.index(word)
            assert [one.names[row] for row in longest_subwords(other.token(at), one)] == expected
            wanted = expected or [one.names[row] for row in one.words]
            assert dense[at] == pytest.approx([wanted.count(name) / len(wanted) for name in one.names])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("▁' ' s ▁& ve ▁x y & a p o ;", "&apos;ve &apos;s y@@ &apos;y", [["'", "ve"], ["'", "s"]]),
        (
            "&apos;@@ &quot; &amp; &lt; ve s &@@ a@@ p@@ o@@ s@@ ;@@ '@@",
            "▁'ve ▁'s ▁x",
            [["&apos;@@", "ve"], ["&apos;@@", "s"]],
        ),
        ("▁x ▁' ▁& l t ; ve s <", "'ve 's &lt; <", [["▁'", "ve"], ["▁'", "s"], ["▁&", "l", "t", ";"]]),
    ],
)
def test_subwords_of_words_that_moses_escapes(old: str, new: str, expected: list) -> None:
    """They are segmented as the old text has them, by a given segmentation, too. Text of the web has entities."""
    one, other = symbols(*old.split()), symbols(*new.split())
    rows = other.words[: len(expected)]

    def characters(token) -> list[str]:
        seen.append(token.surface)
        return []

    seen: list[str] = []
    with pytest.raises(DataError, match="segments no new word"):
        subword_means(one, other, rows, characters)
    assert seen == ["".join(subwords).replace("▁", "").replace("@@", "") for subwords in expected]
    means = subword_means(one, other, rows)
    assert [{one.names[column] for column in means[row][0]} for row in rows] == [*map(set, expected)]


def test_subwords_by_the_codes_or_the_model_of_the_old_text(tmp_path: Path) -> None:
    """l o, then lo w</w>: `low` is a subword, and inside a word `lo` and the letters after it are. sentencepiece
    segments the beginning of a word with its mark, the inside of a word without."""
    old = make(tmp_path, "lm", words=["lo@@", "low", "w@@", "e@@", "r", "o@@", "l@@", "r@@"])
    (tmp_path / "codes").write_text("#version: 0.2\nl o\nlo w</w>\n")
    new, codes = write(tmp_path / "new.txt", "low", "lower@@", "lower", "lox", "w@@"), str(tmp_path / "codes")
    _, record, _ = transfer(old, new, "subword", old_bpe_codes=codes)
    assert [(word["word"], word["from"]) for word in record["examples"]["composed"]] == [
        ("lower@@", {"lo@@": 0.25, "w@@": 0.25, "e@@": 0.25, "r@@": 0.25}),
        ("lower", {"lo@@": 0.25, "w@@": 0.25, "e@@": 0.25, "r": 0.25}),
    ]
    assert record["words"] == {"copied": 2, "composed": 2, "averaged": 1, "drawn": 0}

    model = train(tmp_path / "model", "bpe")
    processor = sentencepiece.SentencePieceProcessor(str(model))
    old = make(tmp_path, "lm", words=[processor.id_to_piece(n) for n in range(3, processor.get_piece_size())])
    new, options = write(tmp_path / "new.txt", "demuki", "##demuki"), {"old_sentencepiece_model": str(model)}
    _, record, _ = transfer(old, new, "subword", **options)
    begins, inside = ([*word["from"]] for word in record["examples"]["composed"])
    assert sorted(begins) == sorted(processor.encode("demuki", out_type=str))
    assert (len("".join(inside)), "▁" in "".join(inside)) == (6, False)


def test_subwords_of_scripts_without_spaces_by_the_model_of_the_old_text(tmp_path: Path) -> None:
    """A symbol that may be anywhere in text is segmented as inside of it."""
    with mock.patch("segmentations.TRAINING", ["龍 虎 龍x虎"] * 200):
        model = train(tmp_path / "model", "bpe")
    processor = sentencepiece.SentencePieceProcessor(str(model))
    assert processor.encode("龍虎", out_type=str) == ["▁龍", "虎"]
    old = make(tmp_path, "lm", words=[processor.id_to_piece(n) for n in range(3, processor.get_piece_size())])
    new = write(tmp_path / "new.txt", "##龍虎", "##x", "##y", "##z")
    _, record, _ = transfer(old, new, "subword", old_sentencepiece_model=str(model))
    assert record["examples"]["composed"][0]["from"] == {"龍": 0.5, "虎": 0.5}


words = st.lists(st.text("ab", min_size=1, max_size=3), min_size=2, max_size=12, unique=True)
spelled = st.sampled_from(["{}", "{}@@", "▁{}", "##{}"])
plain = st.sampled_from([name for name in TRANSFER if not METHODS[name].needs_vectors])


@settings(max_examples=40)
@given(old=words, new=words, marks=st.tuples(spelled, spelled), method=plain)
def test_rows_of_w_are_means(old: list[str], new: list[str], marks: tuple[str, str], method: str) -> None:
    """Of words only, and each symbol that both have is itself; with the same dictionary W is the identity."""
    lists = [[mark.format(w) if at % 2 else w for at, w in enumerate(ws)] for mark, ws in zip(marks, (old, new))]
    case = inputs_of(*(symbols(*dict.fromkeys(each)) for each in lists))
    weights = weights_of(method, case)
    dense = w_of(weights)
    drawn = np.isin(np.arange(len(dense)), weights.rows_of("drawn"))
    assert dense.sum(1) == pytest.approx((~drawn).astype(float))
    assert (dense >= 0).all()
    assert np.array_equal(dense[:4], np.eye(len(dense[0]))[:4])
    assert not dense[4:, :4].any()
    table = np.random.default_rng(1).normal(size=(len(dense[0]), 3))
    made = rows_of(method, case, {"table": [table, table[:, 0]]})["table"]
    kept = ~drawn[weights.rows]
    assert made[0][kept] == pytest.approx((dense @ table)[weights.rows][kept])
    assert made[1][kept] == pytest.approx((dense @ table)[weights.rows, 0][kept])
    same = weights_of("copy", inputs_of(*[symbols(*dict.fromkeys(lists[0]))] * 2))
    assert np.array_equal(w_of(same), np.eye(len(same.kind)))


@pytest.mark.parametrize("family", ["lm", "roberta", "transformer_shared"])
def test_the_bound_holds_for_old_given_the_kept_words(family: str, tmp_path: Path, shown) -> None:
    """At every position of a text of kept words, with wide logits; KL from both distributions. There is a new filler,
    and `ing` and `ca` are copied twice."""

    def wide(model) -> None:
        for name, parameter in model.named_parameters():
            if "layer_norm" in name and name.endswith("weight"):
                parameter *= 4

    old = make(tmp_path, family, words=["w0", "ca@@", "ing", "w3", "gone"], tweak=wide)
    new = write(tmp_path / "new.txt", *"▁w3 ▁ca ing ca ▁ing ▁w0 ▁x ▁y madeupword0000".split())
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("w0 1 0 .2\nw3 .5 .5 .3\nx 1 .9 0\ny .1 1 0\n")
    done, record, _ = transfer(old, new, "focus", vectors=str(vectors))
    assert record["words"] == {"copied": 6, "composed": 2, "averaged": 0, "drawn": 0}
    model, task = as_fairseq(old)
    pairs = (("", old.task.source_dictionary), ("▁", task.source_dictionary))
    text = ([table.eos(), *(table.index(mark + word) for word in "w0 w3 w3 w0 w3".split())] for mark, table in pairs)
    ids = dict(zip(("old", "new"), text))
    before, after = logits(old.model, ids["old"], ids["old"]), logits(model, ids["new"], ids["new"])
    kept = np.unique(done.weights.old_row[done.weights.old_row >= 0])
    first = torch.tensor([int(np.flatnonzero(done.weights.old_row == row)[0]) for row in kept])
    p = before[:, torch.from_numpy(kept)].double().log_softmax(-1)
    q = after.double().log_softmax(-1)[:, first]
    kls = (p.exp() * (p - q)).sum(-1)
    assert 0 < kls.max() <= record["bound"] <= record["bounds"]["uniform"]


def test_bad_input_is_one_line_and_writes_nothing(tmp_path: Path, refused, monkeypatch) -> None:
    old = make(tmp_path, "lm_tied")
    files = {
        "new": dictionary(OTHERS),
        "strange": dictionary(["other", "words"]),
        "codes": "#version: 0.2\nn e\n",
        "old_vectors": "w3 1 2\nw0 1 0\n",
        "all_vectors": "w3 1 2\nw0 1 0\nnew 2 2\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = {name: str(tmp_path / name) for name in files} | {"old": old.dictionary}

    def refusal(options: str) -> str:
        given = {"--checkpoint": old.path, "--dict": old.dictionary, "--new-dict": paths["new"], "--method": "copy"}
        more = options.format(**paths).split()
        given |= dict(zip(more[::2], more[1::2]))
        return refused("transfer-vocab", "--output", old.output, *(part for pair in given.items() for part in pair))

    for options, said in {
        "--new-dict {old}": ["--new-dict", "give the dictionary"],
        "--new-dict {strange}": ["--new-dict", "--method subword or avg"],
        "--method focus": ["--method focus", "--vectors FILE"],
        "--vectors {old_vectors}": ["--vectors", "leave it out"],
        "--method focus --vectors {old_vectors}": ["--vectors", "new words", "embinit stats"],
        "--method focus --vectors {new}": ["--vectors", "word vectors"],
        "--old-bpe-codes {codes}": ["--old-bpe-codes", "leave it out"],
        "--method subword --old-bpe-codes {codes}": ["--old-bpe-codes", "leave --old-bpe-codes out"],
        "--sparsity 2": ["--sparsity 2", "leave it out"],
        "--method omp --vectors {all_vectors} --sparsity 0": ["--sparsity 0", "at least 1"],
        "--method omp --vectors {all_vectors} --sparsity 3": ["--vectors", "2 words", "--sparsity 3", "give a smaller"],
        "--seed -1": ["--seed -1", "2^64"],
    }.items():
        error = refusal(options)
        assert all(part in error for part in said), error
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install scikit-learn" in refusal("--method omp --vectors v.txt")
    assert not old.output.exists()


def test_the_command_of_one_side(tmp_path: Path, shown, refused) -> None:
    """An optimizer's state that is not understood names the option of this command."""
    old, new = make(tmp_path, "transformer", other=WORDS), write(tmp_path / "new.txt", *OTHERS)
    argv = ["transfer-vocab", "--checkpoint", old.path, "--dict", old.dictionary, "--new-dict", new, "--method", "copy"]
    argv += ["--output", str(old.output), "--side", "decoder"]
    old.state["last_optimizer_state"] = {"several": 1}
    old.save()
    assert "leave --keep-optimizer out" in refused(*argv, "--keep-optimizer")
    assert "6 words of the old dictionary: w3, w0" in shown(*argv)
    assert "last_optimizer_state" not in old.written()
