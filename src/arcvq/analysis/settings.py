"""Which resolved settings differ between runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from arcvq.analysis.history import RunHistory

ABSENT = "—"
PRESENT = "present"  # a section, where another run has none


def differing_settings(runs: Sequence[RunHistory]) -> list[tuple[str, list[str]]]:
    """Rows of (dotted key, the value in each run) for every setting that is not the same in all runs."""
    flat = [flatten_settings(run.config) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)  # unlike a set, keeps the order
    rows = [(key, [_value(settings, key) for settings in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _value(settings: Mapping[str, str], key: str) -> str:
    """The value of a dotted key in flat settings, or whether it names a section of them."""
    section = any(each.startswith(f"{key}.") for each in settings)
    return settings.get(key, PRESENT if section else ABSENT)


def flatten_settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys with printable values; lists count as one value."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten_settings(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = "none" if value is None else str(value)
    return flat
