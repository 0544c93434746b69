"""What stands for fairseq's compiled parts gives what they give, or raises where they raise."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
pytest.importorskip("torch")
compiled = pytest.importorskip("fairseq.data.data_utils_fast")
import fairseq.libnat  # noqa: E402
from fairseq import libbleu  # noqa: E402
from fairseq.data import token_block_utils_fast as compiled_blocks  # noqa: E402
from fairseq.scoring.bleu import BleuStat  # noqa: E402
from fairseq_compat.pure import data_utils_fast as pure  # noqa: E402
from fairseq_compat.pure import libnat  # noqa: E402
from fairseq_compat.pure import token_block_utils_fast as pure_blocks  # noqa: E402
from fairseq_compat.pure.libbleu import LIBRARY  # noqa: E402

needs_compiled = pytest.mark.skipif(compiled.__file__.endswith(".py"), reason="this fairseq was not compiled")
SIZES = st.lists(st.integers(0, 9), max_size=30)
MORE = settings(deadline=None, max_examples=200)


def result(function, *arguments):
    """What it returns, as lists; None if it raises."""
    try:
        returned = function(*arguments)
    except Exception:
        return None
    return [np.asarray(part).tolist() for part in returned]


@needs_compiled
@given(SIZES, st.integers(-1, 40), st.integers(-1, 6), st.integers(1, 5), st.randoms())
@MORE
def test_batches_by_size(sizes, max_tokens, max_sentences, multiple, random) -> None:
    order = list(range(len(sizes)))
    random.shuffle(order)
    indices, lengths = np.array(order, dtype=np.int64), np.array(sizes, dtype=np.int64)
    by_length = lengths[indices] if sizes else lengths
    for name, second in (("batch_by_size_vec", by_length), ("batch_by_size_fn", sizes.__getitem__)):
        ours, theirs = (
            result(getattr(module, name), indices, second, max_tokens, max_sentences, multiple)
            for module in (pure, compiled)
        )
        assert ours == theirs


@needs_compiled
@given(SIZES, st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=4))
@MORE
def test_batches_of_fixed_shapes(sizes, shapes) -> None:
    """The last shape takes any sentence, as where fairseq calls it."""
    shapes = np.array([*sorted(shapes), (max(shapes)[0], 9)], dtype=np.int64)
    indices = np.arange(len(sizes), dtype=np.int64)
    ours, theirs = (
        result(module.batch_fixed_shapes_fast, indices, sizes.__getitem__, shapes) for module in (pure, compiled)
    )
    assert ours == theirs


@needs_compiled
@given(
    SIZES,
    st.sampled_from([None, "none", "complete", "complete_doc", "eos", "other"]),
    st.integers(1, 12),
    st.integers(0, 3),
)
@MORE
def test_blocks_of_tokens(sizes, mode, block_size, separator) -> None:
    lengths = np.array(sizes, dtype=np.int64)
    both = pure_blocks, compiled_blocks
    cuts = [result(module._get_slice_indices_fast, lengths, mode, block_size, separator) for module in both]
    assert cuts[0] == cuts[1]
    if cuts[0]:
        slices = np.array(cuts[0], dtype=np.int64)
        ours, theirs = (result(module._get_block_to_dataset_index_fast, lengths, slices) for module in both)
        assert ours == theirs


ANY = st.lists(st.integers(1, 6), max_size=6)  # 1: padding, 2: the end of a sentence
WORDS = st.builds(lambda before, word, after: [*before, word, *after], ANY, st.integers(2, 6), ANY)


@needs_compiled
@given(st.lists(st.tuples(WORDS, WORDS), max_size=3), st.booleans())
@MORE
def test_counts_of_ngrams(texts, smooth) -> None:
    """libbleu reads beyond a text that has nothing but padding: see the fix empty_hypotheses."""
    counts = []
    for library in (LIBRARY, ctypes.cdll.LoadLibrary(libbleu.__file__)):
        stat = BleuStat(reflen=9, match1=9)
        (library.bleu_one_init if smooth else library.bleu_zero_init)(ctypes.byref(stat))
        for pair in texts:
            arrays = [np.array(text, dtype=np.int32) for text in pair]
            sized = [part for a in arrays for part in (ctypes.c_size_t(a.size), ctypes.c_void_p(a.ctypes.data))]
            library.bleu_add(ctypes.byref(stat), *sized, ctypes.c_int(1), ctypes.c_int(2))
        counts.append([getattr(stat, name) for name, _ in stat._fields_])
    assert counts[0] == counts[1]


def common_length(x, y) -> int:
    """Of the longest common subsequence, by its definition."""
    if not x or not y:
        return 0
    if x[-1] == y[-1]:
        return 1 + common_length(x[:-1], y[:-1])
    return max(common_length(x[:-1], y), common_length(x, y[:-1]))


@given(*[st.lists(st.integers(4, 7), max_size=6)] * 2)
@MORE
def test_edits_make_one_sentence_of_the_other_with_as_few_as_there_can_be(x, y) -> None:
    (cells,) = libnat.suggested_ed2_path([x], [y], 1)
    (mixed,) = libnat.suggested_ed2_path_with_delete([x], [y], 1, 2)
    *inserted, deleted = cells
    inserted = [[token for token in cell if token != 1] for cell in inserted]
    deleted = deleted if x else []
    kept = [[] if gone else [token] for gone, token in zip(deleted, x)]
    assert [token for pair in zip(inserted, [*kept, []]) for cell in pair for token in cell] == y
    fewest = len(x) + len(y) - 2 * common_length(x, y)
    assert libnat.compute_ed2([x], [y]) == [sum(map(len, inserted)) + sum(deleted)] == [fewest]
    assert [cell.count(2) for cell in mixed] == [*deleted, 0]
    if fairseq.libnat.__file__.endswith(".so") and x:
        assert fairseq.libnat.suggested_ed2_path([x], [y], 1) == [cells]


def test_of_equal_ways_to_edit_the_compiled_one_is_taken() -> None:
    """What fairseq's own libnat says, where it was not compiled."""
    pairs = [[4, 5], [], []], [[5, 4], [4], []]
    assert libnat.suggested_ed2_path(*pairs, 1) == [[[1], [1], [4], [1, 0]], [[4], []], [[], []]]
    assert libnat.suggested_ed2_path_with_delete([[4]], [[5]], 1, 2) == [[[2], [5]]]
