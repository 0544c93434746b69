"""A trained encoder for use from Python: `model.from_pretrained(FOLDER)` of the tupe_* and bert_* architectures."""

from __future__ import annotations

from typing import Any

import torch
from fairseq import hub_utils, utils
from fairseq.data import encoders
from torch import Tensor, nn

from embinit_fairseq.errors import DataError


def load_hub(model_name_or_path: str, checkpoint_file: str, data_name_or_path: str, **kwargs: Any) -> TupeHub:
    """Load the checkpoint `model_name_or_path/checkpoint_file`; dictionaries lie in `data_name_or_path`.

    kwargs override options of the checkpoint, such as bpe="subword_nmt", bpe_codes="bpe.codes", tokenizer="moses".
    """
    loaded = hub_utils.from_pretrained(model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)
    return TupeHub(loaded["args"], loaded["task"], loaded["models"][0])


class TupeHub(nn.Module):
    """Text in, features, predictions or fillings out. Without a BPE (`bpe=...`) text is taken as finished tokens."""

    def __init__(self, cfg: Any, task: Any, model: nn.Module) -> None:
        super().__init__()
        self.cfg, self.task, self.model = cfg, task, model.eval()
        self.tokenizer = encoders.build_tokenizer(cfg.tokenizer)
        self.bpe = encoders.build_bpe(cfg.bpe)

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return next(self.model.parameters()).device

    def encode(self, *sentences: str) -> Tensor:
        """Token ids (src_len,): `<s> a </s>`, or for a pair `<s> a </s> </s> b </s>`."""
        text = "<s> " + " </s> </s> ".join(self._apply_bpe(sentence) for sentence in sentences) + " </s>"
        return self._ids(text)

    def decode(self, tokens: Tensor) -> str:
        """Text of token ids (src_len,), without the special symbols at both ends."""
        return self._remove_bpe(self.task.source_dictionary.string(tokens))

    def extract_features(self, tokens: Tensor, return_all_hiddens: bool = False) -> Tensor | list[Tensor]:
        """tokens (src_len,) or (batch, src_len) -> features (batch, src_len, C), or all hidden states."""
        tokens = tokens.unsqueeze(0) if tokens.dim() == 1 else tokens
        features, extra = self.model(tokens.to(self.device), features_only=True, return_all_hiddens=return_all_hiddens)
        return extra["inner_states"] if return_all_hiddens else features

    def predict(self, head: str, tokens: Tensor, return_logits: bool = False) -> Tensor:
        """tokens (src_len,) or (batch, src_len) -> log-probabilities (or logits) (batch, num_classes)."""
        logits = self.model.classification_heads[head](self.extract_features(tokens))
        return logits if return_logits else logits.log_softmax(-1)

    @torch.no_grad()
    def fill_mask(self, masked_input: str, topk: int = 5) -> list[tuple[str, float, str]]:
        """Text with one `<mask>` -> the `topk` best (text, probability, token), best first."""
        if masked_input.count("<mask>") != 1:
            raise DataError(f"fill_mask needs one <mask>, as in 'a <mask> in the grass'; got: {masked_input!r}")
        left, right = (self._apply_bpe(part.strip()) for part in masked_input.split("<mask>"))
        dictionary = self.task.source_dictionary
        tokens = self._ids(f"<s> {left} <mask> {right} </s>")
        at = int((tokens == dictionary.index("<mask>")).nonzero()[0])
        with utils.model_eval(self.model):
            logits, _ = self.model(tokens.unsqueeze(0).to(self.device))
        best, ids = logits[0, at].float().softmax(-1).topk(topk)
        results = []
        for probability, index in zip(best.tolist(), ids.tolist()):
            text = self._remove_bpe(f"{left} {dictionary[index]} {right}".strip())
            results.append((text, probability, dictionary[index]))
        return results

    def _apply_bpe(self, sentence: str) -> str:
        sentence = self.tokenizer.encode(sentence) if self.tokenizer is not None else sentence
        return self.bpe.encode(sentence) if self.bpe is not None else sentence

    def _remove_bpe(self, text: str) -> str:
        text = self.bpe.decode(text) if self.bpe is not None else text
        return self.tokenizer.decode(text) if self.tokenizer is not None else text

    def _ids(self, text: str) -> Tensor:
        dictionary = self.task.source_dictionary
        return dictionary.encode_line(text, append_eos=False, add_if_not_exist=False).long()
