"""Symptoms (see symptoms.py) of what goes wrong in a training: devices, processes, workers, weights."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import sys
import tempfile
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from fairseq import checkpoint_utils, optim, options
from fairseq import utils as fairseq_utils
from fairseq.criterions import FairseqCriterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.criterions.sentence_prediction_adapters import SentencePredictionCriterionAdapters
from fairseq.data import Dictionary, FairseqDataset, data_utils, indexed_dataset
from fairseq.dataclass.configs import CheckpointConfig, EMAConfig, FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics, progress_bar
from fairseq.models import BaseFairseqModel
from fairseq.models.ema import EMA
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.models.transformer.transformer_config import EncDecBaseConfig
from fairseq.modules import AdaptiveSoftmax
from fairseq.tasks import FairseqTask, fairseq_task
from fairseq.trainer import Trainer
from fairseq_cli import train
from omegaconf import OmegaConf


@contextmanager
def refused(*parts: str):
    """What happens inside must raise an error that says all of this."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    else:
        text = "no error"
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in {text}"


def in_folder(function):
    """Gives the function an empty folder."""

    @functools.wraps(function)
    def call() -> None:
        with tempfile.TemporaryDirectory() as name:
            function(Path(name))

    return call


def write_split(folder: Path, split: str, rows: list[str], words: str) -> Dictionary:
    """Binarise lines as ``fairseq-preprocess --only-source`` does, with a dictionary of these words in this order."""
    dictionary = Dictionary()
    for rank, word in enumerate(words.split()):
        dictionary.add_symbol(word, n=100 - rank)
    folder.mkdir(parents=True, exist_ok=True)
    dictionary.save(str(folder / "dict.txt"))
    builder = indexed_dataset.make_builder(str(folder / f"{split}.bin"), "mmap", vocab_size=len(dictionary))
    for row in rows:
        builder.add_item(dictionary.encode_line(row, add_if_not_exist=False).long())
    builder.finalize(str(folder / f"{split}.idx"))
    return dictionary


class Weights(torch.nn.ModuleDict):
    """A model whose weights are loaded as fairseq's trainer does it."""

    def load_state_dict(self, state, strict, model_cfg) -> None:
        super().load_state_dict(state, strict)


@in_folder
def mismatched_weights(folder: Path) -> None:
    """The first difference is in the last line."""
    model = Weights({"embed_tokens": torch.nn.Embedding(3, 2), "fc1": torch.nn.Linear(2, 2)})
    (folder / "c.pt").touch()
    options_off = {"load_checkpoint_on_all_dp_ranks": False, "fix_batches_to_gpus": False, "base_layers": 0}
    off = SimpleNamespace(**options_off, zero_sharding="none")
    trainer = SimpleNamespace(model=model, tpu=False, is_fsdp=False, data_parallel_world_size=1, data_parallel_rank=0)
    trainer.cfg = SimpleNamespace(checkpoint=off, distributed_training=off, model=off)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for name, value, *message in (
        ("embed_tokens.weight", torch.zeros(4, 2), "[4, 2]", "[3, 2]", "--srcdict"),
        ("fc1.bias", torch.zeros(3), "fc1.bias", "[3]", "--arch"),
    ):
        state = {"model": {**weights, name: value}, "last_optimizer_state": None}
        with (
            mock.patch.object(checkpoint_utils, "load_checkpoint_to_cpu", return_value=state),
            refused("ValueError", "c.pt does not fit the model", *message),
        ):
            Trainer.load_checkpoint(trainer, str(folder / "c.pt"))
    state = {"cfg": SimpleNamespace(model=None), "model": {**weights, "embed_tokens.weight": torch.zeros(4, 2)}}
    task = SimpleNamespace(build_model=lambda cfg: model)
    with refused("ValueError", "c.pt does not fit the model", "[4, 2]", "[3, 2]", "--srcdict"):
        checkpoint_utils.load_model_ensemble_and_task([str(folder / "c.pt")], task=task, state=state)


class Sentences(FairseqDataset):
    """Twenty of one length, in an order that is drawn."""

    can_reuse_epoch_itr_across_epochs = True

    def __len__(self) -> int:
        return 20

    def ordered_indices(self) -> np.ndarray:
        return np.random.permutation(20)

    def num_tokens(self, index: int) -> int:
        return 3

    def collater(self, samples: list[int]) -> list[int]:
        return samples


def last_batches() -> None:
    """All sentences are in a batch, with and without the vector of lengths; and none is no error."""
    for lengths in (None, np.full(20, 3)):
        options = {"num_tokens_vec": lengths, "max_sentences": 16, "required_batch_size_multiple": 8}
        batches = data_utils.batch_by_size(iter(range(20)), Sentences().num_tokens, **options)
        assert [len(batch) for batch in batches] == [16, 4], f"of 20 sentences: {sum(map(len, batches))}"
    assert not len(data_utils.batch_by_size([], Sentences().num_tokens, max_tokens=9, required_batch_size_multiple=8))


def resumed_batches() -> None:
    """A process that begins with the third epoch has the batches that the first one had; with other seeds others.

    Those that are made anew for each epoch are fairseq's own.
    """
    own = getattr(FairseqTask.get_batch_iterator, "__wrapped__", FairseqTask.get_batch_iterator)

    def batches(epoch: int, seed: int = 1, function=FairseqTask.get_batch_iterator, **options) -> list[list[int]]:
        task, data = FairseqTask(Namespace(rebuild_batches=options.pop("rebuilt", False))), Sentences()
        data.can_reuse_epoch_itr_across_epochs = not options.pop("changing", False)
        iterator = function(task, data, max_sentences=8, seed=seed, epoch=epoch, **options)
        assert iterator.epoch == epoch
        assert fairseq_task.data_utils is data_utils
        return [list(batch) for batch in iterator.frozen_batches]

    assert batches(1) == batches(3)
    assert batches(1) != batches(1, seed=2)
    for option in ("rebuilt", "changing", "disable_iterator_cache", "update_epoch_batch_itr"):
        assert batches(3, **{option: True}) == batches(3, function=own, **{option: True}), option


def trainer_of(model, criterion, task=None, **common: bool) -> Trainer:
    """With plain gradient descent."""
    config = OmegaConf.structured(FairseqConfig)
    config.common.update({"cpu": True, **common})
    config.optimizer = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}
    config.lr_scheduler = {"_name": "fixed", "lr": [0.1], "force_anneal": None, "lr_shrink": 0.1, "warmup_updates": 0}
    return Trainer(config, task, model, criterion)


def half_precision() -> None:
    """The optimizer of a run with --fp16 --cpu, and one with --bf16 --cpu."""
    for flag in ("fp16", "bf16"):
        with refused(f"--{flag}", "--amp"):
            _ = trainer_of(torch.nn.Linear(2, 1), torch.nn.Identity(), **{flag: True}).optimizer


def bf16_on_gpus() -> None:
    """What --bf16 means, and that --tpu stays what it is."""
    for flags, is_tpu in (("--bf16", False), ("--bf16 --tpu", True), ("--tpu", True)):
        command = ["data", "--arch", "transformer", *flags.split()]
        assert options.parse_args_and_arch(options.get_training_parser(), command).tpu is is_tpu, flags
    given, parser = ["data", "--task", "translation"], options.get_validation_parser()
    # as fairseq-validate asks for what was given
    assert not hasattr(options.parse_args_and_arch(parser, given, suppress_defaults=True), "tpu")


class OneLayer(BaseFairseqModel):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)


class Observing(FairseqCriterion):
    """Logs what it computes with."""

    def forward(self, model, sample, reduce=True):
        output = model.linear(torch.ones(1, 2))
        return output.float().sum(), 1, {"type": output.dtype, "flash": torch.backends.cuda.flash_sdp_enabled()}


class Numbered(Sentences):
    """Knows its epoch."""

    epoch = 0

    def __getitem__(self, index: int) -> int:
        return index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def validated_training_data() -> None:
    """A training in its second epoch that validates its own set, and another one."""
    task, model = FairseqTask(None), OneLayer()
    FairseqTask.target_dictionary = None
    trainer = trainer_of(model, Observing(task), task)
    trainer.cfg.dataset.update({"batch_size_valid": 8, "batch_size": 8})
    task.datasets = {"train": Numbered(), "valid": Numbered()}
    training = task.get_batch_iterator(task.datasets["train"], max_sentences=8, epoch=1)
    for epoch in (1, 2):
        batches = training.next_epoch_itr()
        for expected in (1, 3):  # of three batches: a validation within the epoch, and one at its end
            while batches.n < expected:
                next(batches)
            for subset in ("valid", "train"):
                validation = trainer.get_valid_iterator(subset).next_epoch_itr(shuffle=False, set_dataset_epoch=False)
                assert sum(map(len, validation)) == 20
            assert (training.epoch, training.iterations_in_epoch) == (epoch, expected), f"epoch {training.epoch}"
            assert task.datasets["train"].epoch == epoch


def cpu_autocast() -> None:
    """What a criterion computes with under --amp --cpu: bfloat16 in training, single precision in validation."""
    task, model = FairseqTask(None), OneLayer()
    FairseqTask.target_dictionary = None
    trainer = trainer_of(model, Observing(task), task, amp=True)
    criterion, before = trainer.criterion, model.linear.weight.detach().clone()
    trainer.zero_grad()
    _, _, log = task.train_step({}, model, criterion.train(), trainer.optimizer, 0)
    trainer.optimizer.step()
    assert log["type"] == torch.bfloat16, f"--amp --cpu computes with {log['type']}"
    assert not torch.equal(before, model.linear.weight), "the step did nothing"
    for tokens in (14, 300):
        batch = {"net_input": {"src_tokens": torch.zeros(1, tokens)}}
        _, _, log = task.train_step(batch, model, criterion.train(), trainer.optimizer, 0)
        assert log["flash"] == (tokens == 300), f"{tokens} tokens in bfloat16 take the slower attention"
    with mock.patch.dict(sys.modules, {"torch.nn.attention": None}):  # torch < 2.3
        task.train_step({"net_input": {"src_tokens": torch.zeros(1, 14)}}, model, criterion, trainer.optimizer, 0)
    _, _, log = task.valid_step({}, model, criterion.eval())
    assert log["type"] == torch.float32, f"validation computes with {log['type']}"


def continued_trackers() -> None:
    """The options of a continued run of Weights & Biases may differ from those that it has."""
    recorded, shown = {"optimization.max_epoch": 1}, mock.Mock()

    def update(new, allow_val_change=False) -> None:
        assert allow_val_change or new.items() <= recorded.items(), "Attempted to change value of key"
        recorded.update(new)

    tracker = mock.Mock(config=mock.Mock(update=update))
    with mock.patch.object(progress_bar, "wandb", tracker):
        progress_bar.WandBProgressBarWrapper(shown, "project").update_config({"optimization.max_epoch": 2})
    assert recorded == {"optimization.max_epoch": 2}
    shown.update_config.assert_called_once_with(recorded)


def half_precision_state() -> None:
    """A second process has the weights in single precision and the numbers of the scaler, unless the model changed."""
    config = OmegaConf.structured(FairseqConfig)
    config.common.update({"fp16": True, "fp16_no_flatten_grads": True})
    config.optimizer = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}

    def optimizer(weights: torch.Tensor, kind=optim.FP16Optimizer):
        return kind.build_optimizer(config, [torch.nn.Parameter(weights.clone())])

    first = optimizer(torch.ones(3).half())
    first.zero_grad()
    first.backward(0.01 * first.fp16_params[0].float().sum())
    first.step()
    assert torch.equal(first.fp32_params[0].half(), first.fp16_params[0])
    assert not torch.equal(first.fp32_params[0], first.fp16_params[0].float()), "nothing is rounded here"
    state = fairseq_utils.move_to_cpu(first.state_dict())
    second, changed = optimizer(first.fp16_params[0].data), optimizer(torch.zeros(3).half())
    for one in (second, changed):
        one.load_state_dict(state)
    assert torch.equal(second.fp32_params[0], first.fp32_params[0]), "the weights are rounded"
    assert not changed.fp32_params[0].any()
    assert vars(second.scaler) == vars(first.scaler)
    first, second = (optimizer(torch.ones(3), optim.AMPOptimizer) for _ in range(2))
    first._grad_scaler, second._grad_scaler = mock.Mock(state_dict=lambda: {"scale": 4.0}), mock.Mock()
    second.load_state_dict(first.state_dict())
    second._grad_scaler.load_state_dict.assert_called_once_with({"scale": 4.0})


def missing_packages() -> None:
    """The packages that these options need cannot be imported: in trainings of hydra, and in any command."""
    for section, option, name, remedy in (
        ("checkpoint", "write_checkpoints_asynchronously", "iopath", "pip install iopath, or leave"),
        ("common", "use_plasma_view", "pyarrow.plasma", "leave the option out"),
    ):
        cfg = OmegaConf.structured(FairseqConfig)
        cfg[section][option] = True
        flag = f"--{option.replace('_', '-')} needs {name}"
        with mock.patch.dict(sys.modules, {name: None}):
            with refused(flag, remedy):
                train.main(cfg)
            with refused(flag, remedy):
                convert_namespace_to_omegaconf(Namespace(**{option: True}))
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.criterion = {"_name": "ctc"}
    with mock.patch.dict(sys.modules, {"editdistance": None}):
        with refused("--criterion ctc needs editdistance: pip install editdistance"):
            train.main(cfg)
        cfg.dataset.disable_validation = True
        with refused("MissingMandatoryValue"):
            train.main(cfg)


def missing_metrics() -> None:
    """A validation without BLEU, of a first and of a continued training: saved, then an error."""
    values = {"loss": 2.0, "ppl": 4.0, "wps": 9.0}
    options = {"best_checkpoint_metric": "bleu", "maximize_best_checkpoint_metric": True}
    config = OmegaConf.structured(FairseqConfig(checkpoint=CheckpointConfig(**options)))
    trainer = mock.MagicMock(**{"get_num_updates.return_value": 3, "cumulative_training_time.return_value": 1.0})
    epoch = SimpleNamespace(epoch=1, end_of_epoch=lambda: True)
    aggregate = mock.MagicMock(**{"return_value.__enter__.return_value.get_smoothed_values": lambda: dict(values)})

    def validate_and_save():
        saved.clear()
        with (
            mock.patch.object(train, "checkpoint_utils", SimpleNamespace(save_checkpoint=save)),
            mock.patch.object(train.metrics, "aggregate", aggregate),
            mock.patch.object(train.progress_bar, "progress_bar"),
        ):
            return train.validate_and_save(config, trainer, SimpleNamespace(), epoch, ["valid"], False)

    def save(options, trainer, epoch_itr, value) -> None:
        saved.append(value)

    saved: list = []
    config.dataset.validate_interval_updates = 3  # without a checkpoint
    for best in (None, 30.0):
        if best is not None:
            save.best = best  # type: ignore[attr-defined]
        with refused("--best-checkpoint-metric bleu", "but loss, ppl;", "--eval-bleu"):
            validate_and_save()
        assert saved == [None], "the work is lost"
    values["bleu"] = 31.0
    assert validate_and_save() == ([31.0], False)
    assert saved == []
    for name, higher, advice in (
        ("bleu", False, "add --maximize"),
        ("sentence_f1", True, ""),
        ("nll_loss", True, "leave out --maximize"),
        ("loss", False, ""),
        ("mine", False, ""),
    ):
        config.checkpoint.best_checkpoint_metric, config.checkpoint.maximize_best_checkpoint_metric = name, higher
        lines = io.StringIO()
        with contextlib.redirect_stderr(lines), mock.patch.object(train.utils, "import_user_module") as begun:
            begun.side_effect = KeyboardInterrupt
            with contextlib.suppress(KeyboardInterrupt):
                train.main(config)
        assert bool(lines.getvalue()) == bool(advice), name
        assert advice in lines.getvalue()


def tied_averages() -> None:
    """Weights 0 and then 1 with a decay of 1/2: the averages are 1/2, also of a matrix with two names."""
    for in_single, kind in ((False, torch.float), (True, torch.float), (True, torch.half)):
        model = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1, bias=False) for name in ("embed", "fc", "output")})
        model["output"].weight = model["embed"].weight
        torch.nn.init.zeros_(model["embed"].weight)
        torch.nn.init.zeros_(model["fc"].weight)
        average = EMA(model.to(kind), EMAConfig(store_ema=True, ema_decay=0.5, ema_fp32=in_single))
        torch.nn.init.ones_(model["embed"].weight)
        torch.nn.init.ones_(model["fc"].weight)
        model["later"] = torch.nn.Linear(1, 1)  # as the head of a task
        average.step(model, 1)
        for averages in (average.get_model().state_dict(), average.fp32_params):
            found = {name: value.item() for name, value in averages.items()}
            assert found in ({}, dict.fromkeys(("embed.weight", "fc.weight", "output.weight"), 0.5)), (in_single, kind)
        last_norms(in_single)


class Encoding(BaseFairseqModel):
    """A pre-norm encoder and clusters of words, which both look at the version of weights that are loaded."""

    def __init__(self) -> None:
        super().__init__()
        layers = EncDecBaseConfig(layers=1, embed_dim=4, attention_heads=1, normalize_before=True)
        embeddings = torch.nn.Embedding(4, 4, 1)
        self.encoder = TransformerEncoderBase(TransformerConfig(encoder=layers), Dictionary(), embeddings)
        self.clusters = AdaptiveSoftmax(10, 8, [3, 6], dropout=0.0)


def last_norms(in_single: bool) -> None:
    """The layer norm after the last layer, 1 and then 3, has an average, also after averages without it."""
    model = Encoding()
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5, ema_fp32=in_single))
    torch.nn.init.constant_(model.encoder.layer_norm.weight, 3.0)
    average.step(model, 1)
    averages = dict(average.get_model().state_dict())
    assert averages.keys() == model.state_dict().keys(), model.state_dict().keys() - averages.keys()
    assert averages["encoder.layer_norm.weight"].tolist() == [2.0] * 4
    assert averages["encoder.version"] == model.encoder.version
    del averages["encoder.layer_norm.weight"]
    averages["encoder.version"] = torch.ones(1)  # as fairseq stores them
    continued = EMA(model, average.config)
    continued.restore(averages, build_fp32_params=in_single)
    assert continued.get_model().encoder.layer_norm.weight.tolist() == [3.0] * 4


class Quarters(torch.nn.Module):
    """Gives each of four tokens a probability of 1/4, in every place."""

    def forward(self, tokens):
        return (torch.zeros(*tokens.shape, 4),)

    def get_normalized_probs(self, output, log_probs):
        return output[0].log_softmax(-1)

    def get_targets(self, sample, output):
        return sample["target"]


def ignored_prefixes() -> None:
    """Two bits for each token that is counted: 3 + 1 of the 4 + 2, or 2, and none of a batch of prefixes."""
    task, pair = SimpleNamespace(target_dictionary=Dictionary()), [[3, 0, 0, 2], [3, 2, 1, 1]]
    for prefix, targets, counted in ((2, pair, 2), (1, pair, 4), (1, [[3], [2]], 0)):
        criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.0, ignore_prefix_size=prefix)
        target = torch.tensor(targets)
        sample = {"net_input": {"tokens": target}, "target": target, "ntokens": int((target != 1).sum())}
        loss, size, logged = criterion(Quarters(), sample)
        assert abs(loss / math.log(2) - 2 * counted) < 1e-5
        assert size == logged["ntokens"] == max(counted, 1), f"{size} instead of {counted}"
    criterion.sentence_avg = True
    assert criterion(Quarters(), sample)[1] == 2


def adaptive_losses() -> None:
    """Zero logits for three words and clusters of three and four; 4 and 7 are the second of theirs, 1 is padding."""
    model = torch.nn.Module()
    model.forward = lambda tokens: (torch.zeros(*tokens.shape, 8),)
    model.get_targets = lambda sample, output: sample["target"]
    model.decoder = torch.nn.Module()
    model.decoder.adaptive_softmax = AdaptiveSoftmax(10, 8, [3, 6], dropout=0.0)
    target = torch.tensor([[0, 4, 7], [2, 1, 1]])
    sample = {"net_input": {"tokens": target}, "target": target}
    criterion = AdaptiveLoss(SimpleNamespace(target_dictionary=Dictionary()), False)
    loss, size, logged = criterion(model, sample)
    expected = 4 * math.log(5) + math.log(3) + math.log(4)
    assert abs(loss.item() - expected) < 1e-5, f"{loss.item()} instead of {expected}"
    assert (size, logged["ntokens"], logged["nsentences"]) == (4, 4, 2)
    criterion.sentence_avg = True
    assert criterion(model, sample)[1] == 2
    target[0, 2] = 1  # no word of the second cluster
    assert abs(criterion(model, sample)[0].item() - 3 * math.log(5) - math.log(3)) < 1e-5


def regression_losses() -> None:
    """Predictions of 0 for 1 and 3: the mean square is 5."""
    task = SimpleNamespace(
        source_dictionary=Dictionary(), target_dictionary=Dictionary(), label_dictionary=Dictionary()
    )
    settings = {"classification_head_name": "head", "regression_target": True}
    model = torch.nn.Module()
    model.forward = lambda features_only, classification_head_name, lang_id=None: (torch.zeros(2, 1), None)
    model.get_targets = lambda sample, output: sample["target"]
    model.classification_heads, model.args = {"head"}, Namespace()
    sample = {"net_input": {}, "target": torch.tensor([1.0, 3.0]), "ntokens": 2, "nsentences": 2}
    for kind in (SentencePredictionCriterion, SentencePredictionCriterionAdapters):
        criterion = kind(SentencePredictionConfig(**settings), task)
        loss, size, logged = criterion(model, sample)
        assert (loss.item(), size) == (10, 2)
        with metrics.aggregate() as values:
            criterion.reduce_metrics([logged])
        assert values.get_smoothed_value("loss") == 5, values.get_smoothed_value("loss")
