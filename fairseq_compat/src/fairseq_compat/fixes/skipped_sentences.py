"""skip_invalid_size_inputs=True returns fewer translations, shifted; now "" for a skipped sentence.

Symptom: with ``skip_invalid_size_inputs=True`` the lists of ``translate``, ``sample``, ``score`` and ``generate`` lack
    the sentences that are longer than the model's positions, so that all later ones belong to other sentences.
Where: fairseq/hub_utils.py:172, fairseq/models/bart/hub_interface.py:116 (``generate``).
Remedy: a sentence that is skipped has one hypothesis without a token, whose score is -inf: its translation is "".
Upstream: fairseq issues 3975 (open), 5082.
"""

from __future__ import annotations

from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r"skip_invalid_size_inputs=False,"
FIXED = r"class (GeneratorHub|BARTHub)Interface\("

CLASSES = {"fairseq.hub_utils": "GeneratorHubInterface", "fairseq.models.bart.hub_interface": "BARTHubInterface"}


def patch(module):
    torch = module.torch

    def skipped() -> dict[str, Any]:
        nothing = torch.empty(0)
        parts = dict.fromkeys(("attention", "alignment", "positional_scores"), nothing)
        return {"tokens": nothing.long(), "score": torch.tensor(float("-inf")), **parts}

    @wrap(getattr(module, CLASSES[module.__name__]))
    def generate(original, self, tokenized_sentences, *args, **kwargs):
        is_one = torch.is_tensor(tokenized_sentences) and tokenized_sentences.dim() == 1
        if is_one or not kwargs.get("skip_invalid_size_inputs"):
            return original(self, tokenized_sentences, *args, **kwargs)
        batches = self._build_batches(tokenized_sentences, True)  # which logs the numbers of the others
        fitting = sorted(number for batch in batches for number in batch["id"].tolist())
        sentences = [tokenized_sentences[number] for number in fitting]
        hypotheses = dict(zip(fitting, original(self, sentences, *args, **kwargs) if sentences else ()))
        return [hypotheses.get(number) or [skipped()] for number in range(len(tokenized_sentences))]
