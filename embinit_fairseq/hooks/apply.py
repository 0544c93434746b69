"""Apply `--embed-init` to a model that was just built for training."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import torch
from torch import nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.files import made_folder, write_json
from embinit_fairseq.hooks.freeze import Freeze, apply_freezes, parse_freeze
from embinit_fairseq.hooks.options import InitRequest, store_record
from embinit_fairseq.hooks.registry import EMBED_INIT_REGISTRY, EmbedInit
from embinit_fairseq.hooks.resume import (
    REPORT_FILE,
    check_optimizer_knows,
    checkpoint_to_restore,
    left_out,
    read_record,
    refuse_other_dictionary,
    restores_optimizer,
    still_frozen,
)
from embinit_fairseq.hooks.slots import (
    Slot,
    find_slots,
    parse_formats,
    parse_paths,
    position_std,
    read_slot,
    slot_named,
    source_record,
    write_table,
)
from embinit_fairseq.init import report
from embinit_fairseq.init.alignment import RULES, Reading
from embinit_fairseq.init.draws import Draws, TargetStd, check_seed, parse_std
from embinit_fairseq.init.report import absorption_ratio, describe
from embinit_fairseq.init.strategies import build
from embinit_fairseq.vectors.open import SourceSpec
from embinit_fairseq.version import VERSION

logger = logging.getLogger(__name__)

#: options of fairseq -> whose embedding matrix they fill
_STOCK_PATHS = {
    "encoder_embed_path": "encoder",
    "decoder_embed_path": "decoder",
    "pretrained_xlm_checkpoint": "encoder",
    "pretrained_mlm_checkpoint": "encoder",
    "load_pretrained_decoder_from": "decoder",
}


def embed_init(model: nn.Module, task: Any, cfg: Any, request: InitRequest) -> None:
    """Initialise (fresh start) or only freeze again (continuation); leaves the report in `cfg` and in save_dir."""
    if request.ddp_backend == "fully_sharded":
        raise OptionError(
            "--embed-init: --ddp-backend fully_sharded cuts embedding matrices into pieces; use another backend"
        )
    slots = find_slots(model, task)
    freezes = parse_freeze(request.options.embed_init_freeze or ())
    paths = parse_paths(request.options.embed_init_path, slots)
    _check_options(request, paths, slots)
    _refuse_stock_paths(cfg, request)
    checkpoint = checkpoint_to_restore(request)
    record: dict[str, Any] | None
    in_optimizer: set[str] = set()
    if checkpoint is None:
        record, known = _start(slots, paths, request)
    else:
        record, known = _continue(slots, checkpoint, request)
        in_optimizer = _in_optimizer(record, freezes, slots, checkpoint, request)
    frozen = apply_freezes(freezes, slots, known, task, in_optimizer)
    if record is None:
        return
    frozen_before = {} if checkpoint is None else still_frozen(record, checkpoint)
    for name, slot_record in record["slots"].items():
        before, now = frozen_before.get(name), frozen.get(name)
        if before and before != now:
            logger.warning("the run was started with --embed-init-freeze %s, now it is %s", before, now or "not frozen")
        slot_record["freeze"] = now
        slot_record["in_optimizer"] = name not in slots or slots[name].embedding.weight.requires_grad
        slot_record["signature"] = report.signature(slot_record, record["version"])
    logger.info(report.render(record))
    _write_report(record, request)
    store_record(cfg, json.dumps(record))


def _check_options(request: InitRequest, paths: dict[str, SourceSpec], slots: dict[str, Slot]) -> None:
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
        scaled = ", ".join(name for name, other in EMBED_INIT_REGISTRY.items() if other.scaled)
        raise OptionError(
            f"--embed-init-std {std}: {request.strategy} keeps the sigma it has; drop the flag, or use --embed-init "
            f"with one of {scaled}"
        )
    parse_std(std)
    seed = request.options.embed_init_seed
    if seed is not None:
        check_seed(seed, "--embed-init-seed")


def _refuse_stock_paths(cfg: Any, request: InitRequest) -> None:
    """fairseq's own flags for vectors and for trained checkpoints fill the same matrices."""
    for name, slot in _STOCK_PATHS.items():
        path = cfg.get(name) if hasattr(cfg, "get") else getattr(cfg, name, None)
        if path:
            flag = "--" + name.replace("_", "-")
            raise OptionError(
                f"{flag} {path} and --embed-init {request.strategy} fill the same embedding matrix; keep one of them "
                f"(--embed-init pretrained --embed-init-path {slot}={path} takes the vectors as they are)"
            )


def _start(
    slots: dict[str, Slot], paths: dict[str, SourceSpec], request: InitRequest
) -> tuple[dict[str, Any], dict[str, np.ndarray | None]]:
    assert request.strategy is not None  # without one nothing is initialised
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
        spec = paths.get(slot.name) if strategy.needs_source else None
        read = read_slot(slot, spec, formats.get(slot.name), request.options, strategy.fills) if spec else None
        # a slot without a path gets xavier, whatever the strategy of the others
        name = "xavier" if strategy.needs_source and spec is None else request.strategy
        slot_strategy = strategy if name == request.strategy else EMBED_INIT_REGISTRY[name]()
        record["slots"][slot.name] = _fill(slot, name, slot_strategy, read, request)
        known[slot.name] = read.known if read else None
    return record, known


def _fill(slot: Slot, name: str, strategy: EmbedInit, read: Reading | None, request: InitRequest) -> dict[str, Any]:
    """Fill one embedding matrix and describe what was done."""
    options = request.options
    std = parse_std(options.embed_init_std) if strategy.scaled else TargetStd()
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
            f"--embed-init {name}: the embedding matrix of {slot.name!r} has numbers beyond float32; the vectors in "
            f"{read.spec.text if read else 'use'} are too large for this strategy"
        )
    write_table(slot, table)
    rescaled = strategy.scaled and (strategy.always_scaled or options.embed_init_std is not None)
    return {
        "strategy": name,
        "oov": options.embed_init_oov if read and strategy.fills else None,
        "shuffle": options.embed_init_shuffle if name == "shuffled" else None,
        "match": sorted(options.embed_init_match or RULES) if read else None,
        "std": std.label,
        "target_std": draws.target_std if rescaled else None,
        "seed": request.draw_seed,
        "before": before,
        **_table_record(slot, read, strategy.fills),
        **(source_record(read) if read else {"source": None, "source_moments": None}),
    }


def _table_record(slot: Slot, read: Reading | None, fills: bool) -> dict[str, Any]:
    """What a filled embedding matrix is like. fills: rows that the source does not have were filled by another rule."""
    table, positions = _as_array(slot), position_std(slot.owner)
    after = describe(table)
    matched = describe(table[read.matched]) if read and fills else None
    rows = slot.embedding.num_embeddings

    def ratio(moments: dict[str, float]) -> float | None:
        return absorption_ratio(moments["std"], slot.embed_scale, positions)

    return {
        "rows": rows,
        "dim": slot.embedding.embedding_dim,
        "tied": slot.tied,
        "embed_scale": slot.embed_scale,
        "position_std": positions,
        # first of the rows that have a vector: the figure of the whole embedding matrix is one that no word may have
        "matched": matched,
        "matched_scaled_std": matched and matched["std"] * slot.embed_scale,
        "matched_absorption_ratio": matched and ratio(matched),
        "after": after,
        "after_scaled_std": after["std"] * slot.embed_scale,
        "absorption_ratio": ratio(after),
        "dictionary": report.symbols_digest(slot.vocabulary.symbols),
        "known_rows": report.pack_rows(read.known if read else np.zeros(rows, dtype=bool)),
    }


def _as_array(slot: Slot) -> np.ndarray:
    return slot.embedding.weight.detach().to(device="cpu", dtype=torch.float32).numpy()


def _continue(
    slots: dict[str, Slot], checkpoint: str, request: InitRequest
) -> tuple[dict[str, Any] | None, dict[str, np.ndarray | None]]:
    """A checkpoint will replace every embedding matrix: open no vectors, only recall which rows were known."""
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
    refuse_other_dictionary(record, slots, checkpoint)
    known: dict[str, np.ndarray | None] = {}
    for name, slot in slots.items():
        old = record["slots"].get(name)
        if old:
            _check_dimension(slot, old, checkpoint)
        if old and old["rows"] == slot.embedding.num_embeddings:  # else fairseq refuses the checkpoint
            known[name] = report.unpack_rows(old["known_rows"], old["rows"])
    return record, known


def _in_optimizer(
    record: dict[str, Any] | None, freezes: list[Freeze], slots: dict[str, Slot], checkpoint: str, request: InitRequest
) -> set[str]:
    """Names of the slots whose embedding matrices the optimizer that fairseq restores has trained so far."""
    if not restores_optimizer(checkpoint, request):
        return set()
    if record is None:
        return set(slots)
    whole = {slot_named(each.slot, slots, f"--embed-init-freeze {each}").name for each in freezes if each.whole}
    check_optimizer_knows(record, set(slots) - whole, checkpoint)
    return set(slots) - left_out(record)


def _check_dimension(slot: Slot, old: dict[str, Any], checkpoint: str) -> None:
    """Raises OptionError where fairseq would print a page of names. old: what the checkpoint's report says."""
    dim = slot.embedding.embedding_dim
    if old["dim"] != dim:
        raise OptionError(
            f"{checkpoint}: the matrix {slot.name!r} has rows of {old['dim']} numbers, here they are of {dim}: give "
            "the dimension of its training, or another --save-dir for a fresh start"
        )


def _write_report(record: dict[str, Any], request: InitRequest) -> None:
    """embed_init.json, whole or not at all, by the first process only."""
    # of several processes the first; the command line's rank is not set for architectures with a flat configuration
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    if request.save_dir is None or request.no_save or not first:
        return
    with made_folder(request.save_dir, "--save-dir") as folder:
        write_json(folder / REPORT_FILE, record, "--save-dir")
