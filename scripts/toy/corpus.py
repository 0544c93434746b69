"""Write the toy corpus: parallel train, valid and test text and a larger monolingual text of each language.

Run as `PYTHONPATH=scripts:. python -m toy.corpus --output DIR`. Two runs with the same options write the same bytes.
Some words are rare in the parallel training text (at most `--rare-limit` sentences each) and as frequent as all others
in the monolingual, validation and test text: the situation in which pre-trained vectors are said to help.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from toy import english, german, lexicon
from toy.lexicon import Adjective, Noun, Verb
from toy.sampler import Sampler
from toy.syntax import Sentence

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line
from embinit_fairseq.io import write_text

Pair = tuple[str, str]


@dataclass(frozen=True)
class CorpusConfig:
    """Hold sizes in sentences; every text has its own seed, derived from `seed`."""

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
    """Return the nouns, adjectives and verbs of a derivation, as "noun:Hund"."""
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
    """Draw the same share of each part of speech, once per seed."""
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
    """Yield endless sentences; each part has its own sequence."""
    sampler = Sampler(random.Random(f"{part}|{seed}").getrandbits(64))
    while True:
        yield sampler.sentence()


def training_pairs(config: CorpusConfig) -> Iterator[Pair]:
    """Yield endless pairs with distinct sources; no rare word is in more than `rare_limit` of them."""
    rare, seen, uses = rare_lexemes(config), set(), Counter()
    for sentence in _draw(config.seed, "train"):
        used = lexemes(sentence) & rare
        source, target = pair(sentence)
        if source not in seen and all(uses[word] < config.rare_limit for word in used):
            seen.add(source)
            uses.update(used)
            yield source, target


def held_out_pairs(config: CorpusConfig, part: str, earlier_pairs: list[Pair]) -> Iterator[Pair]:
    """Yield endless distinct pairs, neither side of which is in `earlier_pairs`."""
    sources, targets = {source for source, _ in earlier_pairs}, {target for _, target in earlier_pairs}
    for sentence in _draw(config.seed, part):
        source, target = pair(sentence)
        if source not in sources and target not in targets:
            sources.add(source)
            targets.add(target)
            yield source, target


def monolingual(config: CorpusConfig, side: int, held_out: list[Pair]) -> Iterator[str]:
    """Yield endless sentences of one language (side 0 German, 1 English) that are not in `held_out`."""
    excluded, linearize = {sentences[side] for sentences in held_out}, (german, english)[side].tokens
    lines = (" ".join(linearize(sentence)) for sentence in _draw(config.seed, f"monolingual {side}"))
    return (line for line in lines if line not in excluded)


def make(config: CorpusConfig) -> dict[str, list[str]]:
    """Return file name -> lines."""
    train = list(islice(training_pairs(config), config.train))
    valid = list(islice(held_out_pairs(config, "valid", train), config.valid))
    test = list(islice(held_out_pairs(config, "test", train + valid), config.test))
    files = {}
    for side, language in enumerate(("de", "en")):
        for part, pairs in (("train", train), ("valid", valid), ("test", test)):
            files[f"{part}.{language}"] = [sentences[side] for sentences in pairs]
        files[f"mono.{language}"] = list(islice(monolingual(config, side, valid + test), config.monolingual))
    return files


def main() -> None:
    """Write the files of the corpus."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for train.de ... mono.en")
    for option in dataclasses.fields(CorpusConfig):
        flag = "--" + option.name.replace("_", "-")
        parser.add_argument(flag, type=type(option.default), default=option.default, help=option.metadata["help"])
    options = vars(parser.parse_args())
    output = options.pop("output")
    output.mkdir(parents=True, exist_ok=True)
    for name, lines in make(CorpusConfig(**options)).items():
        write_text(output / name, "\n".join(lines) + "\n", "--output")


if __name__ == "__main__":
    with one_line():
        main()
