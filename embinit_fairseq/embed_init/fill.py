"""Fill the embedding matrices of a model that was just built for training, and report it."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch

from embinit_fairseq.embed_init.freeze import apply_freezes, freezes_of
from embinit_fairseq.embed_init.options import EMBED_INIT_REGISTRY, EmbedInit, EmbedInitOptions
from embinit_fairseq.embed_init.request import InitRequest, store_record
from embinit_fairseq.embed_init.restore import REPORT_FILE, Checkpoint, check_optimizer
from embinit_fairseq.embed_init.slots import Slot, position_std, slot_named, write_matrix
from embinit_fairseq.errors import CoverageError, DimensionError, OptionError, named_by
from embinit_fairseq.init import alignment, init_report
from embinit_fairseq.init.alignment import RULES, Matching, Part, Reading
from embinit_fairseq.init.draws import Draws, TargetStd, parse_std
from embinit_fairseq.init.init_report import absorption_ratio, describe, xavier_bound
from embinit_fairseq.init.strategies import build
from embinit_fairseq.io import make_folder, write_json
from embinit_fairseq.vectors.open import FORMATS, SourceSpec, parse_source
from embinit_fairseq.version import VERSION

logger = logging.getLogger(__name__)
#: side of a slot -> option with its dimension
_DIMENSIONS = {
    "encoder": "--encoder-embed-dim {dim} (Duo: --encoder-dim-s), which --encoder-attention-heads must divide",
    "decoder": "--decoder-embed-dim {dim} (transformer_lm: --decoder-input-dim, too; Duo: --decoder-dim-s), which "
    "--decoder-attention-heads must divide",
    "encoder_p": "--encoder-dim-p {dim}",
    "decoder_p": "--decoder-dim-p {dim}",
}


def embed_init(
    slots: dict[str, Slot], task: Any, cfg: Any, request: InitRequest, checkpoint: Checkpoint | None = None
) -> None:
    """Apply `--embed-init`: fill and freeze at a fresh start, only freeze if a checkpoint has the weights.

    The report goes to the log, to `embed_init.json` in the save directory and into `cfg`, so into every checkpoint.
    """
    sources, freezes = sources_of(request.options, slots), freezes_of(request.freezes, slots)
    if request.embed_init.needs_source and not sources:
        names = " ".join(f"{slot.name}=VECTORS" for slot in slots.values())
        raise OptionError(f"--embed-init {request.strategy} needs vectors: add --embed-init-path {names}")
    frozen_before: dict[str, str] = {}
    in_optimizer: set[str] = set()
    if checkpoint is None:
        record, matched = _start(slots, sources, request)
    else:
        record, matched = _continue(slots, sources, checkpoint, request)
        frozen_before = checkpoint.frozen()
        check_optimizer(checkpoint, set(slots) - {name for name, freeze in freezes.items() if freeze.whole})
        in_optimizer = set(slots) - checkpoint.untrained() if checkpoint.restores_optimizer else set()
    apply_freezes(freezes, slots, matched, task, in_optimizer)
    for name, slot_record in record["slots"].items():
        before, now = frozen_before.get(name), str(freezes[name]) if name in freezes else None
        if before and before != now:
            logger.warning("the run was started with --embed-init-freeze %s, now it is %s", before, now or "not frozen")
        slot_record["freeze"] = now
        if name in slots and request.options.embed_init_lr_scale is not None:
            slot_record["lr_scale"] = scale_rate(slots[name], slot_record, request)
        slot_record["in_optimizer"] = name not in slots or slots[name].embedding.weight.requires_grad
        slot_record["signature"] = init_report.signature(slot_record, record["version"])
    logger.info(init_report.render(record))
    _write_report(record, request)
    store_record(cfg, json.dumps(record))


def scale_rate(slot: Slot, record: dict[str, Any], request: InitRequest) -> float:
    """Give an embedding matrix its multiple of the learning rate, which `fused_adam` uses; return the multiple.

    A step of Adam is as large as the learning rate, whatever the size of the numbers that it changes. With the multiple
    `sigma`, a matrix changes by the same share of its size as one of Xavier's.
    """
    text, weight = str(request.options.embed_init_lr_scale), slot.embedding.weight
    if text == "sigma":  # as at the start of the training, also if it continues
        std = (record["matched"] or record["after"])["std"]
        scale = std / (xavier_bound(*weight.shape) / math.sqrt(3))
    else:
        scale = float(text)
    cast(Any, weight).lr_scale = scale
    return scale


def sources_of(options: EmbedInitOptions, slots: dict[str, Slot]) -> dict[str, SourceSpec]:
    """Return slot -> its vectors, by the values `SLOT=PATH` and `[SLOT=]FORMAT` of the two flags."""
    formats: dict[str | None, str] = {}
    for text in options.embed_init_format or ():
        name, separator, value = text.rpartition("=")
        if value not in FORMATS:
            raise OptionError(f"--embed-init-format {text}: no such format; there are: {', '.join(FORMATS)}")
        key = slot_named(name, slots, f"--embed-init-format {text}").name if separator else None
        if formats.setdefault(key, value) != value:
            raise OptionError(
                f"--embed-init-format {text}: another format, {formats[key]}, is given for the same vectors; give one"
            )
    sources: dict[str, SourceSpec] = {}
    paths: dict[str, str] = {}
    for text in options.embed_init_path or ():
        name, separator, path = text.partition("=")
        if not separator or not path:
            names = "|".join(name for slot in slots.values() for name in slot.names)
            raise OptionError(f"--embed-init-path {text}: expected SLOT=PATH with SLOT one of {names}")
        slot = slot_named(name, slots, f"--embed-init-path {text}")
        if name in paths:
            raise OptionError(
                f"--embed-init-path {name}={paths[name]} {text}: two paths for {name}; give one, or both as one: "
                f"{name}=concat:A,B (side by side) or {name}=avg:A,B (their mean)"
            )
        paths[name] = path
        with named_by(f"--embed-init-path {name}="):
            source = parse_source(path, formats.get(slot.name, formats.get(None)))
        if sources.setdefault(slot.name, source) != source:
            raise OptionError(
                f"--embed-init-path {text}: the matrix of {' and '.join(slot.names)} is one and the same here, but "
                f"another path was given for it ({sources[slot.name].text}); give one path, or do not share embeddings"
            )
    for unused in formats.keys() - {None, *sources}:
        raise OptionError(f"--embed-init-format {unused}={formats[unused]}: give its --embed-init-path, too")
    return sources


def _start(
    slots: dict[str, Slot], sources: dict[str, SourceSpec], request: InitRequest
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Fill all slots; return the report and, for slots with vectors, which rows are matched."""
    needs_source = request.embed_init.needs_source
    if sources and not needs_source:
        logger.info("--embed-init %s draws all its numbers: the vectors are not read", request.strategy)
    records: dict[str, Any] = {}
    matched: dict[str, np.ndarray] = {}
    for slot in slots.values():
        spec = sources.get(slot.name) if needs_source else None
        # a slot without a path is filled by xavier, whatever the strategy of the others
        name = "xavier" if needs_source and spec is None else str(request.strategy)
        strategy = EMBED_INIT_REGISTRY[name]()
        reading = None if spec is None else _read(slot, spec, request.options, strategy.fills)
        records[slot.name] = _fill(slot, name, strategy, reading, request)
        if reading:
            matched[slot.name] = reading.complete
    record = {"embed_init": init_report.VERSION, "version": VERSION, "strategy": request.strategy, "slots": records}
    return record, matched


def _read(slot: Slot, spec: SourceSpec, options: EmbedInitOptions, fills: bool) -> Reading:
    """Read the vectors of a slot; an error names the flags that help. fills: rows without a vector are filled."""
    oov = options.embed_init_oov if fills else "xavier"
    matching = Matching(options.embed_init_match or RULES, options.embed_init_markers, oov, options.embed_init_strict)
    dim, flag = slot.embedding.embedding_dim, f"--embed-init-path {slot.name}="
    try:
        return alignment.read(spec, slot.vocabulary, matching, dim, slot.name, flag)
    except DimensionError as error:
        sides = [_DIMENSIONS.get(name.rpartition(".")[2], "the model's dimension {dim}") for name in slot.names]
        remedy = " and ".join(dict.fromkeys(sides)).format(dim=error.dim)
        fact = f"{error.fact} for {' and '.join(slot.names)}"
        raise DimensionError(fact, error.dim, f"set {remedy}, or choose other vectors") from error
    except CoverageError as error:
        raise CoverageError(f"{error} (--embed-init-match, --embed-init-markers)") from error
    except OptionError as error:
        if oov != "subword":
            raise
        raise OptionError(f"{error} (--embed-init-oov)") from error


def _fill(slot: Slot, name: str, strategy: EmbedInit, reading: Reading | None, request: InitRequest) -> dict[str, Any]:
    """Fill one embedding matrix; return its part of the report."""
    options = request.options
    std = parse_std(options.embed_init_std, "--embed-init-std") if strategy.scaled else TargetStd()
    draws = Draws(slot.embedding.num_embeddings, slot.embedding.embedding_dim, request.draw_seed, slot.name, std)
    before = describe(_as_array(slot))
    with named_by(f"--embed-init {name}{f', {reading.spec.text}' if reading else ''}: "):
        matrix = build(
            lambda source, draws: strategy.table(source, draws, options),
            *(reading.source if reading else None, draws, slot.vocabulary.pad_row),
        )
    write_matrix(slot, matrix)
    return {
        "strategy": name,
        "oov": options.embed_init_oov if reading and strategy.fills else None,
        "shuffle": options.embed_init_shuffle if strategy.shuffles else None,
        "match": sorted(options.embed_init_match or RULES) if reading else None,
        "std": std.label,
        "target_std": draws.target_std if _is_rescaled(strategy, options) else None,
        "seed": request.draw_seed,
        "before": before,
        **_matrix_record(slot, reading, strategy.fills),
        **(_source_record(reading) if reading else {"source": None, "source_moments": None}),
    }


def _is_rescaled(strategy: type[EmbedInit] | EmbedInit, options: EmbedInitOptions) -> bool:
    return strategy.scaled and (strategy.always_scaled or options.embed_init_std is not None)


def _as_array(slot: Slot) -> np.ndarray:
    return slot.embedding.weight.detach().to(device="cpu", dtype=torch.float32).numpy()


def _continue(
    slots: dict[str, Slot], sources: dict[str, SourceSpec], checkpoint: Checkpoint, request: InitRequest
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Recall the checkpoint's report and its matched rows; no vectors are opened.

    Raises:
        OptionError: strategy or options differ from the run's, so that they would have no effect.
    """
    path, record = checkpoint.path, checkpoint.record
    started = record and record.get("strategy")
    tuned = path == request.finetune_from_model
    remedy = "drop --finetune-from-model for a new run" if tuned else "name another --save-dir for a new run"
    if record is None or started != request.strategy:
        raise OptionError(
            f"--embed-init {request.strategy}: the run of {path}, which would continue, was not initialised so "
            f"({f'but with {started}' if started else 'it has no report of this flag'}); {remedy}, or "
            f"{f'give --embed-init {started}' if started else 'leave the flag out'} to continue"
        )
    old = {name: slot for name, slot in record["slots"].items() if name in slots}
    for name, slot in old.items():
        for flag, then, now in _options_of_start(name, slot, sources, request):
            if then != now:
                raise OptionError(
                    f"{flag}: {'not given' if now is None else now}, but the run of {path}, which would continue, was "
                    f"started {'without it' if then is None else f'with {then}'}; {remedy}, or give its options to "
                    "continue"
                )
    logger.info("--embed-init %s: weights come from %s, no vectors are read", request.strategy, path)
    return record, {name: init_report.unpack_rows(slot["known_rows"], slot["rows"]) for name, slot in old.items()}


def _options_of_start(
    name: str, slot: dict[str, Any], sources: dict[str, SourceSpec], request: InitRequest
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (flag, value in the report of a slot, value now) for options that decide how the slot was filled."""
    options = request.options
    std = parse_std(options.embed_init_std, "--embed-init-std").label or "xavier"
    then = None if slot.get("target_std") is None else slot["std"] or "xavier"
    yield "--embed-init-std", then, std if _is_rescaled(EMBED_INIT_REGISTRY[slot["strategy"]], options) else None
    if slot.get("oov"):
        yield "--embed-init-oov", slot["oov"], options.embed_init_oov
    if slot.get("shuffle"):
        yield "--embed-init-shuffle", slot["shuffle"], options.embed_init_shuffle
    if options.embed_init_seed is not None:
        yield "--embed-init-seed", slot["seed"], options.embed_init_seed
    if request.embed_init.needs_source:
        then = slot["source"]["name"] if slot.get("source") else None
        yield f"--embed-init-path {name}", then, sources[name].named(_base) if name in sources else None


# ---- The report -----------------------------------------------------------------------------------------------------


def _write_report(record: dict[str, Any], request: InitRequest) -> None:
    """Write embed_init.json, in the first process only."""
    # the command line's rank is not set for architectures with a flat configuration
    is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    if request.save_dir is not None and not request.no_save and is_first:
        make_folder(request.save_dir, "--save-dir")
        write_json(os.path.join(request.save_dir, REPORT_FILE), record, "--save-dir")


def _matrix_record(slot: Slot, reading: Reading | None, fills: bool) -> dict[str, Any]:
    """Describe a filled embedding matrix. fills: rows without a vector were filled by another rule."""
    matrix, positions = _as_array(slot), position_std(slot.owner)
    after = describe(matrix)
    # rows with a vector first: the numbers of the whole matrix may be those of no word
    matched = describe(matrix[reading.matched]) if reading and fills else None
    scale = slot.embed_scale
    return {
        "rows": slot.embedding.num_embeddings,
        "dim": slot.embedding.embedding_dim,
        "tied": slot.tied,
        "embed_scale": scale,
        "position_std": positions,
        "matched": matched,
        "matched_scaled_std": matched and matched["std"] * scale,
        "matched_absorption_ratio": matched and absorption_ratio(matched["std"], scale, positions),
        "after": after,
        "after_scaled_std": after["std"] * scale,
        "absorption_ratio": absorption_ratio(after["std"], scale, positions),
        "dictionary": init_report.symbols_digest(slot.vocabulary.symbols),
        "known_rows": init_report.pack_rows(reading.complete if reading else np.zeros(len(matrix), dtype=bool)),
    }


def _source_record(reading: Reading) -> dict[str, Any]:
    """Describe the vectors of a matrix: their file, or several files, each with its own coverage."""
    spec, parts = reading.spec, reading.parts
    files = [_file_record(path, part) for path, part in zip(spec.paths, parts)]
    record = {
        "source": files[0],
        "source_moments": parts[0].moments if spec.how is None else describe(reading.source.matched_values),
        "markers": parts[0].alignment.style,
        "rows_by_rule": reading.rows_by_rule(),
        "composed": len(reading.source.composed_rows),
        **reading.coverage,
    }
    if spec.how is not None:
        for file, part in zip(files, parts):
            file |= {"moments": part.moments, "rows_by_rule": part.alignment.counts_by_rule()}
            file |= {"composed": len(part.composed_rows), **part.coverage}
        record["source"] = {
            "path": spec.named(os.path.abspath),
            "name": spec.named(_base),
            "format": spec.method,
            "rows": sum(file["rows"] for file in files),
            "dim": reading.source.vectors.shape[1],
            "markers": None,
            "duplicates": sum(file["duplicates"] for file in files),
            "broken_lines": sum(file["broken_lines"] for file in files),
            "found_in_all": reading.found_in_all,
            "sources": files,
        }
    return record


def _file_record(path: str, part: Part) -> dict[str, Any]:
    origin = part.origin
    return {
        "path": os.path.abspath(path),
        "name": _base(path),
        "format": origin.format,
        "rows": origin.rows,
        "dim": origin.dim,
        "markers": part.alignment.source_style,
        "duplicates": origin.duplicates,
        "broken_lines": origin.broken_lines,
        "language": origin.language,
    }


def _base(path: str) -> str:
    return os.path.basename(os.path.normpath(path))
