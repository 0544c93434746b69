"""Compare this plugin's translation models with fairseq's `transformer` of equal width and depth. Prints JSON.

    python benchmarks/translation_models.py tupe [--rel-pos] [--layers 6 --dim 512 --ffn 2048 --heads 8] [--repeats 5]
    python benchmarks/translation_models.py duo [--share-weights pair] [--layers 3 --dim 256 --ffn 1024 --heads 4]

Both models are in one process and take turns, so that other work on the machine slows down both alike. Figures are
medians of CPU seconds (wall seconds on a GPU), the ratio is ours to fairseq's. The sentences are random words, --length
down to its half. Beam search is fairseq's, with every output as long as --length: both models do the same number of
steps. Duo has one joined dictionary with all embedding matrices tied, and its weights are final in decoding, as in
fairseq-generate.

    training_step     forward, cross-entropy, backward, Adam; dropout 0.1
    decode_batch      --decoded sentences in one batch
    decode_single     one sentence alone: latency
    operations        multiplications and additions of a training step, counted by PyTorch
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator
from peers import machine
from train_step import counted_flops

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.models.duo_transformer import DuoTransformerConfig, DuoTransformerModel
from embinit_fairseq.models.tupe_transformer import TupeTransformerConfig, TupeTransformerModel
from embinit_fairseq.modules.duo import SHARING

#: option -> default of tupe and of duo
SIZES = {
    "layers": (6, 3),
    "dim": (512, 256),
    "ffn": (2048, 1024),
    "heads": (8, 4),
    "vocabulary": (10_000, 8_000),
    "sentences": (32, 64),
    "length": (25, 24),
    "beam": (5, 4),
}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("tupe", "duo"))
    for name, (of_tupe, of_duo) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"default: {of_tupe}, duo: {of_duo}")
    parser.add_argument("--decoded", type=int, default=32, help="sentences of a batch to decode (default: %(default)s)")
    parser.add_argument("--rel-pos", action="store_true", help="tupe: relative positions, too")
    parser.add_argument("--share-weights", choices=SHARING, help="duo: --duo-share-weights (default: Duo's own)")
    parser.add_argument("--half", action="store_true", help="bfloat16: autocast in training, the model in decoding")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of a CPU (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    for name, defaults in SIZES.items():
        setattr(args, name, getattr(args, name) or defaults[args.model == "duo"])
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    models = {name: build(name, args) for name in ("stock", "ours")}
    steps = {name: training_step(model, args) for name, model in models.items()}
    operations = {name: counted_flops(step) for name, step in steps.items()}
    record = {
        "machine": machine(("torch", "fairseq")),
        "options": vars(args),
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()},
        "operations": {**operations, "ratio": round(operations["ours"] / operations["stock"], 3)},
        "training_step": compare(steps, args),
    }
    for model in models.values() if args.model == "duo" else ():
        model.make_generation_fast_()
    for job, number in (("decode_batch", args.decoded), ("decode_single", 1)):
        record[job] = compare({name: beam_search(model, args, number) for name, model in models.items()}, args)
    print(json.dumps(record, indent=2))


def build(name: str, args: argparse.Namespace) -> torch.nn.Module:
    """Return fairseq's `transformer` ("stock") or this plugin's model."""
    dictionary = Dictionary()
    for word in range(args.vocabulary - len(dictionary)):
        dictionary.add_symbol(f"w{word}")
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    sizes = {"layers": args.layers, "embed_dim": args.dim, "ffn_embed_dim": args.ffn, "attention_heads": args.heads}
    options: dict[str, Any] = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in sizes.items()}
    options |= {"max_source_positions": 1024, "max_target_positions": 1024, "share_all_embeddings": args.model == "duo"}
    if name == "stock":
        stock = argparse.Namespace(**options)
        base_architecture(stock)
        return TransformerModel.build_model(stock, task).to(args.device)
    if args.model == "tupe":
        cfg = TupeTransformerConfig(**options, rel_pos=args.rel_pos)
        return TupeTransformerModel.build_model(cfg, task).to(args.device)
    sharing = {"duo_share_weights": args.share_weights} if args.share_weights else {}
    return DuoTransformerModel.build_model(DuoTransformerConfig(**options, **sharing), task).to(args.device)


def sentences(args: argparse.Namespace, number: int) -> torch.Tensor:
    """Return (number, length) random words, right-padded."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, args.vocabulary, (number, args.length), generator=generator)
    lengths = torch.linspace(args.length, args.length // 2, number).long()
    for row, length in enumerate(lengths.tolist()):
        tokens[row, length - 1] = 2
        tokens[row, length:] = 1
    return tokens.to(args.device)


def training_step(model: torch.nn.Module, args: argparse.Namespace) -> Callable[[], None]:
    source = sentences(args, args.sentences)
    target = source.flip(0)
    previous = torch.cat([target.new_full((len(target), 1), 2), target[:, :-1]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        model.train()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.half):
            logits = model(source, None, previous)[0]
        loss = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), target, ignore_index=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def beam_search(model: torch.nn.Module, args: argparse.Namespace, number: int) -> Callable[[], None]:
    source = sentences(args, number)
    lengths = source.ne(1).sum(1)
    length = {"max_len_a": 0, "max_len_b": args.length, "min_len": args.length}

    def search() -> None:
        model.to(torch.bfloat16 if args.half else torch.float32)
        generator = SequenceGenerator([model], model.decoder.dictionary, beam_size=args.beam, **length)
        generator.generate([model], {"net_input": {"src_tokens": source, "src_lengths": lengths}})

    return search


def compare(jobs: dict[str, Callable[[], None]], args: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of each job, which take turns; the first turn does not count."""
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(args.repeats + 1):
        for name, job in jobs.items():
            start = clock()
            job()
            if args.device != "cpu":
                torch.cuda.synchronize()
            if repeat:
                seconds[name].append(clock() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "seconds": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
        "median": {name: round(value, 4) for name, value in medians.items()},
        "ratio": round(medians["ours"] / medians["stock"], 3),
    }


if __name__ == "__main__":
    main()
