"""Runs an exported directory as a stranger would: `python -c TEXT INPUTS.json`, with transformers and nothing of ours.

INPUTS.json: folder, auto_class, batches (safetensors), output (safetensors), and text (JSON lines). Prints one
JSON object: the tensors that were missing or unknown, and the ids that the tokenizer gives the text.
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
    trust = any(name.endswith(".py") for name in os.listdir(given["folder"]))
    opened = getattr(transformers, given["auto_class"]).from_pretrained(
        given["folder"], trust_remote_code=trust, torch_dtype="auto", output_loading_info=True
    )
    model, info = opened
    batches, outputs = load_file(given["batches"]), {}
    model.eval()
    for precision, kernel in (("stored", "sdpa"), ("double", "sdpa"), ("double", "eager")):
        model.config._attn_implementation = kernel
        model = model.double() if precision == "double" else model
        for number in range(len(batches) // 3):
            computed = run(model, *(batches[f"{number}.{part}"] for part in ("ids", "mask", "chosen")))
            outputs.update({f"{precision}.{kernel}.{number}.{part}": value for part, value in computed.items()})
    save_file(outputs, given["output"])
    answer = {name: sorted(map(str, info[name])) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    answer["dtype"] = str(next(iter(outputs.values())).dtype).removeprefix("torch.")
    tokenizer = transformers.AutoTokenizer.from_pretrained(given["folder"], trust_remote_code=trust)
    with open(given["text"], encoding="utf-8") as file:
        answer["ids"] = [tokenizer(json.loads(line))["input_ids"] for line in file]
    print(json.dumps(answer))


def run(model, ids, mask, chosen):
    """Features and logits at the chosen positions; logits of classes as they are."""
    import torch

    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    outputs = {"features": output.hidden_states[-1][chosen]}
    if "logits" in output:
        outputs["logits"] = output.logits[chosen] if output.logits.dim() == 3 else output.logits
    return {part: value.contiguous() for part, value in outputs.items()}


if __name__ == "__main__":
    main()
