"""Values as text for people: numbers, bytes, times, durations. Pure."""

from datetime import UTC, datetime

_THOUSAND = 1_000
_KIB = 1_024
_TEN = 10
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def number(value: float) -> str:
    """Return a whole number with separators: `12,345`."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """Return a number of at most four characters and a unit: `950`, `12.3k`, `4.5M`."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < _THOUSAND or unit == "T":
            break
        value /= _THOUSAND
    decimals = 0 if value == int(value) or abs(value) >= 100 else 1
    return f"{value:.{decimals}f}{unit}"


def size(value: float) -> str:
    """Return bytes with a binary unit: `512 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < _KIB or unit == "TiB":
            break
        value /= _KIB
    return f"{value:.0f} {unit}" if value >= _TEN or unit == "B" else f"{value:.1f} {unit}"


def moment(ms: int) -> str:
    """Return a time in UTC, or a dash for none: `2026-11-24 02:58:01.123`."""
    if ms <= 0:
        return "–"
    try:
        found = datetime.fromtimestamp(ms / _THOUSAND, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return found.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % _THOUSAND:03d}"


def clock_time(ms: int) -> str:
    """Return the time of the day in UTC: `02:58:01`."""
    return datetime.fromtimestamp(ms / _THOUSAND, UTC).strftime("%H:%M:%S")


def span(ms: float) -> str:
    """Return a duration of one unit: `350 µs`, `120 ms`, `3.4 s`, `5 min`, `2 h`, `3 d`."""
    seconds = ms / _THOUSAND
    if 0 < ms < 1:
        return f"{ms * _THOUSAND:.0f} µs"
    if seconds < 1:
        return f"{ms:.0f} ms"
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.0f} h" if seconds < _DAY_S else f"{seconds / _DAY_S:.0f} d"


def counted(value: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 topic`, `1,000 topics`."""
    return f"{number(value)} {noun if value == 1 else plural or noun + 's'}"
