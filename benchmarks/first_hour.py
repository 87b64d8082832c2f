"""The first hour on a GPU: everything of regbot that needs a GPU, in stages of at most six minutes.

    python benchmarks/first_hour.py STAGE... [--out first-hour]      on the node; STAGE may be "all" (20 minutes)
    python benchmarks/first_hour.py report [--out first-hour] [--fixtures tests/gpu]     on any machine with regbot

The launches need the standard library, the torch that is installed, and no network. They write their records to one
folder. The report reads this folder on any machine, with regbot and the same version of torch. It prints one table of
expected and seen values for each stage, and writes what is worth keeping to ``--fixtures``. Where regbot is installed,
a stage prints its table at its end.

``--size cpu --device cpu`` rehearses the stages on a machine without a GPU.
Each stage's module explains what it expects.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from gpu_hour.launcher import Settings
from gpu_hour.stages import ONE_GPU, STAGES, run_stage


def main(arguments: list[str] | None = None) -> int:
    """Run the stages or the report. Return the exit code: 0, or 1 if a table has a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="+", choices=[*STAGES, "all", "report"], metavar="STAGE")
    parser.add_argument("--out", type=Path, default=Path("first-hour"))
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--size", choices=("smoke", "cpu"), default="smoke", help="size of the shapes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of the node, for the stage 'multi'")
    parser.add_argument("--fixtures", type=Path, help="folder for the small files that tests read, such as tests/gpu")
    options = parser.parse_args(arguments)
    settings = Settings(options.out.resolve(), options.python, options.size, options.device, options.gpus)
    if options.stages == ["report"]:
        return report(settings.out, [name for name in STAGES if (settings.out / name).is_dir()], options.fixtures)
    names = ONE_GPU if "all" in options.stages else options.stages
    for name in names:
        print(f"{name}: {STAGES[name].title}", flush=True)
        run_stage(name, settings)
        if find_spec("regbot") is not None:
            report(settings.out, [name], None)
    if find_spec("regbot") is None:
        print(f"copy {settings.out} to a machine with regbot, and run 'first_hour.py report --out ...' there")
    return 0


def report(out: Path, names: list[str], fixtures: Path | None) -> int:
    from gpu_hour.tables import print_tables

    return print_tables(out, names, fixtures)


if __name__ == "__main__":
    sys.exit(main())
