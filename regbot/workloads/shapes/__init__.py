"""The fixed models that are traced and timed. The folder ``data`` has one TOML file per shape."""

from regbot.workloads.shapes.shape import Shape, ShapeError, Variant, load_shape, shape_names

__all__ = ["Shape", "ShapeError", "Variant", "load_shape", "shape_names"]
