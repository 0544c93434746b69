"""Symptoms (see symptoms.py) of what goes wrong where translations are scored."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import sacrebleu
import torch
from fairseq import options, scoring, tasks
from fairseq.data import Dictionary, LMContextWindowDataset, MonolingualDataset, TokenBlockDataset, data_utils
from fairseq.data.encoders.characters import Characters
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models.bart import BARTHubInterface
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.scoring.chrf import ChrFScorer
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq_cli import eval_lm, generate, interactive, score
from omegaconf import OmegaConf
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
    files[1].write_text("Mr. O'Neill\n")
    assert "hyp_len = 3 ref_len = 9" in printed("-r", files[0], "-s", files[1], "--sacrebleu")
    files[1].write_text(f"{ENGLISH[1]}\nmore\n")
    for option in ([], ["--sentence-bleu"], ["--sacrebleu"]):
        with refused("--ref ends after 1 lines", "of one text"):
            printed("-r", files[0], "-s", files[1], *option)
    files[1].write_text(f"{ENGLISH[0].upper()}\n")
    assert printed("-r", files[0], "-s", files[1], "--sacrebleu", "--ignore-case").startswith("BLEU = 100.00")
    assert not printed("-r", files[0], "-s", files[1], "--sacrebleu").startswith("BLEU = 100.00")


def context_windows() -> None:
    """Each block of text has the tokens before it as its context, whoever collates which blocks; a window that fits."""
    window, length, pad, eos = 7, 5, 1, 2
    words = torch.arange(10, 33)
    blocks = TokenBlockDataset([words[:11], words[11:]], [11, 12], length, pad=pad, eos=eos, include_targets=True)
    text = MonolingualDataset(blocks, blocks.sizes, Dictionary(), targets=["future"])
    collated = LMContextWindowDataset(text, length, window, pad)
    before = torch.cat([torch.tensor([eos]), words[:-1]])  # the input of a word is the one before it
    for numbers in ([1, 3], [4], [0, 2]):  # of two processes, or shards
        batch = collated.collater([collated[number] for number in numbers])
        for row, number in enumerate(numbers):
            first, start = number * length, max(0, number * length - window)
            tokens, target = (rows[row] for rows in (batch["net_input"]["src_tokens"], batch["target"]))
            assert tokens[tokens != pad].tolist() == before[start : first + length].tolist(), number
            assert target[target != pad].tolist() == words[first : first + length].tolist()
            assert batch["start_indices"][row] == first - start == target.ne(pad).nonzero()[0]
            assert batch["net_input"]["src_lengths"][row] == tokens.ne(pad).sum()
    parser = options.get_eval_lm_parser()
    given = ["data", "--path", "lm.pt", "--tokens-per-sample", "8", "--context-window", "8"]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, given))
    with refused("--context-window 8", "--tokens-per-sample 8"):
        eval_lm.main(config)


class Certain(torch.nn.Module):
    """Give each token of a language model the probability 1/2."""

    def generate(self, models, sample: dict) -> list[list[dict]]:
        return [[{"tokens": t, "positional_scores": torch.full(t.shape, 0.5).log()}] for t in sample["tokens"]]


def subword_marks() -> None:
    """Five subwords of three words, whose probability is 1/32 = (1/2) ** 5."""
    dictionary = Dictionary()
    tokens = dictionary.encode_line("do@@ gs run@@ ning", append_eos=True).long()
    sample = {"net_input": {}, "tokens": tokens[None], "id": torch.zeros(1), "ntokens": 5}

    def perplexity(post_process: str | None, *samples: dict, **settings) -> float:
        with mock.patch.object(eval_lm, "SequenceScorer", return_value=Certain()):
            data = {"source_dictionary": dictionary, "batch_iterator": samples or [sample], **settings}
            found = eval_lm.eval_lm(models=[torch.nn.Linear(1, 1)], post_process=post_process, **data)
        return float(found["perplexity"])

    for name, words in (("subword_nmt", 3), ("@@ ", 3), ("@@", 3), ("none", 5), (None, 5)):
        assert perplexity(name) == pytest.approx(32 ** (1 / words)), f"--post-process {name}"
    with refused("--post-process sentencepiece", "perplexity ** (subwords / words)"):
        perplexity("sentencepiece")
    halves = [{**sample, "tokens": part[None]} for part in (tokens[:3], tokens[3:])]  # `run@@` and `ning`
    assert perplexity("@@", *halves) == pytest.approx(32 ** (1 / 3)), "a word of two blocks"
    with_bos = [{**half, "tokens": torch.nn.functional.pad(half["tokens"], (1, 0))} for half in halves]
    bos = {"remove_bos_token": True, "target_dictionary": dictionary}
    assert perplexity("@@", *with_bos, **bos) == pytest.approx(32 ** (1 / 3)), "--add-bos-token"
    for name in ("subword_nmt", "@@ ", "@@"):
        assert data_utils.post_process("do@@ gs run", name) == "dogs run", f"--post-process {name}"
    found: list[str] = []

    def read(command):
        """Join a text where the command makes its task."""
        return mock.patch.object(
            command.tasks, "setup_task", side_effect=lambda _: found.append(Characters.decode("dogs run"))
        )

    config = copy.deepcopy(generation("--bpe", "characters", "--max-tokens", "9"))
    for name, joined in (("sentencepiece", "dogs run"), (None, "dogsrun")):
        config.common_eval.post_process = name
        for command in (generate, interactive):
            found.clear()
            with read(command), contextlib.suppress(AttributeError, OSError):  # there is no model
                command.main(config)
            assert found == [joined], f"--post-process {name} --bpe characters"


def repeated_ngrams() -> None:
    """Buffers of seven places, the first of which is `</s>`; in the second row 6 is the only word that is possible."""
    tokens = torch.ones(3, 7, dtype=torch.long)
    tokens[:, :4] = torch.tensor([[2, 5, 6, 5], [2, 5, 6, 5], [2, 5, 6, 6]])
    for size, *repeated in ((1, {5, 6}, {5, 6}), (2, {6}, {6}), (3, set(), set()), (9, set(), set())):
        block = NGramRepeatBlock(size)
        for kind in (block, torch.jit.script(block)):
            scores = torch.zeros(3, 8)
            scores[1] = -torch.inf
            scores[1, 6] = -1.0
            found = kind(tokens, scores, 1, 3, 3)
            assert [set(found[row].isinf().nonzero().flatten().tolist()) for row in (0, 2)] == repeated, size
            assert found[1, 6] == -1


def sampled_words() -> None:
    """Word 4, with 0.9 of the probability, is excluded in one beam of two, in the other all but the unlikely word 2."""
    model = torch.tensor([0.9, 0.06, 0.03, 0.01]).log()
    lprobs = torch.full((1, 2, 8), -torch.inf)
    lprobs[0, 0, 5:] = model[1:]
    lprobs[0, 1, 2] = -200.0
    before = torch.tensor([[[-1.0], [-2.0]]])
    dictionary = Dictionary()
    dictionary.encode_line("4 5 6 7")  # the words are named as their ids
    for limits, drawn in (
        ({"sampling_topp": 0.5}, {5}),
        ({"sampling_topk": 1}, {5}),
        ({"sampling_topk": 9}, {5, 6, 7}),
        ({}, {5, 6, 7}),
    ):
        search = Sampling(dictionary, **limits)
        for kind in (search, torch.jit.script(search)):
            for _ in range(20):
                first = kind.step(0, lprobs.clone(), before[:, :, :0])
                assert {*first[1].flatten().tolist()} <= drawn, limits
                scores, words, beams = kind.step(1, lprobs.clone(), before)
                assert int(words[0, 0]) in drawn, limits
                assert words[0, 1] == 2
                assert beams.tolist() == [[0, 1]]
                expected = torch.stack([model[words[0, 0] - 4] - 1, torch.tensor(-202.0)])
                torch.testing.assert_close(scores[0], expected)
                torch.testing.assert_close(first[0][0], model[first[1][0] - 4])


class Ending(torch.nn.Module):
    """Prefer `</s>`, then word 5, then word 4."""

    def forward(self, tokens):
        return (torch.tensor([-9.0, -9.0, 3.0, -9.0, 0.0, 1.0]).repeat(*tokens.shape, 1),)

    def get_normalized_probs(self, output, log_probs, sample):
        return output[0].log_softmax(-1)

    def max_decoder_positions(self):
        return 20


class Following(torch.nn.Module):
    """Follow prefixes as a generator does, without a model, in Python and in TorchScript."""

    _prefix_tokens = SequenceGenerator._prefix_tokens
    replicate_first_beam = SequenceGenerator.replicate_first_beam
    follow_prefixes = getattr(SequenceGenerator, "follow_prefixes", None)

    def __init__(self):
        super().__init__()
        self.pad, self.eos, self.min_len, self.token_indices_to_suppress = 1, 2, 6, torch.tensor([5])

    def forward(self, step: int, lprobs, scores, tokens, prefix_tokens, beam_size: int):
        return self._prefix_tokens(step, lprobs, scores, tokens, prefix_tokens, beam_size)


def unequal_prefixes() -> None:
    """A batch of three prompts; the limits hold where a prompt has ended, and not inside of it."""
    dictionary = Dictionary()
    dictionary.encode_line("4 5")  # the words are named as their ids
    prompts = torch.tensor([[4, 1, 1, 1], [5, 5, 4, 1], [4, 5, 4, 4]])
    sample = {"net_input": {"src_tokens": prompts}}
    for options_given, words in (
        ({}, [5]),
        ({"tokens_to_suppress": ["5"]}, [4]),
        ({"min_len": 2}, [5]),
        ({"beam_size": 2, "len_penalty": 0.0}, [5]),
    ):
        model, options_given = Ending(), {"min_len": 6, **options_given}
        generator = SequenceGenerator([model], dictionary, max_len_b=9, **options_given)
        for prompt, (found, *_) in zip(prompts.tolist(), generator.generate([model], sample, prefix_tokens=prompts)):
            start = [word for word in prompt if word != 1]
            expected = start + words * (options_given["min_len"] - len(start)) + [2]
            assert found["tokens"].tolist() == expected, (prompt, found["tokens"])
    following = Following()
    for step in (0, 1, 3):
        given = (step, torch.zeros(3, 6), torch.zeros(3, 9), torch.ones(3, 9, dtype=torch.long), prompts, 1)
        for found, scripted in zip(following(*given), torch.jit.script(following)(*given), strict=True):
            assert torch.equal(found, scripted)


def copied(function, models, batch, prefix_tokens=None):
    """Return one hypothesis per sentence: its number by `function`, its prefix (BART's is a 0) and its tokens."""
    numbers, rows = batch["id"].tolist(), batch["net_input"]["src_tokens"]
    prefixes = [[]] * len(rows) if prefix_tokens is None else prefix_tokens.tolist()
    hypotheses = []
    for number, prefix, row in zip(numbers, prefixes, rows, strict=True):
        allowed = function(number, row) if function else []
        hypotheses.append([{"tokens": torch.tensor([*allowed, *filter(None, prefix), *row.tolist()])}])
    return hypotheses


def skipped_sentences() -> None:
    """A model of three positions that copies numbers."""
    for kind in (GeneratorHubInterface, BARTHubInterface):

        class Copying(kind):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                torch.nn.Module.__init__(self)
                self.cfg, self.models = SimpleNamespace(generation=OmegaConf.create({})), []
                self._float_tensor = torch.ones(1)
                self.task = SimpleNamespace(
                    source_dictionary=Dictionary(),
                    build_generator=lambda *args, prefix_allowed_tokens_fn: prefix_allowed_tokens_fn,
                    inference_step=copied,
                )

            def encode(self, sentence: str) -> torch.Tensor:
                return torch.tensor([int(word) for word in sentence.split()])

            def decode(self, tokens: torch.Tensor) -> str:
                return " ".join(map(str, tokens.tolist()))

            def _build_batches(self, rows: list, skip: bool):
                for number in reversed(range(len(rows))):  # not in the order of the text
                    if len(rows[number]) <= 3 or not skip:
                        yield {"id": torch.tensor([number]), "net_input": {"src_tokens": rows[number][None]}}

        hub, long = Copying(), "1 2 3 4"
        skip = {"skip_invalid_size_inputs": True}
        assert hub.translate(["1", long, "2 3", long], **skip) == ["1", "", "2 3", ""], kind
        assert hub.translate([long], **skip) == [""]
        assert hub.translate(["1", long]) == ["1", long]
        assert hub.generate([hub.encode(long)], **skip)[0][0]["score"] == float("-inf")
        own_prefixes(hub, long, skip)


def own_prefixes(hub: GeneratorHubInterface, long: str, skip: dict) -> None:
    """A prefix is that of the sentence with its number. Of `long`, which is skipped, there is none."""

    def generated(*sentences: str, **kwargs) -> list[str]:
        return [hub.decode(one[0]["tokens"]) for one in hub.generate(list(map(hub.encode, sentences)), **kwargs)]

    by_number = {"prefix_allowed_tokens_fn": lambda number, prefix: [10 + number]}
    assert generated("1", "2 3", "4", **by_number) == ["10 1", "11 2 3", "12 4"], type(hub)
    assert generated("1", long, "4", **by_number, **skip) == ["10 1", "", "12 4"], type(hub)
    assert hub.decode(hub.generate(hub.encode("1 2"), **by_number)[0]["tokens"]) == "10 1 2", type(hub)
    if not isinstance(hub, BARTHubInterface):  # which refuses prefixes
        rows = {"inference_step_args": {"prefix_tokens": torch.tensor([[7], [8], [9]])}}
        assert generated("1", "2 3", "4", **rows) == ["7 1", "8 2 3", "9 4"]
        assert generated("1", long, "4", **rows, **skip) == ["7 1", "", "9 4"]
        assert hub.task.inference_step is copied
        one = {"inference_step_args": {"prefix_tokens": torch.tensor([[7]])}}
        assert hub.decode(hub.generate(hub.encode("1 2"), **one)[0]["tokens"]) == "7 1 2"
        assert generated("1", "2 3", "4", **one) == ["7 1", "7 2 3", "7 4"]
        assert generated("1", long, "4", **one, **skip) == ["7 1", "", "7 4"]
        with refused("inference_step_args: found 3 rows of prefix_tokens for 2 sentences, expected 2 or 1"):
            generated("1", "2 3", **rows)


@in_folder
def whole_lines(folder: Path) -> None:
    """Files that stdout and the log share: a line of stdout is there before the next one of the log."""
    arguments = options.parse_args_and_arch(options.get_generation_parser(), ["data", "--path", "model.pt"])

    def translate(config, output) -> None:
        print("D-0\t-1\tw", file=output)
        assert (folder / "log").read_text() == "D-0\t-1\tw\n"

    with open(folder / "log", "w") as log, contextlib.redirect_stdout(log):
        with mock.patch.object(generate, "_main", translate):
            generate.main(arguments)
