"""Translation has two dictionaries: which one is meant, and what becomes of the other."""

from __future__ import annotations

import pytest
import torch
from expand_checkpoints import WORDS, dictionary, make

from embinit_fairseq.errors import OptionError
from embinit_fairseq.expand.expansion import expand_vocabulary
from embinit_fairseq.expand.tables import languages_of


def test_the_side_is_found_by_the_size(tmp_path):
    checkpoint = make(tmp_path, "transformer")
    folder = tmp_path / "data"
    record = checkpoint.expand()
    assert record["sides"] == ["decoder"]
    assert set(record["tables"]) == {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    source = checkpoint.expand(dictionary=str(folder / "dict.de.txt"), output=str(tmp_path / "other"))
    assert source["sides"] == ["encoder"]
    assert set(source["tables"]) == {"encoder.embed_tokens.weight"}
    assert (source["softmax"], source["bound"]) == (False, None)
    assert (tmp_path / "other" / "dict.en.txt").read_text() == (folder / "dict.en.txt").read_text()
    second = checkpoint.request(dictionary=str(tmp_path / "other" / "dict.en.txt"), words=("u",))
    twice = {**second.__dict__, "checkpoint": str(tmp_path / "other" / "model.pt"), "output": str(tmp_path / "third")}
    assert expand_vocabulary(type(second)(**twice))["rows_after"] == 14
    assert (tmp_path / "third" / "dict.de.txt").read_text().endswith("most 7\nx 1\ny 1\nz 1\n")


@pytest.mark.parametrize("beside", [None, dictionary(WORDS[:3])], ids=["none", "of other data"])
def test_without_the_other_dictionary_the_folder_has_one(tmp_path, beside):
    checkpoint = make(tmp_path, "transformer")
    (tmp_path / "data" / "dict.de.txt").unlink()
    if beside is not None:
        (tmp_path / "data" / "dict.de.txt").write_text(beside)
    record = checkpoint.expand()
    assert record["files"] == ["model.pt", "dict.en.txt", "expansion.json"]
    assert sorted(path.name for path in checkpoint.output.iterdir()) == ["dict.en.txt", "expansion.json", "model.pt"]


def test_two_tables_of_one_size_ask_for_the_side(tmp_path):
    checkpoint = make(tmp_path, "transformer", other=WORDS)
    with pytest.raises(OptionError, match=r"dict\.en\.txt: it fits the encoder and the decoder.*--side encoder"):
        checkpoint.expand()
    assert checkpoint.expand(side="decoder")["sides"] == ["decoder"]
    with pytest.raises(OptionError, match=r"by its name it is that of en, but the encoder.*give dict\.de\.txt"):
        checkpoint.expand(side="encoder", force=True)
    record = checkpoint.expand("gaussian", side="both", force=True, noise_scale=1.0)
    assert record["sides"] == ["encoder", "decoder"]
    rows = [checkpoint.written()["model"][key][13:].double() for key in record["tables"]]
    encoder, decoder = (checkpoint.state["model"][key].double() for key in list(record["tables"])[:2])
    deviations = torch.cat([encoder - encoder.mean(0), decoder - decoder.mean(0)], dim=1)
    drawn = torch.cat([rows[0] - encoder.mean(0), rows[1] - decoder.mean(0)], dim=1)
    outside = drawn @ (torch.eye(16).double() - torch.linalg.pinv(deviations) @ deviations)
    assert outside.abs().max() < 1e-5  # one z for both: 13 rows span less than 16 columns
    (tmp_path / "data" / "dict.de.txt").write_text(dictionary([f"v{i}" for i in range(9)]))
    with pytest.raises(OptionError, match=r"dict\.de\.txt beside it is another dictionary"):
        checkpoint.expand(side="both", force=True)


def test_a_shared_table_has_no_sides(tmp_path):
    checkpoint = make(tmp_path, "transformer_shared")
    with pytest.raises(OptionError, match=r"--side encoder: encoder and decoder of .* share one table"):
        checkpoint.expand(side="encoder")
    with pytest.raises(OptionError, match=r"--side decoder: .* has one dictionary for everything"):
        make(tmp_path, "lm").expand(side="decoder")


def test_languages_are_those_of_the_binarised_files(tmp_path):
    """As fairseq infers them: source-target, whichever of both the file is of."""
    (tmp_path / "train.de-en.en.idx").touch()
    unnamed = {"source_lang": None, "target_lang": None}
    assert languages_of(unnamed, str(tmp_path / "dict.en.txt")) == ("de", "en")
