"""The runs behind the paper's tables and our studies. Not part of the wheel."""
