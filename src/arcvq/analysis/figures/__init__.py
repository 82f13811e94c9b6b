"""The figures. Each is a function of run histories that returns a matplotlib Figure; none runs a model."""
