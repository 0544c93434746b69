"""Find documents that are nearly the same as another one, by datatrove's MinHash (14 buckets of 8 hashes of 5-grams).

Two documents are candidates if all hashes of one bucket are equal: with a share s of common 5-grams that happens with a
probability of 1 - (1 - s^8)^14, so 77 % for s = 0.75 and 99.96 % for s = 0.9. Of a cluster one document is kept.
datatrove clusters in one process, which holds the candidates in memory.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from shards.tasks import Step, Task, once
from wikibooks.duplicates import read_documents
from wikibooks.split import shard_records

from embinit_fairseq.io import write_text


def _config():
    """Return datatrove's configuration with a hash of the standard library: its default breaks with xxhash 4."""
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.utils.hashing import HashConfig

    return MinhashConfig(hash_config=HashConfig(hash_fc="sha1"))


def steps(work: Path) -> list[Step]:
    """Return the steps that find near duplicates."""
    clusters = work / "near" / "clustered"
    return [
        Step("signatures", partial(_signature_tasks, work)),
        Step("compare signatures", partial(_bucket_tasks, work)),
        once("clusters", clusters, write_clusters, work, clusters),
    ]


def _signature_tasks(work: Path) -> list[Task]:
    folder = work / "near" / "signed"
    tasks = []
    for shard, record in enumerate(shard_records(work)):
        done = folder / f"{shard:05}"
        tasks.append(Task(done, write_signatures, (work, shard, Path(record["text"]), done), record["bytes"]))
    return tasks


def write_signatures(work: Path, shard: int, text: Path, done: Path) -> None:
    """Write the signatures of the documents of a shard into near/signatures, and then the file `done`."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup import MinhashDedupSignature

    documents = (
        Document(b"\n".join(lines).decode("utf-8", "ignore"), str(number))
        for number, lines in enumerate(read_documents(text))
    )
    MinhashDedupSignature(str(work / "near" / "signatures"), _config()).run(documents, shard)
    write_text(done, "")


def _bucket_tasks(work: Path) -> list[Task]:
    buckets = _config().num_buckets
    outputs = [work / "near" / "compared" / f"{bucket:03}" for bucket in range(buckets)]
    return [Task(done, compare, (work, bucket, buckets, done)) for bucket, done in enumerate(outputs)]


def compare(work: Path, bucket: int, buckets: int, done: Path) -> None:
    """Write the candidates of one bucket into near/candidates, and then the file `done`."""
    from datatrove.pipeline.dedup import MinhashDedupBuckets

    folders = [str(work / "near" / name) for name in ("signatures", "candidates")]
    list(MinhashDedupBuckets(*folders, config=_config()).run(None, bucket, buckets) or ())
    write_text(done, "")


def write_clusters(work: Path, done: Path) -> None:
    """Write the documents to leave out into near/removed, and then the file `done`."""
    from datatrove.pipeline.dedup import MinhashDedupCluster

    folders = [str(work / "near" / name) for name in ("candidates", "removed")]
    MinhashDedupCluster(*folders, config=_config()).run()
    write_text(done, "")


def near_duplicates(work: Path, shard: int) -> set[int]:
    """Return the numbers of the documents of a shard to leave out."""
    path = work / "near" / "removed" / f"{shard:06}.remove"
    return set(np.fromfile(path, dtype="<u4").tolist()) if path.exists() else set()
