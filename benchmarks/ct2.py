"""A stock translation model in CTranslate2 against fairseq: the same translations? BLEU and speed of both. Prints JSON.

    python benchmarks/ct2.py --checkpoint checkpoint_best.pt --data data-bin --reference corpus/test.en \
        --detokenize moses --lang en --lowercase

The checkpoint is converted by the command `ct2-fairseq-converter`, as a user would. Both programs then translate the
subset of the binary data from tokens to tokens, with one beam, the same greatest length and the same threads; they take
turns, so that a busy machine troubles both alike, and sentences per second are of the fastest turn. `equal`: with
the same tokens; `distinct`: different ones of fairseq. BLEU is sacrebleu's of the detokenised text, with its signature.
Needs `pip install ctranslate2`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from peers import machine

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.runs.detokenizers import detokenizer, known_language
from embinit_fairseq.runs.metrics import SCORES

Translate = Callable[[], list[list[str]]]


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True, help="binary data of fairseq-preprocess, with its dictionaries")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--reference", help="plain text, a sentence a line; without it there is no BLEU")
    parser.add_argument("--detokenize", nargs="*", default=[], help="as for embinit score")
    parser.add_argument("--lang", help="of the reference")
    parser.add_argument("--lowercase", action="store_true", help="BLEU of lower-cased text")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--longest", type=int, default=200, help="tokens of a translation (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="sentences (default: %(default)s)")
    parser.add_argument("--sentences", type=int, help="the first ones only")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        convert(args, f"{folder}/model")
        programs = {}
        programs["fairseq"], sources = fairseq(args)
        programs["ctranslate2"] = ctranslate2(args, f"{folder}/model", sources)
        translations = {name: translate() for name, translate in programs.items()}  # a turn that is not timed
        seconds: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(args.repeats):
            for name, translate in programs.items():
                start = time.perf_counter()
                translate()
                seconds[name].append(time.perf_counter() - start)
    record: dict[str, Any] = {
        "machine": machine(("torch", "fairseq", "ctranslate2")),
        "options": vars(args),
        "sentences": len(sources),
        "equal": sum(one == other for one, other in zip(*translations.values())),
        "distinct": len(set(map(tuple, translations["fairseq"]))),
        "sentences_per_second": {name: round(len(sources) / min(times), 2) for name, times in seconds.items()},
        "seconds": {name: [round(value, 2) for value in times] for name, times in seconds.items()},
    }
    if args.reference is not None:
        record["bleu"] = {name: bleu(of_program, args) for name, of_program in translations.items()}
    print(json.dumps(record, indent=2))


def convert(args: argparse.Namespace, folder: str) -> None:
    """Convert the checkpoint by the command of CTranslate2; exit with its message if that fails."""
    command = Path(sys.executable).with_name("ct2-fairseq-converter")
    program = str(command) if command.exists() else shutil.which(command.name)
    if program is None:
        sys.exit("benchmarks/ct2.py: error: no ct2-fairseq-converter; pip install ctranslate2")
    command_line = [program, "--model_path", args.checkpoint, "--data_dir", args.data, "--output_dir", folder]
    done = subprocess.run(command_line, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"benchmarks/ct2.py: error: {program} says: {done.stderr.strip().splitlines()[-1]}")


def fairseq(args: argparse.Namespace) -> tuple[Translate, list[list[str]]]:
    """Return a function that translates by fairseq's generator, and the sources in tokens."""
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([args.checkpoint], {"data": args.data})
    model.eval().prepare_for_inference_(cfg)
    task.load_dataset(args.subset)
    data = task.dataset(args.subset)
    count = min(args.sentences or len(data), len(data))
    options = argparse.Namespace(beam=args.beam, max_len_a=0, max_len_b=args.longest)
    generator = task.build_generator([model], options)
    by_length = sorted(range(count), key=lambda number: -len(data[number]["source"]))

    def translate() -> list[list[str]]:
        translations: list[list[str]] = [[] for _ in range(count)]
        for start in range(0, count, args.batch):
            batch = data.collater([data[number] for number in by_length[start : start + args.batch]])
            for number, hypotheses in zip(batch["id"].tolist(), task.inference_step(generator, [model], batch)):
                translations[number] = tokens(hypotheses[0]["tokens"], task.target_dictionary)
        return translations

    return translate, [tokens(data[number]["source"], task.source_dictionary) for number in range(count)]


def tokens(ids: torch.Tensor, dictionary: Any) -> list[str]:
    """Return the symbols without `</s>`."""
    words = utils.strip_pad(ids, dictionary.pad()).tolist()
    return [dictionary[number] for number in words if number != dictionary.eos()]


def ctranslate2(args: argparse.Namespace, folder: str, sources: list[list[str]]) -> Translate:
    """Return a function that translates by CTranslate2 in single precision, as in the checkpoint."""
    from ctranslate2 import Translator

    translator = Translator(folder, compute_type="float32", inter_threads=1, intra_threads=args.threads)
    settings = {"beam_size": args.beam, "max_decoding_length": args.longest, "max_batch_size": args.batch}
    translate = translator.translate_batch
    return lambda: [result.hypotheses[0] for result in translate(sources, max_input_length=0, **settings)]


def bleu(translations: list[list[str]], args: argparse.Namespace) -> dict[str, Any]:
    """Return score and signature."""
    joined = list(map(detokenizer(args.detokenize, args.lang), map(" ".join, translations)))
    reference = Path(args.reference).read_bytes().decode().split("\n")[: len(joined)]
    metric = SCORES["bleu"].metric(args.lowercase, known_language(args.lang) if args.lang else "")
    return {"score": round(metric.corpus_score(joined, [reference]).score, 2), "signature": str(metric.get_signature())}


if __name__ == "__main__":
    main()
