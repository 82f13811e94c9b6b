"""What the diagnosis says of a run."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One symptom, with the numbers that show it and a remedy in one line."""

    symptom: str
    severity: Severity
    evidence: str
    remedy: str
