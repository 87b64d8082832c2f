"""The fixed models that are traced and timed. The folder ``data`` has one TOML file per shape."""

from regbot.shapes.shape import MeshName, OwnMesh, Parallelism, Shape, ShapeError, Variant, load_shape, shape_names

__all__ = ["MeshName", "OwnMesh", "Parallelism", "Shape", "ShapeError", "Variant", "load_shape", "shape_names"]
