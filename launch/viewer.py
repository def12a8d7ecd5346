"""See which step of which rollout got what advantage, and on what evidence.

    python -m launch.viewer --workdir=runs/quickstart                   # a page on this machine only
    python -m launch.viewer --workdir=runs/quickstart --export=credit.html --update=80

Opens on a free port unless --port names one. --export writes one page that works offline, with the updates
(--update, more than once) and groups (--group) that are named; of a long run it holds what fits --export_mb.
Nothing is written to the run.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import sys
import threading
from collections.abc import Sequence


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m launch.viewer", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workdir", type=pathlib.Path, required=True, help="directory of a run")
    parser.add_argument("--port", type=int, default=0, help="to serve on; any free one if left out")
    parser.add_argument("--export", type=pathlib.Path, metavar="FILE", help="write one offline page instead")
    parser.add_argument(
        "--update", type=int, action="append", metavar="U", help="with --export: which updates"
    )
    parser.add_argument("--group", type=int, action="append", metavar="G", help="with --export: which groups")
    parser.add_argument("--methods", default="grpo,gigpo", help="with --export: compared with the logged one")
    parser.add_argument(
        "--export_mb", type=float, default=20.0, help="with --export: the largest page, in MB"
    )
    args = parser.parse_args(argv)
    for name in ("update", "group", "methods", "export_mb"):
        if args.export is None and vars(args)[name] != parser.get_default(name):
            parser.error(f"--{name} has no effect without --export; leave it out")
    if args.export is not None and args.port:
        parser.error("--port has no effect with --export; leave it out")
    return args


def serve(workdir: pathlib.Path, port: int) -> None:
    """Serve until Ctrl-C or a request to terminate, which ends the process that computes methods as well."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from vict_jax.viewer.server import open_server

    with open_server(workdir, port) as server:
        # The log is read while the browser opens the page.
        threading.Thread(target=server.viewing.overview, daemon=True).start()
        print(f"credit viewer of {workdir}: {server.url}\n(on this machine only; Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        finally:
            server.viewing.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Command line.

    Raises:
      ValueError: there is no such directory, port, update or method.
    """
    args = parse_args(argv)
    if not args.workdir.is_dir():
        raise ValueError(f"--workdir={args.workdir} is not a directory")
    if args.export is None:
        serve(args.workdir, args.port)
        return
    from vict_jax.viewer.export import export

    methods = tuple(name.strip() for name in args.methods.split(",") if name.strip())
    print(
        export(
            args.workdir,
            args.export,
            updates=args.update,
            groups=args.group,
            methods=methods,
            most_bytes=int(args.export_mb * 1e6),
        )
    )


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
