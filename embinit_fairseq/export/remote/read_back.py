"""Runs an exported directory as a stranger would: `python -c TEXT INPUTS.json`, with transformers and nothing of ours.

INPUTS.json: folder, auto_class, batches (safetensors), output (safetensors), and texts (JSON: folder of a tokenizer to
lines). Prints one JSON object: the tensors that were missing or unknown, and the ids that the tokenizers give the
texts.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Read INPUTS.json, compute with the exported model, write and print what the head of this file says."""
    for name in ("fairseq", "fairseq_cli", "fairseq_compat", "embinit_fairseq"):
        sys.modules[name] = None  # type: ignore[assignment]  # importing it is an ImportError from here on
    import transformers
    from safetensors.torch import load_file, save_file

    with open(sys.argv[1], encoding="utf-8") as file:
        given = json.load(file)
    transformers.utils.logging.set_verbosity_error()
    opened = getattr(transformers, given["auto_class"]).from_pretrained(
        given["folder"], trust_remote_code=has_code(given["folder"]), torch_dtype="auto", output_loading_info=True
    )
    model, info = opened
    batches, outputs = load_file(given["batches"]), {}
    model.eval()
    for precision, kernel in (("stored", "sdpa"), ("double", "sdpa"), ("double", "eager")):
        model.config._attn_implementation = kernel
        if precision == "double":
            model = model.double()
            let_fsmt_mask_in_double()
        for number in {name.partition(".")[0] for name in batches}:
            parts = {name.partition(".")[2]: batches[name] for name in batches if name.startswith(f"{number}.")}
            computed = run(model, **parts)
            outputs.update({f"{precision}.{kernel}.{number}.{part}": value for part, value in computed.items()})
    save_file(outputs, given["output"])
    answer = {name: sorted(map(str, info[name])) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    answer["dtype"] = str(next(iter(outputs.values())).dtype).removeprefix("torch.")
    with open(given["texts"], encoding="utf-8") as file:
        texts = json.load(file)
    answer["ids"] = {}
    for name, lines in texts.items():
        place = os.path.join(given["folder"], name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=has_code(place))
        answer["ids"][name] = [tokenizer(line)["input_ids"] for line in lines]
    print(json.dumps(answer))


def let_fsmt_mask_in_double():
    """transformers' FSMT fills its causal mask in single precision, which does not hold the least double number."""
    import torch
    from transformers.models.fsmt import modeling_fsmt

    modeling_fsmt.fill_with_neg_inf = lambda mask: torch.full_like(mask, torch.finfo(mask.dtype).min)


def has_code(folder):
    """Files of Python."""
    return any(name.endswith(".py") for name in os.listdir(folder))


def run(model, ids, mask, chosen, decoder_ids=None):
    """Features and logits at the chosen positions; logits of classes as they are; what an encoder gives a decoder."""
    import torch

    if decoder_ids is not None:
        with torch.inference_mode():
            output = model(ids, attention_mask=mask, decoder_input_ids=decoder_ids, output_hidden_states=True)
        outputs = {"encoder": output.encoder_last_hidden_state[mask.bool()], "logits": output.logits[chosen]}
        return {**outputs, "features": output.decoder_hidden_states[-1][chosen].contiguous()}
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    outputs = {"features": output.hidden_states[-1][chosen]}
    if "logits" in output:
        outputs["logits"] = output.logits[chosen] if output.logits.dim() == 3 else output.logits
    return {part: value.contiguous() for part, value in outputs.items()}


if __name__ == "__main__":
    main()
