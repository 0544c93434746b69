"""Folders of runs, and logs as fairseq-train writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

BLEU = "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"
REFERENCES = ["A man , in a hat , sings a song .", "Two dogs run over the green grass .", "He sleeps all day long ."]
RAW = [line.replace(" .", ".").replace(" ,", ",") for line in REFERENCES]
TOKENS = [line.lower() for line in REFERENCES]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def end(number: int) -> str:
    """Return the line at the end of a log of fairseq-generate."""
    return f"2026-01-01 00:00:00 | INFO | fairseq_cli.generate | Translated {number:,} sentences (9 tokens) in 2.5s"


def generate_log(path: Path, hypotheses: list[str], decoded: list[str] | None = None, data: object = "bin") -> None:
    """Write a log as fairseq-generate prints it: sorted by length, with several hypotheses each."""
    head = "{'_name': None, 'common': {'_name': None}, 'common_eval': {'path': 'run/best.pt'}, 'generation': "
    task = f"{{'beam': 5, 'lenpen': 0.6}}, 'task': Namespace(data='{data}', target_lang='en')}}"
    lines = [f"... | INFO | fairseq_cli.generate | {head}{task}"]
    for at in sorted(range(len(hypotheses)), key=lambda at: -len(hypotheses[at])):
        lines += [f"S-{at}\tx", f"H-{at}\t-0.5\t{hypotheses[at]}", f"D-{at}\t-0.5\t{(decoded or hypotheses)[at]}"]
        lines += [f"P-{at}\t-0.1", f"H-{at}\t-0.9\tworse", f"D-{at}\t-0.9\tworse", f"P-{at}\t-0.2"]
    write_lines(path, [*lines, end(len(hypotheses))])


def write_references(folder: Path) -> Path:
    """Write references as text (`raw`) and in tokens (`tokens`); return the empty folder `run` next to them."""
    write_lines(folder / "raw", RAW)
    write_lines(folder / "tokens", TOKENS)
    (folder / "run").mkdir()
    return folder / "run"


def write_run(folder: Path, labels: dict, losses: list[float], finished: bool = True, **changes) -> Path:
    """losses: of the validations, one an epoch of 10 updates. changes: of the record."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "labels": {**labels},
        "command": f"fairseq-train data --lr 1e-3 --criterion cross_entropy --seed {labels.get('seed')}",
        "metric": "valid_loss",
        "higher_is_better": False,
        "versions": {"torch": "2.0", "fairseq": None},
        "hardware": {"cpu": "a CPU", "cores": 2, "threads": 1, "gpus": []},
        "data": {"all": "d" * 64},
    }
    if finished:
        epochs = {str(at): {"valid_loss": x, "valid_num_updates": 10.0 * at} for at, x in enumerate(losses, 1)}
        best = max((at for at, loss in enumerate(losses, 1) if loss == min(losses)), default=0)
        record |= {
            "parameters": {"all": 1000, "trained": 1000},
            "epochs": epochs,
            "best": {"epoch": best, "valid_loss": min(losses, default=None)},
            "init": None,
            "scores": {},
            "time": {"wall_s": 60.0, "train_s": 50.0, "sessions": 1},
        }
    for name in ("training.json", "result.json")[: 1 + finished]:
        (folder / name).write_text(json.dumps(record | changes))
    return folder


def write_texts(folder: Path, hypotheses: list[str], references: list[str] | None) -> None:
    for name, lines in (("hypothesis", hypotheses), ("reference", references)):
        if lines is not None:
            (folder / f"test.{name}.text").write_text("\n".join(lines) + "\n", encoding="utf-8")


CONFIGURATION = (
    "{'_name': None, 'common': {'_name': None, 'seed': 3, 'fp16': False}, 'dataset': {'valid_subset': 'SUBSET'}, "
    "'checkpoint': {'best_checkpoint_metric': 'METRIC', 'maximize_best_checkpoint_metric': HIGHER}, 'model': "
    "Namespace(seed=3, embed_init='xavier', task='translation', arch='transformer', label_smoothing=0.1)}"
)


def configuration(metric: str = "loss", higher: bool = False, subset: str = "valid") -> str:
    return CONFIGURATION.replace("METRIC", metric).replace("HIGHER", str(higher)).replace("SUBSET", subset)


def stamped(logger: str, message: str, second: int) -> str:
    return f"2024-01-01 10:00:{second:02d} | INFO | {logger} | {message}"


def json_line(tag: str, epoch: int, updates: int, **values: float) -> str:
    record = {"epoch": epoch, **{f"{tag}_{k}": str(v) for k, v in {**values, "num_updates": updates}.items()}}
    return json.dumps(record)


def json_messages(subset: str = "valid") -> list[tuple[str, str]]:
    """Two epochs of 10 updates with a validation at the end of each, and one within the first."""
    return _messages(json_line, json.dumps({"epoch": 1, "update": 0.9, "loss": "5.0", "num_updates": "8"}), subset)


def _messages(line: Callable[..., str], inner: str, subset: str) -> list[tuple[str, str]]:
    return [
        (subset, line(subset, 1, 5, loss=4.5)),
        ("train_inner", inner),
        (subset, line(subset, 1, 10, loss=4.0)),
        ("train", line("train", 1, 10, loss=5.0, train_wall=7)),
        (subset, line(subset, 2, 20, loss=4.25)),
        ("train", line("train", 2, 20, loss=4.5, train_wall=8)),
    ]


def write_log(path: Path, messages: Iterable[tuple[str, str]], head: str = "") -> Path:
    """Write a log, a line per second."""
    trainer = "fairseq_cli.train"
    whole = [
        (trainer, head or configuration()),
        (trainer, "num. shared model params: 1,234 (num. trained: 1,200)"),
        *messages,
        (trainer, "done training in 3.0 seconds"),
    ]
    lines = [stamped(name, message, at) for at, (name, message) in enumerate(whole)]
    path.write_text("\n".join(lines) + "\n")
    return path
