"""Rates, shares of the peak and hours: plain arithmetic, stated again."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embinit_fairseq.bench.report import estimate, quartiles, relative, throughput, vendor_peak

POSITIVE = st.floats(1e-3, 1e6)


@given(st.lists(POSITIVE, min_size=2, max_size=20))
def test_quartiles_are_those_of_the_inclusive_method(values):
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    assert quartiles(values) == pytest.approx({"q1": q1, "median": median, "q3": q3})


def test_rates_are_those_of_the_median_step():
    rates = throughput([1.0, 2.0, 9.0], tokens=100, flops=600, peak=1000)
    assert rates == {
        "tokens_per_second": 50,
        "flops_per_token": 6,
        "flops_per_second": 300,
        "share_of_peak": pytest.approx(0.3),
    }


def test_the_share_of_the_peak_can_be_by_another_clock():
    rates = throughput([2.0], tokens=100, flops=600, peak=1000, busy=[1.0])
    assert (rates["flops_per_second"], rates["share_of_peak"]) == (300, pytest.approx(0.6))


def test_without_flops_or_peak_there_is_no_share():
    uncounted = throughput([2.0], tokens=100, flops=None, peak=1000)
    assert [uncounted[key] for key in ("flops_per_token", "flops_per_second", "share_of_peak")] == [None] * 3
    assert throughput([2.0], tokens=100, flops=600, peak=None)["share_of_peak"] is None


@given(st.integers(1, 10**6), st.integers(1, 10**6), POSITIVE, st.integers(1, 64), st.floats(0.1, 1.0))
def test_hours(updates, per_update, rate, devices, scaling):
    found = estimate(updates, per_update, rate, devices, scaling)
    seconds = sum([updates * per_update]) / rate / devices / scaling
    assert found["hours"] == pytest.approx(seconds / 60 / 60)
    assert found["device_hours"] == pytest.approx(found["hours"] * devices)


def test_peaks_are_those_of_data_sheets_and_others_are_not_guessed():
    peaks = {("NVIDIA H200", "bf16"): 989, ("NVIDIA H100 PCIe", "amp"): 756, ("NVIDIA A100-SXM4-80GB", "fp32"): 19.5}
    peaks |= {("NVIDIA A10", "bf16"): 125, ("NVIDIA L4", "fp16"): 121, ("Tesla V100-SXM2-32GB", "fp16"): 125}
    assert {key: vendor_peak(*key) / 1e12 for key in peaks} == peaks
    unknown = [
        ("Tesla V100-SXM2-32GB", "bf16"),
        ("Tesla T4", "bf16"),
        ("NVIDIA A1000", "fp16"),
        ("NVIDIA A10G", "fp16"),
    ]
    assert [vendor_peak(*key) for key in unknown] == [None] * len(unknown)


def test_times_are_relative_to_the_first():
    assert relative({"b": 2.0, "a": 3.0}) == {"b": 1.0, "a": 1.5}
