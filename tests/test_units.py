"""Sizes, rates and times in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenlife import units


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("0", 0), ("4096", 4096), ("1 kB", 1000), ("1KB", 1000), ("4MiB", 4 << 20), ("1e6", 10**6),
     ("1.5GiB", 3 << 29), ("2TB", 2 * 10**12), ("7B", 7), ("1Gi", 1 << 30)],
)  # fmt: skip
def test_sizes(text, bytes_):
    assert units.parse_bytes(text) == bytes_


@pytest.mark.parametrize(
    "text", ["", "B", "-1", "4 MQ", "0.5", "1.0000001kB", "4MiBB", "nan", "1e99999"]
)
def test_sizes_that_are_none(text):
    with pytest.raises(units.UnitError):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("400Gbps", 4e11), ("100mbit", 1e8), ("10 Gbit/s", 1e10), ("9600", 9600.0), ("5kbps", 5e3),
     ("1Tb/s", 1e12), ("7bps", 7.0)],
)  # fmt: skip
def test_rates(text, rate):
    assert units.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["fast", "1GB", "1GBps", "10G", "-1bps"])
def test_rates_that_are_none(text):
    with pytest.raises(units.UnitError, match="rate"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("text", "time_s"), [("2us", 2e-6), ("2µs", 2e-6), ("20ms", 0.02), ("3", 3.0), ("5ns", 5e-9)]
)
def test_times(text, time_s):
    assert units.parse_time(text) == time_s


@given(st.integers(0, 10**18))
def test_a_written_size_is_close_to_what_it_was(bytes_):
    written = units.format_bytes(bytes_, digits=6).replace(",", "")
    number, unit = written.split()
    scaled = units.parse_bytes(f"{round(float(number) * 10**6)}{unit}")
    assert scaled == pytest.approx(10**6 * bytes_, rel=1e-5)


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_written_sizes(bytes_, text):
    assert units.format_bytes(bytes_) == text
