"""The core of all changes of a vocabulary, and the words of an expansion. Oracles: fairseq's own Dictionary for where
words go; real optimizers of torch and fairseq, which continue with the resized state."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.optim.adafactor import Adafactor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from embinit_fairseq.checkpoints.build import data_folder, languages_of
from embinit_fairseq.errors import DataError
from embinit_fairseq.init.init_report import pack_rows, symbols_digest, unpack_rows
from embinit_fairseq.init.method_inputs import rows_to_average
from embinit_fairseq.resize.core import resized_record
from embinit_fairseq.resize.expand import place_words, read_words, subwords_of_words
from embinit_fairseq.resize.old_model import OldModel
from embinit_fairseq.resize.optimizer import UnknownStateError, resize_optimizer
from embinit_fairseq.resize.symbol_tensors import with_rows
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.segmentation import read_segmentation

APPENDED = ["<mask>", "[de]", "[en]", "[cs]"]
TAKEN = {*Dictionary().symbols, *APPENDED, "madeupword0000"}
LETTERS = st.characters(min_codepoint=33, max_codepoint=0x24F, exclude_characters="\x7f\x85\xa0\xad")
WORD = st.text(LETTERS, min_size=1, max_size=6).filter(lambda word: word not in TAKEN)
WORDS = st.lists(WORD, min_size=1, max_size=8, unique=True)


def written(path, text):
    Path(path).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return str(path)


def source_of(text, appended=(), vocabulary=None):
    """The part of an old model that `place_words` reads."""
    vocabulary = vocabulary or read_dictionary(text)
    text = Path(text).read_bytes().decode("utf-8")
    symbols = [*vocabulary.symbols, *appended]
    lines = OldModel.lines.fget(SimpleNamespace(text=text))
    return SimpleNamespace(vocabulary=vocabulary, symbols=symbols, lines=lines)


@given(WORDS, st.integers(0, 5), WORDS, st.sets(st.sampled_from(APPENDED)), WORDS, st.booleans())
@settings(max_examples=30)
def test_every_symbol_finds_its_row(tmp_path, words, fillers, behind, appended, new, newline):
    """Old and new symbols are where the row map says, and fillers are the only ones that are lost."""
    lines = [*words, *(f"madeupword{i:04d}" for i in range(fillers)), *(f"later-{word}" for word in behind)]
    new = [word for word in new if word not in lines] or ["neither-of-them"]
    path = tmp_path / "dict.txt"
    written(path, "\n".join(f"{w} {0 if w.startswith('madeupword') else 3}" for w in lines) + "\n" * newline)
    before = Dictionary.load(str(path))
    change = place_words(source_of(path, sorted(appended)), new)
    written(path, change.text)
    after = Dictionary.load(str(path))
    for dictionary, symbol in itertools.product((before, after), sorted(appended)):  # as a task does after the file
        dictionary.add_symbol(symbol)
    assert (change.symbols, [after[row] for row in change.made]) == (after.symbols, new)
    assert all(after[row] == before[old] for row, old in enumerate(change.old_row) if old >= 0)
    new_row = change.new_row_of(len(before))
    lost = [symbol for symbol, row in zip(before.symbols, new_row) if row < 0]
    assert lost == [f"madeupword{i:04d}" for i in range(min(fillers, len(new)))]
    assert sorted([*change.made, *new_row[new_row >= 0]]) == list(range(len(after)))


def test_lines_that_stay_as_they_are_and_what_is_averaged(tmp_path):
    path = written(tmp_path / "dict.txt", "a b 7\n<s> 2 #fairseq:overwrite\nmadeupword0000 0\nmadeupword0001 5\nü 1")
    text = place_words(source_of(path, ["<mask>"]), ["x", "y"]).text
    assert text == "a b 7\n<s> 2 #fairseq:overwrite\nx 1\nmadeupword0001 5\nü 1\ny 1\n"
    text = "a 7\n<mask> 1\nb 2\n<unk> 3 #fairseq:overwrite\nmadeupword0000 0\nmadeupword0001 0\n"
    vocabulary = read_dictionary(written(path, text))
    rows = np.array([0, 1, 2, 3, 4, 5, 6, 7, 10, 11])  # no fillers, and two that the task appends
    averaged = [list(rows_to_average(vocabulary, over, rows)) for over in ("all", "words")]
    assert averaged == [[*rows], [4, 6]]


def test_words_and_their_subwords(tmp_path):
    path = written(tmp_path / "new.txt", "\ufefffrodo\r\n\n  sam \nlothlórien\tloth@@ ló@@ rien\r\n")
    words = [(word.text, word.line, word.subwords) for word in read_words(path, {"bilbo"})]
    assert read_words(written(tmp_path / "year.txt", "1999\t19\n"), ())[0].subwords == ("19",)
    assert words == [("frodo", 1, ()), ("sam", 3, ()), ("lothlórien", 4, ("loth@@", "ló@@", "rien"))]
    codes = read_segmentation(written(tmp_path / "codes", "#version: 0.2\nf r\nfr o\nd o</w>\n"), None)
    written(path, "frodo\nfrodofro\tdo fro@@\n")
    subwords = subwords_of_words(path, read_words(path, ()), codes, {"fro@@", "do"}, "subword")
    assert subwords == [["fro@@", "do"], ["do", "fro@@"]]
    for text, symbols, expected in (
        ("frodo\nfro@@\n", {"fro@@", "do"}, r"new\.txt:2: --method distill needs the subwords of 'fro@@'.*--bpe-codes"),
        ("fro\tfro@@\nfrodo\n", {"fro@@"}, r"new\.txt:2: 1 word .*'frodo' \(line 2: do\); .*--method avg"),
        ("sam\n\nfrodo\n", {"s@@", "a@@"}, r":1: 2 words .*'sam' \(line 1: m\), 'frodo' \(line 3: fro@@ do\)"),
    ):
        with pytest.raises(DataError, match=expected):
            subwords_of_words(written(path, text), read_words(path, ()), codes, symbols, "distill")
    for segmentation, is_remedy in ((codes, False), (None, True)):
        with pytest.raises(DataError, match=r"not in the dictionary: 'x'.*--method avg") as refusal:
            subwords_of_words(written(path, "x\tfro@@\n"), read_words(path, ()), segmentation, {"a"}, "subword")
        assert ("give the codes or the model" in str(refusal.value)) == is_remedy


@pytest.mark.parametrize(("text", "symbols", "said"), [
    ("sam\nbilbo\n", "bilbo", "new.txt:2: .*'bilbo'.*remove"),
    ("sam\nfrodo\nsam\n", "bilbo", "new.txt:3: 'sam'.*line 1"),
    ("sam frodo\n", "bilbo", "new.txt:1: found 'sam frodo'.*one per line"),
    ("madeupword0012\n", "bilbo", "new.txt:1: .*another name"),
    ("sam\t12\n", "bilbo 12", "new.txt:1: found 12 after the tab.*cut -f1"),
    ("sam\t-3.25\n", "bilbo", "new.txt:1: found -3.25 after the tab.*cut -f1"),
    ("\n \n", "bilbo", "one new word per line"),
    ("bilbo\nfrodo\n<mask>\nbilbo\n", "bilbo <mask>", r":1: .*'bilbo' already.*2 other words: lines 3, 4"),
    ("bilbo\nfrodo\n<mask>\n", "bilbo <mask>", r":1: .*'bilbo' already.*1 other word: line 3\)"),
    ("in\n", "▁the in", r":1: a word at its beginning is written '▁in'; .*write ▁ before"),
    ("in\n", "Ġthe in", r":1: a word at its beginning is written 'Ġin'"),
    ("a b\na\nc\n\tx\n", "", r":1: found 'a b', .*1 other word: line 4\); write one per line"),
    ("a\na\nb\nb\na\n", "", r":2: 'a' is in line 1 already \(and 2 other words: lines 4, 5\); remove"),
    ("▁the\n", "▁the in", r":1: the dictionary has '▁the' already; remove"),
])  # fmt: skip
def test_lists_that_are_refused(tmp_path, text, symbols, said):
    with pytest.raises(DataError, match=said):
        read_words(written(tmp_path / "new.txt", text), set(symbols.split()))


def test_folders_and_languages_of_the_data(tmp_path):
    """Some multilingual tasks append a tag for every folder in the data; those of --langs are made, but for "../x"."""
    (tmp_path / "train.de-en.en.idx").touch()
    unnamed = {"source_lang": None, "target_lang": None}
    assert languages_of(unnamed, str(tmp_path / "dict.en.txt")) == ("de", "en")
    for name in ("data/fr", "made"):
        (tmp_path / name).mkdir(parents=True)
    data, made = str(tmp_path / "data"), str(tmp_path / "made")
    for options, found in (({"data": f"{data}:other"}, data), ({"data": "none"}, made), ({"langs": ["de"]}, made)):
        assert data_folder(options, tmp_path / "made") == found
        assert not list((tmp_path / "made").iterdir())
    assert data_folder({"data": data, "langs": "de,en,de,../x"}, tmp_path / "made") == made
    folders = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()]
    assert sorted(folders) == ["data", "data/fr", "made", "made/de", "made/en"]


# --- tensors with new rows

D, N = 3, 8
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "a", "madeupword0000", "b"]  # and <mask> behind the file
#: three new words: one in the filler's row 5, two in rows 7 and 8; `<mask>` moves from 7 to 9
OLD_ROW = np.array([0, 1, 2, 3, 4, -1, 6, -1, -1, 7])
MADE, KEPT, OLD = (torch.tensor(rows) for rows in ([5, 7, 8], [0, 1, 2, 3, 4, 6, 9], [0, 1, 2, 3, 4, 6, 7]))


class Model(nn.Module):
    """A tied table with an output bias, a table of its own, and something that is not over the dictionary."""

    def __init__(self, rows: int = N) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, D)
        self.middle = nn.Linear(D, D)
        self.out = nn.Linear(D, rows)
        self.out.weight = self.table.weight
        self.other = nn.Embedding(rows, 2)

    def forward(self, tokens):
        return self.out(self.middle(self.table(tokens))).logsumexp(-1).sum() + self.other(tokens).pow(2).sum()


TABLES = {"table.weight", "out.weight", "out.bias", "other.weight"}
TOKENS, MOVED = torch.tensor([4, 6, 7, 4, 0]), torch.tensor([4, 6, 9, 4, 0])
OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "adafactor": lambda parameters: Adafactor(parameters, lr=None, beta1=0.9),
}


def resized(state, model=None, tables=TABLES):
    return resize_optimizer(state, model or Model(), tables, OLD_ROW)


def optimizer_of(model, name, frozen):
    for parameter in frozen:
        model.get_parameter(parameter).requires_grad_(False)
    return OPTIMIZERS[name]([parameter for parameter in model.parameters() if parameter.requires_grad])


def step(model, optimizer, tokens=TOKENS):
    optimizer.zero_grad()
    model(tokens).backward()
    optimizer.step()


def trained(name="adam", frozen=()):
    torch.manual_seed(0)
    model = Model()
    optimizer = optimizer_of(model, name, frozen)
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


@pytest.mark.parametrize(("name", "frozen"), [*((name, ()) for name in OPTIMIZERS), ("adam", ("other.weight",))])
def test_an_optimizer_continues_with_the_resized_state(name, frozen):
    """Without a softmax over it, the gradient of a table is the same before and after: so must be its next step."""
    model, optimizer = trained(name, frozen)
    result = Model(len(OLD_ROW))
    old = model.state_dict()
    result.load_state_dict({key: with_rows(old[key], OLD_ROW) if key in TABLES else old[key] for key in old})
    after = optimizer_of(result, name, frozen)
    after.load_state_dict(resized(copy.deepcopy(optimizer.state_dict())))  # as in a file: counters are tensors
    found = after.state[result.table.weight]
    for key, old in optimizer.state[model.table.weight].items():
        if torch.is_tensor(old) and old.shape[:1] == (N,):
            assert torch.equal(found[key][KEPT], old[OLD])
            mean = old.mean() * (key == "exp_avg_sq_row")
            torch.testing.assert_close(found[key][MADE], mean.expand_as(found[key][MADE]))
        elif torch.is_tensor(old):
            assert torch.equal(found[key], old)
    step(model, optimizer)
    step(result, after, MOVED)
    assert all(torch.isfinite(value).all() for value in result.state_dict().values())
    if name != "adafactor":  # whose steps depend on the whole table
        assert torch.equal(result.other.weight[KEPT], model.other.weight[OLD])


def test_states_that_are_not_understood_are_refused():
    """Of twins, two tables of one shape, it would be guessed which of them was frozen."""
    state = trained()[1].state_dict()
    odd = copy.deepcopy(state)
    odd["state"][0]["exp_avg"] = torch.zeros(5, 5)
    twins = nn.ModuleDict({"mine": nn.Embedding(N, D), "other": nn.Embedding(N, D), "out": nn.Linear(D, 2)})
    optimizer = torch.optim.Adam([*twins.parameters()][1:])
    sum(parameter.sum() for parameter in twins.parameters()).backward()
    optimizer.step()
    for wrong, said, *more in (
        ({"fast": state, "slow": state}, "several or unknown ones"),
        ({"state": [], "param_groups": None}, "several or unknown ones"),
        ({**state, "state": {"mine.weight": state["state"][0]}}, "several or unknown ones"),
        (odd, "not that of the model's parameters"),
        (optimizer.state_dict(), "not that of the model's parameters", twins, {"mine.weight"}),
    ):
        with pytest.raises(UnknownStateError, match=said):
            resized(wrong, *more)


@pytest.mark.parametrize("more", [0, 5])  # numbers of a criterion's parameters, which follow
def test_one_flat_vector(more):
    """fairseq's FP16Optimizer keeps the moments of all parameters one behind the other."""
    state = trained()[1].state_dict()

    def flat(states, key):
        return torch.cat([*(states[number][key].reshape(-1) for number in range(len(states))), torch.ones(more)])

    held = {"step": 3, **{key: flat(state["state"], key) for key in ("exp_avg", "exp_avg_sq")}}
    given = {"state": {0: held}, "param_groups": [{**state["param_groups"][0], "params": [0]}], "loss_scale": 4.0}
    found, expected = resized(given), resized(state)["state"]
    assert (found["loss_scale"], found["state"][0]["step"]) == (4.0, 3)
    assert all(torch.equal(found["state"][0][key], flat(expected, key)) for key in ("exp_avg", "exp_avg_sq"))
    held["exp_avg"] = held["exp_avg"][: -more - 1]
    with pytest.raises(UnknownStateError, match="its optimizer keeps exp_avg"):
        resized(given)


def test_the_record_of_embed_init_knows_the_new_dictionary():
    """`--embed-init-freeze encoder:known` asks it on resuming which rows to hold."""
    old, new = [*SYMBOLS, "<mask>"], [*SYMBOLS[:5], "x", "b", "y", "z", "<mask>"]
    mine = {"dictionary": symbols_digest(old), "rows": N}
    mine["known_rows"] = pack_rows(np.array([0, 0, 0, 0, 1, 1, 0, 1], dtype=bool))
    other = {**mine, "dictionary": "of the other side"}

    change = SimpleNamespace(old_row=OLD_ROW, symbols=new)

    def record_after(record):
        return resized_record(record, old, change)

    slots = json.loads(record_after(json.dumps({"slots": {"encoder": mine, "decoder": other}})))["slots"]
    assert slots["decoder"] == other
    assert (slots["encoder"]["dictionary"], slots["encoder"]["rows"]) == (symbols_digest(new), 10)
    assert np.flatnonzero(unpack_rows(slots["encoder"]["known_rows"], 10)).tolist() == [4, 9]
    assert [record_after(text) for text in ("no json", "[]", "{}")] == ["no json", "[]", "{}"]
