"""One logged run, one server, for all tests of the viewer."""

from __future__ import annotations

import pathlib
import threading

import pytest

from tests.audit.logged import Update
from tests.viewer.planted import log_run
from vict_jax.viewer.server import Server, open_server
from vict_jax.viewer.viewing import Viewing


@pytest.fixture(scope="session")
def logged(tmp_path_factory) -> tuple[pathlib.Path, dict[int, Update]]:
    """The run directory, and what was written to it."""
    workdir = tmp_path_factory.mktemp("viewer") / "run"
    return workdir, log_run(workdir)


@pytest.fixture(scope="session")
def server(logged) -> Server:
    """A server of the run, and the one process that computes methods for all tests."""
    with open_server(logged[0], 0) as opened:
        thread = threading.Thread(target=opened.serve_forever)
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()
        opened.viewing.close()


@pytest.fixture
def viewing(server) -> Viewing:
    return server.viewing
