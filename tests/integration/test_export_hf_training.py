"""`embinit export-hf` from end to end: fairseq-train, the command, transformers alone in another process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from pre_training import ARCHITECTURES, CLASSES, FROM_ANOTHER_RUN, MASKED_LM, train_command
from trainings import run_to_end

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.main import main
from embinit_fairseq.models.tupe import TupeModel

pytest.importorskip("transformers")
pytestmark = pytest.mark.end_to_end
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
        torch.testing.assert_close(ours.detach(), torch.tensor(theirs), rtol=1e-5, atol=1e-5)

for folder in (masked, scratch):
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    batch = inputs(masked)
    check(model(**batch).logits, "logits", batch["attention_mask"])
    features = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()(**batch).last_hidden_state
    check(features, "features", batch["attention_mask"])
    if folder == masked:
        model.save_pretrained(scratch)
model = AutoModelForSequenceClassification.from_pretrained(classifier, trust_remote_code=True).eval()
assert model.config.id2label == dict(enumerate(expected["labels"])), model.config.id2label
check(model(**inputs(classifier)).logits, "classes", batch["attention_mask"])
fresh = AutoModelForSequenceClassification.from_pretrained(masked, trust_remote_code=True, num_labels=3)
fresh(**batch, labels=torch.tensor([0, 1, 2])).loss.backward()
assert all(torch.isfinite(p.grad).all() for p in fresh.classifier.parameters())
ours = ("fairseq", "fairseq_cli", "embinit_fairseq")
print(sorted(name for name, module in sys.modules.items() if name.split(".")[0] in ours and module is not None))
"""


def fairseq_says(masked, classifier):
    """What a stranger must find, by the hub of fairseq, a sentence at a time."""
    labels = classifier.task.label_dictionary
    found = {"texts": TEXTS, "labels": [labels[number + labels.nspecial] for number in range(2)]}
    with torch.no_grad():
        tokens = [masked.encode(text) for text in TEXTS]
        found["logits"] = [masked.model(ids.view(1, -1))[0][0].tolist() for ids in tokens]
        found["features"] = [masked.extract_features(ids)[0].tolist() for ids in tokens]
        head = "sentence_classification_head"
        found["classes"] = [classifier.predict(head, ids, return_logits=True)[0].tolist() for ids in tokens]
    return found


def test_a_stranger_finds_what_fairseq_says(trained, tmp_path, capsys):
    masked = trained("tupe")
    model = ARCHITECTURES["tupe"].flags.replace(MASKED_LM, "").replace("--criterion masked_lm", "")
    sizes = (
        "--max-positions 32 --encoder-embed-dim 16 --encoder-attention-heads 2 --init-token 0 --optimizer adam --cpu"
    )
    flags = [*f"{model} {sizes} {CLASSES} --max-update 3 --num-workers 0".split(), *FROM_ANOTHER_RUN]
    flags += [
        "--batch-size",
        40,
        "--restore-file",
        masked.folder / "checkpoint_last.pt",
        "--save-dir",
        tmp_path / "tuned",
    ]
    run_to_end(train_command(masked.data / "classes", *flags))
    hubs = []
    for folder, data, name in ((masked.folder, "text", "masked"), (tmp_path / "tuned", "classes", "classifier")):
        given = ["--checkpoint", str(folder / "checkpoint_last.pt"), "--output", str(tmp_path / name)]
        assert main(["export-hf", *given]) == 0
        updates = load_checkpoint(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
        said = capsys.readouterr().out
        assert all(part in said for part in (f"{updates} updates", "float64: differs from fairseq by at most"))
        hubs.append(TupeModel.from_pretrained(str(folder), "checkpoint_last.pt", str(masked.data / data)))
    (tmp_path / "expected.json").write_text(json.dumps(fairseq_says(*hubs)))
    arguments = [str(tmp_path / name) for name in ("masked", "classifier", "expected.json", "again")]
    environment = {"PATH": "/usr/bin:/bin", "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", STRANGER, *arguments]
    stranger = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert stranger.returncode == 0, stranger.stderr
    assert stranger.stdout.strip() == "[]"
