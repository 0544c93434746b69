"""RobertaModel.from_pretrained takes GPT-2's subwords for every model: all words become <unk>; now refused.

Symptom: (a) ``RobertaModel.from_pretrained`` (and BART's) of a model with a dictionary of one's own, without ``bpe=``:
    GPT-2's subwords are downloaded, and ``encode`` gives ``<unk>`` for each. (b) ``bpe=None`` ends with ``'NoneType'
    object has no attribute 'encode'``. (c) With ``bpe="subword_nmt"`` ``fill_mask`` returns ``a manplays a guitar``.
    (d) A long text ends with ``index out of range``. (e) ``extract_features_aligned_to_words`` with spaCy >= 3 ends
    with ``no attribute 'create_tokenizer'``.
Where: fairseq/models/roberta/hub_interface.py:28 and :199, fairseq/models/bart/hub_interface.py:30,
    fairseq/models/roberta/alignment_utils.py:117.
Remedy: (a) is an error that names ``bpe``; with ``bpe=None`` text has finished words; the filled word is a word.
Upstream: fairseq issues 1417, 2581, 4304.
"""

from __future__ import annotations

from fairseq_compat.patches import explain_failures, wrap

BROKEN = r"class (Roberta|BART)HubInterface\(|create_tokenizer\("

MASK = "<mask>"


class Words:
    """Segment text with finished words: do nothing."""

    bpe_symbol = " "

    @staticmethod
    def encode(text: str) -> str:
        return " ".join(text.split())

    @staticmethod
    def decode(text: str) -> str:
        return text


def check_gpt2(cfg, dictionary) -> None:
    """Raise ValueError if GPT-2's subwords, whose symbols are numbers, are to segment for another dictionary."""
    name = cfg.bpe if isinstance(cfg.bpe, str) else getattr(cfg.bpe, "_name", None)
    symbols = [symbol for symbol in dictionary.symbols[dictionary.nspecial :] if not symbol.startswith(("<", "madeup"))]
    if name == "gpt2" and 2 * sum(map(str.isdigit, symbols)) < len(symbols):
        raise ValueError(
            f"from_pretrained: bpe='gpt2', the default, makes numbers, the dictionary has {symbols[0]!r}, ...: give "
            "the segmentation of the training, such as bpe='sentencepiece', sentencepiece_model=FILE or "
            "bpe='subword_nmt', bpe_codes=FILE, or bpe=None for text that is segmented already"
        )


def too_long(error: Exception, hub, *_args, **_options) -> str | None:
    """Return the remedy for a text with more tokens than positions."""
    if not isinstance(error, IndexError):
        return None
    return f"the text has more tokens than the model has positions ({hub.model.max_positions()}): shorten it"


def patch_hub(hub) -> None:
    @wrap(hub)
    def __init__(original, self, cfg, task, model):
        check_gpt2(cfg, task.source_dictionary)
        original(self, cfg, task, model)
        self.bpe = Words() if self.bpe is None else self.bpe


def patch_roberta(module) -> None:
    patch_hub(module.RobertaHubInterface)

    @wrap(module.RobertaHubInterface)
    def fill_mask(original, self, masked_input, topk=5):
        # the space before <mask> is replaced, too, since subwords of GPT-2 and sentencepiece have their own space
        has_spaces = not hasattr(self.bpe, "bpe_symbol")
        return original(self, masked_input if has_spaces else masked_input.replace(f" {MASK}", f"  {MASK}"), topk)

    explain_failures(module.RobertaHubInterface, "fill_mask", too_long)


def patch_alignment(module) -> None:
    @wrap(module)
    def spacy_tokenizer(original):
        nlp = module.spacy_nlp()
        return original() if hasattr(nlp.Defaults, "create_tokenizer") else nlp.tokenizer


PATCHES = {
    "fairseq.models.bart.hub_interface": lambda module: patch_hub(module.BARTHubInterface),
    "fairseq.models.roberta.hub_interface": patch_roberta,
    "fairseq.models.roberta.alignment_utils": patch_alignment,
}
