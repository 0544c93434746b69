"""Symptoms (see symptoms.py) of what goes wrong inside models, scores and the helpers of datasets."""

from __future__ import annotations

import copy
import math
import multiprocessing
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import fairseq
import numpy as np
import torch
from fairseq import checkpoint_utils, libbleu, metrics, nan_detector
from fairseq.data import Dictionary, LanguagePairDataset, TokenBlockDataset, data_utils
from fairseq.models.hubert import hubert_asr
from fairseq.models.hubert.hubert_asr import HubertCtcConfig
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_align import TransformerAlignModel, transformer_align
from fairseq.models.wav2vec import wav2vec2_asr
from fairseq.models.wav2vec.wav2vec2_asr import Wav2Vec2AsrConfig
from fairseq.modules import AdaptiveInput, AdaptiveSoftmax, DynamicCRF, SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from fairseq.scoring.bleu import BleuConfig, Scorer
from fairseq.search import Sampling
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq_cli import generate
from fairseq_cli.eval_lm import eval_lm
from fairseq_compat.fixes.missing_options import add_option
from fairseq_compat.pure.libbleu import trimmed
from omegaconf import OmegaConf
from training_symptoms import in_folder, refused, write_split


def encoder_copies() -> None:
    """No parameter beyond those that the forward pass uses, and the same output after loading a state dict."""
    config = TransformerConfig()
    config.encoder.embed_dim, config.encoder.ffn_embed_dim, config.encoder.attention_heads = 8, 16, 2
    config.dropout = 0.0
    torch.manual_seed(1)
    layer, other = TransformerEncoderLayerBase(config), TransformerEncoderLayerBase(config)
    expected = 4 * (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8) + 2 * (2 * 8)
    counted = sum(parameter.numel() for parameter in layer.parameters())
    assert counted == expected, f"{counted} parameters instead of {expected}"
    words, padding = torch.randn(5, 2, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    saved = dict(layer.state_dict())
    if hasattr(layer, "in_proj_weight"):  # in checkpoints of 0.12.2 without the fix
        saved.update(in_proj_weight=torch.zeros(24, 8), fc2_bias=torch.zeros(8))
    other.load_state_dict(saved)
    torch.testing.assert_close(other.eval()(words, padding), layer(words, padding))
    torch.jit.script(layer)


def alignment_layers() -> None:
    """A translation is aligned by the layer and head that the criterion trains, which `forward` returns."""
    sizes = {f"{side}_{name}": 8 for side in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")}
    args = Namespace(decoder_layers=3, encoder_layers=1, alignment_layer=1, alignment_heads=2, **sizes)
    transformer_align(args)
    dictionary = Dictionary()
    torch.manual_seed(1)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = TransformerAlignModel.build_model(args, task).eval()
    source, target = torch.tensor([[3, 3, 3, 2]]), torch.tensor([[2, 3, 3]])
    trained = model(source, torch.tensor([4]), target)[1]["attn"][0]
    generator = EnsembleModel([copy.deepcopy(model)])
    encoded, states = generator.forward_encoder({"src_tokens": source, "src_lengths": torch.tensor([4])}), [{}]
    for length in (1, 2, 3):
        found = generator.forward_decoder(target[:, :length], encoded, states)[1]
        torch.testing.assert_close(found, trained[:, length - 1])


def float_buffers(*modules: torch.nn.Module) -> list[torch.Tensor]:
    """Those that hold nothing but their type."""
    return [buffer for one in modules for name, buffer in one.named_buffers() if name.endswith("_float_tensor")]


def defined_buffers() -> None:
    """Memory that was used before comes back as the content of an uninitialised tensor."""
    used = [torch.full((1,), float("nan")) for _ in range(256)]
    del used
    buffers = float_buffers(*(SinusoidalPositionalEmbedding(4, 1) for _ in range(64)))
    assert not any(buffers), f"the buffers hold {buffers}"  # in fairseq's main branch there are none
    tables = AdaptiveInput(8, 1, 4, 2.0, 4, [4, 8])
    buffers = float_buffers(AdaptiveSoftmax(8, 4, [4, 8], dropout=0.0, adaptive_inputs=tables, tie_proj=True), tables)
    assert len(buffers) == 2
    assert not any(buffers), f"the buffers hold {buffers}"
    embedding = SinusoidalPositionalEmbedding(4, 1)
    embedding.load_state_dict({"_float_tensor": torch.tensor([float("nan")])})  # as fairseq's upgrade of a checkpoint
    assert not any(float_buffers(embedding)), "the buffer is undefined after loading"


def numpy_aliases() -> None:
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


def pretrained_bart_options() -> None:
    options = Namespace(langs="de,en", source_lang="de", target_lang="en", data="")
    task = TranslationFromPretrainedBARTTask(options, Dictionary(), Dictionary())
    assert task.build_generator([], Namespace(score_reference=True)).eos == task.tgt_dict.index("[en]")
    with mock.patch("fairseq.sequence_generator.SequenceGenerator") as generator:
        task.build_generator([], Namespace(sampling=True, beam=3), extra_gen_cls_kwargs={"lm_weight": 0.5})
    given = generator.call_args.kwargs
    assert isinstance(given["search_strategy"], Sampling), given
    assert (given["eos"], given["lm_weight"], given["beam_size"]) == (task.tgt_dict.index("[en]"), 0.5, 3)


def missing_options() -> None:
    """Encoders around models that are not looked at: the output layer of CTC, and all weights trained."""
    task = {"normalize": False, "data": ""}
    cfg = OmegaConf.create({"model": OmegaConf.structured(HubertCtcConfig), "task": task}).model
    cfg.w2v_args = {"model": {"encoder_embed_dim": 4}, "task": task}
    with mock.patch.object(hubert_asr.tasks, "setup_task"):
        encoder = hubert_asr.HubertEncoder(cfg, mock.Mock(target_dictionary=range(5)))
    assert encoder.proj.out_features == 5
    pretrained = {"model": {"_name": "wav2vec2", "encoder_embed_dim": 4}, "task": task}
    options = {**vars(Wav2Vec2AsrConfig()), "w2v_args": OmegaConf.create(pretrained), "normalize": False, "data": ""}
    options.pop("freeze_regex", None)
    with mock.patch.object(wav2vec2_asr.tasks, "setup_task") as setup:
        setup.return_value.build_model.return_value = model = torch.nn.Linear(1, 1)
        model.remove_pretraining_modules = model.eval
        encoder = wav2vec2_asr.Wav2VecEncoder(Namespace(**options))
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    seen: list[bool] = []  # an option that the model has stays as it is
    for has in (Namespace(autoregressive=True), OmegaConf.create({"autoregressive": True})):
        encoder = type("Encoder", (), {"__init__": lambda self, cfg: seen.append(cfg.autoregressive)})
        add_option(encoder, "autoregressive", False)
        encoder(has)
    assert seen == [True, True]


def score_nothing() -> None:
    padded = ([1, 2, 2], [1, 1], [1, 5, 2, 1])
    assert [len(trimmed(tokens, 1, 2)) for tokens in padded] == [1, 0, 1]
    scorer, words, nothing = Scorer(BleuConfig(pad=1, eos=2, unk=3)), torch.IntTensor([5, 6, 7, 8, 9, 2]), []
    assert "reflen=0" in scorer.result_string()
    scorer.add(words, torch.IntTensor(nothing))
    assert scorer.score() == 0, scorer.score()
    scorer.add(words, words)
    assert (scorer.stat.reflen, scorer.stat.predlen, scorer.stat.count1, scorer.stat.match4) == (10, 5, 5, 2)
    scorer.add(torch.IntTensor(nothing), torch.IntTensor([1, 5, 6, 2]))
    assert (scorer.stat.reflen, scorer.stat.predlen, scorer.stat.count2) == (10, 7, 5)
    assert "syslen=7, reflen=10" in scorer.result_string()


def logged_bleu(*batches: tuple[list[int], list[int], int, int]) -> float | None:
    """Return what --eval-bleu logs for batches of (counts, totals, length of the translations, of the text)."""
    task = TranslationTask.__new__(TranslationTask)
    task.cfg = SimpleNamespace(eval_bleu=True)
    with mock.patch.object(FairseqTask, "reduce_metrics"), metrics.aggregate(new_root=True) as meters:
        task.reduce_metrics([{"loss": 1.0}], None)  # as within a training
        assert not meters.get_smoothed_values()
        for counts, totals, translation, reference in batches:
            log = {"_bleu_sys_len": translation, "_bleu_ref_len": reference}
            for order in range(4):
                log |= {f"_bleu_counts_{order}": counts[order], f"_bleu_totals_{order}": totals[order]}
            task.reduce_metrics([log], None)
    return meters.get_smoothed_values().get("bleu")


def empty_hypotheses() -> None:
    """In a process of its own, which ends with a segmentation fault; BLEU of --eval-bleu."""
    nothing, some = ([0] * 4, [0] * 4, 0, 10), ([10, 9, 8, 7], [10, 9, 8, 7], 10, 10)
    assert logged_bleu(nothing) == 0
    for batches in ((nothing, some), (some, nothing)):
        assert logged_bleu(*batches) == round(100 * math.exp(1 - 20 / 10), 2), "the brevity of 10 words for 20"
    process = multiprocessing.get_context("fork").Process(target=score_nothing)
    process.start()
    process.join()
    assert process.exitcode == 0, f"exit status {process.exitcode}"


class Encoder(torch.nn.Module):
    """Return a list in a dict, as fairseq's encoders do; its gradient is infinite at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, values: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        return {"encoder_out": [self.layer(values).sqrt()]}


def nan_gradients() -> None:
    model = torch.nn.Sequential(Encoder())
    torch.nn.init.zeros_(model[0].layer.weight)
    torch.nn.init.zeros_(model[0].layer.bias)
    with mock.patch.object(nan_detector.logger, "warning") as warning, nan_detector.NanDetector(model):
        model(torch.ones(1, 2))["encoder_out"][0].sum().backward()
    assert "output of 0.layer" in warning.call_args.args[0], warning.call_args


def empty_evaluations() -> None:
    with refused("--gen-subset"):
        eval_lm([torch.nn.Linear(1, 1)], Dictionary(), [])


@in_folder
def fused_dictionaries(folder: Path) -> None:
    """The words of the language model are compared, and those of its training if its data are there."""
    target, other = write_split(folder, "test", [], "a b"), write_split(folder / "lm", "test", [], "b a")
    model, lm = torch.nn.Module(), torch.nn.Module()
    model.max_decoder_positions = lambda: 9
    for dictionary, data, words in ((other, "none", ("'b'", "'a'")), (target, "lm", ("'b'", "lm/dict.txt"))):
        lm.decoder = SimpleNamespace(dictionary=dictionary)
        state = {"cfg": {"task": Namespace(data=str(folder / data))}}
        with (
            refused("--lm-path: symbol 5 ", *words, "--srcdict"),
            mock.patch.object(checkpoint_utils, "load_model_ensemble", return_value=([lm], None)),
            mock.patch.object(checkpoint_utils, "load_checkpoint_to_cpu", return_value=state),
        ):
            models, _ = generate.checkpoint_utils.load_model_ensemble(["lm.pt"], {}, None)
            SequenceGenerator([model], target, lm_model=models[0])
    SequenceGenerator([model], target, lm_model=lm)
    SequenceGenerator([model], target)


@in_folder
def uncompiled_bleu(folder: Path) -> None:
    """A Python module stands in the place of the compiled one."""
    fairseq.libbleu = ModuleType("fairseq.libbleu")
    fairseq.libbleu.__file__ = str(folder / "libbleu.py")
    try:
        scorer = Scorer(BleuConfig(pad=1, eos=2, unk=3))
        scorer.add(torch.IntTensor([5, 6, 2]), torch.IntTensor([5, 6, 2]))
        assert scorer.stat.match2 == 1
    finally:
        fairseq.libbleu = libbleu


class SecondWord(torch.nn.Module):
    """A language model that finds word b (5) everywhere, and has six positions."""

    def forward(self, tokens, **_options):
        torch.arange(6)[torch.arange(tokens.size(1))]  # an IndexError beyond the positions
        return torch.nn.functional.one_hot(torch.full_like(tokens, 5), 7).float(), {}

    def max_positions(self) -> int:
        return 6


def hub_segmentations() -> None:
    """Text is segmented as the dictionary's was; a word that is filled in is a word."""
    from fairseq.models.bart.hub_interface import BARTHubInterface
    from fairseq.models.roberta import alignment_utils
    from fairseq.models.roberta.hub_interface import RobertaHubInterface

    dictionary = Dictionary()
    for word in ("a", "b", "<mask>"):
        dictionary.add_symbol(word)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary, mask_idx=6)
    for hub in (RobertaHubInterface, BARTHubInterface):
        with refused("'gpt2'", "'a'", "sentencepiece_model=FILE", "bpe=None"):
            hub(SimpleNamespace(bpe=SimpleNamespace(_name="gpt2"), tokenizer=None), task, SecondWord())
    hub = RobertaHubInterface(SimpleNamespace(bpe=None), task, SecondWord())
    assert hub.encode("a  b", "b").tolist() == [0, 4, 5, 2, 2, 5, 2]
    assert hub.decode(torch.tensor([0, 4, 5, 2])) == "a b"
    filled = [hub.fill_mask(text, topk=1)[0][::2] for text in ("a <mask> a", "<mask> a", "a <mask>")]
    assert filled == [("a b a", "b"), ("b a", "b"), ("a b", "b")], filled
    with refused("ValueError", "positions (6)", "shorten"):
        hub.fill_mask("a a a a a <mask>")
    nlp = SimpleNamespace(Defaults=SimpleNamespace(), tokenizer=str.split)  # spaCy 3
    with mock.patch.object(alignment_utils, "spacy_nlp", return_value=nlp):
        assert alignment_utils.spacy_tokenizer()("a b") == ["a", "b"]
