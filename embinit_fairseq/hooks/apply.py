"""Apply `--embed-init` to a model that was just built for training."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import numpy as np
import torch
from torch import nn

from embinit_fairseq.errors import EmbinitError, OptionError
from embinit_fairseq.hooks.freeze import Freeze, apply_freezes, parse_freeze, slot_named
from embinit_fairseq.hooks.options import Request, store_record
from embinit_fairseq.hooks.registry import EMBED_INIT_REGISTRY, EmbedInit
from embinit_fairseq.hooks.resume import (
    REPORT_FILE,
    check_optimizer_knows,
    checkpoint_to_restore,
    left_out,
    read_record,
    restores_optimizer,
)
from embinit_fairseq.hooks.slots import Slot, find_slots, position_std, write_table
from embinit_fairseq.hooks.sources import SlotSource, parse_formats, parse_paths, read_source
from embinit_fairseq.init import report
from embinit_fairseq.init.draws import Draws
from embinit_fairseq.init.statistics import absorption_ratio, describe
from embinit_fairseq.init.strategies import build
from embinit_fairseq.version import VERSION
from embinit_fairseq.vocab.align import RULES

logger = logging.getLogger(__name__)


def embed_init(model: nn.Module, task: Any, cfg: Any, request: Request) -> None:
    """Initialise (fresh start) or only freeze again (continuation); leaves the report in `cfg` and in save_dir."""
    if request.ddp_backend == "fully_sharded":
        raise OptionError("--embed-init: --ddp-backend fully_sharded cuts tables into pieces; use another backend")
    slots = find_slots(model, task)
    freezes = parse_freeze(request.options.embed_init_freeze or ())
    paths = parse_paths(request.options.embed_init_path, slots)
    _check_options(request, paths, slots)
    _refuse_stock_paths(cfg, request)
    checkpoint = checkpoint_to_restore(request)
    if checkpoint is None:
        record, known = _start(slots, paths, request)
        held = set()
    else:
        record, known = _continue(slots, checkpoint, request)
        held = _in_optimizer(record, freezes, slots, checkpoint, request)
    frozen = apply_freezes(freezes, slots, known, task, held)
    if record is None:
        return
    for name, slot_record in record["slots"].items():
        before, now = slot_record.get("freeze"), frozen.get(name)
        if before and before != now:
            logger.warning("the run was started with --embed-init-freeze %s, now it is %s", before, now or "not frozen")
        slot_record["freeze"] = now
        slot_record["in_optimizer"] = name not in slots or slots[name].embedding.weight.requires_grad
        slot_record["signature"] = report.signature(slot_record, record["version"])
    logger.info(report.render(record))
    _write_report(record, request)
    store_record(cfg, json.dumps(record))


def _check_options(request: Request, paths: dict[str, str], slots: dict[str, Slot]) -> None:
    strategy = EMBED_INIT_REGISTRY.get(request.strategy)
    if strategy is None:
        raise OptionError(
            f"--embed-init {request.strategy}: no such strategy; there are: {', '.join(EMBED_INIT_REGISTRY)}"
        )
    if strategy.needs_source and not paths:
        names = " ".join(f"{slot.name}=VECTORS" for slot in slots.values())
        raise OptionError(f"--embed-init {request.strategy} needs vectors: add --embed-init-path {names}")
    std = request.options.embed_init_std
    if std is not None and not strategy.scaled:
        raise OptionError(
            f"--embed-init-std {std}: {request.strategy} keeps the sigma it has; use xavier or pretrained_xavier"
        )
    if std is not None and not 1e-20 < std < 1e20:  # far beyond use, far inside float32
        raise OptionError(f"--embed-init-std {std}: a standard deviation is a positive number between 1e-20 and 1e20")
    seed = request.options.embed_init_seed
    if seed is not None and not 0 <= seed < 2**64:
        raise OptionError(f"--embed-init-seed {seed}: a seed is a number from 0 to 2^64 - 1")


def _refuse_stock_paths(cfg: Any, request: Request) -> None:
    """fairseq's own flags for vectors fill the same tables."""
    for name in ("encoder_embed_path", "decoder_embed_path"):
        path = cfg.get(name) if hasattr(cfg, "get") else getattr(cfg, name, None)
        if path:
            flag = "--" + name.replace("_", "-")
            raise OptionError(
                f"{flag} {path} and --embed-init {request.strategy} fill the same table; keep one of them "
                f"(--embed-init pretrained --embed-init-path {name.split('_')[0]}={path} takes the vectors as they are)"
            )


def _start(
    slots: dict[str, Slot], paths: dict[str, str], request: Request
) -> tuple[dict[str, Any], dict[str, np.ndarray | None]]:
    formats = parse_formats(request.options.embed_init_format, slots, paths)
    strategy = EMBED_INIT_REGISTRY[request.strategy]()
    record: dict[str, Any] = {
        "embed_init": report.VERSION,
        "version": VERSION,
        "strategy": request.strategy,
        "slots": {},
    }
    known: dict[str, np.ndarray | None] = {}
    if paths and not strategy.needs_source:
        logger.info("--embed-init %s draws all its numbers: the vectors are not read", request.strategy)
    for slot in slots.values():
        path = paths.get(slot.name) if strategy.needs_source else None
        read = (
            None if path is None else read_source(slot, path, formats.get(slot.name), request.options, strategy.fills)
        )
        # a slot without a path gets xavier, whatever the strategy of the others
        name = "xavier" if strategy.needs_source and path is None else request.strategy
        slot_strategy = strategy if name == request.strategy else EMBED_INIT_REGISTRY[name]()
        record["slots"][slot.name] = _fill(slot, name, slot_strategy, read, path, request)
        known[slot.name] = read.alignment.found if read else None
    return record, known


def _fill(
    slot: Slot, name: str, strategy: EmbedInit, read: SlotSource | None, path: str | None, request: Request
) -> dict[str, Any]:
    """Fill one table and describe what was done."""
    options = request.options
    std = options.embed_init_std if strategy.scaled else None
    draws = Draws(slot.embedding.num_embeddings, slot.embedding.embedding_dim, request.draw_seed, slot.name, std)
    before = describe(_as_array(slot))
    table = build(
        lambda source, draws: strategy.table(source, draws, options),
        read.source if read else None,
        draws,
        slot.vocabulary.pad_row,
    )
    if not np.isfinite(table).all():
        raise OptionError(
            f"--embed-init {name}: the table of {slot.name!r} has numbers beyond float32; the vectors in "
            f"{path or 'use'} are too large for this strategy"
        )
    write_table(slot, table)
    return {
        "strategy": name,
        "oov": options.embed_init_oov if read and strategy.fills else None,
        "shuffle": options.embed_init_shuffle if name == "shuffled" else None,
        "match": sorted(options.embed_init_match or RULES) if read else None,
        "std": std,
        "target_std": draws.target_std if strategy.scaled else None,
        "seed": request.draw_seed,
        "before": before,
        **_table_record(slot, read.alignment.found if read else None),
        **_source_record(read, path),
    }


def _table_record(slot: Slot, found: np.ndarray | None) -> dict[str, Any]:
    """What a filled table is like. found: (N,) bool, the rows that have a vector."""
    after, positions = describe(_as_array(slot)), position_std(slot.owner)
    rows = slot.embedding.num_embeddings
    return {
        "rows": rows,
        "dim": slot.embedding.embedding_dim,
        "tied": slot.tied,
        "after": after,
        "embed_scale": slot.embed_scale,
        "after_scaled_std": after["std"] * slot.embed_scale,
        "position_std": positions,
        "absorption_ratio": absorption_ratio(after["std"], slot.embed_scale, positions),
        "dictionary": report.symbols_digest(slot.vocabulary.symbols),
        "known_rows": report.pack_rows(np.zeros(rows, dtype=bool) if found is None else found),
    }


def _source_record(read: SlotSource | None, path: str | None) -> dict[str, Any]:
    """What was read for a table, if anything was."""
    if read is None:
        return {"source": None, "source_moments": None}
    origin = read.origin
    return {
        "source": {
            "path": os.path.abspath(path),
            "name": os.path.basename(os.path.normpath(path)),
            "format": origin.format,
            "rows": origin.rows,
            "dim": origin.dim,
            "markers": read.alignment.source_style,
            "duplicates": origin.duplicates,
            "broken_lines": origin.broken_lines,
        },
        "source_moments": describe(read.source.vectors),
        "markers": read.alignment.style,
        "rows_by_rule": read.alignment.counts_by_rule(),
        "composed": len(read.source.composed_rows),
        **read.coverage,
    }


def _as_array(slot: Slot) -> np.ndarray:
    return slot.embedding.weight.detach().to(device="cpu", dtype=torch.float32).numpy()


def _continue(
    slots: dict[str, Slot], checkpoint: str, request: Request
) -> tuple[dict[str, Any] | None, dict[str, np.ndarray | None]]:
    """A checkpoint will replace every table: open no vectors, only recall which rows were known."""
    record = read_record(checkpoint)
    logger.info("--embed-init %s: weights come from %s, no vectors are read", request.strategy, checkpoint)
    if record is None:
        logger.warning(
            "--embed-init %s HAS NO EFFECT: the run in %s was not initialised by this flag and its weights are kept; "
            "use another --save-dir for a fresh start",
            request.strategy,
            checkpoint,
        )
        return None, {}
    if record.get("strategy") != request.strategy:
        logger.warning(
            "--embed-init %s, but the run in %s was initialised with %s and keeps that",
            request.strategy,
            checkpoint,
            record.get("strategy"),
        )
    known: dict[str, np.ndarray | None] = {}
    for name, slot in slots.items():
        old = record["slots"].get(name)
        if old:
            _check_width(slot, old, checkpoint)
        if old and old["dictionary"] != report.symbols_digest(slot.vocabulary.symbols):
            logger.warning(
                "the dictionary of %r is not the one of %s: which rows were found is not known", name, checkpoint
            )
        elif old:
            known[name] = report.unpack_rows(old["known_rows"], old["rows"])
    return record, known


def _in_optimizer(
    record: dict[str, Any] | None, freezes: list[Freeze], slots: dict[str, Slot], checkpoint: str, request: Request
) -> set[str]:
    """Names of the slots whose tables the optimizer that fairseq restores has trained so far."""
    if not restores_optimizer(checkpoint, request):
        return set()
    if record is None:
        return set(slots)
    whole = {slot_named(each.slot, slots, f"--embed-init-freeze {each}").name for each in freezes if each.whole}
    check_optimizer_knows(record, set(slots) - whole, checkpoint)
    return set(slots) - left_out(record)


def _check_width(slot: Slot, old: dict[str, Any], checkpoint: str) -> None:
    """Raises OptionError where fairseq would print a page of names. old: what the checkpoint's report says."""
    dim = slot.embedding.embedding_dim
    if old["dim"] != dim:
        raise OptionError(
            f"{checkpoint}: its table {slot.name!r} has rows of {old['dim']} numbers, here they are of {dim}: give the "
            "width of its training, or another --save-dir for a fresh start"
        )


def _write_report(record: dict[str, Any], request: Request) -> None:
    """embed_init.json, whole or not at all, by the first process only."""
    # of several processes the first; the command line's rank is not set for architectures with a flat configuration
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    if request.save_dir is None or request.no_save or not first:
        return
    if _held(request.save_dir):
        return
    path = os.path.join(request.save_dir, REPORT_FILE)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(request.save_dir, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise EmbinitError(
            f"--save-dir {request.save_dir}: cannot write {REPORT_FILE} ({error}); make room, or choose a directory "
            "that can be written"
        ) from error


def _held(save_dir: str) -> bool:
    """Whether another training holds this folder (fairseq_compat locks it); ours will be refused when it begins."""
    try:
        import fcntl

        folder = os.open(save_dir, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(folder)
