"""What the project relies on in fairseq itself: dictionaries, iterators, token blocks.

fairseq's source distribution carries no unit tests; these show on the installed versions of Python, torch and numpy
that its parts still do what their documentation says.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("fairseq")

from fairseq.data import Dictionary, TokenBlockDataset, iterators  # noqa: E402
from fairseq.data.list_dataset import ListDataset  # noqa: E402

WORDS = st.lists(st.text("abcdeäß日", min_size=1, max_size=4), max_size=30)
LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=12)


def filled(words: list[str]) -> Dictionary:
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    return dictionary


# --- dictionaries


@given(words=WORDS)
@settings(deadline=None, max_examples=30)
def test_encoded_line_decodes_to_itself(words: list[str]) -> None:
    dictionary = filled(words)
    ids = dictionary.encode_line(" ".join(words), add_if_not_exist=False)
    assert ids.tolist() == [dictionary.index(word) for word in words] + [dictionary.eos()]
    assert dictionary.string(ids) == " ".join(words)


@given(words=WORDS)
@settings(deadline=None, max_examples=30)
def test_saved_dictionary_loads_sorted_by_count(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    dictionary = filled(words)
    dictionary.finalize(padding_factor=1)
    path = tmp_path_factory.mktemp("dictionary") / "dict.txt"
    dictionary.save(str(path))
    loaded = Dictionary.load(str(path))
    assert loaded == dictionary
    counts = [loaded.count[row] for row in range(loaded.nspecial, len(loaded))]
    assert counts == sorted(Counter(words).values(), reverse=True)


def test_dictionary_threshold_limit_and_padding() -> None:
    dictionary = filled(["a"] * 3 + ["b"] * 2 + ["c"])
    dictionary.finalize(threshold=2, padding_factor=8)
    assert [dictionary[row] for row in range(4, 8)] == ["a", "b", "madeupword0000", "madeupword0001"]
    assert dictionary.index("c") == dictionary.unk()


def test_dictionary_file_with_a_duplicate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 3\na 2\n")
    with pytest.raises(RuntimeError, match="Duplicate word"):
        Dictionary.load(str(tmp_path / "dict.txt"))
    (tmp_path / "dict.txt").write_text("a 3\n<unk> 2 #fairseq:overwrite\n")
    assert Dictionary.load(str(tmp_path / "dict.txt")).index("<unk>") == 5


# --- iterators


@given(total=st.integers(1, 20), size=st.integers(1, 5))
def test_groups_hold_all_elements_in_order(total: int, size: int) -> None:
    groups = iterators.GroupedIterator(iterators.CountingIterator(range(total)), size)
    assert len(groups) == -(-total // size)
    assert list(groups) == [list(range(start, min(start + size, total))) for start in range(0, total, size)]


@given(total=st.integers(0, 20), shards=st.integers(1, 5))
def test_shards_have_one_length_and_all_elements(total: int, shards: int) -> None:
    parts = [list(iterators.ShardedIterator(range(total), shards, rank, fill_value=-1)) for rank in range(shards)]
    assert {len(part) for part in parts} == {-(-total // shards)}
    assert sorted(element for part in parts for element in part if element != -1) == list(range(total))


def epoch_iterator(seed: int = 1, **options) -> iterators.EpochBatchIterator:
    data = ListDataset([torch.tensor([number]) for number in range(12)])
    batches = [[2 * number, 2 * number + 1] for number in range(6)]
    return iterators.EpochBatchIterator(
        data, collate_fn=lambda items: torch.cat(items).tolist(), batch_sampler=batches, seed=seed, **options
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_epoch_iterator_resumes_in_the_middle(workers: int) -> None:
    whole = list(epoch_iterator().next_epoch_itr(shuffle=True))
    first = epoch_iterator()
    started = first.next_epoch_itr(shuffle=True)
    seen = [next(started) for _ in range(2)]
    second = epoch_iterator(num_workers=workers)
    second.load_state_dict(first.state_dict())
    assert (second.epoch, second.iterations_in_epoch) == (1, 2)
    assert seen + list(second.next_epoch_itr(shuffle=True)) == whole
    assert sorted(number for batch in whole for number in batch) == list(range(12))


def test_order_of_an_epoch_depends_on_seed_and_epoch_only() -> None:
    first, again, other = epoch_iterator(), epoch_iterator(), epoch_iterator(seed=2)
    orders = [[list(iterator.next_epoch_itr(shuffle=True)) for _ in range(2)] for iterator in (first, again, other)]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    assert orders[0][0] != orders[2][0]


# --- token blocks


def blocks(lengths: list[int], size: int | None, mode: str, **options) -> tuple[list[list[int]], list[list[int]]]:
    """The sentences (numbered tokens, each ended by 2) and the blocks that fairseq makes of them."""
    numbers = iter(range(10, 1000))
    sentences = [[*(next(numbers) for _ in range(length - 1)), 2] for length in lengths]
    data = [torch.tensor(sentence) for sentence in sentences]
    made = TokenBlockDataset(data, lengths, size, pad=1, eos=2, break_mode=mode, **options)
    assert [len(block) for block in made] == list(made.sizes)
    return sentences, [block.tolist() for block in made]


@given(lengths=LENGTHS, size=st.integers(7, 15))
@settings(deadline=None, max_examples=30)
def test_blocks_cut_the_stream_or_hold_whole_sentences(lengths: list[int], size: int) -> None:
    sentences, made = blocks(lengths, size, "none")
    stream = [token for sentence in sentences for token in sentence]
    assert made == [stream[start : start + size] for start in range(0, len(stream), size)]
    assert blocks(lengths, None, "eos") == (sentences, sentences)
    sentences, made = blocks(lengths, size, "complete")
    expected: list[list[int]] = []
    for sentence in sentences:
        if expected and len(expected[-1]) + len(sentence) <= size:
            expected[-1] = expected[-1] + sentence
        else:
            expected.append(sentence)
    assert made == expected


def test_targets_are_shifted_by_one() -> None:
    data = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]
    made = TokenBlockDataset(data, [3, 2], None, pad=1, eos=2, break_mode="eos", include_targets=True)
    source, future, past = made[1]
    assert (source.tolist(), future.tolist(), past.tolist()) == ([2, 7], [7, 2], [1, 2])


def test_numpy_seed_of_the_masking_restores_the_global_state() -> None:
    from fairseq.data import data_utils

    state = np.random.get_state()[1].tolist()
    draws = []
    for _ in range(2):
        with data_utils.numpy_seed(1, 2, 3):
            draws.append(np.random.random())
        assert np.random.get_state()[1].tolist() == state
    assert draws[0] == draws[1]
