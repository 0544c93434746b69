"""`embinit convert-tupe`: outputs and ids equal those of TUPE's code; dangerous and damaged files are refused."""

from __future__ import annotations

import contextlib
import io
import math
import os
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import tupe_code
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data import Dictionary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tupe_code import ENCODER, HEAD

from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OptionError
from embinit_fairseq.interop.tupe_checkpoints import convert_dictionary, convert_tupe
from embinit_fairseq.models.tupe import TupeModel

FUZZ = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SYMBOLS = 17  # 16, rounded up by two fillers, and <mask>


@contextlib.contextmanager
def allowed(*classes: type):
    """PyTorch's own allow-list, and these."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(list(classes))
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


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
        with allowed():
            return torch.load(f"{self.output}/model.pt", weights_only=True)


@pytest.fixture
def files(tmp_path):
    """Nothing but these is there afterwards."""
    yield Files(tmp_path)
    assert {*os.listdir(tmp_path)} <= {"theirs.txt", "ref.pt", "labels.txt", "bare.pt", "out"}


def loaded(folder: str) -> list[torch.nn.Module]:
    """By fairseq and by the hub, in double precision."""
    models, _, _ = load_model_ensemble_and_task([f"{folder}/model.pt"], arg_overrides={"data": folder})
    return [models[0].eval().double(), TupeModel.from_pretrained(folder, "model.pt").model.double()]


def close(ours, theirs):
    assert theirs.abs().max() > 0.1  # there is something to compare
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("rel_pos", "emb_norm", "pre_ln", "classes", "fp16", "half", "positions"),
    [
        (True, True, False, 0, False, False, 140),  # distances beyond the last bucket
        (True, False, True, 3, True, False, 16),
        (False, True, True, 0, True, True, 9),
        (False, False, False, 1, False, False, 16),
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
    real, masked = tokens != tupe_code.PAD, tokens == SYMBOLS - 1
    w = {name: (value.half() if fp16 else value).double() for name, value in weights.items()}
    expected = tupe_code.features(w, tokens)
    for model in loaded(files.output):
        close(model(tokens, features_only=True)[0][real], expected[real])
        if classes:
            name = "sentence_classification_head"
            close(model(tokens, classification_head_name=name)[0], tupe_code.class_logits(w, expected))
        else:
            close(model(tokens)[0][real], tupe_code.lm_logits(w, expected)[real])
            close(model(tokens, masked_tokens=masked)[0], tupe_code.lm_logits(w, expected[masked]))


def test_number_of_heads(files):
    for rel_pos, in_args, given_heads, expected in (
        (True, 4, None, "differ"),
        (False, 2, 4, "differ"),
        (False, None, None, "give --heads"),
        (False, None, 3, "--heads 3 .* 8; numbers that do: 1, 2"),
    ):
        weights = tupe_code.make_weights(SYMBOLS, rel_pos=rel_pos)
        with pytest.raises(OptionError, match=expected):
            files.convert(files.save(weights, {"encoder_attention_heads": in_args}), num_heads=given_heads)


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


@pytest.mark.parametrize("labels", ["regression", "made up", "given"])
def test_fine_tuned(files, labels):
    regression, classes = labels == "regression", 1 if labels == "regression" else 3
    weights, written = tupe_code.make_weights(SYMBOLS, classes=classes), ["model.pt", "dict.txt", "input0/dict.txt"]
    entries = [("1", 9), ("0", 8), ("2", 5), ("madeupword0000", 0)]
    file = tupe_code.write_dictionary(files.folder / "labels.txt", entries) if labels == "given" else None
    checkpoint = files.save(weights, tupe_code.fine_tuned(regression_target=regression))
    record, cfg = files.convert(checkpoint, label_dictionary=file), files.written()["cfg"]
    expected = {"_name": "sentence_prediction", "num_classes": classes, "init_token": 0, "separator_token": 2}
    expected |= {"shorten_method": "truncate", "regression_target": regression}
    assert expected.items() <= cfg["task"].items()
    assert cfg["criterion"]["regression_target"] is regression
    assert record["files"] == written + ([] if regression else ["label/dict.txt"])
    assert all((Path(files.output) / name).is_file() for name in record["files"])
    assert record["made_up_labels"] is (labels == "made up")
    # seven specials, w0, w1, ..., and <mask> as the last
    hub = TupeModel.from_pretrained(files.output, "model.pt")
    assert hub.encode("w0 w2 <url>", "<mask>").tolist() == [0, 7, 9, 6, 2, 2, SYMBOLS - 1, 2]
    if not regression:
        text = Path(file).read_text() if file else "class0 1\nclass1 1\nclass2 1\n"
        assert (Path(files.output) / "label/dict.txt").read_text() == text


# --- the dictionary: the same symbol at the same id


SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<file>", "<email>", "<url>"]
SYMBOL = st.text(st.characters(blacklist_categories=("Cs", "Zs", "Zl", "Zp", "Cc")), min_size=1, max_size=4)
SYMBOL |= st.sampled_from([*SPECIALS, "<mask>", "a", "madeupword0000"])


def fairseq_ids(text) -> tuple[dict[str, int], int]:
    dictionary = Dictionary()
    dictionary.add_from_file(io.StringIO(text))
    dictionary.add_symbol("<mask>")  # as masked_lm and sentence_prediction do
    return dictionary.indices, len(dictionary)


@FUZZ
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


# ---- Refused


class Malicious:
    """Its pickle makes a directory when it is executed."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_in_the_file_is_executed(files, legacy):
    with allowed(Namespace):
        for place in ("args", "extra_state", "model"):
            with pytest.raises(CheckpointError, match=r"ref\.pt: .*mkdir.*not executed"):
                files.convert(files.save(legacy=legacy, **{place: Malicious(files.folder / "executed")}))
        files.convert()
        assert torch.serialization.get_safe_globals() == [Namespace]  # as it was


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("layers.0.self_attn.q_proj.weight", torch.zeros(8, 8), "q_proj.weight is unknown"),
        ("relative_attention_bias.weight", torch.zeros(32, 2), "--rel-pos-bins 31"),
        ("pos_proj.weight", torch.zeros(3, 8), "damaged"),
        ("decoder.lm_head.weight", torch.zeros(SYMBOLS, 8), "decoder.lm_head.weight is not the embedding matrix"),
        (HEAD + "out_proj.weight", torch.zeros(3, 8), "early commit"),
        ("pos_ln.bias", [1.0], "pos_ln.bias is a list"),
        ("pos_ln.bias", torch.full((8,), math.nan), "pos_ln.bias holds NaN or infinity; .*earlier"),
    ],
)
def test_state_dicts_of_other_code(files, name, value, expected):
    weights = tupe_code.make_weights(SYMBOLS)
    args = tupe_code.make_args(weights)
    weights[name if "head" in name else ENCODER + name] = value
    with pytest.raises(CheckpointError, match=rf"ref\.pt: .*{expected}"):
        files.convert(tupe_code.save(files.folder / "ref.pt", weights, args))


@FUZZ
@given(data=st.data())
def test_any_missing_name_or_other_shape_is_noticed(tmp_path, data):
    files, weights = Files(tmp_path), tupe_code.make_weights(SYMBOLS)
    args, name = tupe_code.make_args(weights), data.draw(st.sampled_from(list(weights)))
    if data.draw(st.booleans()) and not name.endswith("relative_attention_bias.weight"):  # without it: TUPE-A
        del weights[name]
    else:
        weights[name] = torch.zeros(*weights[name].shape[:-1], weights[name].shape[-1] + 2)
    with pytest.raises(EmbinitError):
        files.convert(tupe_code.save(tmp_path / "ref.pt", weights, args))
    assert not Path(files.output).exists()


def test_files_of_something_else(files):
    for content, expected in (
        ([1], "holds a list"),
        ({"model": {}}, "model is a dict, not a tensor"),
        ({"model": {"encoder.sentence_encoder.positions.absolute.q_proj.weight": torch.ones(2, 2)}}, "already"),
        ({"model": {"decoder.sentence_encoder.embed_positions.weight": torch.ones(2, 2)}}, "not TUPE"),
        ({"model": {"decoder.lm_head.weight": torch.ones(2, 2)}}, "no embedding matrix"),
    ):
        torch.save(content, files.folder / "ref.pt")
        with pytest.raises(CheckpointError, match=rf"ref\.pt: .*{expected}"):
            files.convert(str(files.folder / "ref.pt"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"activation_fn": "gelu_accurate"}, "activation_fn gelu_accurate"),
        ({"dropout": 5}, "--dropout 5"),
        ({"max_rel_pos": 8}, "--max-rel-pos 8"),  # 32 buckets: 8 for near distances
    ],
)
def test_options_that_cannot_be(files, changes, expected):
    with pytest.raises(CheckpointError, match=rf"ref\.pt: .*{expected}"):
        files.convert(files.save(options=changes))


def test_labels_that_do_not_fit(files):
    for classes, options, labels, expected in (
        (3, tupe_code.fine_tuned(), 2, r"labels\.txt: 2 labels.*3 classes.*--label-dict"),
        (3, tupe_code.fine_tuned(), 4, r"labels\.txt: 4 labels.*3 classes.*--label-dict"),
        (1, tupe_code.fine_tuned(regression_target=True), 1, "--label-dict .*: this model predicts no classes"),
    ):
        file = tupe_code.write_dictionary(files.folder / "labels.txt", [(str(label), 1) for label in range(labels)])
        with pytest.raises(EmbinitError, match=expected):
            files.convert(files.save(tupe_code.make_weights(SYMBOLS, classes=classes), options), label_dictionary=file)


def test_dictionaries_of_another_model(tmp_path):
    of_another = [
        (b"a 1\nb 1\n", rows, rf"2 lines make 10 symbols.*has {rows} rows; give --dict") for rows in (7, 9, 11)
    ]
    for content, rows, expected in (*of_another, (b"", 9, "no symbol"), (b"a x\n", 9, "1: ")):
        (tmp_path / "dict.txt").write_bytes(content)
        with pytest.raises(DataError, match=rf"dict\.txt:? ?{expected}"):
            convert_dictionary(str(tmp_path / "dict.txt"), rows)
