"""Symptoms (see symptoms.py) of what goes wrong where translations are scored."""

from __future__ import annotations

import contextlib
import functools
import io
from argparse import Namespace
from pathlib import Path
from unittest import mock

import pytest
import sacrebleu
from fairseq import options, scoring, tasks
from fairseq.data import Dictionary
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.scoring.chrf import ChrFScorer
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq_cli import generate, score
from training_symptoms import in_folder, refused

REFERENCE, TRANSLATION = "我喜欢吃苹果和梨。", "我喜欢吃苹果和桃。"
ENGLISH = "Mr. O'Neill isn't here, is he?", "Mr. O'Neill isn't there, is he?"


def translation_task(folder: Path, target: str, text: str, **changes: object) -> TranslationTask:
    """From en into a language, with a dictionary of the words of a text."""
    for lang, words in (("en", "a"), (target, text)):
        dictionary = Dictionary()
        dictionary.encode_line(words)
        dictionary.save(str(folder / f"dict.{lang}.txt"))
    return TranslationTask.setup_task(
        TranslationConfig(data=str(folder), source_lang="en", target_lang=target, **changes)
    )


def validation_bleu(folder: Path, target: str, reference: str, translation: str, **changes: object) -> float:
    """As --eval-bleu counts it for one sentence."""
    task = translation_task(folder, target, f"{reference} {translation}", **changes)
    task.tokenizer = None
    encoded = [task.tgt_dict.encode_line(text, add_if_not_exist=False) for text in (reference, translation)]
    with mock.patch.object(task, "inference_step", return_value=[[{"tokens": encoded[1]}]]):
        return task._inference_with_bleu(None, {"target": encoded[0][None]}, None).score


@functools.cache
def generation(*flags: str):
    """The configuration of fairseq-generate."""
    return convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_generation_parser(), ["data", "--path", "best.pt", *flags])
    )


def generation_bleu(folder: Path, target: str, reference: str, translation: str, *flags: str) -> float:
    """As fairseq-generate --scoring sacrebleu counts it for one sentence."""
    config = generation("--scoring", "sacrebleu", *flags)
    config.task.update(data=str(folder), source_lang="en", target_lang=target)
    translation_task(folder, target, "a")  # writes the dictionaries
    scorer = scoring.build_scorer(config.scoring, tasks.setup_task(config.task).target_dictionary)
    scorer.add_string(reference, translation)
    return scorer.score()


@in_folder
def target_languages(folder: Path) -> None:
    """Chinese and Thai by their own rules; English and what the user has chosen as before."""

    def expected(name: str, reference: str, translation: str) -> float:
        return sacrebleu.corpus_bleu([translation], [[reference]], tokenize=name).score

    thai = "ฉันรักแมวสีดำ", "ฉันรักแมวสีขาว"
    for target, pair, name in (
        ("zh_CN", (REFERENCE, TRANSLATION), "zh"),
        ("tha_Thai", thai, "char"),
        ("en", ENGLISH, "13a"),
        ("tgt", ENGLISH, "13a"),
    ):
        right = pytest.approx(expected(name, *pair))
        assert validation_bleu(folder, target, *pair) == right, f"--eval-bleu of {target}"
        assert generation_bleu(folder, target, *pair) == right, f"--scoring of {target}"
    scorer = scoring.build_scorer("sacrebleu", Dictionary())  # of no task
    scorer.add_string(*ENGLISH)
    assert scorer.score() == pytest.approx(expected("13a", *ENGLISH))
    chosen = generation_bleu(folder, "zh", REFERENCE, TRANSLATION, "--sacrebleu-tokenizer", "13a")
    assert chosen == pytest.approx(expected("13a", REFERENCE, TRANSLATION))
    tokens = "我 喜欢 苹果 和 梨 。", "我 喜欢 苹果 和 桃 。"
    assert validation_bleu(folder, "zh", *tokens, eval_tokenized_bleu=True) == pytest.approx(expected("none", *tokens))
    assert sacrebleu.corpus_bleu is sacrebleu.compat.corpus_bleu


@in_folder
def moses_languages(folder: Path) -> None:
    """French is joined by its own rules, whichever way its code is written."""
    words, text = "l&apos; homme , c&apos; est lui !", "l'homme, c'est lui !"
    for code in ("fr", "fr_XX", "fra_Latn", "fr-FR"):
        assert MosesTokenizer(MosesTokenizerConfig(source_lang="en_XX", target_lang=code)).decode(words) == text, code
        task = translation_task(folder, code, "a", eval_bleu=True, eval_bleu_detok="moses")
        english = translation_task(
            folder, code, "a", eval_bleu=True, eval_bleu_detok="moses", eval_bleu_detok_args='{"target_lang": "en"}'
        )
        with mock.patch.object(FairseqTask, "build_model"), mock.patch.object(FairseqTask, "build_generator"):
            task.build_model(None)
            english.build_model(None)
        assert task.tokenizer.decode(words) == text, f"--eval-bleu-detok moses of {code}"
        assert english.tokenizer.decode(words) != text


def printed(*arguments: object) -> str:
    """What fairseq-score prints last."""
    output = io.StringIO()
    with mock.patch("sys.argv", ["fairseq-score", *map(str, arguments)]), contextlib.redirect_stdout(output):
        score.cli_main()
    return output.getvalue().splitlines()[-1]


@in_folder
def scoring_options(folder: Path) -> None:
    """--sacrebleu of fairseq-generate, files of different lengths, the chrF of a scorer."""
    config = generation("--sacrebleu")
    with mock.patch.object(generate.utils, "import_user_module", side_effect=KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt):
            generate._main(config, io.StringIO())
    assert config.scoring._name == "sacrebleu", "--sacrebleu is ignored"
    scorer = ChrFScorer(Namespace())
    scorer.add_string(*ENGLISH)
    assert scorer.score() == pytest.approx(sacrebleu.corpus_chrf([ENGLISH[1]], [[ENGLISH[0]]]).score)
    files = folder / "reference", folder / "translation"
    for file, line in zip(files, ENGLISH):
        file.write_text(f"{line}\n")
    assert printed("-r", files[0], "-s", files[1]).startswith("BLEU4 = ")
    sentence = printed("-r", files[0], "-s", files[1], "--sentence-bleu")
    assert sentence.startswith("0 BLEU4 = "), sentence
    score = sacrebleu.corpus_bleu([ENGLISH[1]], [[ENGLISH[0]]]).format()
    assert printed("-r", files[0], "-s", files[1], "--sacrebleu").strip() == score
    files[1].write_text(f"{ENGLISH[1]}\nmore\n")
    with refused("--ref ends after 1 lines", "of one text"):
        printed("-r", files[0], "-s", files[1])
