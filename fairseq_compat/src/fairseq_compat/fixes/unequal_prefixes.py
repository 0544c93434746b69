"""--min-len of a language model: in a batch the texts with a shorter prompt than the longest one end before it.

Symptom: ``fairseq-interactive --task language_modeling --buffer-size 10 --min-len 50`` and ``sample`` of hubs: prompts
    of different lengths in one batch; a shorter one ends before ``--min-len``, or has a word that may not be generated.
Where: fairseq/sequence_generator.py:383: as long as one prompt of the batch has words, both limits are left out for
    all texts.
Remedy: they hold for each text whose prompt has ended.
"""

# no annotations of the future: TorchScript reads the types
import math

BROKEN = r"minimum length constraint \(does not apply if using prefix_tokens\)"


def patch(module):
    generator = module.SequenceGenerator
    generator.follow_prefixes = generator._prefix_tokens
    generator.follow_prefixes.__name__ = "follow_prefixes"  # by which TorchScript tells the two apart

    def _prefix_tokens(self, step: int, lprobs, scores, tokens, prefix_tokens, beam_size: int):
        lprobs, tokens, scores = self.follow_prefixes(step, lprobs, scores, tokens, prefix_tokens, beam_size)
        has_ended = prefix_tokens[:, step].eq(self.pad).unsqueeze(-1).repeat(1, beam_size).view(-1)
        if step < self.min_len:
            lprobs[:, self.eos] = lprobs[:, self.eos].masked_fill(has_ended, -math.inf)
        suppressed = self.token_indices_to_suppress
        if suppressed is not None:
            lprobs[:, suppressed] = lprobs[:, suppressed].masked_fill(has_ended.unsqueeze(-1), -math.inf)
        return lprobs, tokens, scores

    generator._prefix_tokens = _prefix_tokens
