import pytest

from osdp.base.byte_sizes import format_bytes, format_limits, parse_bytes
from osdp.base.numbers import format_rate
from osdp.errors import InvalidProblemError


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("16 GB", 16 * 10**9),
        (" 1.5 mib ", 3 * 2**19),
        ("512B", 512),
        ("0.1KB", 100),
        ("3TiB", 3 * 2**40),
        (8e9, 8 * 10**9),
        (2.9, 2),
        (7, 7),
        (0, 0),
        ("9007199254740993B", 2**53 + 1),  # one more than a float can tell
    ],
)
def test_sizes_are_bytes_rounded_down(written: str | float, size: int) -> None:
    assert parse_bytes(written) == size
    assert type(parse_bytes(written)) is int


@pytest.mark.parametrize(
    "written",
    [
        "8",
        "",
        "GiB",
        "8 potatoes",
        "8Gi",
        "8G",
        "-8GiB",
        "1e3GB",
        "8GiB!",
        "٣GB",
        "9" * 30 + "GB",
        "9" * 99 + "B",
        -1,
        -0.5,
        2**58 + 1,
        "300 PiB",
        float("nan"),
        float("inf"),
        True,
        None,
        [8],
    ],
)
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(InvalidProblemError, match="not a size"):
        parse_bytes(written)  # type: ignore[arg-type]


def test_a_number_in_a_string_needs_its_unit_and_the_error_shows_how() -> None:
    with pytest.raises(InvalidProblemError, match="8GiB"):
        parse_bytes("8")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (8 * 2**30, "8.00 GiB"),
        (2**30 - 1, "1.00 GiB"),
        (1536, "1.50 KiB"),
        (123 * 2**20, "123 MiB"),
        (10235, "10.0 KiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_throughput_has_no_exponent() -> None:
    assert [format_rate(x) for x in (0.5, 441.53, 1234.5, 52104.2)] == ["0.5", "441.5", "1,234", "52,104"]


@pytest.mark.parametrize(
    "least", [8 * 2**30, 8 * 2**30 + 1, 2**30 + 2**22, 999 * 2**20 + 2**19, 10**12, 1000]
)
def test_the_smallest_limit_can_be_typed_from_its_message(least: int) -> None:
    asked, fits = format_limits(least - 1, least)
    assert asked != fits
    assert parse_bytes(fits.replace(",", "").replace("bytes", "B")) >= least
