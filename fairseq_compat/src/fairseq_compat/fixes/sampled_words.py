"""--sampling with other options that exclude words: all words are drawn instead of --sampling-topp's, or an error.

Symptom: (a) ``--sampling --sampling-topp 0.9 --no-repeat-ngram-size 3``, or with ``--min-len``, ``--unkpen`` or
    ``--lm-path``: if the words that remain have less than 0.9 of the probability, each word of the dictionary may be
    drawn, also the most unlikely one. (b) ``--sampling`` with a low ``--temperature`` or a prefix, at ``--max-len-b``:
    ``invalid multinomial distribution``, because the only word that is left has a probability that is rounded to 0.
    (c) ``--sampling-topk`` above the number of words: ``selected index k out of range``.
Where: fairseq/search.py:597 (``cumsum_probs``) and :664 (``torch.multinomial``), whose probabilities need
    not add up to 1.
Remedy: words are drawn by their share of the probability that remains; scores are the model's, as before.
Upstream: fairseq pull request 882 (closed, its second point), issue 2286, pull request 4496 (open).
"""

# no annotations of the future: TorchScript reads the types
from typing import Optional

from fairseq_compat.patches import wrap

BROKEN = r"cumsum_probs\.lt\(self\.sampling_topp\)"


def patch(module):
    from torch import Tensor

    sampling = module.Sampling
    sampling.step_by_shares = sampling.step

    @module.torch.jit.export
    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor,
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ):
        left = lprobs.logsumexp(dim=2, keepdim=True)
        totals, words, beams = self.step_by_shares(step, lprobs - left, scores, prev_output_tokens, original_batch_idxs)
        return totals + left.squeeze(2).gather(1, beams), words, beams

    sampling.step = step

    @wrap(sampling)
    def __init__(original, self, tgt_dict, sampling_topk=-1, sampling_topp=-1.0):
        original(self, tgt_dict, min(sampling_topk, len(tgt_dict)), sampling_topp)
