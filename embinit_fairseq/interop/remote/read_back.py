"""Run an exported folder as a user does, with transformers and nothing of fairseq: `read_back.py INPUTS.json`.

INPUTS.json: folder, auto_class, batches and output (paths of safetensors), texts (folder of a tokenizer -> lines).
Prints one JSON object: the tensors that were missing or unknown, the type of the outputs, and the ids of the texts.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Compute features and logits of the batches and write them; print the answer."""
    # without fairseq_compat, too: some of its fixes are for subword-nmt
    sys.meta_path[:] = [one for one in sys.meta_path if not getattr(one, "__module__", "").startswith("fairseq_compat")]
    for name in ("fairseq", "fairseq_cli", "fairseq_compat", "embinit_fairseq"):
        sys.modules[name] = None  # type: ignore[assignment]  # importing it is an ImportError from here on
    import transformers
    from safetensors.torch import load_file, save_file

    with open(sys.argv[1], encoding="utf-8") as file:
        inputs = json.load(file)
    folder = inputs["folder"]
    transformers.utils.logging.set_verbosity_error()
    model, info = getattr(transformers, inputs["auto_class"]).from_pretrained(
        folder, trust_remote_code=has_code(folder), torch_dtype="auto", output_loading_info=True
    )
    batches, outputs = load_file(inputs["batches"]), {}
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
    save_file(outputs, inputs["output"])
    answer = {name: sorted(map(str, info[name])) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    answer["dtype"] = str(next(iter(outputs.values())).dtype).removeprefix("torch.")
    answer["ids"] = {}
    for name, lines in inputs["texts"].items():
        place = os.path.join(folder, name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=has_code(place))
        answer["ids"][name] = [tokenizer(line)["input_ids"] for line in lines]
    print(json.dumps(answer))


def let_fsmt_mask_in_double():
    """Let transformers' FSMT fill its causal mask in the type of the mask: the least double number is no single one."""
    import torch
    from transformers.models.fsmt import modeling_fsmt

    modeling_fsmt.fill_with_neg_inf = lambda mask: torch.full_like(mask, torch.finfo(mask.dtype).min)


def has_code(folder):
    """Return True if there are files of Python."""
    return any(name.endswith(".py") for name in os.listdir(folder))


def run(model, ids, mask, chosen, decoder_ids=None):
    """Return features and logits at the chosen positions, logits of classes, and the encoder's output for a decoder."""
    import torch

    with torch.inference_mode():
        if decoder_ids is not None:
            output = model(ids, attention_mask=mask, decoder_input_ids=decoder_ids, output_hidden_states=True)
            outputs = {"encoder": output.encoder_last_hidden_state[mask.bool()], "logits": output.logits[chosen]}
            outputs["features"] = output.decoder_hidden_states[-1][chosen]
        else:
            output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            outputs = {"features": output.hidden_states[-1][chosen]}
            if "logits" in output:
                outputs["logits"] = output.logits[chosen] if output.logits.dim() == 3 else output.logits
    return {part: value.contiguous() for part, value in outputs.items()}


if __name__ == "__main__":
    main()
