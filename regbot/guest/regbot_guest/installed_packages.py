"""Which packages this interpreter has: ``python <guest folder> --packages NAME=MODULE ...`` prints one line of JSON. No
package is imported, except a parent package such as ``megatron`` of ``megatron.core``.
"""

import importlib.util
import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata


def main(pairs: Sequence[str]) -> int:
    """Print the versions. '' means that no package NAME is installed, but MODULE can be imported."""
    versions: dict[str, str] = {}
    for pair in pairs:
        name, _, module = pair.partition("=")
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            with suppress(ImportError, AttributeError, ValueError):  # a parent package is missing or broken
                if importlib.util.find_spec(module) is not None:
                    versions[name] = ""
    print(json.dumps({"python": platform.python_version(), "versions": versions}))
    return 0
