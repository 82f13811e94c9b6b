"""The parts of a page of results, found again."""

import re


def block(page: str, key: str) -> str:
    found = re.search(rf"<!-- {key}:begin -->\n(.*?)\n<!-- {key}:end -->", page, re.S)
    assert found, key
    return found[1]


def rows(page: str, key: str, *cells: str) -> list[list[str]]:
    """The rows of a block that begin with these cells."""
    lines = [line.strip("| ").split(" | ") for line in block(page, key).splitlines() if line.startswith("|")]
    return [line for line in lines if line[: len(cells)] == list(cells)]
