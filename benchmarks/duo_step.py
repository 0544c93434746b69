"""The Duo transformer against fairseq's `transformer` of the same width and depth: training step, beam search. JSON.

    python benchmarks/duo_step.py [--layers 3 --dim 256 --ffn 1024 --heads 4] [--sentences 64] [--repeats 5]

Both models are in one process and take turns, so that a busy machine troubles both alike; figures are medians of CPU
seconds (of wall seconds on a GPU), and the ratio is that of the medians, Duo to stock. One joined dictionary, all
tables tied (--share-all-embeddings), every switch of Duo as it is by default. The sentences are random words, --length
and fewer, down to its half. Beam search is fairseq's, for weights that are final, as in fairseq-generate, and every
output is made as long as --length: both models do the same number of steps.

    training_step     forward, cross-entropy, backward, Adam; dropout 0.1
    decode_batch      --decoded sentences in one batch
    decode_single     one sentence alone: latency
    operations        multiplications and additions of a training step, counted by PyTorch
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
import tupe_transformer as translation
from fairseq.models.transformer import TransformerModel, base_architecture
from peers import machine
from train_step import counted_flops

from embinit_fairseq.models.duo_transformer import DuoTransformerConfig, DuoTransformerModel
from embinit_fairseq.modules.duo import SHARING

POSITIONS = {"max_source_positions": 1024, "max_target_positions": 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3, help="of encoder and of decoder (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--ffn", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8_000)
    parser.add_argument("--sentences", type=int, default=64, help="in a training step (default: %(default)s)")
    parser.add_argument("--decoded", type=int, default=32, help="in a batch to decode (default: %(default)s)")
    parser.add_argument("--length", type=int, default=24, help="longest sentence in tokens (default: %(default)s)")
    parser.add_argument("--share-weights", choices=SHARING, help="--duo-share-weights (default: Duo's own)")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--half", action="store_true", help="bfloat16: autocast in training, the model in decoding")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of a CPU (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    for name in ("layers", "dim", "ffn", "heads", "sentences", "decoded", "length", "beam", "repeats", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: must be at least 1")
    if args.heads % 2 or args.dim % args.heads or args.vocabulary < 10:
        parser.error("--heads must be even and divide --dim, --vocabulary must be at least 10")
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    models = {"stock": stock(args), "ours": duo(args)}
    record = {
        "machine": machine(("torch", "fairseq")),
        "options": vars(args),
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()},
        "operations": operations({name: translation.train(model, args) for name, model in models.items()}),
        "training_step": compare(models, args, lambda model: translation.train(model, args)),
    }
    for model in models.values():
        model.make_generation_fast_()
    record["decode_batch"] = compare(models, args, lambda model: translation.decode(model, args, args.decoded))
    record["decode_single"] = compare(models, args, lambda model: translation.decode_one(model, args))
    print(json.dumps(record, indent=2))


def stock(args: argparse.Namespace) -> torch.nn.Module:
    options = argparse.Namespace(**translation.sizes(args), **POSITIONS, share_all_embeddings=True)
    base_architecture(options)
    return TransformerModel.build_model(options, translation.task_of(args)).to(args.device)


def duo(args: argparse.Namespace) -> torch.nn.Module:
    sharing = {"duo_share_weights": args.share_weights} if args.share_weights else {}
    cfg = DuoTransformerConfig(**translation.sizes(args), **POSITIONS, **sharing, share_all_embeddings=True)
    return DuoTransformerModel.build_model(cfg, translation.task_of(args)).to(args.device)


def compare(
    models: dict[str, torch.nn.Module], args: argparse.Namespace, job: Callable[[torch.nn.Module], Callable[[], Any]]
) -> dict[str, Any]:
    return translation.compare({name: job(model) for name, model in models.items()}, args)


def operations(steps: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Of one call of each, and their ratio."""
    counted = {name: counted_flops(step) for name, step in steps.items()}
    return {**counted, "ratio": round(counted["ours"] / counted["stock"], 3)}


if __name__ == "__main__":
    main()
