"""--ignore-prefix-size: the loss is divided by all tokens, also by those that it ignores: too low.

Symptom: ``--criterion label_smoothed_cross_entropy --ignore-prefix-size 1`` prints a loss and a perplexity that are too
    low, most for short sentences: four tokens with a probability of 1/2 have a loss of 0.75 bits. Losses with other
    sizes of the prefix, or without the option, cannot be compared.
Where: fairseq/criterions/label_smoothed_cross_entropy.py:76 (``sample["ntokens"]``).
Remedy: only the tokens of the loss are counted. The gradient is their mean, too.
Upstream: fairseq pull request 4842 (open).
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r'"ntokens": sample\["ntokens"\]'


def patch(module):
    @wrap(module.LabelSmoothedCrossEntropyCriterion)
    def forward(original, self, model, sample, reduce=True):
        if self.ignore_prefix_size:
            counted = sample["target"][:, self.ignore_prefix_size :].ne(self.padding_idx).sum()
            # a batch of prefixes alone has the loss 0
            sample = {**sample, "ntokens": max(int(counted), 1)}
        return original(self, model, sample, reduce)
