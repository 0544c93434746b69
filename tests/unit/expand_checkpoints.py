"""Small checkpoints of many architectures for the tests of `embinit expand-vocab`, written without a training."""

from __future__ import annotations

import copy
import functools
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, overwrite_args_by_name
from omegaconf import OmegaConf

import embinit_fairseq
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.resize.expand import ExpandRequest, expanding

ENCODER = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2"
DECODER = ENCODER.replace("encoder", "decoder")
LM = "--task language_modeling --tokens-per-sample 16 --arch"
MLM = "--task masked_lm --tokens-per-sample 16 --max-positions 16 --criterion masked_lm --arch"
MT = f"--task translation --source-lang de --target-lang en {ENCODER} {DECODER} --arch"
CLASSES = "--task sentence_prediction --criterion sentence_prediction --num-classes 3 --max-positions 16 --arch"
TIED = "--share-decoder-input-output-embed"
SMALL_GENERATOR = "--generator-layers 1 --generator-embed-dim 4 --generator-ffn-embed-dim 8"
FAMILIES = {
    "lm": f"{LM} transformer_lm --decoder-input-dim 8 --decoder-output-dim 8 {DECODER}",
    "lm_tied": f"{LM} transformer_lm_gpt {TIED} {DECODER}",
    "roberta": f"{MLM} roberta_base {ENCODER}",
    "tupe": f"{MLM} tupe_tiny --rel-pos {ENCODER}",
    "electra": f"{MLM} electra_tiny {ENCODER} {SMALL_GENERATOR} --generator-attention-heads 2",
    "transformer": f"{MT} transformer_iwslt_de_en",
    "transformer_shared": f"{MT} transformer_iwslt_de_en --share-all-embeddings",
    "mbart_shared": f"{MT} transformer_iwslt_de_en --share-all-embeddings "
    "--task translation_from_pretrained_bart --langs de,en",
    "duo": f"{MT} duo_transformer_tiny {TIED} --decoder-dim-p 6",
    "multilingual_shared": "--task multilingual_translation --lang-pairs de-en,nl-en --share-encoders --share-decoders "
    f"--share-all-embeddings {ENCODER} {DECODER} --arch multilingual_transformer",
    "simple_epoch_shared": "--task translation_multi_simple_epoch --lang-pairs de-en,en-nl --langs de,en,nl,fr "
    f"--encoder-langtok src --decoder-langtok --share-all-embeddings {ENCODER} {DECODER} --arch transformer",
    "lstm": "--task translation --source-lang de --target-lang en --arch lstm --encoder-embed-dim 8 "
    "--decoder-embed-dim 8 --encoder-hidden-size 8 --decoder-hidden-size 8 --decoder-out-embed-dim 8",
    "roberta_fine_tuned": f"{CLASSES} roberta_base {ENCODER}",
    "classifier": f"{CLASSES} embinit_classifier {ENCODER}",
}
#: translation with a table for each side, where the dictionary of the target is the decoder's
TWO_TABLES = ("transformer", "duo", "lstm")
WORDS = [f"w{number}" for number in range(9)]
NEW = ("x", "y", "z")
TEXT = "w0 w1 w2 w3\nw5 unknown w7\n\nw8 w8\nw1 w2 w3 w4 w5 w6 w7 w8 w0 w1 w2 w3 w4 w5 w6 w7 w8\n"
USER_DIR = str(Path(embinit_fairseq.__file__).parent)


def dictionary(words=WORDS, fillers=0) -> str:
    return "".join(f"{word} 7\n" for word in words) + "".join(f"madeupword{i:04d} 0\n" for i in range(fillers))


@dataclass
class Checkpoint:
    """A checkpoint `c.pt` beside its dictionaries. state: what is in the file. task: with its dictionaries."""

    folder: Path
    state: dict
    task: object
    model: torch.nn.Module
    dictionary: str

    @property
    def path(self) -> str:
        return str(self.folder / "c.pt")

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def save(self) -> None:
        torch.save(self.state, self.path)

    def expand(self, method="avg", words=NEW, progress=list, **options) -> dict:
        (self.folder / "new.txt").write_text("\n".join(words))
        files = {"checkpoint": self.path, "dictionary": self.dictionary, "words": str(self.folder / "new.txt")}
        request = ExpandRequest(**{**files, "method": method, "output": str(self.output), **options})
        with expanding(request, progress) as (_, _, record):
            return record

    def written(self) -> dict:
        return load_checkpoint(self.output / "model.pt")


COMPOSED: dict = {}


@functools.cache
def configuration(*flags: str):
    """Return the configuration of a training. Hydra, which takes longest, composes one per task, model, criterion."""
    arguments = ["DATA", *" ".join(flags).split(), "--user-dir", USER_DIR, "--optimizer", "adam"]
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    kind = args.task, args.arch, args.criterion
    if kind not in COMPOSED:
        COMPOSED[kind] = pickle.dumps(convert_namespace_to_omegaconf(args))  # a deep copy would share a Namespace
    cfg = pickle.loads(COMPOSED[kind])
    overwrite_args_by_name(cfg, vars(args))
    return cfg


def make(folder: Path, family: str, words=WORDS, fillers=0, other=None, flags="", tweak=None) -> Checkpoint:
    """The dictionary has `words` and fillers; of translation, this is the target's, and the source has `other` words
    (default: two more; of shared tables: the same). tweak: changes the model before it is saved."""
    data, text = folder / "data", dictionary(words, fillers)
    source = text if "shared" in family else dictionary(other or [*words, "more", "most"], fillers)
    files = {"dict.txt": text, "dict.en.txt": text, "dict.de.txt": source, "dict.nl.txt": text, "input0/dict.txt": text}
    for name, content in {**files, "label/dict.txt": "a 1\nb 1\nc 1\n"}.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(content)
    cfg = copy.deepcopy(configuration(FAMILIES[family], flags))
    overwrite_args_by_name(cfg, {"data": str(data)})
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model, from_checkpoint=True).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # an initialisation has equal rows and zero biases, training has not
            parameter += 0.1 * torch.randn_like(parameter)
        if tweak is not None:
            tweak(model)
    history = {"criterion_name": "X", "optimizer_name": "FairseqAdam", "num_updates": 1, "lr_scheduler_state": {}}
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": model.state_dict(),
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": moments(model),
    }
    name = "dict.en.txt" if "translation" in FAMILIES[family] else "dict.txt"
    checkpoint = Checkpoint(folder, state, task, model, str(data / name))
    checkpoint.save()
    return checkpoint


def lowered(model) -> None:
    """A tweak: the output bias of RoBERTa is -20."""
    model.encoder.lm_head.bias.fill_(-20.0)


def moments(model) -> dict:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


def logits(model, source, target):
    """(positions, symbols) for token ids, as the model is used."""
    source, target = torch.tensor([source]), torch.tensor([target])
    model = model.models["nl-en"] if hasattr(model, "models") else model
    with torch.inference_mode():
        if hasattr(model, "encoder") and hasattr(model, "decoder"):
            return model(source, torch.tensor([source.shape[1]]), target)[0][0]
        return model(target)[0][0]


def as_fairseq(checkpoint):
    """(model, task) of the result, loaded by fairseq with nothing but the folder."""
    path, data = str(checkpoint.output / "model.pt"), {"data": str(checkpoint.output)}
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides=data)
    return models[0].eval(), task


def divergence(old, new):
    """KL(old || new) over the old words, by its definition; (positions,)."""
    p, q = old.double().log_softmax(-1), new.double().log_softmax(-1)[:, : old.shape[1]]
    return (p.exp() * (p - q)).sum(-1)


def assert_same(one, other, path="") -> None:
    """Nested containers with the same keys and the same bits."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, path
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other)):
            assert_same(*pair, f"{path}.{number}")
    else:
        assert one == other, path


def w_of(weights) -> np.ndarray:
    """Return W as an array (new N, old N)."""
    matrix = np.zeros((len(weights.kind), weights.old_size))
    for row in range(len(matrix)):
        columns, values = weights.row(row)
        matrix[row, columns] = values
    return matrix


def argv(checkpoint, *more, words=NEW):
    new = checkpoint.folder / "new.txt"
    new.write_text("\n".join(words))
    files = {"checkpoint": checkpoint.path, "dict": checkpoint.dictionary, "words": new, "output": checkpoint.output}
    words = [str(part) for flag, path in files.items() for part in (f"--{flag}", path)]
    return replaced(["expand-vocab", *words], *more)


def replaced(words, *more) -> list[str]:
    """A command line with these further options; they replace those of the same name."""
    kept, is_kept = [], True
    for word in map(str, words):
        is_kept = word not in more if word.startswith("--") else is_kept
        kept += [word] if is_kept else []
    return [*kept, *map(str, more)]


def text_of(checkpoint, text=TEXT, name="text"):
    (checkpoint.folder / name).write_text(text)
    return str(checkpoint.folder / name)
