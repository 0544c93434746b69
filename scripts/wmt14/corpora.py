"""Describe the training text of a pair of WMT 2014: archives, and the two files of each corpus in them.

TensorFlow Datasets publishes sizes and SHA-256 sums of the archives for the same addresses
(tensorflow_datasets/url_checksums/wmt14_translate.txt, wmt15_translate.txt, wmt17_translate.txt).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """Describe an archive by url, size in bytes and sha256 of its content."""

    url: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """stem: the path of its files in the archive, without the language."""

    archive: str
    stem: str
    suffix: str = ""

    def member(self, lang: str) -> str:
        """Return the path of the file of a language in the archive."""
        return f"{self.stem}.{lang}{self.suffix}"


_WMT = "https://www.statmt.org/"

ARCHIVES = {
    "training-parallel-europarl-v7.tgz": Archive(
        _WMT + "wmt13/training-parallel-europarl-v7.tgz",
        657_632_379,
        "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
    ),
    "training-parallel-commoncrawl.tgz": Archive(
        _WMT + "wmt13/training-parallel-commoncrawl.tgz",
        918_311_367,
        "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
    ),
    "training-parallel-un.tgz": Archive(
        _WMT + "wmt13/training-parallel-un.tgz",
        2_365_634_246,
        "29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
    ),
    "training-parallel-nc-v9.tgz": Archive(
        _WMT + "wmt14/training-parallel-nc-v9.tgz",
        80_418_416,
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
    ),
    "training-parallel-nc-v12.tgz": Archive(
        "https://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
        168_591_139,
        "2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
    ),
    "training-giga-fren.tar": Archive(
        _WMT + "wmt10/training-giga-fren.tar",
        2_595_102_720,
        "3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
    ),
}

#: pair -> name of a corpus -> its place
PAIRS = {
    "en-de": {
        "europarl": Corpus("training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en"),
        "commoncrawl": Corpus("training-parallel-commoncrawl.tgz", "commoncrawl.de-en"),
        "news-v9": Corpus("training-parallel-nc-v9.tgz", "training/news-commentary-v9.de-en"),
        "news-v12": Corpus("training-parallel-nc-v12.tgz", "training/news-commentary-v12.de-en"),
    },
    "en-fr": {
        "europarl": Corpus("training-parallel-europarl-v7.tgz", "training/europarl-v7.fr-en"),
        "commoncrawl": Corpus("training-parallel-commoncrawl.tgz", "commoncrawl.fr-en"),
        "un": Corpus("training-parallel-un.tgz", "un/undoc.2000.fr-en"),
        "news-v9": Corpus("training-parallel-nc-v9.tgz", "training/news-commentary-v9.fr-en"),
        "giga": Corpus("training-giga-fren.tar", "giga-fren.release2.fixed", ".gz"),
    },
}

#: WMT 2014 has all corpora except this one, which fairseq's recipe takes instead of news-v9
_LATER = "news-v12"


def default_corpora(pair: str) -> list[str]:
    """Return the names of the corpora of WMT 2014."""
    return [name for name in PAIRS[pair] if name != _LATER]


#: newstest2014 as it was released after the evaluation: 3,003 sentences, sacrebleu's wmt14/full
TEST_ARCHIVE = "test-full.tgz"


def test_member(pair: str, side: str) -> str:
    """Return the file of newstest2014 in its archive; side: src or ref."""
    source, target = pair.split("-")
    return f"test-full/newstest2014-{target}{source}-{side}.{source if side == 'src' else target}.sgm"
