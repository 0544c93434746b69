"""--no-repeat-ngram-size has no effect without fairseq's CUDA extension: n-grams are repeated.

Symptom: ``fairseq-generate --no-repeat-ngram-size 3`` (BART's summaries) and ``no_repeat_ngram_size=3`` of hubs give
    the same output as without the option.
Where: fairseq/ngram_repeat_block.py:105: the last words are looked for at the end of a buffer, which is padding.
Remedy: the words of the translation are compared. A word that is the only one possible, as in a prefix, may repeat.
Upstream: fairseq issues 5206 (open), 4709 (open).
"""

# no annotations of the future: TorchScript reads the types
import math

BROKEN = r"ngram_to_check = cpu_tokens\[bbsz_idx\]\[\s*-\("


def patch(module):
    torch = module.torch

    def _no_repeat_ngram(self, tokens, lprobs, bsz: int, beam_size: int, step: int):
        size = self.no_repeat_ngram_size
        translations: list[list[int]] = tokens[:, 1 : step + 1].cpu().tolist()
        for number in range(bsz * beam_size):
            words = translations[number]
            last = words[len(words) - size + 1 :]
            repeated: list[int] = []
            for start in range(len(words) - size + 1):
                if words[start : start + size - 1] == last:
                    repeated.append(words[start + size - 1])
            if len(repeated) > 0:
                others = lprobs[number].clone()
                others[torch.tensor(repeated, dtype=torch.int64)] = -math.inf
                if bool(others.gt(-math.inf).any()):
                    lprobs[number] = others
        return lprobs

    module.NGramRepeatBlock._no_repeat_ngram = _no_repeat_ngram
