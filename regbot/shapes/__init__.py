"""The fixed smoke models, one TOML file per shape in ``data``."""

from regbot.shapes.shape import Geometry, MeshName, Parallelism, Shape, ShapeError, Variant, load_shape, shape_names

__all__ = ["Geometry", "MeshName", "Parallelism", "Shape", "ShapeError", "Variant", "load_shape", "shape_names"]
