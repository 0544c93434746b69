"""Hubs: skip_invalid_size_inputs=True shifts translations (now "" for a skipped one), prefixes go to other sentences.

Symptom: (a) with ``skip_invalid_size_inputs=True`` the lists of ``translate``, ``sample``, ``score`` and ``generate``
    lack the sentences that are longer than the model's positions, so that all later ones belong to other sentences.
    (b) ``generate`` of several sentences with ``inference_step_args={"prefix_tokens": ...}`` (or constraints), and
    BART's with ``prefix_allowed_tokens_fn``: rows are used for the sentences ordered by length; with several batches
    ``RuntimeError``. For one sentence these arguments are ignored.
Where: fairseq/hub_utils.py:172, fairseq/models/bart/hub_interface.py:116 (``generate``).
Remedy: a sentence that is skipped has one hypothesis without a token, whose score is -inf: its translation is "".
    A row of ``prefix_tokens`` and a number of ``prefix_allowed_tokens_fn`` belong to the sentence with this number; a
    single row belongs to all sentences.
Upstream: fairseq issues 3975 (open), 4021 (open), 5082.
"""

from __future__ import annotations

import copy
from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r"skip_invalid_size_inputs=False,"
FIXED = r"class (GeneratorHub|BARTHub)Interface\("

CLASSES = {"fairseq.hub_utils": "GeneratorHubInterface", "fairseq.models.bart.hub_interface": "BARTHubInterface"}
FUNCTION, ROWS = "prefix_allowed_tokens_fn", "inference_step_args"


def patch(module):
    torch = module.torch

    def skipped() -> dict[str, Any]:
        nothing = torch.empty(0)
        parts = dict.fromkeys(("attention", "alignment", "positional_scores"), nothing)
        return {"tokens": nothing.long(), "score": torch.tensor(float("-inf")), **parts}

    def rows_of(arguments, numbers):
        """Return the arguments of `inference_step` for the sentences of these numbers, a tensor."""
        return {
            name: value[numbers.to(value.device) * (len(value) > 1)] if torch.is_tensor(value) else value
            for name, value in (arguments or {}).items()
        }

    def check_rows(arguments, count: int) -> None:
        """Raise ValueError if the number of rows of an argument is neither 1 nor `count`."""
        for name, value in (arguments or {}).items():
            if torch.is_tensor(value) and len(value) not in (1, count):
                raise ValueError(
                    f"{ROWS}: found {len(value)} rows of {name} for {count} sentences, expected {count} or 1; give a "
                    "row for each sentence, or one row for all"
                )

    def ordered(self):
        """Return a copy of a hub that gives each batch the rows of its sentences."""
        hub = copy.copy(self)
        hub.task = copy.copy(self.task)

        @wrap(hub.task)
        def inference_step(original, generator, models, batch, **arguments):
            return original(generator, models, batch, **rows_of(arguments, batch["id"]))

        return hub

    @wrap(getattr(module, CLASSES[module.__name__]))
    def generate(original, self, tokenized_sentences, *args, **kwargs):
        if torch.is_tensor(tokenized_sentences) and tokenized_sentences.dim() == 1:
            return self.generate(tokenized_sentences[None], *args, **kwargs)[0]
        function, rows = kwargs.get(FUNCTION), kwargs.get(ROWS)
        check_rows(rows, len(tokenized_sentences))
        if kwargs.get("skip_invalid_size_inputs"):
            batches = self._build_batches(tokenized_sentences, True)  # which logs the numbers of the others
            fitting = sorted(number for batch in batches for number in batch["id"].tolist())
            sentences = [tokenized_sentences[number] for number in fitting]
            if function:
                kwargs[FUNCTION] = lambda number, prefix: function(fitting[number], prefix)
            kwargs |= {"skip_invalid_size_inputs": False, ROWS: rows_of(rows, torch.tensor(fitting).long())}
            hypotheses = dict(zip(fitting, self.generate(sentences, *args, **kwargs) if sentences else ()))
            return [hypotheses.get(number) or [skipped()] for number in range(len(tokenized_sentences))]
        if module.__name__ == "fairseq.hub_utils":
            return original(ordered(self) if rows else self, tokenized_sentences, *args, **kwargs)
        if function and not rows:  # fairseq's own would number the sentences of each batch
            first = torch.full((len(tokenized_sentences), 1), self.task.source_dictionary.bos(), device=self.device)
            kwargs[ROWS] = {"prefix_tokens": first}
            return module.GeneratorHubInterface.generate(self, tokenized_sentences, *args, **kwargs)
        return original(self, tokenized_sentences, *args, **kwargs)
