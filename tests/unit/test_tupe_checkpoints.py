"""`embinit convert-tupe`: outputs and ids equal those of TUPE's code; dangerous and damaged files are refused."""

from __future__ import annotations

import io
import math
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import tupe_code
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st
from tupe_code import ENCODER, HEAD

from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError
from embinit_fairseq.interop.tupe_checkpoints import convert_dictionary, convert_tupe
from embinit_fairseq.models.tupe import TupeModel

NAME = HEAD.split(".")[1]
SYMBOLS = 17  # 16, rounded up by two fillers, and <mask>


class Files:
    """A checkpoint of TUPE's code with its dictionary, and the output of the conversion."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, str(folder / "out")
        self.dictionary = tupe_code.write_dictionary(folder / "theirs.txt", tupe_code.words_of_dictionary())

    def save(self, weights=None, options=None, **changes) -> str:
        """options: those of `args` that differ."""
        weights = tupe_code.make_weights(SYMBOLS) if weights is None else weights
        given = {"args": tupe_code.make_args(weights, **(options or {})), **changes}
        return tupe_code.save(self.folder / "ref.pt", weights, **given)

    def convert(self, checkpoint=None, **options):
        return convert_tupe(checkpoint or self.save(), self.dictionary, self.output, **options)

    def argv(self, checkpoint, *more):
        return ["convert-tupe", "--checkpoint", checkpoint, "--dict", self.dictionary, "--output", self.output, *more]

    def written(self):
        """What plain PyTorch reads, with nothing but its own allow-list."""
        return torch.load(f"{self.output}/model.pt", weights_only=True)


@pytest.fixture
def files(tmp_path):
    """Nothing but these is there afterwards."""
    yield Files(tmp_path)
    assert {*os.listdir(tmp_path)} <= {"theirs.txt", "ref.pt", "labels.txt", "bare.pt", "out"}


def close(ours, theirs):
    assert theirs.abs().max() > 0.1  # there is something to compare
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("rel_pos", "emb_norm", "pre_ln", "classes", "fp16", "half", "positions"),
    [
        (True, True, False, 0, False, False, 24),
        (True, False, True, 3, True, False, 16),
        (False, True, True, 0, True, True, 9),
    ],
)
@torch.no_grad()
def test_outputs_equal_theirs(files, monkeypatch, rel_pos, emb_norm, pre_ln, classes, fp16, half, positions):
    """Sizes and kinds come from names and shapes, whatever its options say. Old formats are saved as from a GPU."""
    weights = tupe_code.make_weights(SYMBOLS, 8, 10, 3, positions, rel_pos, emb_norm, pre_ln, classes)
    options = tupe_code.fine_tuned(regression_target=classes == 1) if classes else {}
    options |= {"rel_pos": not rel_pos, "embedding_normalize": not emb_norm, "encoder_layers": 12}
    with monkeypatch.context() as patch:
        if not fp16:
            patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        checkpoint = files.save(weights, options, fp16=fp16, legacy=not fp16)
    record, state = files.convert(checkpoint, half=half), files.written()
    assert [record["stored_as"], record["written_as"]] == [[f"float{16 if kind else 32}"] for kind in (fp16, half)]
    assert record["num_updates"] == state["optimizer_history"][-1]["num_updates"] == 7
    assert (len(record["left_out"]), "last_optimizer_state" in state) == (2, False)
    head = state["model"]["encoder.lm_head.weight"]
    assert head.data_ptr() == state["model"]["encoder.sentence_encoder.embed_tokens.weight"].data_ptr()
    for flag, is_set in (("rel-pos", rel_pos), ("embedding-normalize", emb_norm), ("encoder-normalize-before", pre_ln)):
        assert (f"--{flag}" in record["train_with"]) == is_set
    expected = {"dropout": 0.2, "attention_dropout": 0.15, "pooler_dropout": 0.05, "max_positions": positions}
    assert expected.items() <= state["cfg"]["model"].items()
    if not classes:  # 12 in its args: the model takes no more than it has positions
        assert state["cfg"]["task"]["tokens_per_sample"] == min(12, positions)

    tokens = torch.randint(3, SYMBOLS, (3, positions), generator=torch.Generator().manual_seed(1))
    tokens[:, 0], tokens[:, 3], tokens[1, 7:], tokens[2, 2:] = 0, SYMBOLS - 1, tupe_code.PAD, tupe_code.PAD
    real = tokens != tupe_code.PAD
    w = {name: (value.half() if fp16 else value).double() for name, value in weights.items()}
    expected = tupe_code.features(w, tokens)
    (model,), _, _ = load_model_ensemble_and_task([f"{files.output}/model.pt"], arg_overrides={"data": files.output})
    model.eval().double()
    close(model(tokens, features_only=True)[0][real], expected[real])
    if classes:
        close(model(tokens, classification_head_name=NAME)[0], tupe_code.class_logits(w, expected))
    else:
        close(model(tokens)[0][real], tupe_code.lm_logits(w, expected)[real])


def test_a_bare_state_dict_of_an_early_commit(files):
    """One matrix for U^Q and U^K, and a stored table of buckets."""
    weights = tupe_code.make_weights(SYMBOLS, rel_pos=False)
    early = OrderedDict(weights)
    for part in ("weight", "bias"):
        early[f"{ENCODER}pos_proj.{part}"] = torch.cat([early.pop(f"{ENCODER}pos_{i}_linear.{part}") for i in "qk"])
    early[f"{ENCODER}rp_bucket"] = torch.zeros(16, 16, dtype=torch.long)
    torch.save(early, files.folder / "bare.pt")
    record = files.convert(str(files.folder / "bare.pt"), num_heads=2)
    assert (record["encoder_attention_heads"], record["num_updates"], record["left_out"]) == (2, 0, [])
    for letter in "qk":
        ours = files.written()["model"][f"encoder.sentence_encoder.positions.absolute.{letter}_proj.weight"]
        assert torch.equal(ours, weights[f"{ENCODER}pos_{letter}_linear.weight"])
        assert ours.untyped_storage().nbytes() == ours.numel() * 4


@pytest.mark.parametrize("regression", [True, False])
def test_fine_tuned(files, regression):
    classes, written, labels = 1, ["model.pt", "dict.txt", "input0/dict.txt"], None
    if not regression:
        entries = [("1", 9), ("0", 8), ("2", 5), ("madeupword0000", 0)]
        labels = tupe_code.write_dictionary(files.folder / "labels.txt", entries)
        classes, written = 3, [*written, "label/dict.txt"]
    options = tupe_code.fine_tuned(regression_target=regression)
    checkpoint = files.save(tupe_code.make_weights(SYMBOLS, classes=classes), options)
    record, cfg = files.convert(checkpoint, label_dictionary=labels), files.written()["cfg"]
    expected = {"_name": "sentence_prediction", "num_classes": classes, "init_token": 0, "separator_token": 2}
    expected |= {"shorten_method": "truncate", "regression_target": regression}
    assert expected.items() <= cfg["task"].items()
    assert cfg["criterion"]["regression_target"] is regression
    assert (record["files"], record["made_up_labels"]) == (written, False)
    assert regression or (Path(files.output) / "label/dict.txt").read_text() == Path(labels).read_text()
    # seven specials, w0, w1, ..., and <mask> as the last
    hub = TupeModel.from_pretrained(files.output, "model.pt")
    assert hub.encode("w0 w2 <url>", "<mask>").tolist() == [0, 7, 9, 6, 2, 2, SYMBOLS - 1, 2]


# --- the dictionary: the same symbol at the same id


SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<file>", "<email>", "<url>"]
SYMBOL = st.text(st.characters(blacklist_categories=("Cs", "Zs", "Zl", "Zp", "Cc")), min_size=1, max_size=4)
SYMBOL |= st.sampled_from([*SPECIALS, "<mask>", "a", "madeupword0000"])


def fairseq_ids(text) -> tuple[dict[str, int], int]:
    dictionary = Dictionary()
    dictionary.add_from_file(io.StringIO(text))
    dictionary.add_symbol("<mask>")  # as masked_lm and sentence_prediction do
    return dictionary.indices, len(dictionary)


@settings(max_examples=25)
@given(st.lists(st.tuples(SYMBOL, st.integers(0, 10**9)), min_size=1, max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_ids_agree_and_a_converted_file_is_not_shifted_again(tmp_path, entries, newline):
    """TUPE's Dictionary has seven specials, the lines (the last one of a repeated symbol counts), and `<mask>`.
    The number of rows decides what a file is: words may be spelled like the specials."""
    symbols = [*SPECIALS, *(symbol for symbol, _ in entries)]
    symbols += ["<mask>"] * ("<mask>" not in symbols)
    size = len(symbols)
    text = newline.join(f"{symbol} {count}" for symbol, count in entries)
    (tmp_path / "theirs.txt").write_bytes(text.encode())
    converted, added = convert_dictionary(str(tmp_path / "theirs.txt"), size)
    assert added == 3
    assert fairseq_ids(converted) == ({symbol: number for number, symbol in enumerate(symbols)}, size)
    (tmp_path / "again.txt").write_bytes(converted.encode())
    assert convert_dictionary(str(tmp_path / "again.txt"), size) == (converted, 0)


def test_the_command(files, printed, shown):
    record = printed(*files.argv(files.save(options={"max_rel_pos": 77}, fp16=True)))
    assert record["train_with"].startswith("--arch tupe_base --rel-pos --max-rel-pos 77 --encoder-layers 2 ")
    expected = {"task": "masked_lm", "rel_pos": True, "num_symbols": SYMBOLS, "specials_added": 3, "num_updates": 7}
    assert expected.items() <= record.items()
    assert sorted(os.listdir(files.output)) == ["dict.txt", "model.pt"]
    weights = tupe_code.make_weights(SYMBOLS, rel_pos=False, classes=3)
    text = shown(*files.argv(files.save(weights, tupe_code.fine_tuned(), fp16=True), "--force"))
    parts = ["TUPE-A, 7 updates (2 layers, dimension 8", "float16, written as float32", "3 classes", "<url> added"]
    parts += ["--label-dict gives the real ones", "the optimiser's state", "label/dict.txt", "--arch tupe_base"]
    assert all(part in text for part in parts), text
    assert (Path(files.output) / "label/dict.txt").read_text() == "class0 1\nclass1 1\nclass2 1\n"


# ---- Refused


class Malicious:
    """Its pickle makes a directory when it is executed."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_nothing_in_the_file_is_executed(files):
    for place in ("args", "extra_state", "model"):
        with pytest.raises(CheckpointError, match=r"ref\.pt: .*mkdir.*not executed"):
            files.convert(files.save(**{place: Malicious(files.folder / "executed")}))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("layers.0.self_attn.q_proj.weight", torch.zeros(8, 8), "q_proj.weight is unknown"),
        ("pos_proj.weight", torch.zeros(3, 8), "do not fit the model"),
        ("decoder.lm_head.weight", torch.zeros(SYMBOLS, 8), "decoder.lm_head.weight is not the embedding matrix"),
        (HEAD + "out_proj.weight", torch.zeros(3, 8), "no classification head"),  # of an early commit
        ("pos_ln.bias", torch.full((8,), math.nan), "pos_ln.bias holds NaN or infinity; .*earlier"),
        ("pos_ln.bias", [1.0], "pos_ln.bias is a list"),
        ("embed_positions.weight", torch.zeros(2, 8), "embed_positions.weight is unknown .*not TUPE"),
        ("encoder.sentence_encoder.positions.absolute.head.weight", torch.zeros(2), "already: nothing to convert"),
        ("layers.1.fc2.bias", None, "fc2.bias"),
        ("pos.weight", None, "embed_positions.weight in it"),
        ("decoder.lm_head.weight", None, "no embedding matrix or no language-model head"),
    ],
)
def test_state_dicts_of_other_code(files, name, value, expected):
    weights = tupe_code.make_weights(SYMBOLS)
    args, name = tupe_code.make_args(weights), name if "head" in name else ENCODER + name
    if value is None:
        del weights[name]
    else:
        weights[name] = value
    with pytest.raises(CheckpointError, match=rf"ref\.pt.*: .*{expected}"):
        files.convert(tupe_code.save(files.folder / "ref.pt", weights, args))
    assert not Path(files.output).exists()


def test_other_files_and_options(files):
    torch.save([1], files.folder / "ref.pt")
    with pytest.raises(CheckpointError, match="holds a list"):
        files.convert(str(files.folder / "ref.pt"))
    with pytest.raises(CheckpointError, match=r"ref\.pt.*'gelu_accurate', expected one of"):
        files.convert(files.save(options={"activation_fn": "gelu_accurate"}))
    for rel_pos, in_args, option, expected in (
        (True, 4, None, "args: 4, the matrix of relative positions: 2;"),
        (False, 2, 4, "args: 2, --heads: 4;"),
        (False, None, None, "found none; .*--heads"),
        (False, None, 3, "3 does not divide .* 8; numbers that do: 1, 2"),
    ):
        checkpoint = files.save(tupe_code.make_weights(SYMBOLS, rel_pos=rel_pos), {"encoder_attention_heads": in_args})
        with pytest.raises(EmbinitError, match=expected):
            files.convert(checkpoint, num_heads=option)


def test_dictionaries_of_another_model(files):
    for classes, options, labels, expected in (
        (3, tupe_code.fine_tuned(), 2, r"labels\.txt: 2 labels.*3 classes.*--label-dict"),
        (3, tupe_code.fine_tuned(), 4, r"labels\.txt: 4 labels.*3 classes.*--label-dict"),
        (1, tupe_code.fine_tuned(regression_target=True), 1, "--label-dict .*: this model predicts no classes"),
    ):
        file = tupe_code.write_dictionary(files.folder / "labels.txt", [(str(label), 1) for label in range(labels)])
        with pytest.raises(EmbinitError, match=expected):
            files.convert(files.save(tupe_code.make_weights(SYMBOLS, classes=classes), options), label_dictionary=file)
    for content, rows, expected in (
        *((b"a 1\nb 1\n", rows, rf"2 lines make 10 symbols.*has {rows} rows; give --dict") for rows in (7, 9, 11)),
        *((b"", 9, "no symbol"), (b"a x\n", 9, "1: ")),
    ):
        Path(files.dictionary).write_bytes(content)
        with pytest.raises(DataError, match=rf"theirs\.txt:? ?{expected}"):
            convert_dictionary(files.dictionary, rows)
