"""tupe_transformer through real fairseq commands: train, kill -9, resume, two processes, generate, from Python."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from programs import PYTHON
from trainings import SAVE_OFTEN, kill_9_and_resume, losses, model_of, run_to_end, validation_loss

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = ["--user-dir", str(REPOSITORY / "embinit_fairseq")]
TRAIN = """--task translation --arch tupe_transformer --rel-pos --encoder-layers 1 --decoder-layers 1
    --encoder-attention-heads 4 --decoder-attention-heads 4 --optimizer adam --lr 0.003 --batch-size 20
    --required-batch-size-multiple 1 --cpu --log-format json --num-workers 0 --no-epoch-checkpoints""".split()
SMALL = ["--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--log-interval", "1"]
pytestmark = pytest.mark.end_to_end


def command(data, *flags):
    return [PYTHON, "-m", "fairseq_cli.train", str(data), *PLUGIN, *TRAIN, *map(str, flags)]


@pytest.fixture(scope="module")
def trained(toy_translation, tmp_path_factory):
    """A model that has learned the toy language: one English word a German word, in reversed order."""
    folder = tmp_path_factory.mktemp("trained")
    width = ["--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--dropout", "0.2"]
    run_to_end(command(toy_translation, *width, "--max-epoch", "60", "--disable-validation", "--save-dir", folder))
    return folder / "checkpoint_last.pt"


def generated(data, model, *flags):
    """What fairseq-generate prints with beam 5."""
    arguments = [str(data), *PLUGIN, "--path", str(model), "--beam", "5", "--cpu", *flags]
    done = subprocess.run([PYTHON, "-m", "fairseq_cli.generate", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def lines(output, kind):
    """Number of the sentence -> the fields of its H, A, ... line."""
    found = (line.split("\t") for line in output.splitlines() if line.startswith(f"{kind}-"))
    return {int(first.removeprefix(f"{kind}-")): rest for first, *rest in found}


def test_translations_do_not_depend_on_batches_and_their_padding(toy_translation, trained):
    first = generated(toy_translation, trained, "--print-alignment", "hard")
    bleu = re.search(r"Generate test with beam=5: BLEU4 = ([\d.]+),", first)
    assert float(bleu[1]) > 30
    outputs = [
        generated(toy_translation, trained, "--left-pad-source"),  # fairseq's flag for padding on the right
        generated(toy_translation, trained, "--batch-size", "1"),
        generated(toy_translation, trained, "--max-tokens", "40", "--left-pad-source"),
    ]
    expected = lines(first, "H")
    assert len(expected) == 20
    for output in outputs:
        assert bleu[0] in output
        for number, (score, text) in lines(output, "H").items():
            assert text == expected[number][1]
            assert float(score) == pytest.approx(float(expected[number][0]), abs=1e-5)


@pytest.mark.parametrize("flags", [[], ["--left-pad-source"]], ids=["left", "right"])
def test_alignments_show_the_reversed_order(toy_translation, trained, flags):
    """Pairs of a word of the source and one of the target: most lie on the other diagonal."""
    output = generated(toy_translation, trained, "--print-alignment", "hard", *flags)
    length = {number: len(fields[0].split()) for number, fields in lines(output, "S").items()}
    hits = []
    for number, (pairs,) in lines(output, "A").items():
        for pair in pairs.split():
            source, target = map(int, pair.split("-"))
            hits.append(source + target == length[number] - 1)
    assert sum(hits) / len(hits) > 0.5


def test_from_python(toy_translation, trained):
    code = (
        "import embinit_fairseq\n"
        "from embinit_fairseq.models.tupe_transformer import TupeTransformerModel\n"
        f"place = {str(trained.parent)!r}, {trained.name!r}, {str(toy_translation)!r}\n"
        "hub = TupeTransformerModel.from_pretrained(*place)\n"
        "print('said', hub.translate('d1 d2 d3', beam=2))"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    assert re.search(r"^said e\d+", done.stdout, re.MULTILINE), done.stderr


@pytest.mark.parametrize("strategy", ["pretrained", "pretrained_xavier"])
def test_embed_init_fills_both_tables_and_finds_no_positions_beside_them(toy_translation, glove, tmp_path, strategy):
    paths = [f"encoder={glove['de']}", f"decoder={glove['en']}"]
    still = ["--max-update", "1", "--lr", "0", "--save-dir", tmp_path]  # the checkpoint of update 0
    log = run_to_end(command(toy_translation, *SMALL, "--embed-init", strategy, "--embed-init-path", *paths, *still))
    slots = json.loads((tmp_path / "embed_init.json").read_text())["slots"]
    model = model_of(tmp_path / "checkpoint_last.pt")
    assert set(slots) == {"encoder", "decoder"}
    for slot, language in (("encoder", "de"), ("decoder", "en")):
        assert slots[slot]["position_std"] is slots[slot]["absorption_ratio"] is None
        assert slots[slot]["embed_scale"] == pytest.approx(8**0.5)
        words = [line.split()[0] for line in (toy_translation / f"dict.{language}.txt").read_text().splitlines()]
        vectors = dict(line.split(" ", 1) for line in Path(glove[language]).read_text().splitlines())
        word = next(word for word in words if word in vectors)
        row = model[f"{slot}.embed_tokens.weight"][4 + words.index(word)]
        expected = torch.tensor([float(x) for x in vectors[word].split()])
        assert torch.equal(row, expected) == (strategy == "pretrained")
        assert torch.corrcoef(torch.stack([row, expected]))[0, 1] > 0.9999
    assert "absorption ratio" not in log


def test_kill_9_and_resume_gives_the_same_losses(toy_translation, tmp_path):
    arguments = command(toy_translation, *SMALL, "--max-epoch", "3", "--dropout", "0.3", *SAVE_OFTEN)
    assert ("valid", "30") in kill_9_and_resume(arguments, tmp_path, at_update=14)


def test_two_processes_equal_one_with_twice_the_update_freq(toy_translation, tmp_path):
    """With fairseq's default way of adding gradients, which does not forgive idle parameters."""
    flags = [*SMALL, "--max-epoch", "2", "--batch-size", "10", "--dropout", "0"]
    one = losses(run_to_end(command(toy_translation, *flags, "--update-freq", "2", "--save-dir", tmp_path / "one")))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29631", "-m"]
    two = [*torchrun, *command(toy_translation, *flags, "--save-dir", tmp_path / "two")[2:]]
    both = losses(run_to_end([*two, "--distributed-backend", "gloo"]))
    assert set(one) == set(both)
    for key in one:
        assert float(one[key]) == pytest.approx(float(both[key]), abs=2e-3 + 1e-6), key  # printed with 3 digits
    exact = [validation_loss(toy_translation, tmp_path / run / "checkpoint_last.pt") for run in ("one", "two")]
    assert exact[0] == pytest.approx(exact[1], rel=0, abs=1e-6)


def test_contradictions_stop_the_command_with_a_remedy(toy_translation, tmp_path):
    arguments = command(toy_translation, *SMALL, "--share-all-embeddings", "--save-dir", tmp_path / "run")
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode != 0
    assert "binarise with --joined-dictionary" in done.stderr
    assert not list(tmp_path.glob("run/*.pt"))
