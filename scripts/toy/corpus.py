"""Write the toy corpus: parallel train, valid and test text and a larger monolingual text of each language.

Run as `PYTHONPATH=scripts:. python -m toy.corpus --output DIR`. Two runs with the same options write the same bytes.
Some words are rare in the parallel training text (at most `--rare-limit` sentences each) and as frequent as all others
in the monolingual, validation and test text: the situation in which pre-trained vectors are said to help.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toy import english, german, lexicon
from toy.lexicon import Adjective, Noun, Verb
from toy.sampler import Sampler
from toy.syntax import Sentence

from embinit_fairseq.errors import one_line
from embinit_fairseq.io import write_text

Pair = tuple[str, str]


@dataclass(frozen=True)
class CorpusConfig:
    """Sizes are in sentences; every text has its own seed, derived from `seed`."""

    seed: int = field(default=1, metadata={"help": "seed of everything drawn here"})
    train: int = field(default=4000, metadata={"help": "parallel training sentences"})
    valid: int = field(default=500, metadata={"help": "parallel validation sentences"})
    test: int = field(default=1000, metadata={"help": "parallel test sentences"})
    monolingual: int = field(default=40000, metadata={"help": "monolingual sentences per language"})
    rare_share: float = field(
        default=0.4, metadata={"help": "share of nouns, adjectives and verbs that are rare in train"}
    )
    rare_limit: int = field(default=2, metadata={"help": "training sentences a rare word may occur in"})


def lexemes(item: object) -> set[str]:
    """Nouns, adjectives and verbs of a derivation, as "noun:Hund"."""
    if isinstance(item, Noun):
        return {f"noun:{item.lemma}"}
    if isinstance(item, Adjective):
        return {f"adjective:{item.lemma}"}
    if isinstance(item, Verb):
        return {f"verb:{item.infinitive}"}
    if dataclasses.is_dataclass(item):
        return set().union(*(lexemes(getattr(item, part.name)) for part in dataclasses.fields(item)))
    return set()


def rare_lexemes(config: CorpusConfig) -> frozenset[str]:
    """The same share of each part of speech, drawn once per seed."""
    generator = random.Random(f"rare|{config.seed}")
    chosen: set[str] = set()
    for name, table in (("noun", lexicon.nouns()), ("adjective", lexicon.adjectives()), ("verb", lexicon.verbs())):
        words = sorted(table)
        chosen |= {f"{name}:{word}" for word in generator.sample(words, round(config.rare_share * len(words)))}
    return frozenset(chosen)


def pair(sentence: Sentence) -> Pair:
    """Return (German, English), tokens separated by spaces."""
    return " ".join(german.tokens(sentence)), " ".join(english.tokens(sentence))


def _draw(seed: int, part: str) -> Iterator[Sentence]:
    sampler = Sampler(random.Random(f"{part}|{seed}").getrandbits(64))
    while True:
        yield sampler.sentence()


def training_pairs(config: CorpusConfig) -> list[Pair]:
    """Distinct sources; no rare word in more than `rare_limit` of them."""
    rare, seen, uses, pairs = rare_lexemes(config), set(), Counter(), []
    for sentence in _draw(config.seed, "train"):
        if len(pairs) == config.train:
            return pairs
        used = lexemes(sentence) & rare
        source, target = pair(sentence)
        if source in seen or any(uses[word] >= config.rare_limit for word in used):
            continue
        seen.add(source)
        uses.update(used)
        pairs.append((source, target))
    raise AssertionError("unreachable: the sampler never ends")


def held_out_pairs(config: CorpusConfig, part: str, size: int, known: list[Pair]) -> list[Pair]:
    """Distinct pairs, neither side of which occurs in `known`."""
    sources, targets, pairs = {source for source, _ in known}, {target for _, target in known}, []
    for sentence in _draw(config.seed, part):
        if len(pairs) == size:
            return pairs
        source, target = pair(sentence)
        if source not in sources and target not in targets:
            sources.add(source)
            targets.add(target)
            pairs.append((source, target))
    raise AssertionError("unreachable: the sampler never ends")


def monolingual(config: CorpusConfig, side: int, held_out: list[Pair]) -> list[str]:
    """Sentences of one language (side 0 German, 1 English), without those of the validation and test text."""
    excluded, lines = {sentences[side] for sentences in held_out}, []
    linearize = (german, english)[side].tokens
    for sentence in _draw(config.seed, f"monolingual {side}"):
        if len(lines) == config.monolingual:
            return lines
        line = " ".join(linearize(sentence))
        if line not in excluded:
            lines.append(line)
    raise AssertionError("unreachable: the sampler never ends")


def make(config: CorpusConfig) -> dict[str, list[str]]:
    """File name -> lines."""
    train = training_pairs(config)
    valid = held_out_pairs(config, "valid", config.valid, train)
    test = held_out_pairs(config, "test", config.test, train + valid)
    files = {}
    for side, language in enumerate(("de", "en")):
        for part, pairs in (("train", train), ("valid", valid), ("test", test)):
            files[f"{part}.{language}"] = [sentences[side] for sentences in pairs]
        files[f"mono.{language}"] = monolingual(config, side, valid + test)
    return files


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for train.de ... mono.en")
    for option in dataclasses.fields(CorpusConfig):
        flag = "--" + option.name.replace("_", "-")
        parser.add_argument(flag, type=type(option.default), default=option.default, help=option.metadata["help"])
    arguments = vars(parser.parse_args(argv))
    output = arguments.pop("output")
    config = CorpusConfig(**arguments)
    files = make(config)
    output.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        write_text(output / name, "\n".join(lines) + "\n", "--output")
    return 0


if __name__ == "__main__":
    with one_line():
        sys.exit(main())
