"""Gather the code of this checkout: what git tracks or would track, without runs, caches and .git.

    python -m launch.pack build/launch/x/code.tar.gz      # an archive
    python -m launch.pack build/launch/x/code             # a folder, replaced if it is there

New files that are not ignored come along: a config that was just written is needed too. Without git, or
outside a repository, everything is taken but hidden files and the folders that .gitignore names here.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence

_ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_MB = 256
_NOT_CODE = ("runs", "build", "venv", "__pycache__")


def code_files(root: pathlib.Path) -> list[pathlib.Path]:
    """Files to copy, relative to `root`, sorted.

    Raises:
      ValueError: together they are larger than LIMIT_MB, which code is not.
    """
    found = _of_git(root) if (root / ".git").exists() and shutil.which("git") else _of_folder(root)
    files = sorted(path for path in found if (root / path).is_file())
    sizes = {path: (root / path).stat().st_size for path in files}
    if sum(sizes.values()) > LIMIT_MB * 2**20:
        largest = sorted(files, key=lambda path: -sizes[path])[:3]
        shown = ", ".join(f"{path} ({sizes[path] / 2**20:.0f} MB)" for path in largest)
        raise ValueError(
            f"{root} has more than {LIMIT_MB} MB to copy; add to .gitignore what is not code: {shown}"
        )
    return files


def _of_git(root: pathlib.Path) -> list[pathlib.Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    return [pathlib.Path(name) for name in listed.decode().split("\0") if name]


def _of_folder(root: pathlib.Path) -> list[pathlib.Path]:
    def wanted(path: pathlib.Path) -> bool:
        return not any(
            part.startswith(".") or part in _NOT_CODE or part.endswith(".egg-info") for part in path.parts
        )

    return [path for path in (one.relative_to(root) for one in root.rglob("*")) if wanted(path)]


def write_archive(root: pathlib.Path, files: Sequence[pathlib.Path], out: pathlib.Path) -> None:
    """Write a gzipped tar."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:gz") as archive:
        for path in files:
            archive.add(root / path, arcname=path.as_posix(), recursive=False)


def write_folder(root: pathlib.Path, files: Sequence[pathlib.Path], out: pathlib.Path) -> None:
    """Copy into a folder that holds nothing else afterwards."""
    if out.exists():
        shutil.rmtree(out)
    for path in files:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, out / path)


def main(argv: Sequence[str]) -> None:
    """Write the archive or folder that the only argument names."""
    if len(argv) != 2 or argv[1].startswith("-"):
        sys.exit("error: one argument is needed, the archive (.tar.gz) or folder to write")
    out = pathlib.Path(argv[1])
    try:
        files = code_files(_ROOT)
    except ValueError as error:
        sys.exit(f"error: {error}")
    write = write_archive if out.name.endswith(".tar.gz") else write_folder
    write(_ROOT, files, out)
    print(f"{len(files)} files of {_ROOT} -> {out}")


if __name__ == "__main__":
    main(sys.argv)
