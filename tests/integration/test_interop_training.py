"""`embinit export-hf` from end to end: fairseq-train, the command with its other process, and use of the result.

That process cannot import fairseq or this package (`interop/remote/read_back.py`).
"""

from __future__ import annotations

import os
import tempfile

import pytest
import torch

from embinit_fairseq.cli.main import main
from embinit_fairseq.models.tupe import TupeModel

os.environ.setdefault("HF_MODULES_CACHE", tempfile.mkdtemp())  # not the home folder of who runs the tests
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.end_to_end
TEXTS = ["w1 w2 w3 w4", "w7", "w5 unheard w3 w2 w1 w0"]


def test_transformers_finds_what_fairseq_says(trained, tmp_path, capsys):
    """That is, its hub, a sentence at a time; also after transformers has saved the model again."""
    run, exported, again = trained("tupe"), str(tmp_path / "exported"), str(tmp_path / "again")
    assert main(["export-hf", "--checkpoint", str(run.folder / "checkpoint_last.pt"), "--output", exported]) == 0
    assert "float64: differs from fairseq by at most" in capsys.readouterr().out
    hub = TupeModel.from_pretrained(str(run.folder), "checkpoint_last.pt", str(run.data / "text"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")

    def opened(name, folder, **options):
        return getattr(transformers, name).from_pretrained(folder, trust_remote_code=True, **options).eval()

    for folder in (exported, again):
        model, encoder = opened("AutoModelForMaskedLM", folder), opened("AutoModel", folder)
        with torch.no_grad():
            logits, features = model(**batch).logits, encoder(**batch).last_hidden_state
            for row, text in enumerate(TEXTS):
                ids = hub.encode(text)
                pairs = [(logits, hub.model(ids.view(1, -1))[0][0]), (features, hub.extract_features(ids)[0])]
                for ours, expected in pairs:
                    torch.testing.assert_close(ours[row, : len(ids)], expected, rtol=1e-5, atol=1e-5)
        model.save_pretrained(again)
    fresh = opened("AutoModelForSequenceClassification", exported, num_labels=3)
    fresh(**batch, labels=torch.tensor([0, 1, 2])).loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in fresh.classifier.parameters())
