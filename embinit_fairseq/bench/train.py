"""Steps of training or beam search on random sentences, as fairseq does them, measured; in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from fairseq import tasks, utils
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel
from fairseq.trainer import Trainer
from omegaconf import open_dict

from embinit_fairseq.bench.process import BenchRequest, Measurement
from embinit_fairseq.bench.steps import MASKED, Sizes, configuration, random_batch, task_of
from embinit_fairseq.errors import OptionError
from embinit_fairseq.files import temporary_folder
from embinit_fairseq.machine import peak_mb

# ----------------------------------------------------------------------------------------------------------------------
# What can be measured of a step with torch alone: seconds, FLOPs, the operations that compute attention, the peak of
# the hardware. The benchmarks of this repository measure with these, too.

Step = Callable[[], Any]
#: what a profiler calls a kernel of attention -> what people call it; the first that is found in a name counts
_KERNELS = {
    "flex": "flex",
    "flash": "sdpa (flash)",
    "efficient": "sdpa (memory-efficient)",
    "cudnn": "sdpa (cuDNN)",
    "overrideable": "sdpa (of this device)",
    "attention_math": "sdpa (matrix products and softmax)",
    "aten::_softmax": "eager (matrix products and softmax)",
}
PEAK_SIZE = {"cuda": 8192, "cpu": 2048}
_MEGA = 2**20


def synchronise(device: str) -> None:
    """Wait for what was begun; on a CPU nothing is left."""
    if device == "cuda":
        torch.cuda.synchronize()


def clock(device: str, threads: int = 1) -> float:
    """Seconds, to compare programs by: on a CPU those of the processor, shared among the threads, so that other
    programs distort them less."""
    return time.perf_counter() if device == "cuda" else time.process_time() / threads


def timed(step: Step, device: str) -> tuple[float, float]:
    """(seconds, seconds of the processor in all threads) of one call."""
    synchronise(device)
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    synchronise(device)
    return time.perf_counter() - wall, time.process_time() - cpu


def matrix_peak(device: str, dtype: torch.dtype, threads: int = 1) -> float:
    """FLOP/s of a product of two large square matrices by `clock`, the best of six; the size is in PEAK_SIZE."""
    n = PEAK_SIZE[device]
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        synchronise(device)
        begin = clock(device, threads)
        a @ b
        synchronise(device)
        best = min(best, clock(device, threads) - begin)
    return 2 * n**3 / best


def counted_flops(step: Step) -> int | None:
    """FLOPs of one call, counted by PyTorch: matrix products and attention, forward and backward; None where it cannot.

    Fused attention on a CPU is not counted by PyTorch, so it is not fused there meanwhile.
    """
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:  # before PyTorch 2.3
        return None
    plain = contextlib.nullcontext() if torch.cuda.is_available() else sdpa_kernel(SDPBackend.MATH)
    with plain, FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def attention_operations(step: Step) -> list[str]:
    """Names of the operations in which attention was computed, as the profiler sees them; empty: none was seen."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        step()
    names = {event.key for event in profile.key_averages()}
    kernels = sorted(name for name in names if "attention" in name and name.startswith(("aten::_", "flex")))
    if not any("math" in name for name in kernels):  # which has a softmax inside
        kernels += [name for name in ("aten::_softmax",) if name in names]
    return kernels


def kernel_names(operations: list[str]) -> list[str]:
    """attention_operations in words: eager, sdpa (flash), ..."""
    kernels = (next((name for part, name in _KERNELS.items() if part in operation), None) for operation in operations)
    return sorted({name for name in kernels if name is not None})


def allocated_mb(device: str) -> float | None:
    """The most memory of the GPU that tensors took so far, in MiB; None on a CPU."""
    return torch.cuda.max_memory_allocated() / _MEGA if device == "cuda" else None


# ----------------------------------------------------------------------------------------------------------------------

BATCHES = 4  # different ones, in turns
TOKENS = 4096  # of a batch, unless its size is said
LENGTHS = {"translation": 32, "sentence_prediction": 128}
LENGTH = 512
_NOT_ENOUGH = 20  # steps of half precision without an update, while the scale of the loss is looked for
_POSITIONS = ("max_positions", "max_source_positions", "max_target_positions")


@dataclass(frozen=True)
class Setting:
    """What stands in a request, defaults filled in."""

    task: str
    device: str
    precision: str
    sizes: Sizes

    def dtype(self) -> torch.dtype:
        """Number type of matrix products under this precision."""
        if self.precision == "amp":  # PyTorch's autocast
            return torch.float16 if self.device == "cuda" else torch.bfloat16
        return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[self.precision]


def measure(request: BenchRequest, on_step: Callable[[], None]) -> Measurement:
    """Seconds, FLOPs, memory, kernels. Raises OptionError for what the user can mend, and what fairseq raises."""
    if request.user_dir is not None:
        utils.import_user_module(argparse.Namespace(user_dir=request.user_dir))
    setting = _setting(request)
    libraries = peak_mb()
    with temporary_folder() as folder, _choices_of_attention() as logged:
        cfg = _configuration(request, setting, str(folder))
        task = tasks.setup_task(cfg.task)
        torch.manual_seed(1)
        model = task.build_model(cfg.model)
        batches = [random_batch(setting.task, task, setting.sizes, seed) for seed in range(BATCHES)]
        prepare = _decoding if request.decode else _training
        job = prepare(request, setting, cfg, task, model)
        steps: list[Callable[[], Any]] = [partial(job.step, batch) for batch in batches]
        times = _timed(request, setting, steps, job.ready, on_step)
        memory = _memory(setting.device, libraries)
        flops = None if request.decode else counted_flops(steps[0])
        operations = attention_operations(steps[0])
    return {
        "task": setting.task,
        "criterion": None if request.decode else cfg.criterion._name,
        "batch": vars(setting.sizes),
        "device": setting.device,
        "device_name": torch.cuda.get_device_name() if setting.device == "cuda" else None,
        "threads": torch.get_num_threads(),
        "precision": setting.precision,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sentences": setting.sizes.sentences,
        "tokens": job.tokens(batches[0]),
        "seconds": [wall for wall, _ in times],
        "cpu_seconds": [cpu for _, cpu in times],
        "flops": flops or None,
        "flops_repeated": bool(getattr(cfg.model, "checkpoint_activations", False)),
        "matrix_peak": matrix_peak(setting.device, setting.dtype(), torch.get_num_threads()),
        "attention": {
            "kernels": kernel_names(operations),
            "operations": operations,
            "choice": logged,
        },
        "memory": memory,
    }


@dataclass(frozen=True)
class _Job:
    """One step on a batch; whether steps are full ones by now; how many tokens a step is counted as."""

    step: Callable[[dict[str, Any]], Any]
    ready: Callable[[], bool]
    tokens: Callable[[dict[str, Any]], int]


def _setting(request: BenchRequest) -> Setting:
    if request.arch not in ARCH_MODEL_REGISTRY:
        near = difflib.get_close_matches(request.arch, ARCH_MODEL_REGISTRY, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "fairseq-train --help lists them"
        raise OptionError(f"--arch {request.arch}: no such architecture; {hint}")
    task = request.task or task_of(request.arch)
    if request.decode and not issubclass(ARCH_MODEL_REGISTRY[request.arch], FairseqEncoderDecoderModel):
        raise OptionError(f"--decode: {request.arch} does not translate; leave --decode out")
    available = torch.cuda.is_available()
    if request.device == "cuda" and not available:
        reason = "is built without CUDA" if torch.version.cuda is None else "finds no GPU or no driver"
        raise OptionError(
            f"--device cuda: PyTorch {reason}; take --device cpu, or install a CUDA build (embinit doctor)"
        )
    device = request.device or ("cuda" if available else "cpu")
    precision = request.precision or ("fp16" if device == "cuda" else "fp32")
    if device == "cpu" and precision == "fp16":
        raise OptionError("--precision fp16 needs a GPU; on a CPU take bf16 (PyTorch's autocast) or fp32")
    if request.decode and precision not in ("fp32", "fp16"):
        raise OptionError(f"--decode --precision {precision}: fairseq-generate has fp32 and, on a GPU, fp16")
    length = request.length or LENGTHS.get(task, LENGTH)
    batch = request.batch or max(1, TOKENS // length)
    sizes = Sizes(batch, length, request.vocabulary, request.padding)
    _check_memory(request, task, device, sizes)
    return Setting(task, device, precision, sizes)


def _check_memory(request: BenchRequest, task: str, device: str, sizes: Sizes) -> None:
    """Refuses what certainly does not fit, before the machine is brought to its knees: the logits alone, in 16 bits."""
    tokens = sizes.sentences * sizes.length
    predicted = {"masked_lm": MASKED, "sentence_prediction": 0.0}.get(task, 1.0) * tokens
    needed = 2 * predicted * sizes.vocabulary + 8 * tokens
    if device == "cuda":
        installed = torch.cuda.get_device_properties(0).total_memory
    else:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > installed:
        raise OptionError(
            f"{request.name}: --batch {sizes.sentences} of --length {sizes.length} with --vocabulary "
            f"{sizes.vocabulary} needs more than {needed / 2**30:,.0f} GiB, {device} has {installed / 2**30:,.0f}: "
            "take smaller ones"
        )


def _configuration(request: BenchRequest, setting: Setting, folder: str) -> Any:
    training = [
        "--optimizer=adam",
        "--lr=1e-4",
        "--lr-scheduler=fixed",
        "--clip-norm=1.0",
        "--distributed-world-size=1",
    ]
    if setting.task == "translation":
        training += ["--criterion=label_smoothed_cross_entropy", "--label-smoothing=0.1"]
    if setting.device == "cpu":
        training.append("--cpu")
    if setting.precision in ("fp16", "amp"):
        training.append(f"--{setting.precision}")
    elif setting.precision == "bf16" and setting.device == "cpu":
        training.append("--amp")

    def refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        raise OptionError(f"{request.name}: {message}{_similar(parser, message)}")

    def parse(flags: list[str]) -> Any:
        extra = [*training, f"--save-dir={folder}", "--no-save", *flags, *request.options]
        return configuration(folder, request.arch, setting.task, setting.sizes, extra, refuse)

    cfg = parse([])
    too_few = [name for name in _POSITIONS if (getattr(cfg.model, name, None) or sys.maxsize) < setting.sizes.length]
    if too_few:
        cfg = parse([f"--{name.replace('_', '-')}={setting.sizes.length}" for name in too_few])
    if setting.precision == "bf16" and setting.device == "cuda":
        with open_dict(cfg):  # as --bf16 with fairseq_compat
            cfg.common.bf16 = True
    return cfg


def _similar(parser: argparse.ArgumentParser, message: str) -> str:
    words = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
    near = [option for word in words for option in difflib.get_close_matches(word, parser._option_string_actions, n=2)]
    near = [option for option in near if option not in words]
    if near:
        return f" (did you mean {', '.join(near)}?)"
    if not message.startswith("unrecognized"):
        return ""
    return " (an option of one architecture goes into its quotes: --compare 'NAME --option')"


def _training(request: BenchRequest, setting: Setting, cfg: Any, task: Any, model: Any) -> _Job:
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.cuda_env = None  # with it, the trainer would reset the peak of memory after every step
    return _Job(
        step=lambda batch: trainer.train_step([batch], raise_oom=True),
        ready=lambda: trainer.get_num_updates() > 0,
        tokens=lambda batch: int(batch["ntokens"]),
    )


def _decoding(request: BenchRequest, setting: Setting, cfg: Any, task: Any, model: Any) -> _Job:
    model.prepare_for_inference_(cfg)
    model.to(setting.device, setting.dtype()).eval()
    with open_dict(cfg):
        cfg.generation.beam = request.beam
        cfg.generation.max_len_a = 0.0
        cfg.generation.max_len_b = cfg.generation.min_len = setting.sizes.length - 1  # and </s>
    generator = task.build_generator([model], cfg.generation)

    def step(batch: dict[str, Any]) -> None:
        task.inference_step(generator, [model], utils.move_to_cuda(batch) if setting.device == "cuda" else batch)

    return _Job(step, ready=lambda: True, tokens=lambda batch: batch["nsentences"] * setting.sizes.length)


def _timed(
    request: BenchRequest,
    setting: Setting,
    steps: list[Callable[[], Any]],
    ready: Callable[[], bool],
    on_step: Callable[[], None],
) -> list[tuple[float, float]]:
    """(wall, processor) seconds of each timed step. Before the first update of half precision steps are shorter."""
    done = 0
    while done < request.warmup or (not ready() and done < request.warmup + _NOT_ENOUGH):
        steps[done % len(steps)]()
        done += 1
        if done <= request.warmup:
            on_step()
    if request.warmup and not ready():
        raise OptionError(f"{request.name}: no update in {done} steps, the gradients overflow; try another --precision")
    times = []
    for number in range(request.steps):
        times.append(timed(steps[(done + number) % len(steps)], setting.device))
        on_step()
    return times


def _memory(device: str, libraries: float) -> dict[str, float | None]:
    return {"peak_mb": peak_mb(), "libraries_mb": libraries, "gpu_allocated_mb": allocated_mb(device)}


@contextlib.contextmanager
def _choices_of_attention() -> Iterator[list[str]]:
    """What our models log meanwhile about the kernel they choose, and why."""
    logged: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = record.getMessage()
            if line.startswith("attention in ") and line not in logged:
                logged.append(line)

    ours = logging.getLogger("embinit_fairseq")
    level, handler = ours.level, Keep()
    ours.setLevel(logging.INFO)
    ours.addHandler(handler)
    try:
        yield logged
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
