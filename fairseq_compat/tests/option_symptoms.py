"""Symptoms (see symptoms.py) of options that fail, or do something else than they say."""

from __future__ import annotations

import contextlib
import io
import os
from argparse import Namespace
from pathlib import Path
from unittest import mock

from fairseq import checkpoint_utils, options, utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, eval_str_list, overwrite_args_by_name
from fairseq.models.transformer import TransformerModel
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import InverseSquareRootSchedule
from fairseq.tasks import FairseqTask
from fairseq_cli import eval_lm, train
from text_symptoms import align, composed
from training_symptoms import in_folder, refused, write_split


def dead_options() -> None:
    """A line for options that a command does not read, no line for others."""

    def said(get_parser, *given: str | None) -> list[str]:
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            options.parse_args_and_arch(get_parser(), ["data", "--cpu", *given])
        return stderr.getvalue().splitlines()

    dead = said(options.get_validation_parser, "--task", "translation", "--gen-subset", "test", "--max-tokens", "9")
    assert len(dead) == 1, dead
    assert "--gen-subset" in dead[0], dead
    assert "--valid-subset" in dead[0], dead
    assert not said(options.get_generation_parser, "--gen-subset", "valid", "--beam", "2", "--bpe", "characters")
    assert not said(options.get_generation_parser, "--path", None)  # of a program in Python
    assert "--log-file:" in said(options.get_eval_lm_parser, "--log-file=x")[0]
    assert "fairseq-interactive" in said(options.get_generation_parser, "--constraints")[0]
    assert "--no-early-stop: leave it out" in said(options.get_generation_parser, "--no-early-stop")[0]
    assert "--truncate-source: shorten" in said(options.get_interactive_generation_parser, "--truncate-source")[0]
    assert "--lm-path" in said(options.get_interactive_generation_parser, "--lm-path", "lm.pt")[0]
    smoothed, aligned = "label_smoothed_cross_entropy", "label_smoothed_cross_entropy_with_alignment"
    training = (options.get_training_parser, "--arch", "lstm", "--report-accuracy", "--criterion")
    assert not said(*training, smoothed)
    assert "--report-accuracy: use label_smoothed" in said(*training, aligned)[0]
    assert "--anneal-eps" in said(*training, smoothed, "--optimizer", "adadelta", "--anneal-eps")[0]


@in_folder
def broken_options(folder: Path) -> None:
    keeping = composed(
        "data", "--arch", "transformer", "--encoder-layers-to-keep", "0,2", "--decoder-layers-to-keep", "1"
    )
    task = mock.Mock(source_dictionary=Dictionary(), target_dictionary=Dictionary())
    task.source_dictionary.add_symbol("a")
    model = TransformerModel.build_model(keeping.model, task)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (2, 1)

    for name, option in (("print_step", "--print-step"), ("retain_iter_history", "--retain-iter-history")):
        with refused(option, "leave it out"):
            FairseqTask(Namespace()).build_generator([], Namespace(**{name: True}))
    with refused("--tokenizer moses needs --source-lang"):
        composed("data", "--tokenizer", "moses")
    with refused("--task sentence_prediction needs --criterion sentence_prediction or"):
        composed("data", "--task", "sentence_prediction")
    decaying = ["data", "--lr-scheduler", "polynomial_decay"]
    assert composed(*decaying, "--max-update", "7").lr_scheduler.total_num_update == 7
    with refused("--lr-scheduler polynomial_decay needs --total-num-update"):
        composed(*decaying)
    with refused("--lr-scheduler inverse_sqrt: found --warmup-updates 0", "--lr-scheduler fixed"):
        without = composed("data", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "0", "--lr", "1")
        InverseSquareRootSchedule(without.lr_scheduler, None)
    with refused("Cannot use a fixed learning rate schedule"):
        InverseSquareRootSchedule(composed("data", "--lr-scheduler", "inverse_sqrt", "--lr", "1,2").lr_scheduler, None)
    convert_namespace_to_omegaconf(Namespace(lr_scheduler="cosine", lr=None))  # of a command that reads neither
    saved = composed("data", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.3")
    saved.bpe = {"_name": "characters"}
    overwrite_args_by_name(saved, {"criterion": "label_smoothed_cross_entropy", "label_smoothing": 0.2, "bpe": "gpt2"})
    assert (saved.criterion.label_smoothing, saved.bpe._name) == (0.2, "gpt2"), saved
    overwrite_args_by_name(saved, {"bpe": "bytes"})  # has no options
    assert saved.bpe == "bytes", saved.bpe
    overwrite_args_by_name(saved, {"criterion": "cross_entropy", "sentence_avg": True})
    assert (saved.criterion._name, saved.criterion.sentence_avg) == ("cross_entropy", True)

    with mock.patch.object(checkpoint_utils.PathManager, "exists", "A".__eq__), refused("No such file", "'A'"):
        eval_lm.checkpoint_utils.load_model_ensemble_and_task([os.pathsep.join("AB")])

    dictionary = write_split(folder, "train", [], "a b c")
    for language, words in (("de", "a a a"), ("en", "b b c")):
        (folder / f"train.{language}").write_text(f"{words}\n")
    (folder / "pairs").write_text("0-0 1-1 2-2\n")
    assert align(folder, folder / "pairs", dictionary) == ["a b"]


def evaluated_options() -> None:
    """What fairseq would evaluate to something else is refused, with option, value and an example that is taken."""
    adam, bart = ["data", "--optimizer", "adam"], ["data", "--task", "translation"]
    wrong = {
        "--adam-betas": (adam, ["'(0.9, 0.98)'", "0.9", "0.9,0.98,0.99", "(0,9, 0,98)", "beta", "'0.9,0.98'"]),
        "--adafactor-eps": (["data", "--optimizer", "adafactor"], ["'(1e-30, 1e-3)'", "1e-3"]),
        "--eval-bleu-args": (bart, ["{beam:5}", "{'beam': 5}", "5"]),
        "--optimizer-overrides": (["data"], ["{lr:1}", "'{}'", "[]"]),
        "--update2lr": (["data", "--lr-scheduler", "manual"], ["{1:", "'{}'", "{1: 0.1}", "0.1"]),
        "--encoder-layers-to-keep": (["data", "--arch", "transformer"], ["'0,2'"]),
        "--decoder-layers": (["data", "--arch", "fconv"], ["'[(512, 3)]'"]),
    }
    for flag, (others, values) in wrong.items():
        for value in values:
            with refused(f"{flag}: found {value!r}", f"; give {flag} "):
                composed(*others, flag, value)
    for value in ("(0.9, 0.98)", "0.9,0.98", " [0.9, 0.98]", "(0, 0.98)"):
        composed(*adam, "--adam-betas", value)
    config = composed(*adam)
    config.optimizer.adam_betas = "'(0.9, 0.98)'"  # of fairseq-hydra-train, which composes by itself
    with refused("--adam-betas: found", "; give --adam-betas "):
        train.main(config)
    composed(*bart, "--eval-bleu-args", '{"beam": 4}', "--eval-bleu-detok-args", "")
    for value in ("{'data': 'DIR'}", "{}"):
        composed("data", "--optimizer-overrides", value)
    for flag, value in (("--update-freq", "'12'"), ("--update-freq", "4x"), ("--lr", '"1"'), ("--lr", "0,001")):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
            raise AssertionError(composed("data", flag, value).optimization)
        assert f"argument {flag}: found {value!r}" in said.getvalue(), said.getvalue()
    assert composed("data", "--update-freq", "1,2", "--lr", "[0.1]").optimization.update_freq == [1, 2]
    for value in ("'False'", '"0"', "false"):
        with refused(repr(value), "True or False"):
            utils.eval_bool(value)
    assert [utils.eval_bool(value) for value in ("False", "1", None)] == [False, True, False]
    for function in (utils.eval_str_list, eval_str_list):
        assert function("'ab'", str) == ["ab"]
        assert function("'ab', 'c'", str) == ["ab", "c"]
    assert eval_str_list("") == []
    with refused("found", "a dictionary"):
        utils.eval_str_dict("\"{'a': 1}\"")
