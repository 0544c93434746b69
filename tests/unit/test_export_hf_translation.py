"""`embinit export-hf` of fairseq's transformer and BART: transformers' classes, translations, tokenizers, what is
refused."""

from __future__ import annotations

import json
from unittest import mock

import expand_checkpoints
import pytest
import torch
from expand_checkpoints import DECODER, ENCODER, WORDS, make
from fairseq.sequence_generator import SequenceGenerator
from hf_exports import checkpoint_of, export_hf, read_back_here

pytest.importorskip("transformers")
import transformers

from embinit_fairseq.export import transformer, verify

POSITIONS = "--max-source-positions 20 --max-target-positions 20"
BART = f"{ENCODER} {DECODER} --arch bart_base"
FAMILIES = {
    "bart_shared": f"--task translation --source-lang de --target-lang en {BART}",
    "bart_denoising": f"--task denoising --criterion cross_entropy {BART}",
}
SOURCE = torch.tensor([[4, 5, 6, 7, 8, 2], [9, 10, 2, 1, 1, 1], [12, 2, 1, 1, 1, 1], [3, 12, 4, 12, 2, 1]])
TARGET = torch.tensor([[2, 5, 6, 1, 1], [2, 1, 1, 1, 1], [2, 4, 4, 3, 11], [2, 7, 1, 1, 1]])
TWO = {f"target/{name}" for name in ("dict.txt", "tokenizer.json", "tokenizer_config.json")}
#: of fairseq-generate without options, an empty translation and <pad> forbidden; transformers counts the first </s>
GENERATION = {"num_beams": 5, "early_stopping": True, "length_penalty": 1.0, "min_length": 2, "suppress_tokens": [1]}
FILES = {"README.md", "config.json", "dict.txt", "generation_config.json", "model.safetensors"}
FILES |= {"tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(autouse=True)
def opened_here(monkeypatch):
    monkeypatch.setattr(verify.subprocess, "run", read_back_here)


def checkpoint_with(folder, family, flags="", **options):
    folder.mkdir(exist_ok=True)
    with mock.patch.dict(expand_checkpoints.FAMILIES, FAMILIES):
        return make(folder, family, flags=f"{POSITIONS} {flags}", **options)


def opened(checkpoint):
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint.output).eval()


def refused(capsys, checkpoint, *flags, code=2) -> str:
    assert export_hf(checkpoint, *flags) == code
    assert not checkpoint.output.exists()
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("embinit export-hf: error: ")
    return error


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "flags", "files"),
    [
        (
            "transformer",
            "--decoder-layers 2 --max-target-positions 12 --dropout 0.2 --attention-dropout 0.3 "
            "--activation-dropout 0.4",
            FILES | TWO,
        ),
        ("transformer", "--share-decoder-input-output-embed --no-scale-embedding --activation-fn gelu", FILES | TWO),
        (
            "transformer_shared",
            "--activation-fn gelu_accurate --decoder-ffn-embed-dim 6 --encoder-layerdrop 0.5",
            FILES,
        ),
        ("bart_shared", "", FILES),
        ("bart_denoising", "", FILES),
    ],
)
def test_transformers_own_classes_compute_what_fairseq_does(tmp_path, capsys, family, flags, files):
    checkpoint = checkpoint_with(tmp_path / "c", family, flags)
    assert export_hf(checkpoint, "--json") == 0
    found = json.loads(capsys.readouterr().out)["verified"]["differences"]
    assert found["float64"]["difference"] <= 1e-12
    output = checkpoint.output
    assert {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()} == files
    assert "trust_remote_code" not in (output / "README.md").read_text()
    model = opened(checkpoint)
    assert type(model).__module__.split(".")[1] == "models"
    config, cfg = model.config, checkpoint.model.cfg
    found = config.dropout, config.attention_dropout, config.activation_dropout, config.encoder_layerdrop
    assert found == (cfg.dropout, cfg.attention_dropout, cfg.activation_dropout, cfg.encoder_layerdrop)
    given = {"input_ids": SOURCE, "attention_mask": (SOURCE != 1).long(), "decoder_input_ids": TARGET}
    if family.startswith("transformer"):  # padding in front, as fairseq has sources in training
        given["input_ids"] = torch.stack([row.roll(int((row == 1).sum())) for row in SOURCE])
        given["attention_mask"] = (given["input_ids"] != 1).long()
    expected = checkpoint.model(given["input_ids"], (SOURCE != 1).sum(1), TARGET)[0]
    torch.testing.assert_close(model(**given).logits[TARGET != 1], expected[TARGET != 1], rtol=1e-5, atol=1e-5)
    words = transformers.AutoTokenizer.from_pretrained(output)
    assert words("w1 nothing")["input_ids"] == [*([0] if family == "bart_denoising" else []), 5, 3, 2]
    if files > FILES:
        words = transformers.AutoTokenizer.from_pretrained(output / "target")
        assert len(words) == len(checkpoint.task.target_dictionary) != len(checkpoint.task.source_dictionary)


def test_languages_that_fairseq_inferred(tmp_path, capsys):
    """A training without -s and -t leaves none in the checkpoint: they stand in the names of the binarised data."""
    checkpoint = checkpoint_with(tmp_path / "c", "transformer")
    checkpoint.state["cfg"]["task"].update(source_lang=None, target_lang=None)
    checkpoint.save()
    assert "--dict and --target-dict" in refused(capsys, checkpoint)
    (checkpoint.folder / "data" / "train.de-en.de.idx").touch()
    assert export_hf(checkpoint) == 0
    assert "de to en" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["transformer", "bart_shared"])
def test_translations_are_those_of_fairseq(tmp_path, family):
    """Of a model that has learned a little: to turn sentences round. Scores, too: the same hypotheses are compared."""
    checkpoint = checkpoint_with(tmp_path / "c", family)
    checkpoint.model.train()
    optimizer, generator = torch.optim.Adam(checkpoint.model.parameters(), 1e-2), torch.Generator().manual_seed(3)
    end = torch.full((32, 1), 2)
    for _ in range(100):
        source = torch.randint(4, 13, (32, 4), generator=generator)
        target = torch.cat([end, source.flip(1), end], 1)
        logits = checkpoint.model(torch.cat([source, end], 1), torch.full((32,), 5), target[:, :-1])[0]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
        optimizer.step()
    checkpoint.state["model"] = checkpoint.model.eval().state_dict()
    checkpoint.save()
    assert export_hf(checkpoint) == 0
    model, mask = opened(checkpoint), (SOURCE != 1).long()
    said = model.generation_config.to_diff_dict()
    assert said.items() >= {**GENERATION, "max_length": 21}.items()  # of 20 positions
    for ours, theirs in (({"beam_size": 5}, {}), ({"beam_size": 2, "len_penalty": 0.3}, {"length_penalty": 0.3})):
        search = SequenceGenerator([checkpoint.model], checkpoint.task.target_dictionary, **ours)
        inputs = {"src_tokens": SOURCE, "src_lengths": mask.sum(1)}
        expected = [best[0] for best in search.generate([checkpoint.model], {"net_input": inputs})]
        options = {**theirs, "num_beams": ours["beam_size"], "return_dict_in_generate": True, "output_scores": True}
        found = model.generate(SOURCE, attention_mask=mask, **options)
        assert [row[1:][row[1:] != 1].tolist() for row in found.sequences] == [
            best["tokens"].tolist() for best in expected
        ]
        scores = torch.stack([best["score"] for best in expected])
        torch.testing.assert_close(found.sequences_scores, scores, rtol=1e-4, atol=1e-5)


def test_a_model_that_computes_something_else_is_not_written(tmp_path, capsys, monkeypatch):
    right = transformer._positions
    monkeypatch.setattr(transformer, "_positions", lambda *given: right(*given).roll(1, 0))
    assert "in float32 (allowed: " in refused(capsys, checkpoint_with(tmp_path / "c", "transformer"), code=1)


@pytest.mark.parametrize(
    ("family", "flags", "named"),
    [
        ("transformer", "--encoder-normalize-before --decoder-normalize-before", "--encoder-normalize-before"),
        ("transformer", "--decoder-normalize-before", "--decoder-normalize-before"),
        ("transformer", "--encoder-learned-pos", "--encoder-learned-pos"),
        ("transformer", "--decoder-learned-pos", "--decoder-learned-pos"),
        ("transformer", "--layernorm-embedding", "--layernorm-embedding"),
        ("transformer", "--no-token-positional-embeddings", "--no-token-positional-embeddings"),
        ("transformer", "--cross-self-attention", "--cross-self-attention"),
        ("transformer", "--no-cross-attention", "--no-cross-attention"),
        ("transformer", "--adaptive-softmax-cutoff 6", "--adaptive-softmax-cutoff"),
        ("transformer", "--quant-noise-pq 0.1 --quant-noise-pq-block-size 2", "--quant-noise-pq"),
        ("transformer", "--quant-noise-scalar 0.1", "--quant-noise-scalar"),
        ("transformer", "--decoder-output-dim 6", "--decoder-output-dim"),
        ("transformer", "--encoder-embed-dim 12", "--encoder-embed-dim 12 beside --decoder-embed-dim 8"),
        ("mbart_shared", "", "--task translation_from_pretrained_bart"),
        ("bart_shared", "--encoder-normalize-before", "--encoder-normalize-before"),
        ("bart_shared", "--max-source-positions 24", "--max-source-positions 24 beside --max-target-positions 20"),
        ("bart_shared", "--arch mbart_base_wmt20", "no --layernorm-embedding"),
    ],
)
def test_what_transformers_has_no_counterpart_of(tmp_path, capsys, family, flags, named):
    error = refused(capsys, checkpoint_with(tmp_path / "c", family, flags))
    assert all(part in error for part in (named, "stay", "in fairseq"))


def test_dictionaries_and_tokenizers_of_another_model(tmp_path, capsys):
    checkpoint = checkpoint_with(tmp_path / "c", "transformer")
    german, english = checkpoint.folder / "data" / "dict.de.txt", checkpoint.folder / "data" / "dict.en.txt"
    encoder = checkpoint_of(tmp_path / "d", "roberta_base", "", words=["w1"])
    for flags, said in (
        (("--dict", english), f"--dict {english}: the checkpoint has 15 symbols, the dictionary 13"),
        (("--target-dict", german), f"--target-dict {german}: the checkpoint has 13 symbols, the dictionary 15"),
        (("--sentencepiece-model", english), f"--sentencepiece-model {english}: "),
        (("--sentencepiece-model", english, "--bpe-codes", english), "--bpe-codes and --sentencepiece-model"),
    ):
        assert said in refused(capsys, checkpoint, *flags)
    assert f"--target-dict {german}" in refused(capsys, encoder, "--target-dict", german)
    assert export_hf(encoder) == 0
    assert f"--tokenizer {encoder.output}: " in refused(capsys, checkpoint, "--tokenizer", encoder.output)
    english.unlink()
    error = refused(capsys, checkpoint)
    assert all(part in error for part in ("no dict.en.txt in ", "--target-dict"))
    english.write_text("".join(f"{word} 1\n" for word in WORDS))
    assert export_hf(checkpoint) == 0
    assert export_hf(checkpoint, "--force", "--dtype", "float16") == 0  # all that is there is ours


# --- raw text, and text in sub-words


def ids_of(dictionary, line):
    return dictionary.encode_line(line, add_if_not_exist=False).tolist()


def test_codes_of_subword_nmt_cut_both_sides(tmp_path, capsys):
    pytest.importorskip("sacremoses")
    words = [
        "l@@",
        "o@@",
        "w@@",
        "e@@",
        "r@@",
        "l",
        "o",
        "w",
        "e",
        "r",
        "lo@@",
        "lo",
        "er@@",
        "er",
        ",",
        ".",
        "&apos;s",
    ]
    checkpoint = checkpoint_with(tmp_path / "c", "transformer", words=words)
    for name, text in (("codes", "#version: 0.2\nl o\ne r</w>\n"), ("cut", "lo@@ w@@ er &apos;s , lo@@ w .\n")):
        (tmp_path / name).write_text(text)
    flags = ["--bpe-codes", tmp_path / "codes", "--verify-text", tmp_path / "cut"]
    assert export_hf(checkpoint, *flags) == 0
    text = capsys.readouterr().out
    assert "Moses' words (de, " in text
    assert "1 line of sub-words" in text
    assert "escaped" in text
    task = checkpoint.task
    for name, dictionary in (("", task.source_dictionary), ("target", task.target_dictionary)):
        opened = transformers.AutoTokenizer.from_pretrained(checkpoint.output / name, trust_remote_code=True)
        expected = ids_of(dictionary, "lo@@ w@@ er &apos;s , lo@@ w .")
        if name == "target":  # English, where Moses parts 's
            assert opened("Lower's, low.")["input_ids"] == expected
        assert opened("lo@@ w@@ er &apos;s , lo@@ w .")["input_ids"] == expected
        assert opened.decode(expected, skip_special_tokens=True) == "lower &apos;s , low ."


@pytest.fixture
def spm(tmp_path):
    """(path, model): of lower-case text."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text, file = ["the lower one is newer than the widest of them", "lower and newer, wider and slower"], tmp_path / "m"
    options = {"vocab_size": 45, "hard_vocab_limit": False, "minloglevel": 2}
    with open(file, "wb") as stream:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text * 9), model_writer=stream, **options)
    return file, sentencepiece.SentencePieceProcessor(model_file=str(file))


def test_a_model_of_sentencepiece_cuts_both_sides(tmp_path, spm, capsys):
    file, model = spm
    pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    words = {"words": pieces[::-1][:-2], "other": pieces[:-1]}  # two and one have no row
    (tmp_path / "text").write_text("The slower ONE\n")
    (tmp_path / "cut").write_text(" ".join(model.encode("the slower one", out_type=str)))
    for number, (how, trust) in enumerate((([], True), (["--lowercase", "no"], False))):
        checkpoint = checkpoint_with(tmp_path / f"c{number}", "transformer", **words)
        flags = ["--sentencepiece-model", file, *how]
        assert export_hf(checkpoint, *flags, "--verify-text", tmp_path / "text") == 0
        assert "sub-words of sentencepiece" in capsys.readouterr().out
        task = checkpoint.task
        for name, dictionary in (("", task.source_dictionary), ("target", task.target_dictionary)):
            opened = transformers.AutoTokenizer.from_pretrained(checkpoint.output / name, trust_remote_code=trust)
            for text in ("the slower wine, Z", "The SLOWER one"):
                cut = model.encode(text.lower() if trust else text, out_type=str)
                assert opened(text)["input_ids"] == ids_of(dictionary, " ".join(cut))
                if trust:
                    assert opened(" ".join(cut))["input_ids"] == ids_of(dictionary, " ".join(cut))
            expected = ids_of(dictionary, (tmp_path / "cut").read_text())
            assert opened.decode(expected, skip_special_tokens=True).split()[-1] == "one"
        flags += ["--force", "--verify-text", tmp_path / "cut"]
        assert export_hf(checkpoint, *flags) == (0 if trust else 2)
        if not trust:  # transformers' own class
            assert "--verify-text" in (error := capsys.readouterr().err)
            assert "before it was cut" in error
    other = checkpoint_with(tmp_path / "d", "transformer")
    assert f"--sentencepiece-model {file}" in refused(capsys, other, "--sentencepiece-model", file)


def test_a_model_of_sentencepiece_for_what_masks(tmp_path, spm):
    file, model = spm
    pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    checkpoint = checkpoint_with(tmp_path / "c", "bart_denoising", words=pieces)
    assert export_hf(checkpoint, "--sentencepiece-model", file) == 0
    opened = transformers.AutoTokenizer.from_pretrained(checkpoint.output, trust_remote_code=True)
    cut = [*model.encode("the lower", out_type=str), "<mask>", *model.encode("is newer", out_type=str)]
    assert opened("The lower<mask> is newer")["input_ids"] == [
        0,
        *ids_of(checkpoint.task.source_dictionary, " ".join(cut)),
    ]
