"""`embinit export-hf` from end to end: fairseq-train, the command, transformers alone in another process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from embinit_fairseq.cli.main import main
from embinit_fairseq.models.tupe import TupeModel

pytest.importorskip("transformers")
pytestmark = pytest.mark.end_to_end
TEXTS = ["w1 w2 w3 w4", "w7", "w5 unheard w3 w2 w1 w0"]
#: run by a process that cannot import fairseq or this package: EXPORTED EXPECTED.json SCRATCH
STRANGER = """
import json, sys
for name in ("fairseq", "fairseq_cli", "fairseq_compat", "embinit_fairseq"):
    sys.modules[name] = None
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
exported, expected, scratch = sys.argv[1:]
expected = json.load(open(expected))
tokenizer = AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
batch = tokenizer(expected["texts"], padding=True, return_tensors="pt")

def check(rows, name):
    for row, mask, theirs in zip(rows, batch["attention_mask"], expected[name]):
        torch.testing.assert_close(row[mask.bool()].detach(), torch.tensor(theirs), rtol=1e-5, atol=1e-5)

for folder in (exported, scratch):
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    check(model(**batch).logits, "logits")
    check(AutoModel.from_pretrained(folder, trust_remote_code=True).eval()(**batch).last_hidden_state, "features")
    model.save_pretrained(scratch)
fresh = AutoModelForSequenceClassification.from_pretrained(exported, trust_remote_code=True, num_labels=3)
fresh(**batch, labels=torch.tensor([0, 1, 2])).loss.backward()
assert all(torch.isfinite(p.grad).all() for p in fresh.classifier.parameters())
ours = ("fairseq", "fairseq_cli", "embinit_fairseq")
print(sorted(name for name, module in sys.modules.items() if name.split(".")[0] in ours and module is not None))
"""


@torch.no_grad()
def test_a_stranger_finds_what_fairseq_says(trained, tmp_path, capsys):
    """That is, its hub, a sentence at a time."""
    run, files = trained("tupe"), [str(tmp_path / name) for name in ("exported", "expected.json", "again")]
    assert main(["export-hf", "--checkpoint", str(run.folder / "checkpoint_last.pt"), "--output", files[0]]) == 0
    assert "float64: differs from fairseq by at most" in capsys.readouterr().out
    hub = TupeModel.from_pretrained(str(run.folder), "checkpoint_last.pt", str(run.data / "text"))
    tokens = [hub.encode(text) for text in TEXTS]
    expected = {"texts": TEXTS, "logits": [hub.model(ids.view(1, -1))[0][0].tolist() for ids in tokens]}
    expected["features"] = [hub.extract_features(ids)[0].tolist() for ids in tokens]
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    environment = {"PATH": "/usr/bin:/bin", "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", STRANGER, *files]
    stranger = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert stranger.returncode == 0, stranger.stderr
    assert stranger.stdout.strip() == "[]"
