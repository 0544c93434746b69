"""`embinit export-hf` from end to end: fairseq-train, the command, transformers alone in another process."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from pre_training import FROM_ANOTHER_RUN, WORDS, binarise_corpus, train_command, write_corpus
from trainings import run_to_end

from embinit_fairseq.models.tupe import TupeModel

pytest.importorskip("transformers")
pytestmark = pytest.mark.end_to_end
SMALL = """--arch tupe_tiny --rel-pos --encoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32
    --encoder-attention-heads 2 --max-positions 32 --optimizer adam --lr 0.01 --batch-size 40 --cpu
    --required-batch-size-multiple 1 --no-epoch-checkpoints --num-workers 0""".split()
MASKING = "--task masked_lm --criterion masked_lm --sample-break-mode eos --tokens-per-sample 32".split()
CLASSES = """--task sentence_prediction --criterion sentence_prediction --num-classes 2 --init-token 0
    --separator-token 2""".split()
HEAD = "sentence_classification_head"
TEXTS = ["w1 w2 w3 w4", "w7", "w5 unheard w3 w2 w1 w0"]
#: run by a process that cannot import fairseq or this package: MASKED CLASSIFIER EXPECTED.json SCRATCH
STRANGER = """
import json, sys
for name in ("fairseq", "fairseq_cli", "fairseq_compat", "embinit_fairseq"):
    sys.modules[name] = None
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
masked, classifier, expected, scratch = sys.argv[1:]
expected = json.load(open(expected))

def inputs(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    return tokenizer(expected["texts"], padding=True, return_tensors="pt")

def check(found, name, mask):
    for row, theirs in zip(range(len(mask)), expected[name]):
        ours = found[row][mask[row].bool()] if found.dim() == 3 else found[row]
        torch.testing.assert_close(ours, torch.tensor(theirs), rtol=1e-5, atol=1e-5)

for folder in (masked, scratch):
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    batch = inputs(masked)
    with torch.no_grad():
        check(model(**batch).logits, "logits", batch["attention_mask"])
    features = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()(**batch).last_hidden_state
    check(features.detach(), "features", batch["attention_mask"])
    if folder == masked:
        model.save_pretrained(scratch)
model = AutoModelForSequenceClassification.from_pretrained(classifier, trust_remote_code=True).eval()
assert model.config.id2label == dict(enumerate(expected["labels"])), model.config.id2label
with torch.no_grad():
    check(model(**inputs(classifier)).logits, "classes", batch["attention_mask"])
fresh = AutoModelForSequenceClassification.from_pretrained(masked, trust_remote_code=True, num_labels=3)
fresh(**batch, labels=torch.tensor([0, 1, 2])).loss.backward()
assert all(torch.isfinite(p.grad).all() for p in fresh.classifier.parameters())
ours = ("fairseq", "fairseq_cli", "embinit_fairseq")
print(sorted(name for name, module in sys.modules.items() if name.split(".")[0] in ours and module is not None))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Random sentences; the label is whether there are more than five words."""
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, size in (("train", 200), ("valid", 20)):
        lengths = generator.integers(2, 10, size=size)
        lines = [" ".join(f"w{word}" for word in generator.integers(WORDS, size=length)) for length in lengths]
        write_corpus(folder, split, lines, lines, ["long" if length > 5 else "short" for length in lengths])
    return binarise_corpus(folder)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Folders of a pre-trained and a fine-tuned model, a few updates each."""
    folders = [tmp_path_factory.mktemp(name) for name in ("masked", "classifier")]
    run_to_end(train_command(data / "text", *SMALL, *MASKING, "--max-update", "12", "--save-dir", folders[0]))
    start = ["--restore-file", folders[0] / "checkpoint_last.pt", *FROM_ANOTHER_RUN, "--max-update", "12"]
    run_to_end(train_command(data / "classes", *SMALL, *CLASSES, *start, "--save-dir", folders[1]))
    return folders


def fairseq_says(data, trained):
    """What a stranger must find, by the hub of fairseq, a sentence at a time."""
    masked = TupeModel.from_pretrained(str(trained[0]), "checkpoint_last.pt", str(data / "text"))
    classifier = TupeModel.from_pretrained(str(trained[1]), "checkpoint_last.pt", str(data / "classes"))
    labels = classifier.task.label_dictionary
    found = {"texts": TEXTS, "labels": [labels[number + labels.nspecial] for number in range(2)]}
    with torch.no_grad():
        tokens = [masked.encode(text) for text in TEXTS]
        found["logits"] = [masked.model(ids.view(1, -1))[0][0].tolist() for ids in tokens]
        found["features"] = [masked.extract_features(ids)[0].tolist() for ids in tokens]
        found["classes"] = [classifier.predict(HEAD, ids, return_logits=True)[0].tolist() for ids in tokens]
    return found


def test_a_stranger_finds_what_fairseq_says(data, trained, tmp_path):
    for folder, name in zip(trained, ("masked", "classifier")):
        command = [sys.executable, "-m", "embinit_fairseq.cli.main", "export-hf", "--output", str(tmp_path / name)]
        done = subprocess.run(
            [*command, "--checkpoint", str(folder / "checkpoint_last.pt")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "float64: differs from fairseq by at most" in done.stdout
        assert "12 updates" in done.stdout
    (tmp_path / "expected.json").write_text(json.dumps(fairseq_says(data, trained)))
    arguments = [str(tmp_path / name) for name in ("masked", "classifier", "expected.json", "again")]
    environment = {"PATH": "/usr/bin:/bin", "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    stranger = subprocess.run(
        [sys.executable, "-c", STRANGER, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert stranger.returncode == 0, stranger.stderr
    assert stranger.stdout.strip() == "[]"
