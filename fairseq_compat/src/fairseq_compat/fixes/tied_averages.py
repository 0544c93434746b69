"""--store-ema averages shared embeddings once for each of their names, and loses the last layer norms.

Symptom: (a) with ``--share-decoder-input-output-embed`` the embeddings of ``extra_state["ema"]`` have the decay d * d,
    with ``--share-all-embeddings`` d * d * d: at 0.999 they are a mean over 333 updates instead of 1,000.
    (b) ``--encoder-normalize-before`` and ``--decoder-normalize-before``: ``extra_state["ema"]`` has no
    ``encoder.layer_norm`` and ``decoder.layer_norm``. With ``--adaptive-softmax-cutoff`` the first update ends with
    ``Exception: This version of the model is no longer supported``.
Where: fairseq/models/ema/ema.py:148 (``_step_internal``; parameters that are one tensor have several names; the weights
    that it loads have no ``version``, and are taken for weights of an old fairseq).
Remedy: a tensor is averaged once, and weights are loaded with the version of the model. A continued training keeps its
    averages; layer norms that are not among them begin with the model's.
"""

from __future__ import annotations

from types import SimpleNamespace

from fairseq_compat.patches import wrap

BROKEN = r"ema_param\.mul_\(decay\)"


def patch(module):
    @wrap(module.EMA)
    def _step_internal(original, self, new_model, updates=None):
        averages = self.fp32_params if self.config.ema_fp32 else self.model.state_dict()
        names = {value.data_ptr(): name for name, value in averages.items()}
        weights = {
            name: value
            for name, value in new_model.state_dict().items()
            if name not in averages or names[averages[name].data_ptr()] == name
        }
        return original(self, SimpleNamespace(state_dict=lambda: weights), updates)

    @wrap(module.EMA)
    def restore(original, self, state_dict, build_fp32_params=False):
        own = self.model.state_dict().items()
        versions = {name: value for name, value in own if name.rpartition(".")[2] == "version"}
        return original(self, {**state_dict, **versions}, build_fp32_params)
