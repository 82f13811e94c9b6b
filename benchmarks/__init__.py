"""Speed and memory, measured. Not part of the wheel."""
