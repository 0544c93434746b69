"""scripts/expansion/shift.py: all logits lower, the same probabilities."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq", reason="it builds models; install fairseq with scripts/setup.sh")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "expansion"))

import shift
from expand_checkpoints import TEXT, dictionary, make
from fairseq import checkpoint_utils

from embinit_fairseq.errors import CheckpointError, DataError, OptionError, OutputError


@pytest.fixture
def lm(tmp_path: Path) -> tuple[Path, Path]:
    """What train.sh and prepare.sh make, as far as it is read."""
    made = make(tmp_path / "made", "lm_tied")
    run, data = tmp_path / "lm", tmp_path / "data"
    for folder in (run / "checkpoints", data / "bin", data / "text/old"):
        folder.mkdir(parents=True)
    torch.save(made.state, run / "checkpoints/checkpoint_last.pt")
    (run / "architecture").write_text(f"--arch transformer_lm_gpt {shift.TIE} --decoder-layers 1\n")
    (data / "bin/dict.txt").write_text(dictionary())
    (data / "text/old/train").write_text(TEXT)
    return run, data


def read(run: Path, data: Path) -> tuple:
    """Model and dictionary."""
    path = str(run / "checkpoints/checkpoint_last.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides={"data": str(data / "bin")})
    return model.eval(), task.source_dictionary


def test_the_logits_are_lower_and_the_probabilities_the_same(lm, tmp_path) -> None:
    run, data = lm
    given = torch.load(run / "checkpoints/checkpoint_last.pt", weights_only=False)
    torch.save(given | {"last_optimizer_state": {"state": {}}}, run / "checkpoints/checkpoint_last.pt")
    shift.main([str(run), "--data", str(data), "--by", "6", "--output", str(tmp_path / "new")])
    saved = torch.load(tmp_path / "new/checkpoints/checkpoint_last.pt", weights_only=False)
    assert saved["last_optimizer_state"] is None
    (old, symbols), (new, _) = read(run, data), read(tmp_path / "new", data)
    ids = symbols.encode_line(TEXT.splitlines()[0], add_if_not_exist=False).long()[None]
    before, after = old(ids)[0].double(), new(ids)[0].double()
    torch.testing.assert_close(after.log_softmax(-1), before.log_softmax(-1), atol=1e-5, rtol=0)
    moved = after - before
    torch.testing.assert_close(moved, moved[..., :1].expand_as(moved), atol=1e-4, rtol=0)
    states = shift.hidden_states(old, symbols, TEXT.splitlines())
    assert (states @ shift.lowering(states, 6)).mean().item() == pytest.approx(-6)
    assert moved.mean().item() == pytest.approx(-6, abs=3)  # in the mean over other sentences, too
    assert (tmp_path / "new/architecture").read_text().split() == "--arch transformer_lm_gpt --decoder-layers 1".split()
    assert new.decoder.output_projection.weight is not new.decoder.embed_tokens.weight
    torch.testing.assert_close(new.decoder.embed_tokens.weight, old.decoder.embed_tokens.weight, atol=0, rtol=0)


def test_states_are_those_behind_the_beginning_and_a_ridge_keeps_the_shift_small(lm) -> None:
    model, symbols = read(*lm)
    line = TEXT.splitlines()[0]
    ids = [symbols.eos(), *symbols.encode_line(line, append_eos=False, add_if_not_exist=False).tolist()]
    expected = model.decoder.extract_features(torch.tensor([ids]), None)[0][0].double()
    torch.testing.assert_close(shift.hidden_states(model, symbols, [line]), expected)
    states = torch.randn(2, 16, generator=torch.Generator().manual_seed(1)).double()  # fewer than dimensions
    mean = states.mean(0)
    direction = torch.linalg.inv(states.T @ states / 2 + 0.1 * torch.eye(16)) @ mean
    torch.testing.assert_close(shift.lowering(states, 5.0), -5 * direction / (direction @ mean))


def test_what_is_refused(lm, tmp_path) -> None:
    run, data = lm
    with pytest.raises(OutputError, match="--output"):  # it is read
        shift.shift(run, data, 1, run)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    with pytest.raises(OutputError, match="not empty"):
        shift.shift(run, data, 1, tmp_path / "full")
    with pytest.raises(OptionError, match="--by"):
        shift.shift(run, data, float("nan"), tmp_path / "new")
    with pytest.raises(DataError, match="--data"):
        shift.shift(run, tmp_path, 1, tmp_path / "new")
    with pytest.raises(DataError, match="architecture"):
        shift.shift(data, data, 1, tmp_path / "new")
    shift.shift(run, data, 1, tmp_path / "new")
    with pytest.raises(CheckpointError, match="output matrix of its own"):
        shift.shift(tmp_path / "new", data, 1, tmp_path / "twice")


def test_what_is_printed_is_what_the_models_have(lm, tmp_path) -> None:
    run, data = lm
    said = shift.shift(run, data, 6, tmp_path / "new")
    (old, symbols), (new, _) = read(run, data), read(tmp_path / "new", data)
    states = shift.hidden_states(old, symbols, TEXT.splitlines()).detach()
    for model, title in ((old, "log Z "), (new, ", now ")):
        log_z = (states @ model.decoder.output_projection.weight.detach().double().T).logsumexp(1).mean()
        assert float(said.partition(title)[2].split()[0].rstrip(";")) == pytest.approx(float(log_z), abs=0.01)
