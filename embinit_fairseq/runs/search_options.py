"""Find the options of fairseq-generate that change a plain beam search, for the note next to a score."""

from __future__ import annotations

from embinit_fairseq.runs.log import option_in

#: option of fairseq-generate -> default; another value changes the translations of a plain beam search
SEARCH = {
    "prefix_size": "0",
    "constraints": "None",
    "sampling": "False",
    "sampling_topk": "-1",
    "sampling_topp": "-1.0",
    "temperature": "1.0",
    "nbest": "1",
    "diverse_beam_groups": "-1",
    "diverse_beam_strength": "0.5",
    "diversity_rate": "-1.0",
    "retain_dropout": "False",
    "retain_dropout_modules": "None",
    "replace_unk": "None",
    "lm_path": "None",
    "lm_weight": "0.0",
    "min_len": "1",
    "match_source_len": "False",
    "no_repeat_ngram_size": "0",
    "unkpen": "0",
    "unnormalized": "False",
    "eos_token": "None",
    "decoding_format": "None",
    "iter_decode_eos_penalty": "0.0",
    "iter_decode_max_iter": "10",
    "iter_decode_force_max_iter": "False",
    "iter_decode_with_beam": "1",
    "iter_decode_with_external_reranker": "False",
    "model_overrides": "{}",
}
#: option -> another value that does not change a beam search: one group was the default of fairseq 0.6
_PLAIN = {"diverse_beam_groups": "1", "diversity_rate": "0"}


def changed_options(configuration: str) -> list[str]:
    """Return the options in the printed configuration of fairseq-generate that change a plain beam search."""
    values = {name: option_in(configuration, name) for name in SEARCH}
    return [_flag(name, value) for name, value in values.items() if value and not _is_plain(name, value)]


def _flag(name: str, value: str) -> str:
    return f"--{name.replace('_', '-')}" + ("" if value == "True" else f" {value}")


def _is_plain(name: str, value: str) -> bool:
    """Return True if an option with this value leaves a beam search as it is."""
    plain = {SEARCH[name], _PLAIN.get(name, SEARCH[name])}
    try:
        return float(value) in map(float, plain)
    except ValueError:
        return value in plain
