"""Write a language model that computes the same with all logits lower: does Hewitt's collapse happen then?

    python scripts/expansion/shift.py LM --data DATA --by 20 --output SHIFTED
    LM=SHIFTED DATA=... OUTPUT=... bash scripts/expansion/run.sh

LM: the model that train.sh made from DATA (by prepare.sh). With the hidden state h the logit of a word is h.e. A vector
v that is added to all rows e of the output matrix adds h.v to all logits, which does not change the softmax. But the
logit of a new row of zeros or of small noise stays about 0. v is chosen such that h.v is about -B: the least squares
fit over the hidden states of the training text's first lines, with a ridge of 0.1, so that v stays small. The output
matrix is no longer tied to the input's. Prints h.v, and log Z, the logarithm of the sum of exp(logit).
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, criterions, utils

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, DataError, one_line
from embinit_fairseq.io import whole_folder

TIE = "--share-decoder-input-output-embed"
LINES, RIDGE = 500, 0.1


def hidden_states(model: Any, dictionary: Any, lines: list[str]) -> torch.Tensor:
    """Return (positions, D) float64 of the lines, each read by itself from its beginning."""
    states = []
    for line in lines:
        pieces = dictionary.encode_line(line, append_eos=False, add_if_not_exist=False).long()
        ids = torch.cat([torch.tensor([dictionary.eos()]), pieces])[None]
        states.append(model.decoder.extract_features(ids, None)[0][0])
    return torch.cat(states).double()


def lowering(states: torch.Tensor, by: float) -> torch.Tensor:
    """Return v, (D,) float64: h.v is -by in the mean over the states h, (N, D), and near it for each."""
    mean = states.mean(0)
    ridge = RIDGE * torch.eye(len(mean), dtype=torch.float64)
    direction = torch.linalg.solve(states.T @ states / len(states) + ridge, mean)
    return -by * direction / direction.dot(mean)


@torch.no_grad()
def shift(lm: Path, data: Path, by: float, output: Path) -> str:
    """Write the shifted model to `output`; return a line with the measurements.

    Raises:
        DataError, CheckpointError: if a folder is not one of train.sh or prepare.sh, or the model is shifted already.
    """
    architecture, text = lm / "architecture", data / "text/old/train"
    for file, made_by in ((architecture, f"{lm}: made by train.sh"), (text, f"--data {data}: made by prepare.sh")):
        if not file.is_file():
            raise DataError(f"{file} is missing; expected {made_by}")
    if "word_loss" not in criterions.CRITERION_REGISTRY:  # the checkpoint names it
        utils.import_user_module(argparse.Namespace(user_dir=str(Path(__file__).parent / "word_loss")))
    source = str(lm / "checkpoints/checkpoint_last.pt")
    checkpoint = load_checkpoint(source)
    weights, settings = checkpoint["model"], checkpoint["cfg"]["model"]
    if not settings["share_decoder_input_output_embed"]:
        raise CheckpointError(f"{source}: already has an output matrix of its own; name train.sh's folder")
    places = {"data": str(data / "bin"), "new_words": str(data / "words.txt")}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([source], arg_overrides=places)
    with open(text, encoding="utf-8") as file:
        states = hidden_states(model.eval(), task.source_dictionary, list(itertools.islice(file, LINES)))
    added, rows = lowering(states, by), weights["decoder.embed_tokens.weight"]
    weights["decoder.output_projection.weight"] = (rows.double() + added).to(rows.dtype)
    settings["share_decoder_input_output_embed"] = False
    checkpoint["last_optimizer_state"] = None  # has no values for the new matrix
    with whole_folder(output) as folder:
        (folder / "checkpoints").mkdir()
        checkpoint_utils.torch_persistent_save(checkpoint, str(folder / "checkpoints/checkpoint_last.pt"))
        (folder / "architecture").write_text(architecture.read_text("utf-8").replace(TIE, ""), encoding="utf-8")

    moved = states @ added
    logits = (states @ rows.double().T).logsumexp(1)
    return (
        f"h.v {moved.mean():.2f} ± {moved.std():.2f}, {moved.min():.2f} to {moved.max():.2f}; "
        f"log Z {logits.mean():.2f} ± {logits.std():.2f}, now {(logits + moved).mean():.2f}; |v| {added.norm():.2f}; "
        f"{len(states):,} positions"
    )


def main() -> None:
    """Shift a model."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lm", type=Path, metavar="LM", help="folder that train.sh made")
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare.sh made")
    parser.add_argument(
        "--by", type=float, required=True, metavar="B", help="number that is subtracted from all logits"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    args = parser.parse_args()
    print(shift(args.lm, args.data, args.by, args.output))


if __name__ == "__main__":
    with one_line():
        main()
