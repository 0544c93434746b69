"""fairseq's own commands, unmodified, in every way of starting them: training, resuming, several processes, speech."""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fairseq_commands import (
    EVAL_BLEU,
    PYTHON,
    TINY,
    hypotheses,
    kill,
    logged,
    module,
    run,
    script,
    translation,
)

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")  # with it comes the allow-list for torch.load
from fairseq.dataclass.configs import FairseqConfig  # noqa: E402
from fairseq_compat.fixes.third_party_registries import user_dir  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402


def test_a_run_goes_on_from_the_numbered_checkpoint_of_an_epochs_end(pairs, trained, tmp_path) -> None:
    """Script, then ``python -m``: the second epoch has the losses of the uninterrupted run, with ``--eval-bleu``."""
    folder, whole = trained
    assert {"checkpoint_1_2.pt", "checkpoint_2_6.pt", "checkpoint_2_8.pt"} <= {path.name for path in folder.iterdir()}
    shutil.copy(folder / "checkpoint_1_4.pt", tmp_path / "checkpoint_last.pt")
    options = ["--max-epoch", "2", "--save-interval-updates", "2", *EVAL_BLEU]
    resumed = run([*module("fairseq_cli.train"), *translation(pairs, tmp_path, *options)]).stdout
    assert logged(resumed) == logged(whole.stdout)[4:]
    assert len(logged(resumed)) == 4
    assert logged(resumed, "valid", "valid_loss") == logged(whole.stdout, "valid", "valid_loss")[-2:]


def test_generation_of_a_checkpoint_and_of_one_of_an_older_fairseq(pairs, trained, tmp_path) -> None:
    """That holds its options as a Namespace and numpy numbers, in the old file format. And fairseq-interactive."""
    folder, training = trained
    path = folder / "checkpoint_last.pt"
    with path.open("rb") as file:
        state = checkpoint_utils.torch.load(file)
    namespace = state["cfg"]["model"]
    assert isinstance(namespace, argparse.Namespace)
    old = {**state, "args": namespace, "cfg": None, "extra_state": {**state["extra_state"], "best": np.float64(2.5)}}
    torch.save(old, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    command = [pairs, "--cpu", "--beam", "2", "--max-len-b", "10", "--path"]
    done = run([*script("fairseq-generate"), *command, path])
    assert not re.search("hydra.*Warning", training.stderr + done.stderr)
    assert "BLEU4 = " in done.stdout
    expected = hypotheses(done.stdout)
    assert len(expected) == 20
    assert hypotheses(run([*script("fairseq-generate"), *command, tmp_path / "old.pt"]).stdout) == expected
    plain = ["--input", pairs.parent / "test.de"]
    assert hypotheses(run([*script("fairseq-interactive"), *command, path, *plain]).stdout) == expected


def test_two_processes_go_on_with_a_training(pairs, trained, tmp_path) -> None:
    """As torchrun starts them, with the default data-parallel back end, from a checkpoint of one process; the losses
    are those of one process with two batches for an update."""
    for name in ("both", "alone"):
        (tmp_path / name).mkdir()
        shutil.copy(trained[0] / "checkpoint_1_4.pt", tmp_path / name / "checkpoint_last.pt")
    with socket.create_server(("localhost", 0)) as free:
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    options = ["--num-workers", "0", "--max-epoch", "2", "--dropout", "0"]
    both = translation(pairs, tmp_path / "both", *options, "--distributed-backend", "gloo")
    with ThreadPoolExecutor() as pool:
        command = [*script("fairseq-train"), *both]
        log, _ = pool.map(lambda rank: run(command, **place, RANK=rank, LOCAL_RANK=rank).stdout, "01")
    assert "training on 2 devices" in log
    alone = run([*script("fairseq-train"), *translation(pairs, tmp_path / "alone", *options, "--update-freq", "2")])
    found, expected = ([*map(float, logged(text))] for text in (log, alone.stdout))
    assert len(found) == 2  # of the four batches each process has two
    assert found == pytest.approx(expected, abs=2e-3)  # logged with three digits


LIMITED = """
import resource, sys
sys.dont_write_bytecode = True  # Python would keep half of a module
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
from fairseq_cli.train import cli_main
cli_main()
"""


def test_full_disk_ends_with_a_message_and_keeps_the_last_checkpoint(pairs, trained, tmp_path) -> None:
    """The disk is full after 40 kB (a limit of the file size); a checkpoint has more."""
    shutil.copy(trained[0] / "checkpoint_1_4.pt", tmp_path / "checkpoint_last.pt")
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    done = run([PYTHON, "-c", LIMITED, *translation(pairs, tmp_path, "--max-epoch", "2")], check=False)
    assert done.returncode != 0
    message = next(line for line in reversed(done.stderr.splitlines()) if line.startswith("OSError"))
    assert str(tmp_path) in message
    assert "--save-dir" in message
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"checkpoint_last.pt": before}


PLUGIN = """
from dataclasses import dataclass, field
from fairseq.dataclass import FairseqDataclass
from fairseq.registry import setup_registry

@dataclass
class StrongConfig(FairseqDataclass):
    strength: int = field(default=3, metadata={"help": "how much of it"})
    colour: str = field(default="red", metadata={"help": "of it"})

_, register, _, _ = setup_registry("--flavour", default=None)
register("strong", dataclass=StrongConfig)(type("Strong", (), {}))
_, register, _, _ = setup_registry("--shape", default=None)
register("round")(type("Round", (), {}))
setup_registry("--hue", default="grey")
"""


def test_hydra_train_with_registries_of_a_plugin(text, tmp_path) -> None:
    (tmp_path / "flavours").mkdir()
    (tmp_path / "flavours" / "__init__.py").write_text(PLUGIN)
    options = f"""common.user_dir={tmp_path}/flavours task=language_modeling task.data={text} task.tokens_per_sample=32
        model=transformer_lm model.decoder_layers=1 model.decoder_embed_dim=16 model.decoder_ffn_embed_dim=16
        model.decoder_attention_heads=2 optimizer=adam optimization.lr=[0.01] optimization.max_update=1
        dataset.max_tokens=500 dataset.num_workers=0 common.cpu=true checkpoint.save_dir={tmp_path}/run
        flavour=strong flavour.strength=5 shape=round shape.size=2 --config-dir {tmp_path}""".split()
    done = run([*script("fairseq-hydra-train"), *options], cwd=tmp_path)
    assert "is validated against ConfigStore" not in done.stderr
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "run" / "checkpoint_last.pt"))
    assert state["optimizer_history"][-1]["num_updates"] == 1
    assert state["cfg"]["flavour"] == {"_name": "strong", "strength": 5, "colour": "red"}
    assert state["cfg"]["shape"] == {"_name": "round", "size": 2}
    assert state["cfg"]["hue"] == "grey"


def test_relative_paths_are_looked_for_in_the_folder_of_a_run_of_hydra(tmp_path, monkeypatch) -> None:
    hydra_train = importlib.import_module("fairseq_cli.hydra_train")
    monkeypatch.chdir(tmp_path)

    def no_file(cfg, *args, **kwargs):
        raise FileNotFoundError(2, "No such file", cfg.common.user_dir)

    monkeypatch.setattr(hydra_train.distributed_utils, "call_main", no_file)
    config = OmegaConf.structured(FairseqConfig)
    for named, remedy in (("of/file", f"looked for in {tmp_path}.*hydra.run.dir"), ("/of/file", "^((?!hydra).)*$")):
        config.common.user_dir = named
        with pytest.raises(FileNotFoundError, match=remedy):
            hydra_train._hydra_main(config)


def test_the_plugin_of_a_command_of_hydra(tmp_path) -> None:
    importlib.import_module("fairseq_cli.hydra_train")  # as the command does
    (tmp_path / "mine.yaml").write_text("common:\n  user_dir: of/file\n")
    file = ["--config-dir", str(tmp_path), "--config-name"]
    assert user_dir([*file, "mine"]) == "of/file"
    assert user_dir([*file, "mine", "common.user_dir=first", "+common.user_dir='last'"]) == "last"
    assert user_dir([*file, "none"]) is user_dir([]) is None


@pytest.fixture
def speech(tmp_path) -> Path:
    """Seconds of noise, with a label for each frame (km) and letters (ltr)."""
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("editdistance")
    noise = np.random.default_rng(1)
    for split, count in (("train", 6), ("valid", 2)):
        names = [f"{number}.{split}.wav" for number in range(count)]
        for name in names:
            soundfile.write(tmp_path / name, 0.1 * noise.standard_normal(16000), 16000)
        (tmp_path / f"{split}.tsv").write_text("\n".join([str(tmp_path), *(f"{name}\t16000" for name in names), ""]))
        np.savetxt(tmp_path / f"{split}.km", noise.integers(0, 4, (count, 50)), "%d")
        (tmp_path / f"{split}.ltr").write_text("A B | A |\n" * count)
    (tmp_path / "dict.km.txt").write_text("0 1\n1 1\n2 1\n3 1\n")
    (tmp_path / "dict.ltr.txt").write_text("| 9\nA 9\nB 9\n")
    return tmp_path


def test_speech_is_learnt_killed_resumed_fine_tuned_and_loaded(speech) -> None:
    """HuBERT, whose checkpoints hold fairseq's Dictionary, and CTC."""
    features = "[(8,10,5)] + [(8,3,2)] * 4 + [(8,2,2)] * 2"
    common = [*TINY, "--max-tokens", "40000", "--num-workers", "0", "--save-interval-updates", "1"]
    task = ["--task", "hubert_pretraining", "--labels", '["km"]', "--label-rate", "50", "--max-sample-size", "16000"]
    model = ["--arch", "hubert", "--final-dim", "8", "--conv-feature-layers", features, "--conv-pos", "4"]
    rest = "--conv-pos-groups 2 --min-sample-size 1000 --criterion hubert --max-update 4".split()
    pre_training = [speech, *common, *task, *model, *rest, "--save-dir", speech / "hubert"]
    kill(pre_training, at_update=2)
    assert logged(run([*script("fairseq-train"), *pre_training]).stdout, what="num_updates") == ["3", "4"]
    task = "--task audio_finetuning --labels ltr --arch hubert_ctc --criterion ctc --max-update 2".split()
    start = ["--w2v-path", speech / "hubert" / "checkpoint_last.pt", "--apply-mask", "--mask-prob", "0.2"]
    options = [*common[8:], *task, *start, "--save-dir", speech / "ctc"]
    run([*script("fairseq-train"), speech, *options])
    path = str(speech / "ctc" / "checkpoint_last.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path])
    assert task.target_dictionary.symbols[-3:] == ["|", "A", "B"]
    noise = torch.randn(1, 16000)
    output = model(source=noise, padding_mask=torch.zeros(noise.shape, dtype=torch.bool))
    assert output["encoder_out"].shape[1:] == (1, 7)
