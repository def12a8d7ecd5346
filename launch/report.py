"""Write the report on a run, or on several: seeds of one config become a band, others a comparison.

    python -m launch.report --workdir=runs/quickstart
    python -m launch.report --workdir=runs/vict --workdir=runs/grpo --out=comparison.html

The page is one file that asks for nothing outside itself. A run writes its own at its end; one that is still
going, or was killed, is reported as far as it is. See docs/report.md.
"""

from __future__ import annotations

import pathlib

from absl import flags

from launch import cli
from vict_jax.report.build import write_report

_WORKDIR = flags.DEFINE_multi_string("workdir", [], "directory of a run; may be given several times")
_OUT = flags.DEFINE_string("out", None, "the file to write; report.html in the first directory if left out")


def main() -> None:
    """Write the page and say where it is."""
    out = None if _OUT.value is None else pathlib.Path(_OUT.value)
    print(f"written to {write_report([pathlib.Path(path) for path in _WORKDIR.value], out)}")


if __name__ == "__main__":
    cli.run(main)
