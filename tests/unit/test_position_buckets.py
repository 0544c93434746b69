"""T5's buckets: numbers drawn by hand, whole-number arithmetic for every distance, properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tupe_reference import bucket

from embinit_fairseq.modules.position_bias import relative_position_buckets


def buckets(numbers, **options):
    return relative_position_buckets(torch.tensor(numbers), **options).tolist()


def test_by_hand():
    """32 buckets, 128: 8 near distances each way, 8 far buckets that grow by 16^(1/8) = 1.414, the last from 91 on."""
    assert buckets([0, -1, -2, -3, -4, -5, -6, -7]) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert buckets([1, 2, 3, 4, 5, 6, 7]) == [17, 18, 19, 20, 21, 22, 23]
    assert buckets([-8, -11, -12, -15, -16, -22, -23, -31, -32]) == [8, 8, 9, 9, 10, 10, 11, 11, 12]
    assert buckets([-45, -46, -63, -64, -90, -91, -127, -128, -1000]) == [12, 13, 13, 14, 14, 15, 15, 15, 15]
    assert buckets([8, 11, 12, 64, 90, 91, 127, 128, 1000]) == [24, 24, 25, 30, 30, 31, 31, 31, 31]


def test_every_distance_of_a_long_input_in_whole_numbers():
    distances = range(-1023, 1024)
    assert buckets(distances) == [bucket(r) for r in distances]


def test_no_distance_has_the_bucket_of_theta_1():
    assert set(buckets(range(-2000, 2001))) == set(range(32)) - {16}


def test_without_a_future_all_buckets_serve_the_past():
    """32 buckets for one direction: 16 near distances, then 16 buckets up to 128."""
    distances = range(-1023, 1024)
    found = buckets(distances, bidirectional=False)
    assert found == [bucket(r, bidirectional=False) for r in distances]
    assert buckets([5, 1, 0, -1, -15, -16, -17, -18, -19, -128, -1000], bidirectional=False) == [
        *(0, 0, 0, 1, 15, 16, 16, 16, 17, 31, 31)
    ]


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.integers(2, 500), st.booleans())
def test_any_sizes_stay_in_range_grow_with_distance_and_are_alike_on_both_sides(half, further, bidirectional):
    sizes = {"num_buckets": 2 * half, "max_distance": half + further, "bidirectional": bidirectional}
    past = buckets(range(0, -700, -1), **sizes)
    assert past == sorted(past)
    assert min(past) == 0
    assert max(past) == (half if bidirectional else 2 * half) - 1
    exact = half // 2 if bidirectional else half
    assert past[: exact + 1] == list(range(exact + 1))
    future = buckets(range(1, 700), **sizes)
    assert future == [half + b for b in past[1:]] if bidirectional else set(future) == {0}


@pytest.mark.parametrize("shape", [(), (3, 4), (0,)])
def test_shape_and_type_are_kept(shape):
    result = relative_position_buckets(torch.full(shape, -9))
    assert (result.shape, result.dtype) == (shape, torch.int64)
