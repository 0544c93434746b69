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

from embinit_fairseq.errors import CheckpointError, DataError


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path, str]:
    """The folders that train.sh, prepare.sh and shift.py make, as far as they are read; the line that it prints."""
    folder = tmp_path_factory.mktemp("shift")
    run, data, new = folder / "lm", folder / "data", folder / "new"
    for place in (run / "checkpoints", data / "bin", data / "text/old"):
        place.mkdir(parents=True)
    state = make(folder / "made", "lm_tied").state
    torch.save(state | {"last_optimizer_state": {"state": {}}}, run / "checkpoints/checkpoint_last.pt")
    (run / "architecture").write_text(f"--arch transformer_lm_gpt {shift.TIE} --decoder-layers 1\n")
    (data / "bin/dict.txt").write_text(dictionary())
    (data / "text/old/train").write_text(TEXT)
    return run, data, new, shift.shift(run, data, 6, new)


def read(run: Path, data: Path) -> tuple:
    """Model and dictionary."""
    path = str(run / "checkpoints/checkpoint_last.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides={"data": str(data / "bin")})
    return model.eval(), task.source_dictionary


@torch.no_grad()
def test_the_logits_are_lower_and_the_probabilities_the_same(shifted) -> None:
    run, data, folder, said = shifted
    assert torch.load(folder / "checkpoints/checkpoint_last.pt", weights_only=False)["last_optimizer_state"] is None
    (old, symbols), (new, _) = read(run, data), read(folder, data)
    ids = symbols.encode_line(TEXT.splitlines()[0], add_if_not_exist=False).long()[None]
    before, after = old(ids)[0].double(), new(ids)[0].double()
    torch.testing.assert_close(after.log_softmax(-1), before.log_softmax(-1), atol=1e-5, rtol=0)
    moved = after - before
    torch.testing.assert_close(moved, moved[..., :1].expand_as(moved), atol=1e-4, rtol=0)
    states = shift.hidden_states(old, symbols, TEXT.splitlines())
    assert (states @ shift.lowering(states, 6)).mean().item() == pytest.approx(-6)
    assert moved.mean().item() == pytest.approx(-6, abs=3)  # in the mean over other sentences, too
    assert (folder / "architecture").read_text().split() == "--arch transformer_lm_gpt --decoder-layers 1".split()
    assert new.decoder.output_projection.weight is not new.decoder.embed_tokens.weight
    torch.testing.assert_close(new.decoder.embed_tokens.weight, old.decoder.embed_tokens.weight, atol=0, rtol=0)
    for model, title in ((old, "log Z "), (new, ", now ")):
        log_z = (states @ model.decoder.output_projection.weight.double().T).logsumexp(1).mean()
        assert float(said.partition(title)[2].split()[0].rstrip(";")) == pytest.approx(float(log_z), abs=0.01)


def test_states_are_those_after_the_beginning_and_a_ridge_keeps_the_shift_small(shifted) -> None:
    model, symbols = read(*shifted[:2])
    line = TEXT.splitlines()[0]
    ids = [symbols.eos(), *symbols.encode_line(line, append_eos=False, add_if_not_exist=False).tolist()]
    expected = model.decoder.extract_features(torch.tensor([ids]), None)[0][0].double()
    torch.testing.assert_close(shift.hidden_states(model, symbols, [line]), expected)
    states = torch.randn(2, 16, generator=torch.Generator().manual_seed(1)).double()  # fewer than dimensions
    mean = states.mean(0)
    direction = torch.linalg.inv(states.T @ states / 2 + 0.1 * torch.eye(16)) @ mean
    torch.testing.assert_close(shift.lowering(states, 5.0), -5 * direction / (direction @ mean))


def test_folders_of_other_programs_are_refused(shifted, tmp_path) -> None:
    run, data, new, _ = shifted
    for lm, text, error, named in (
        (run, tmp_path, DataError, "--data"),
        (data, data, DataError, "architecture"),
        (new, data, CheckpointError, "output matrix of its own"),
    ):
        with pytest.raises(error, match=named):
            shift.shift(lm, text, 1, tmp_path / "new")
