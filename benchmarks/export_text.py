"""Count nasty raw lines whose ids differ between the data of `embinit prepare`, the hub, and an exported folder.

    python benchmarks/export_text.py --checkpoint C.pt --data DATA [--export DIR] [--transformers SITE_PACKAGES ...]

DATA has preparation.json and dict.txt (of a translation model: those of its languages; the source's text is compared),
with which the lines are prepared and binarised; DIR is of `embinit export-hf`,
without which the hub alone is compared; models of fairseq itself have no hub that prepares text.
Each SITE_PACKAGES is a folder with another version of transformers. Prints one line for each way: name, lines, lines
with other ids than the binarised data.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from embinit_fairseq.arguments import ArgumentParser

#: parts of lines that libraries treat differently
PARTS = (
    *("é", "e\u0301", "naïve", "ÅNGSTRÖM", "ΟΔΟΣ", "İstanbul", "straße", "ﬁne", "ℝ", "Ω", "½"),
    *("&amp;", "R&amp;D", "&", "<", ">", "<b>", "&lt;mask&gt;", "'s", "don't", "``x''", "«a»", "„b“", "@-@"),
    *("...", "…", "--", "—", "-", "|", "[x]", "#1", "3.14", "1,000", "$5", "e.g.", "U.S.A.", "a@b.org", "www.x.org/a"),
    *("</s>", "<s>", "<pad>", "<unk>", "<url>", "a</s>b", "<<unk>>", "\U0001f600", "\U0001f468\u200d\U0001f469"),
    *("ab@@", "cd", "▁ein", "▁Haus", "##er", "Ġthe", "x\u00a0y", "x\u2028y", "x\u200by", "x\ty", "\ufeffx", "\u00ad"),
    *("漢字", "かな", "한국어", "שלום", "مرحبا", "हिन्दी", "\ue000", "\ue004", "\x07", "w" * 250, "THE", "The", "dog"),
)
_OPEN = """
import json, sys
for name in ("fairseq", "fairseq_cli", "fairseq_compat", "embinit_fairseq"):
    sys.modules[name] = None
import transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
lines = json.load(open(sys.argv[2], encoding="utf-8"))
print(json.dumps([transformers.__version__, tokenizer(lines)["input_ids"]]))
"""


def nasty_lines(count: int, words: list[str]) -> list[str]:
    """Return raw lines of nasty parts and of words of the dictionary, also an empty and an over-long one."""
    draw = random.Random(1)
    lines = ["", " ", *PARTS, " ".join(draw.choices([*PARTS, *words], k=600))]
    while len(lines) < count:
        parts = [draw.choice(PARTS if draw.random() < 0.5 else words) for _ in range(draw.randint(1, 9))]
        lines.append(
            draw.choice(("", " ", " ", "  ")).join(parts).capitalize() if draw.random() < 0.3 else " ".join(parts)
        )
    return lines[:count]


def exported_ids(folder: str, lines: list[str], packages: str | None) -> tuple[str, list[list[int]]]:
    """Return the version of transformers and the ids that the exported tokenizer gives, in another process."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "lines.json")
        file.write_text(json.dumps(lines), encoding="utf-8")
        environment = {**os.environ, "HF_MODULES_CACHE": place, "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = packages or ""
        command = [sys.executable, "-c", _OPEN, folder, str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    version, ids = json.loads(done.stdout.strip().splitlines()[-1])
    return version, ids


def prepared_ids(dictionary: str, lines: list[str]) -> list[list[int]]:
    """Return the ids of the data that `embinit prepare` writes for the lines."""
    from fairseq.data import Dictionary, data_utils

    with tempfile.TemporaryDirectory() as place:
        file, folder = Path(place, "test.txt"), Path(place, "data")
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = ["embinit", "prepare", str(file), "--dict", dictionary, "--output", str(folder), "--quiet"]
        subprocess.run(command, capture_output=True, check=True)
        data = data_utils.load_indexed_dataset(str(folder / "bin" / "test"), Dictionary.load(dictionary), "mmap")
        return [ids.tolist() for ids in data]


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of dict.txt and preparation.json")
    parser.add_argument("--export", help="folder of embinit export-hf")
    parser.add_argument("--transformers", nargs="*", default=[], help="folders with other versions")
    parser.add_argument("--lines", type=int, default=2000)
    args = parser.parse_args()
    from fairseq.models import ARCH_MODEL_REGISTRY

    import embinit_fairseq  # noqa: F401  registers the models
    from embinit_fairseq.checkpoint_file import options_of
    from embinit_fairseq.checkpoints.build import languages_of
    from embinit_fairseq.checkpoints.loading import load_model_checkpoint
    from embinit_fairseq.vocab.dictionary import read_dictionary

    state = load_model_checkpoint(str(args.checkpoint))
    languages = languages_of(options_of(state, "task"), str(args.checkpoint))
    dictionary = str(args.data / ("dict.txt" if languages is None else f"dict.{languages[0]}.txt"))
    symbols = read_dictionary(dictionary).symbols[4:]
    # text in which most lines have subwords is refused
    lines = nasty_lines(args.lines, [symbol.replace("@@", "").strip("▁") for symbol in symbols])
    options = options_of(state, "model")
    model = ARCH_MODEL_REGISTRY[options.get("_name") or options["arch"]]
    ways, begins = {}, [] if languages else [0]  # an encoder's input begins with <s>
    if hasattr(model, "hub"):
        hub = model.from_pretrained(str(args.checkpoint.parent), args.checkpoint.name, str(args.data))
        ways["hub"] = [hub.encode(line).tolist() for line in lines]
    expected = [begins + ids for ids in prepared_ids(dictionary, lines)]
    for packages in (None, *args.transformers) if args.export else ():
        version, ids = exported_ids(args.export, lines, packages)
        ways[f"export, transformers {version}"] = ids
    for name, ids in ways.items():
        different = [(line, one, other) for line, one, other in zip(lines, expected, ids, strict=True) if one != other]
        print(f"{name}\t{len(lines)}\t{len(different)}", *map(ascii, different[:2]), sep="\t")


if __name__ == "__main__":
    main()
