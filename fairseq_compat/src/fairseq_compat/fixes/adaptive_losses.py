"""--criterion adaptive_loss: a word in each cluster is never learned, and the perplexity is too low.

Symptom: with ``--adaptive-softmax-cutoff 20000,60000`` the words number 20001 and 60001 are taken for padding: their
    cluster is learned, but not the word in it. The training prints a better perplexity than ``fairseq-eval-lm``.
Where: fairseq/criterions/adaptive_loss.py:89 (``ignore_index`` of the whole dictionary in the clusters).
Remedy: the padding is ignored in the first cluster, where it is.
Upstream: fairseq pull request 1629 (adaptive inputs, the same fault).
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"ignore_index=self\.padding_idx"


def patch(module):
    cross_entropy = module.F.cross_entropy

    @wrap(module.AdaptiveLoss)
    def forward(original, self, model, sample, reduce=True):
        net_output = model(**sample["net_input"])
        target = model.get_targets(sample, net_output)
        (head, *clusters), (first, *others) = model.decoder.adaptive_softmax(net_output[0], target.reshape(-1))
        loss = cross_entropy(head, first, ignore_index=self.padding_idx, reduction="sum")
        for logits, words in zip(clusters, others):
            if words is not None:
                loss = loss + cross_entropy(logits, words, reduction="sum")
        ntokens, nsentences = target.ne(self.padding_idx).sum().item(), len(target)
        sample_size = nsentences if self.sentence_avg else ntokens
        logged = {"loss": loss.data, "ntokens": ntokens, "nsentences": nsentences, "sample_size": sample_size}
        return loss, sample_size, logged
