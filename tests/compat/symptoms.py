"""One function per fix of fairseq_compat: it raises if the symptom that the fix cures is there.

Run as a program in an interpreter of its own (the fixes act when fairseq is imported): ``python symptoms.py NAME ...``
prints a JSON object, name to null or to the error. (No ``from __future__ import annotations`` here: fairseq reads the
types of a dataclass from its annotations.)
"""

import argparse
import contextlib
import errno
import importlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from training_symptoms import (  # noqa: F401  looked up by name
    checked_labels,
    empty_data,
    half_precision,
    numbered_checkpoints,
    one_run_a_folder,
    refused,
    spawned_processes,
    unreadable_checkpoints,
)


def hashable_dataclasses() -> None:
    importlib.import_module("fairseq.dataclass.configs").FairseqConfig()
    importlib.import_module("fairseq.models.transformer.transformer_config").TransformerConfig()


def third_party_registries() -> None:
    """A plugin's registry with nothing chosen, a plain choice, and a choice that has a dataclass."""
    from dataclasses import dataclass, field

    from fairseq import options, registry
    from fairseq.dataclass import FairseqDataclass
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    @dataclass
    class FlavourConfig(FairseqDataclass):
        strength: int = field(default=3, metadata={"help": "how much of it"})

    _, register, _, _ = registry.setup_registry("--flavour", default=None)
    register("plain")(type("Plain", (), {"add_args": staticmethod(lambda parser: None)}))
    register("strong", dataclass=FlavourConfig)(type("Strong", (), {}))
    try:
        for arguments, expected in (
            ([], None),
            (["--flavour", "plain"], "plain"),
            (["--flavour", "strong", "--strength", "5"], {"_name": "strong", "strength": 5}),
        ):
            parser = options.get_training_parser()
            chosen = options.parse_args_and_arch(parser, ["data", "--arch", "lstm", *arguments])
            config = convert_namespace_to_omegaconf(chosen)
            assert config.flavour == expected, f"{config.flavour} instead of {expected}"
            assert config.task._name == "translation"
    finally:
        del registry.REGISTRIES["flavour"]  # or the other symptoms would meet it


def registry_with_schema_of_its_own() -> None:
    """The same with a plugin that tells hydra about its key itself: the fix must not get in its way."""
    from dataclasses import make_dataclass
    from typing import Any

    from fairseq.dataclass.configs import FairseqConfig
    from hydra.core.config_store import ConfigStore

    wider = make_dataclass("Wider", [("flavour", Any, None)], bases=(FairseqConfig,), unsafe_hash=True)
    ConfigStore.instance().store(name="config", node=wider)
    third_party_registries()


def composed(*arguments: str):
    """fairseq's configuration for a command line of fairseq-train."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, ["data", "--arch", "lstm", *arguments]))


def mismatched_criterions() -> None:
    """A criterion that lacks what the task takes from it."""
    with refused("--criterion cross_entropy", "--task sentence_prediction", "sentence_prediction_adapters"):
        composed("--task", "sentence_prediction", "--criterion", "cross_entropy", "--num-classes", "2")


@contextlib.contextmanager
def shown_warnings():
    """A list that gets the text of every warning that a user would see."""
    texts = []
    with warnings.catch_warnings(record=True) as shown:
        yield texts
    texts += [str(warning.message) for warning in shown]


def quiet_hydra() -> None:
    """No warning of hydra's when fairseq composes its configuration and when its hydra command is imported."""
    with shown_warnings() as texts:
        composed()
        importlib.import_module("fairseq_cli.hydra_train")
    texts = [text for text in texts if "hydra" in text]
    assert not texts, "\n".join(texts)


def genuine_warnings() -> None:
    """What quiet_hydra must leave alone: warnings of a plugin, and of hydra about the user's own files and code."""
    from hydra.experimental import compose, initialize_config_dir
    from omegaconf import OmegaConf

    def plugins_folder() -> str:
        warnings.warn("the folder of the plugin is old", UserWarning, stacklevel=1)
        return "checkpoints"

    OmegaConf.register_new_resolver("plugins_folder", plugins_folder)
    with shown_warnings() as texts:
        assert composed("--save-dir", "${plugins_folder:}").checkpoint.save_dir == "checkpoints"
    assert "the folder of the plugin is old" in texts, f"the plugin's warning is not among {texts}"
    with tempfile.TemporaryDirectory() as folder, shown_warnings() as texts:
        Path(folder, "mine.yaml").write_text("# @package _group_\nsize: 3\n")
        with initialize_config_dir(folder):
            assert compose("mine", strict=False).size == 3
    for part in ("initialize_config_dir() is no", "compose() is no", "version_base", "In 'mine'", "The strict flag"):
        assert any(part in text for text in texts), f"{part} is not among {texts}"


def safe_checkpoints() -> None:
    """A checkpoint with the values that ``--eval-bleu`` adds, in today's and in the old file format."""
    import numpy as np
    import torch
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    numbers = {"counts": np.array([1, 2], dtype=np.int64), "ratio": np.float32(0.5), "flag": np.bool_(True)}
    optimizer = [{"criterion_name": "CrossEntropyCriterion", "best_loss": None, "optimizer_name": "Adam"}]
    state = {"args": None, "cfg": None, "model": {"w": torch.ones(2)}, "optimizer_history": optimizer}
    state["extra_state"] = {"metrics": numbers, "train_iterator": {"epoch": 1}}
    state["anything"] = argparse.Namespace(lr=[0.1])
    with tempfile.TemporaryDirectory() as folder:
        for new_format in (True, False):
            path = os.path.join(folder, "checkpoint.pt")
            torch.save(state, path, _use_new_zipfile_serialization=new_format)
            loaded = load_checkpoint_to_cpu(path)
            assert loaded["anything"].lr == [0.1]
            assert loaded["extra_state"]["metrics"]["counts"].tolist() == [1, 2]


def complete_saves() -> None:
    """The first write of a save fails after some bytes; what is then saved must be a whole file."""
    import torch
    from fairseq import checkpoint_utils

    with tempfile.TemporaryFile() as file:
        write, failures = file.write, [OSError(errno.ENOSPC, "No space left on device")]

        class OnceFull:
            def write(self, content) -> int:
                if failures and file.tell() > 1000:
                    raise failures.pop()
                return write(content)

            def __getattr__(self, name):
                return getattr(file, name)

        checkpoint_utils._torch_persistent_save({"weights": torch.arange(1000)}, OnceFull())
        assert not failures
        file.seek(0)
        assert torch.load(file)["weights"].sum() == 999 * 500


def atomic_copies() -> None:
    """A copy that stops in the middle (here: at a limit of the file size) leaves the old file."""
    from fairseq.file_io import PathManager

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "new.pt").write_bytes(b"n" * 100_000)
        (folder / "last.pt").write_bytes(b"old")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with contextlib.suppress(OSError):
                PathManager.copy(str(folder / "new.pt"), str(folder / "last.pt"), overwrite=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        left = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert left == {"new.pt": 100_000, "last.pt": 3}, f"files after the failed copy: {left}"
        assert PathManager.copy(str(folder / "new.pt"), str(folder / "last.pt"), overwrite=True)
        assert (folder / "last.pt").read_bytes() == (folder / "new.pt").read_bytes()


def broadcast_objects() -> None:
    """Play the receiving process: the group hands out the two messages that the sender would send."""
    import torch
    from fairseq.distributed import utils
    from omegaconf import OmegaConf

    sent = io.BytesIO()
    torch.save({"cfg": OmegaConf.create({"lr": 0.1})}, sent)
    content = torch.frombuffer(bytearray(sent.getvalue()), dtype=torch.uint8)
    messages = [torch.tensor([len(content)]), content]
    utils.get_rank = lambda group: 1
    utils.broadcast = lambda tensor, src, group: tensor.copy_(messages.pop(0))
    received = utils._broadcast_object_slow(None, 0, None, torch.device("cpu"))
    assert received["cfg"].lr == 0.1


def cpu_data_parallel() -> None:
    import torch
    from fairseq.dataclass.configs import DistributedTrainingConfig
    from fairseq.models import DistributedFairseqModel

    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        group = torch.distributed.group.WORLD
        config = DistributedTrainingConfig(tpu=False)
        model = DistributedFairseqModel(config, torch.nn.Linear(2, 1), group, torch.device("cpu"))
        model(torch.ones(1, 2)).sum().backward()
        torch.distributed.destroy_process_group()


def cpu_autocast() -> None:
    """What a criterion computes with under --amp --cpu: bfloat16 in training, single precision in validation."""
    import torch
    from fairseq.criterions import FairseqCriterion
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks import FairseqTask
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    class Model(BaseFairseqModel):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

    class Task(FairseqTask):
        target_dictionary = None

    class Criterion(FairseqCriterion):
        def forward(self, model, sample, reduce=True):
            output = model.linear(torch.ones(1, 2))
            return output.float().sum(), 1, {"type": output.dtype, "flash": torch.backends.cuda.flash_sdp_enabled()}

    config = OmegaConf.structured(FairseqConfig)
    config.common.amp = config.common.cpu = True
    config.optimizer = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}
    config.lr_scheduler = {"_name": "fixed", "lr": [0.1], "force_anneal": None, "lr_shrink": 0.1, "warmup_updates": 0}
    task, model = Task(config.task), Model()
    trainer = Trainer(config, task, model, Criterion(task))
    criterion = trainer.criterion
    before = model.linear.weight.detach().clone()
    trainer.zero_grad()
    _, _, log = task.train_step({}, model, criterion.train(), trainer.optimizer, 0)
    trainer.optimizer.step()
    assert log["type"] == torch.bfloat16, f"--amp --cpu computes with {log['type']}"
    assert not torch.equal(before, model.linear.weight), "the step did nothing"
    for tokens in (14, 300):
        batch = {"net_input": {"src_tokens": torch.zeros(1, tokens)}}
        _, _, log = task.train_step(batch, model, criterion.train(), trainer.optimizer, 0)
        assert log["flash"] == (tokens == 300), f"{tokens} tokens in bfloat16 take the slower attention"
    _, _, log = task.valid_step({}, model, criterion.eval())
    assert log["type"] == torch.float32, f"validation computes with {log['type']}"


def locked_seeds() -> None:
    """What two threads draw at the same time is what each would draw alone; also inside one another and after fork."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    from fairseq.data import data_utils

    def draw(seed: int) -> float:
        with data_utils.numpy_seed(seed):
            first = np.random.rand()
            time.sleep(0.0005)  # lets the other thread in, as reading an example does
            with data_utils.numpy_seed(seed, 1):
                second = np.random.rand()
            return first + second + np.random.rand()

    alone = [draw(seed) for seed in range(60)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, range(60)))
    assert alone == together, f"{sum(a != b for a, b in zip(alone, together))} of 60 draws differ"


def fresh_workers() -> None:
    """A dataset whose examples are the number of the epoch, read by a worker; no more than the last is left."""
    import multiprocessing

    import torch
    from fairseq.data import FairseqDataset, iterators

    class Epochs(FairseqDataset):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return self.epoch

        def collater(self, samples: list) -> "torch.Tensor":
            return torch.tensor(samples)

    data = Epochs()
    batches = iterators.EpochBatchIterator(data, data.collater, [[0], [1]], num_workers=1, reuse_dataloader=True)
    seen = [[batch.item() for batch in batches.next_epoch_itr(shuffle=False)] for _ in range(3)]
    assert seen == [[1, 1], [2, 2], [3, 3]], f"examples of epochs 1 to 3: {seen}"
    left = multiprocessing.active_children()
    assert len(left) <= 1, f"{len(left)} workers are left"
    loader = iterators.torch.utils.data.DataLoader(data, num_workers=1, persistent_workers=True)
    assert not loader.persistent_workers, "fairseq's workers are persistent"


def stopped_readers() -> None:
    """A program that leaves while fairseq's thread is reading ahead."""
    code = (
        "import torch; from fairseq.data.iterators import BufferedIterator\n"
        "class Source:\n"
        "    def __len__(self): return 100000\n"
        "    def __iter__(self):\n"
        "        for _ in range(100000): yield torch.ones(400, 400) @ torch.ones(400, 400)\n"
        "reader = BufferedIterator(3, Source())\n"
        "for _ in range(3): next(reader)\n"
    )
    for _ in range(3):  # it is a race: without the fix nearly every run is lost
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"


def encoder_copies() -> None:
    """No parameter beyond those that the forward pass uses, and the same output after loading a state dict."""
    import torch
    from fairseq.models.transformer import TransformerConfig
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    config = TransformerConfig()
    config.encoder.embed_dim, config.encoder.ffn_embed_dim, config.encoder.attention_heads = 8, 16, 2
    config.dropout = 0.0
    torch.manual_seed(1)
    layer, other = TransformerEncoderLayerBase(config), TransformerEncoderLayerBase(config)
    expected = 4 * (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8) + 2 * (2 * 8)
    counted = sum(parameter.numel() for parameter in layer.parameters())
    assert counted == expected, f"{counted} parameters instead of {expected}"
    words, padding = torch.randn(5, 2, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.eval()(words, padding), layer(words, padding))
    torch.jit.script(layer)


def defined_buffers() -> None:
    """Memory that was used before comes back as the content of an uninitialised tensor."""
    import torch
    from fairseq.modules import AdaptiveInput, AdaptiveSoftmax, SinusoidalPositionalEmbedding

    used = [torch.full((1,), float("nan")) for _ in range(256)]
    del used
    values = [float(SinusoidalPositionalEmbedding(4, 1)._float_tensor) for _ in range(64)]
    assert not any(values), f"the buffer holds {values}"
    tables = AdaptiveInput(8, 1, 4, 2.0, 4, [4, 8])
    modules = [AdaptiveSoftmax(8, 4, [4, 8], dropout=0.0, adaptive_inputs=tables, tie_proj=True), tables]
    buffers = [buffer for one in modules for name, buffer in one.named_buffers() if name.endswith("_float_tensor")]
    assert len(buffers) == 2
    assert not any(buffers), f"the buffers hold {buffers}"
    embedding = SinusoidalPositionalEmbedding(4, 1)
    embedding.load_state_dict({"_float_tensor": torch.tensor([float("nan")])})  # as fairseq's upgrade of a checkpoint
    assert float(embedding._float_tensor) == 0, f"the buffer holds {embedding._float_tensor} after loading"


def numpy_aliases() -> None:
    import numpy as np
    import torch
    from fairseq.data import Dictionary, LanguagePairDataset, TokenBlockDataset, data_utils
    from fairseq.modules import DynamicCRF

    np.random.seed(1)  # one draw in a hundred finds no room for its spans: an error of fairseq's, with any numpy
    masks = data_utils.compute_mask_indices((2, 50), None, 0.2, 3, mask_type="uniform", mask_other=1.0, no_overlap=True)
    assert masks.any()
    sentences = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]
    blocks = TokenBlockDataset(sentences, [3, 2], block_size=None, pad=1, eos=2, break_mode="eos")
    assert [block.tolist() for block in blocks] == [[5, 6, 2], [7, 2]]
    pairs = LanguagePairDataset(sentences, np.array([3, 2]), Dictionary(), num_buckets=2)
    assert pairs.buckets == [(None, 2), (None, 3)]
    crf = DynamicCRF(num_embedding=4, low_rank=2, beam_size=2)
    crf(torch.randn(1, 3, 4), torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool))


def main(names: list[str]) -> None:
    found = {}
    for name in names:
        try:
            globals()[name]()
            found[name] = None
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
