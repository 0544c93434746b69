"""What masked language models are pre-trained for: fine-tuning, features and masks from Python, given embeddings."""

import subprocess

import pre_training as pre
import pytest
import torch
from programs import PYTHON
from trainings import model_of

from embinit_fairseq.models.tupe import TupeModel

pytestmark = pytest.mark.end_to_end
HEAD = "sentence_classification_head"
MODELS = {
    "tupe": "--arch tupe_tiny --rel-pos --encoder-layers 2 --encoder-ffn-embed-dim 32 --embedding-normalize --lr 0.01",
    "electra": "--arch electra_tupe_tiny --encoder-layers 1 --encoder-ffn-embed-dim 64 --dropout 0 --lr 0.003",
}


def test_features_and_sub_words_from_python(trained, tmp_path):
    run = trained("tupe")
    paths = str(run.folder), "checkpoint_best.pt", str(run.data / "text")
    hub = TupeModel.from_pretrained(*paths)
    tokens, dictionary = hub.encode("w1 w2 w3"), hub.task.source_dictionary
    assert tokens.tolist() == [0, *(dictionary.index(f"w{n}") for n in (1, 2, 3)), 2]
    assert hub.decode(tokens) == "w1 w2 w3"
    pair = hub.encode("w1 w2", "w3")
    assert [dictionary[at] for at in pair] == ["<s>", "w1", "w2", "</s>", "</s>", "w3", "</s>"]
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\n" + "".join(f"w {n}</w>\n" for n in range(9)))  # w9 remains w@@ 9
    hub = TupeModel.from_pretrained(*paths, bpe="subword_nmt", bpe_codes=str(codes))
    assert hub.encode("w1 w9").tolist() == [0, dictionary.index("w1"), dictionary.index("w9"), 2]  # words stay whole
    assert hub.encode("w1 w99").tolist() == [0, dictionary.index("w1"), *[dictionary.unk()] * 3, 2]
    text, _, token = hub.fill_mask("w9 <mask> w2", topk=1)[0]
    assert text == f"w9 {token} w2"


@pytest.mark.parametrize(
    ("name", "absent"), [("tupe", ("encoder.lm_head.",)), ("electra", ("generator.", "encoder.rtd_head."))]
)
def test_fine_tuning_begins_with_the_encoder_and_trains_it(name, absent, trained, here, tmp_path):
    """Sentences of the training's corpus, with its dictionary."""
    run, started = trained(name), {}
    before = model_of(run.folder / "checkpoint_last.pt")
    sizes = "--encoder-embed-dim 16 --encoder-attention-heads 2 --max-positions 32 --init-token 0 --batch-size 16"
    command = [*pre.TRAINING, *pre.CLASSES.split(), *sizes.split(), *MODELS[name].split()]
    command += ["--restore-file", run.folder / "checkpoint_last.pt", *pre.FROM_ANOTHER_RUN, "--max-update", "1"]
    for rate in ("0", "0.01"):
        folder = tmp_path / rate
        here(pre.train_command(run.data / "classes", *command, "--lr", rate, "--save-dir", folder))
        started[rate] = model_of(folder / "checkpoint_last.pt")
    kept = {key for key in before if not key.startswith(absent)}
    assert before.keys() & started["0"].keys() == kept
    assert all(torch.equal(before[key], started["0"][key]) for key in kept)
    assert all(key.startswith(f"classification_heads.{HEAD}.") for key in started["0"].keys() - kept)
    trained_on = [key for key in kept if any(part in key for part in ("embed_tokens", ".fc"))]
    assert [key for key in trained_on if torch.equal(started["0.01"][key], before[key])] == []


def test_hydra_takes_the_model_by_its_name(trained, tmp_path):
    """Presets do not act there: every size is given."""
    options = f"""common.user_dir={pre.PLUGIN[1]} common.cpu=true task=masked_lm task.tokens_per_sample=32
        task.data={trained("tupe").data / "text"} task.sample_break_mode=eos criterion=masked_lm optimizer=adam
        optimization.lr=[0.01] optimization.max_update=1 dataset.batch_size=20 dataset.num_workers=0 +model._name=tupe
        +model.rel_pos=true +model.encoder_layers=1 +model.encoder_embed_dim=8 +model.encoder_ffn_embed_dim=8
        +model.encoder_attention_heads=2 +model.max_positions=32"""
    hydra = [PYTHON, "-m", "fairseq_cli.hydra_train", *options.split()]
    done = subprocess.run(hydra, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    model = model_of(tmp_path / "checkpoints" / "checkpoint_last.pt")
    assert model["encoder.sentence_encoder.positions.relative.embed_buckets.weight"].shape == (33, 2)
