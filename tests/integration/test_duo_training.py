"""duo_transformer through real fairseq commands: train, kill -9, resume, two processes, generate, from Python."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import PYTHON
from test_tupe_transformer_training import lines
from trainings import SAVE_OFTEN, kill_9_and_resume, losses, model_of, run_to_end, validation_loss

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli import doctor as checks
from embinit_fairseq.models.duo_transformer import DuoTransformerModel

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = ["--user-dir", str(REPOSITORY / "embinit_fairseq")]
TRAIN = """--task translation --arch duo_transformer_tiny --optimizer adam --lr 0.003 --batch-size 20
    --required-batch-size-multiple 1 --cpu --log-format json --num-workers 0 --no-epoch-checkpoints
    --log-interval 1""".split()
SMALL = """--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 8
    --decoder-ffn-embed-dim 8""".split()
#: the table of each slot
TABLES = {
    "encoder": "encoder.embedding.embed_tokens.weight",
    "encoder_p": "encoder.embedding.embed_tokens_p.weight",
    "decoder": "decoder.embedding.embed_tokens.weight",
    "decoder_p": "decoder.embedding.embed_tokens_p.weight",
}
pytestmark = pytest.mark.end_to_end


def command(data, *flags):
    return [PYTHON, "-m", "fairseq_cli.train", str(data), *PLUGIN, *TRAIN, *map(str, flags)]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """600 sentences of 2 to 6 words out of 12, English one word a German word in reversed order; one dictionary."""
    folder, generator = tmp_path_factory.mktemp("joined"), np.random.default_rng(1)
    for split, sentences in (("train", 600), ("valid", 40), ("test", 40)):
        rows = [generator.integers(0, 12, size=generator.integers(2, 7)) for _ in range(sentences)]
        (folder / f"{split}.de").write_text("".join(" ".join(f"d{word}" for word in row) + "\n" for row in rows))
        (folder / f"{split}.en").write_text("".join(" ".join(f"e{word}" for word in row[::-1]) + "\n" for row in rows))
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    preprocess = [PYTHON, "-m", "fairseq_cli.preprocess", "-s", "de", "-t", "en", "--joined-dictionary"]
    subprocess.run([*preprocess, *prefixes, f"--destdir={folder / 'data-bin'}"], check=True, capture_output=True)
    return folder / "data-bin"


@pytest.fixture(scope="module")
def trained(joined, tmp_path_factory):
    """A model that has learned to translate and to reverse; its log."""
    folder = tmp_path_factory.mktemp("trained")
    flags = ["--share-all-embeddings", "--batch-size", "40", "--max-epoch", "30", "--validate-interval", "10"]
    return folder / "checkpoint_last.pt", run_to_end(command(joined, *flags, "--save-dir", folder))


def test_it_learns(trained):
    """Not knowing a word leaves log2(12) = 3.6 bits."""
    found = [float(loss) for (kind, _), loss in losses(trained[1]).items() if kind == "valid"]
    assert len(found) == 3
    assert found[-1] < 0.6


def generated(data, model, *flags):
    """What fairseq-generate prints with beam 4."""
    arguments = [str(data), *PLUGIN, "--path", str(model), "--beam", "4", "--cpu", *flags]
    return run_to_end([PYTHON, "-m", "fairseq_cli.generate", *arguments])


def test_translations_do_not_depend_on_batches_and_their_padding(joined, trained):
    first = generated(joined, trained[0], "--print-alignment", "hard")
    bleu = re.search(r"Generate test with beam=4: BLEU4 = ([\d.]+),", first)
    assert float(bleu[1]) > 50
    expected = lines(first, "H")
    assert len(expected) == 40
    for flags in (
        ["--left-pad-source"],  # fairseq's flag for padding on the right
        ["--left-pad-target"],
        ["--batch-size", "1"],
        ["--max-tokens", "40", "--left-pad-source"],
    ):
        output = generated(joined, trained[0], *flags)
        assert bleu[0] in output
        for number, (score, text) in lines(output, "H").items():
            assert text == expected[number][1]
            assert float(score) == pytest.approx(float(expected[number][0]), abs=1e-5)


def test_interactive_says_what_generate_says(joined, trained):
    sentences = (joined.parent / "test.de").read_text()
    arguments = [str(joined), *PLUGIN, "--path", str(trained[0]), "--beam", "4", "--cpu", "--buffer-size", "7"]
    interactive = [PYTHON, "-m", "fairseq_cli.interactive", *arguments, "--batch-size", "5"]
    done = subprocess.run(interactive, input=sentences, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = lines(generated(joined, trained[0]), "H")
    found = lines(done.stdout, "H")
    assert len(found) == 40
    assert {number: text for number, (_, text) in found.items()} == {n: text for n, (_, text) in expected.items()}


def test_retained_dropout_gives_other_scores_by_seed(joined, trained):
    plain, *dropped = (
        lines(generated(joined, trained[0], *flags), "H")
        for flags in ([], ["--retain-dropout"], ["--retain-dropout"], ["--retain-dropout", "--seed", "2"])
    )
    assert dropped[0] == dropped[1]
    assert plain != dropped[0] != dropped[2]


@pytest.mark.parametrize("flags", [[], ["--left-pad-source"]], ids=["left", "right"])
def test_alignments_name_words_of_both_sentences(joined, trained, flags):
    output = generated(joined, trained[0], "--print-alignment", "hard", *flags)
    sizes = {number: len(fields[0].split()) for number, fields in lines(output, "S").items()}
    outputs = {number: len(fields[1].split()) for number, fields in lines(output, "H").items()}
    for number, (pairs,) in lines(output, "A").items():
        found = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
        assert [target for _, target in found] == list(range(outputs[number]))
        assert all(source < sizes[number] for source, _ in found)


def test_from_python(joined, trained):
    code = (
        "import embinit_fairseq\n"
        "from embinit_fairseq.models.duo_transformer import DuoTransformerModel\n"
        f"place = {str(trained[0].parent)!r}, {trained[0].name!r}, {str(joined)!r}\n"
        "hub = DuoTransformerModel.from_pretrained(*place)\n"
        "print('said', hub.translate('d1 d2 d3', beam=4), hub.models[0].decoder.fused_tables.kept is not None)\n"
        "DuoTransformerModel.from_pretrained(*place, duo_norm='all')"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    assert re.search(r"^said e\d+.* True$", done.stdout, re.MULTILINE), done.stderr
    assert (
        "duo_norm='all' (from_pretrained, --model-overrides): the checkpoint's weights belong to the options"
        in done.stderr
    )


def vectors(path, words, dim, seed):
    """A GloVe text file for these words."""
    rows = np.random.default_rng(seed).normal(0.1, 0.4, (len(words), dim))
    path.write_text("".join(f"{word} " + " ".join(f"{x:.5f}" for x in row) + "\n" for word, row in zip(words, rows)))
    return dict(zip(words, torch.from_numpy(rows)))


def words_of(data, language):
    found = [line.split()[0] for line in (data / f"dict.{language}.txt").read_text().splitlines()]
    return [word for word in found if "madeup" not in word]


@pytest.mark.parametrize("strategy", ["pretrained", "pretrained_xavier"])
def test_embed_init_fills_four_tables_of_four_dimensions(toy_translation, tmp_path, strategy):
    """And leaves the one without a path to xavier."""
    dims, written, paths = {"encoder": 5, "encoder_p": 7, "decoder": 6, "decoder_p": 9}, {}, []
    for seed, (slot, dim) in enumerate(dims.items()):
        words = words_of(toy_translation, "de" if slot.startswith("encoder") else "en")
        written[slot] = vectors(tmp_path / f"{slot}.txt", words, dim, seed)
        paths.append(f"{slot}={tmp_path / slot}.txt")
    flags = ["--encoder-dim-s", 5, "--encoder-dim-p", 7, "--decoder-dim-s", 6, "--decoder-dim-p", 9]
    init = ["--embed-init", strategy, "--embed-init-path", *paths[:3]]
    still = ["--max-update", "1", "--lr", "0", "--save-dir", tmp_path / "run"]  # the checkpoint of update 0
    run_to_end(command(toy_translation, *SMALL, *flags, *init, *still))
    slots = json.loads((tmp_path / "run" / "embed_init.json").read_text())["slots"]
    model = model_of(tmp_path / "run" / "checkpoint_last.pt")
    assert set(slots) == set(dims)
    for slot, dim in dims.items():
        table = model[TABLES[slot]]
        assert (slots[slot]["dim"], table.shape[1]) == (dim, dim)
        assert slots[slot]["strategy"] == (strategy if slot != "decoder_p" else "xavier")
        assert slots[slot]["absorption_ratio"] > 0
        words = words_of(toy_translation, "de" if slot.startswith("encoder") else "en")
        row = table[4 + 3].double()
        expected = written[slot][words[3]]
        correlation = float(torch.corrcoef(torch.stack([row, expected]))[0, 1])
        assert (correlation > 0.9999) == (slot != "decoder_p")
        assert torch.allclose(row, expected, atol=1e-5) == (strategy == "pretrained" and slot != "decoder_p")
        assert not table[1].any()


def test_embed_init_fills_tied_tables_once(joined, tmp_path):
    """encoder and decoder are one slot with two names; as frozen rows they stay what they were in training."""
    words = words_of(joined, "de")
    s, p = vectors(tmp_path / "s.txt", words, 16, 0), vectors(tmp_path / "p.txt", words, 5, 1)
    paths = [f"encoder={tmp_path / 's.txt'}", f"decoder_p={tmp_path / 'p.txt'}"]
    flags = ["--share-all-embeddings", "--encoder-dim-p", 5, "--embed-init", "pretrained", "--embed-init-path", *paths]
    run = ["--embed-init-freeze", "decoder", "--max-update", "3", "--save-dir", tmp_path / "run"]
    run_to_end(command(joined, *SMALL, "--decoder-embed-dim", 16, *flags, *run))
    slots = json.loads((tmp_path / "run" / "embed_init.json").read_text())["slots"]
    assert {name: slot["tied"] for name, slot in slots.items()} == {"encoder": ["decoder"], "encoder_p": ["decoder_p"]}
    model = model_of(tmp_path / "run" / "checkpoint_last.pt")
    for encoder, decoder, written, frozen in (("encoder", "decoder", s, True), ("encoder_p", "decoder_p", p, False)):
        assert torch.equal(model[TABLES[encoder]], model[TABLES[decoder]])
        row = model[TABLES[encoder]][4 + 3].double()
        assert torch.allclose(row, written[words[3]], atol=1e-5) == frozen
        assert torch.allclose(row, written[words[3]], atol=0.05)


def test_the_papers_model(joined, tmp_path):
    """Tied, one matrix from GloVe and one that is learned: what they begin with, what is computed from them, and that
    they learn."""
    words = words_of(joined, "de")
    written = vectors(tmp_path / "glove.txt", words[:-3], 12, 0)  # three words have no vector
    paper = ["--share-all-embeddings", "--encoder-dim-s", 12, "--duo-share-weights", "pair"]
    init = ["--embed-init", "pretrained", "--embed-init-path", f"encoder={tmp_path / 'glove.txt'}"]
    train = [*SMALL, "--decoder-embed-dim", 16, *paper, *init]
    run_to_end(command(joined, *train, "--lr", 0, "--max-update", 1, "--save-dir", tmp_path / "start"))
    slots = json.loads((tmp_path / "start" / "embed_init.json").read_text())["slots"]
    assert {name: (slot["strategy"], slot["tied"]) for name, slot in slots.items()} == {
        "encoder": ("pretrained", ["decoder"]),
        "encoder_p": ("xavier", ["decoder_p"]),
    }
    model = model_of(tmp_path / "start" / "checkpoint_last.pt")
    glove, learned = model[TABLES["encoder"]], model[TABLES["encoder_p"]]
    for word, row in written.items():
        assert torch.allclose(glove[4 + words.index(word)].double(), row, atol=1e-5)
    bound = (6 / (len(learned) + 16)) ** 0.5
    assert 0.95 * bound < float(learned.abs().max()) <= bound
    assert float(learned[4:].std()) == pytest.approx(bound / 3**0.5, rel=0.1)
    for side in ("encoder", "decoder"):  # E_S is mapped to the width, E_P has it
        assert model[f"{side}.embedding.embed_map.weight"].shape == (16, 12)
    assert model["decoder.fused_tables.proj.weight"].shape == (16, 12 + 16)
    assert not [name for name in model if "output_projection" in name or "embed_map_p" in name]

    log = run_to_end(command(joined, *train, "--max-update", 60, "--save-dir", tmp_path / "run"))
    found = losses(log)
    assert float(found["train", "60"]) < 0.8 * float(found["train", "1"])
    hub = DuoTransformerModel.from_pretrained(str(tmp_path / "run"), "checkpoint_last.pt", str(joined))
    model = hub.models[0]
    source, previous = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8, 9]])
    with torch.no_grad():
        logits, _ = model(source, None, previous)
        f, _ = model(source, None, previous, features_only=True)
    tied = torch.cat([model.get_parameter(TABLES[slot]) for slot in ("encoder", "encoder_p")], dim=1)
    expected = f @ (tied @ model.get_parameter("decoder.fused_tables.proj.weight").T).T
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert len(lines(generated(joined, tmp_path / "run" / "checkpoint_last.pt"), "H")) == 40


def test_a_training_that_began_as_on_goes_on_as_stream(toy_translation, tmp_path):
    """The older name stands in command lines and in the checkpoints that they made."""
    flags = [*SMALL, "--duo-share-weights"]
    whole = run_to_end(command(toy_translation, *flags, "stream", "--max-update", 12, "--save-dir", tmp_path / "whole"))
    run_to_end(command(toy_translation, *flags, "on", "--max-update", 6, "--save-dir", tmp_path / "run"))
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    assert str(load_checkpoint(checkpoint)["cfg"]["model"]["duo_share_weights"]) == "on"
    assert len(lines(generated(toy_translation, checkpoint), "H")) > 0
    other = command(toy_translation, *flags, "pair", "--max-update", 12, "--save-dir", tmp_path / "run")
    done = subprocess.run(other, capture_output=True, text=True)
    assert done.returncode != 0
    assert "--duo-share-weights stream (here pair)" in done.stderr
    rest = run_to_end(command(toy_translation, *flags, "stream", "--max-update", 12, "--save-dir", tmp_path / "run"))
    expected, found = losses(whole), losses(rest)
    assert {number for kind, number in found if kind == "train"} == {str(number) for number in range(7, 13)}
    assert all(expected[key] == loss for key, loss in found.items())


def test_kill_9_and_resume_gives_the_same_losses(toy_translation, tmp_path):
    flags = ["--encoder-embed-dim", "16", "--decoder-embed-dim", "16", "--max-epoch", "3", "--dropout", "0.3"]
    arguments = command(toy_translation, *flags, "--encoder-dim-p", "5", *SAVE_OFTEN)
    assert ("valid", "30") in kill_9_and_resume(arguments, tmp_path, at_update=14)


def test_two_processes_equal_one_with_twice_the_update_freq(joined, tmp_path):
    """With fairseq's default way of adding gradients, which does not forgive idle parameters."""
    flags = [*SMALL, "--share-all-embeddings", "--encoder-dim-p", "5", "--max-epoch", "1", "--dropout", "0"]
    flags += ["--decoder-embed-dim", "16", "--duo-share-weights", "pair"]
    half = ["--batch-size", "20"]
    single = [*half, "--update-freq", "2", "--save-dir", tmp_path / "one"]
    one = losses(run_to_end(command(joined, *flags, *single)))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29637", "-m"]
    two = [*torchrun, *command(joined, *flags, *half, "--save-dir", tmp_path / "two")[2:]]
    both = losses(run_to_end([*two, "--distributed-backend", "gloo"]))
    assert set(one) == set(both)
    for key in one:
        assert float(one[key]) == pytest.approx(float(both[key]), abs=2e-3 + 1e-6), key  # printed with 3 digits
    exact = [validation_loss(joined, tmp_path / run / "checkpoint_last.pt") for run in ("one", "two")]
    assert exact[0] == pytest.approx(exact[1], rel=0, abs=1e-6)


def test_amp_on_a_cpu_is_near_single_precision(joined, tmp_path):
    """bfloat16; --fp16 and --bf16 need a GPU and are refused without."""
    flags = [*SMALL, "--share-all-embeddings", "--decoder-embed-dim", "16", "--max-epoch", "2", "--dropout", "0"]
    single = losses(run_to_end(command(joined, *flags, "--save-dir", tmp_path / "single")))
    half = losses(run_to_end(command(joined, *flags, "--amp", "--save-dir", tmp_path / "half")))
    assert set(single) == set(half)
    assert all(float(half[key]) == pytest.approx(float(single[key]), rel=0.03) for key in single)
    assert all(value.isfinite().all() for value in model_of(tmp_path / "half" / "checkpoint_last.pt").values())


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (["--share-all-embeddings"], "binarise with --joined-dictionary"),
        (["--duo-streams", "3"], "--duo-streams 3: must be 1 or 2"),
        (["--encoder-attention-heads", "5"], "--encoder-attention-heads 5 does not divide --encoder-embed-dim 16"),
        (
            ["--embed-init", "pretrained", "--embed-init-path", "encoder_q=x.txt"],
            "encoder, encoder_p, decoder, decoder_p",
        ),
        (["--embed-init", "pretrained"], "encoder=VECTORS encoder_p=VECTORS decoder=VECTORS decoder_p=VECTORS"),
        (["--embed-init", "pretrained", "--embed-init-path", "encoder_p={vectors}"], "--encoder-dim-p"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_mistakes_stop_the_command_with_a_remedy(toy_translation, tmp_path, flags, remedy):
    vectors(tmp_path / "v.txt", words_of(toy_translation, "de"), 5, 0)
    flags = [flag.format(vectors=tmp_path / "v.txt") for flag in flags]
    arguments = command(toy_translation, *SMALL, *flags, "--max-update", "1", "--save-dir", tmp_path / "run")
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode != 0
    assert remedy in done.stderr
    assert not list(tmp_path.glob("run/*"))


def test_another_norm_is_not_put_on_the_weights_of_a_checkpoint(toy_translation, tmp_path):
    """No shape tells of it: fairseq would go on without a word."""
    flags = [*SMALL, "--max-update", "2", "--save-dir", tmp_path]
    run_to_end(command(toy_translation, *flags))
    done = subprocess.run(command(toy_translation, *flags, "--duo-norm", "off"), capture_output=True, text=True)
    assert done.returncode != 0
    assert "--duo-norm decoder (here off)" in done.stderr


def test_the_doctor_makes_one_step():
    archs = [f"duo_transformer_{name}" for name in ("tiny", "wmt_en_de", "wmt_en_fr", "big", "iwslt_de_en")]
    findings = checks.steps(archs)
    assert [(finding.status, finding.detail.split(",")[0]) for finding in findings] == [("ok", "translation")] * 5
