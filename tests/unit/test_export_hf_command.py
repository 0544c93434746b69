"""`embinit export-hf`: what it writes and prints, that a wrong model is noticed, and errors of one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from expand_checkpoints import make
from hf_exports import CLASSES, GENERATOR, MLM, checkpoint_of, export_hf

import embinit_fairseq.export.files as files
from embinit_fairseq.cli.main import main
from embinit_fairseq.export.files import bundle

pytest.importorskip("transformers")
FILES = ["README.md", "config.json", "configuration_tupe.py", "dict.txt", "model.safetensors", "modeling_tupe.py"]
FILES += ["tokenizer.json", "tokenizer_config.json"]
CODE = files.modelling_code()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_nothing_written(checkpoint):
    assert not checkpoint.output.exists()
    assert not [path for path in checkpoint.folder.iterdir() if path.name.endswith(".tmp")]


def test_a_pre_trained_model(tmp_path, capsys):
    from safetensors import safe_open

    checkpoint = checkpoint_of(tmp_path / "c", fillers=2)
    assert export_hf(checkpoint, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert names_in(checkpoint.output) == FILES == sorted(record["files"])
    assert record["auto_class"] == "AutoModelForMaskedLM"
    assert record["dictionary"] == checkpoint.dictionary  # found in the data folder of the training
    found = record["verified"]["differences"]
    assert found["float64"]["difference"] <= 1e-12 < found["float64"]["allowed"]
    assert found["float32"]["difference"] <= 1e-5 * found["float32"]["scale"]
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert (config["vocab_size"], config["architectures"], config["torch_dtype"]) == (
        16,
        ["TupeForMaskedLM"],
        "float32",
    )
    with safe_open(checkpoint.output / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    assert "lm_head.decoder.weight" not in names  # tied: stored once
    assert record["parameters"] == sum(value.numel() for value in checkpoint.model.parameters())
    assert len(names) == len(list(checkpoint.model.parameters()))
    card = (checkpoint.output / "README.md").read_text()
    for part in (
        "# TUPE-R",
        'AutoModelForMaskedLM.from_pretrained("THIS_FOLDER", trust_remote_code=True)',
        "| float64 |",
    ):
        assert part in card
    assert (checkpoint.output / "model.safetensors").stat().st_mode == (checkpoint.output / "dict.txt").stat().st_mode


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_of_a_fine_tuned_model(tmp_path, capsys, dtype):
    checkpoint = checkpoint_of(tmp_path / "c", "bert_ad_tiny", "", task=f"{CLASSES} --num-classes 3")
    assert export_hf(checkpoint, "--dtype", dtype, "--dict", checkpoint.dictionary) == 0
    text = capsys.readouterr().out
    for part in ("head           sentence_classification_head: a, b, c", f"parameters in {dtype}", f"{dtype}: differs"):
        assert part in text
    assert "float64: differs" in text
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert config["problem_type"] == "single_label_classification"
    assert export_hf(checkpoint) == 2
    assert "this folder is not empty; choose another --output, or add --force" in capsys.readouterr().err
    assert json.loads((checkpoint.output / "config.json").read_text())["torch_dtype"] == dtype


def test_a_discriminator(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "electra_tiny", "", task=f"{MLM} {GENERATOR}")
    assert export_hf(checkpoint) == 0
    text = capsys.readouterr().out
    assert "left out       generator, replaced-token head" in text
    assert "opened by      AutoModel," in text


SCALE = "self.scale = (num_terms * (embed_dim // num_heads)) ** -0.5"
#: in the exported code -> broken, as somebody might who writes it down a second time
MUTANTS = {
    "scaling": (SCALE, "self.scale = (embed_dim // num_heads) ** -0.5"),
    "a thousandth": (SCALE, f"{SCALE} * 1.001"),
    "rows of the reset": ("to_cls=scores[:, 0, 0]", "to_cls=(q[:, 0] * k[:, 0]).sum(-1)"),
    "bucket": ("offset = (relative_position > 0)", "offset = (relative_position >= 0)"),
    "padding": (
        "padding_mask = padding_mask[:, None, None]",
        "padding_mask = torch.zeros_like(padding_mask)[:, None, None]",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_model_that_computes_something_else_is_not_written(tmp_path, capsys, monkeypatch, mutant):
    right, wrong = MUTANTS[mutant]
    assert CODE["modeling_tupe.py"].count(right) == 1
    broken = {**CODE, "modeling_tupe.py": CODE["modeling_tupe.py"].replace(right, wrong)}
    monkeypatch.setattr(files, "modelling_code", lambda: broken)
    checkpoint = checkpoint_of(tmp_path / "c")
    slight = mutant == "a thousandth"  # is lost in the rounding of bfloat16
    assert export_hf(checkpoint, "--dtype", "bfloat16" if slight else "float32") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    expected = f"embinit export-hf: error: {checkpoint.path}: the exported model differs from fairseq's by"
    assert error.startswith(expected)
    assert f" in {'float64' if slight else 'float32'} (allowed: " in error
    assert_nothing_written(checkpoint)


def test_code_that_needs_more_than_transformers_is_not_written(tmp_path, capsys, monkeypatch):
    broken = {
        **CODE,
        "modeling_tupe.py": CODE["modeling_tupe.py"].replace("import math\n", "import math\nimport fairseq\n"),
    }
    monkeypatch.setattr(files, "modelling_code", lambda: broken)
    checkpoint = checkpoint_of(tmp_path / "c")
    assert export_hf(checkpoint) == 2
    assert "transformers cannot open what was exported" in capsys.readouterr().err
    assert_nothing_written(checkpoint)


def test_a_tensor_that_is_left_out_is_noticed(tmp_path, capsys, monkeypatch):
    """transformers would draw it."""
    import embinit_fairseq.export.files as export_files

    whole = export_files.weights
    monkeypatch.setattr(
        export_files, "weights", lambda trained: {k: v for k, v in whole(trained).items() if "fc1.bias" not in k}
    )
    checkpoint = checkpoint_of(tmp_path / "c")
    assert export_hf(checkpoint) == 1
    assert "fc1.bias" in capsys.readouterr().err
    assert_nothing_written(checkpoint)


def bad_weights(checkpoint):
    checkpoint.state["model"]["encoder.lm_head.bias"][3] = float("nan")
    checkpoint.save()


def cut_short(checkpoint):
    content = Path(checkpoint.path).read_bytes()
    Path(checkpoint.path).write_bytes(content[: len(content) // 2])


def without_dictionary(checkpoint):
    checkpoint.state["cfg"]["task"]["data"] = "elsewhere"
    checkpoint.save()


@pytest.mark.parametrize(
    ("prepare", "flags", "message"),
    [
        (cut_short, (), "c.pt: not a fairseq checkpoint that can be read safely"),
        (bad_weights, (), "encoder.lm_head.bias holds NaN or infinity; export an earlier checkpoint"),
        (without_dictionary, (), "or elsewhere: name the dictionary of the training by --dict"),
        (
            None,
            ("--dict", "short.txt"),
            "c.pt with the dictionary short.txt: the checkpoint has 14 symbols, the dictionary 6: use the dict.txt of",
        ),
        (None, ("--dict", "none.txt"), "--dict none.txt: no such file; check the path"),
        (None, ("--checkpoint", "none.pt"), "none.pt: no such checkpoint"),
        (None, ("--head", "x"), "--head x: "),
        (None, ("--label-dict", "short.txt"), "--label-dict short.txt: "),
        (None, ("--output", "short.txt"), "short.txt: there is a file of this name; choose another --output"),
        (None, ("--output", "data"), "lies in this folder; choose another --output"),
        (None, ("--bpe-codes", "short.txt", "--tokenizer", "x"), "--bpe-codes and --tokenizer both say"),
        (None, ("--bpe-codes", "none.txt"), "--bpe-codes none.txt: no such file"),
        (None, ("--bpe-codes", "codes.txt"), "codes.txt:2: expected two pieces, found 'a b c'; give the codes"),
        (None, ("--verify-text", "none.txt"), "--verify-text none.txt: no such file"),
        (None, ("--verify-text", "empty.txt"), "--verify-text empty.txt: no text in it"),
        (None, ("--tokenizer", "none"), "--tokenizer none: transformers cannot open it without"),
        (None, ("--dtype", "int8"), "argument --dtype: invalid choice"),
    ],
)
def test_mistakes(tmp_path, capsys, monkeypatch, prepare, flags, message):
    checkpoint = checkpoint_of(tmp_path / "c")
    monkeypatch.chdir(checkpoint.folder)
    for name, text in {"short.txt": "w0 1\n", "codes.txt": "#version: 0.2\na b c\n", "empty.txt": " \n"}.items():
        (checkpoint.folder / name).write_text(text)
    if prepare is not None:
        prepare(checkpoint)
    if "data" in flags:
        flags = (*flags, "--dict", checkpoint.dictionary)
    assert export_hf(checkpoint, *flags) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert error.startswith("embinit export-hf: error: ")
    assert_nothing_written(checkpoint)


@pytest.mark.parametrize("family", ["roberta", "transformer", "tupe_transformer", "classifier"])
def test_other_models_are_refused(tmp_path, capsys, family):
    checkpoint = make(tmp_path, family)
    assert export_hf(checkpoint, "--dict", checkpoint.dictionary) == 2
    assert "export-hf knows tupe_*, bert_a_*, bert_r_*, bert_ad_* and electra_*" in capsys.readouterr().err
    assert_nothing_written(checkpoint)


def test_labels_that_do_not_fit(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "tupe_tiny", "", task=f"{CLASSES} --num-classes 2")
    assert export_hf(checkpoint) == 2
    assert "3 labels, the head 'sentence_classification_head' has 2 classes" in capsys.readouterr().err
    assert export_hf(checkpoint, "--label-dict", tmp_path / "none.txt") == 2
    assert f"--label-dict {tmp_path / 'none.txt'}: no such file; check the path" in capsys.readouterr().err
    (tmp_path / "labels.txt").write_text("no 4\nyes 3\nmadeupword0000 0\n")
    assert export_hf(checkpoint, "--label-dict", tmp_path / "labels.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["head"]["labels"] == ["no", "yes"]


def test_without_transformers(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["export-hf", "--checkpoint", "c.pt", "--output", str(tmp_path / "x")]) == 2
    assert "export-hf needs transformers: pip install transformers safetensors" in capsys.readouterr().err


def test_nothing_in_a_checkpoint_is_run(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c")
    checkpoint.state["cfg"]["model"]["extra"] = Evil(tmp_path / "was_here")
    checkpoint.save()
    assert export_hf(checkpoint, "--dict", checkpoint.dictionary) == 2
    assert "not a fairseq checkpoint that can be read safely" in capsys.readouterr().err
    assert not (tmp_path / "was_here").exists()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_exported_code_is_that_of_the_modules():
    """Every class and function of our modules stands in it unchanged; it imports torch, transformers and itself."""
    import ast

    text = CODE["modeling_tupe.py"]
    tree = ast.parse(text)
    modules = ("encoder_layer", "position_bias", "position_encoding", "initialisation")
    theirs = {node.name: ast.unparse(node) for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    compared = 0
    for module in modules:
        for node in ast.parse((Path(files.__file__).parents[1] / "modules" / f"{module}.py").read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in theirs:
                assert theirs[node.name] == ast.unparse(node)
                compared += 1
    assert compared == 18
    assert "embinit_fairseq" not in text
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported == {"__future__", "math", "dataclasses", "typing", "torch", "transformers", ""}


def test_sources_that_do_not_fit_into_one_file(tmp_path, monkeypatch):
    for name, text in {
        "one": '"""One."""\n\nX = 1\n',
        "other": '"""Other."""\n\nX = 2\n',
        "clash": '"""C."""\n\nfrom embinit_fairseq.one import X\nfrom embinit_fairseq.other import X\n',
        "renamed": '"""R."""\n\nfrom embinit_fairseq.one import X as Y\n',
        "loop": '"""L."""\n\nfor x in "ab":\n    print(x)\n',
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(
        "embinit_fairseq.export.files.source_of", lambda module: (tmp_path / f"{module.split('.')[-1]}.py").read_text()
    )
    for name, message in (("clash", "X is defined in"), ("renamed", "another name"), ("loop", "a For cannot be taken")):
        with pytest.raises(RuntimeError, match=message):
            bundle(f"embinit_fairseq.{name}", {}, {})


def test_half_of_it_is_what_the_dtype_says(tmp_path):
    from safetensors.torch import load_file

    checkpoint = checkpoint_of(tmp_path / "c")
    assert export_hf(checkpoint, "--dtype", "float16") == 0
    stored = load_file(checkpoint.output / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    table = checkpoint.state["model"]["encoder.sentence_encoder.embed_tokens.weight"]
    assert torch.equal(stored["tupe.embed_tokens.weight"], table.half())
