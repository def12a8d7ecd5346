"""The server: this machine only, own pages only, nothing but its own answers."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys

import pytest

from launch import viewer as command
from vict_jax.viewer.server import open_server


def ask(server, path, method="GET", **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    sent = {"Host": f"127.0.0.1:{server.server_port}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_it_listens_on_the_loopback_address_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_the_page_is_locked_down(server):
    status, headers, body = ask(server, "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert b"default-src &#39;none&#39;" in body or b"default-src 'none'" in body
    assert b"connect-src &#39;self&#39;" in body or b"connect-src 'self'" in body
    assert ask(server, "/", "HEAD")[2] == b""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "[::1]:1", "", None]
)
def test_other_hosts_are_refused(server, host):
    status, _, body = ask(server, "/api/index", Host=host)
    assert status in (400, 403)
    assert b"rows" not in body


def test_localhost_is_this_machine(server):
    assert ask(server, "/api/index", Host=f"localhost:{server.server_port}")[0] == 200


def test_pages_of_other_sites_are_refused(server):
    for site in ("cross-site", "same-site"):
        status, _, body = ask(server, "/api/index", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")
        assert (status, b"rows" in body) == (403, False)
    assert ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200
    assert ask(server, "/api/index", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/../config.json",
        "/api/../../config.json",
        "/%2e%2e/config.json",
        "//config.json",
        "/config.json",
        "/viewer.js",
        "/api/",
        "/api/indexes",
        "http://evil.example/api/index2",
    ],
)
def test_there_is_nothing_else(server, path):
    status, headers, body = ask(server, path)
    assert status == 404
    assert headers["Content-Type"] == "application/json"
    assert "there is nothing at" in json.loads(body)["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(server, method):
    assert ask(server, "/api/index", method)[0] == 501


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("rollout", 400, "update='' must be a number, 0 or more"),
        ("rollout?update=1&group=0&rollout=-1", 400, "rollout='-1'"),
        ("rollout?update=1&group=0&rollout=1e3", 400, "rollout='1e3'"),
        ("rollout?update=1&group=%D9%A1&rollout=1", 400, "must be a number"),
        ("rollout?update=99999999999&group=0&rollout=1", 400, "must be a number"),
        ("rollout?update=7&group=0&rollout=1", 404, "there is no update 7"),
        ("group?update=1&group=9", 404, "there is no rollout 9/0 in update 1"),
        ("search?text=a&update=x", 400, "update='x'"),
    ],
)
def test_wrong_questions_get_a_reason(server, query, status, message):
    found, _, body = ask(server, f"/api/{query}")
    assert found == status
    assert message in json.loads(body)["error"]


def test_answers_are_those_of_the_data(server, viewing):
    for path, value in (
        ("index", viewing.overview()),
        ("rollout?update=2&group=1&rollout=3", viewing.rollout(2, 1, 3)),
        ("group?update=1&group=0", viewing.group(1, 0)),
        ("search?text=lamp", viewing.search("lamp", None)),
    ):
        status, headers, body = ask(server, f"/api/{path}")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == json.loads(json.dumps(value))


def test_a_damaged_run_is_served(logged, tmp_path):
    shutil.copytree(logged[0], tmp_path / "run")
    (tmp_path / "run" / "proofs" / "update_000001.parquet").write_bytes(b"PAR1")
    with open_server(tmp_path / "run", 0) as opened:
        assert opened.viewing.overview()["problems"][0]["file"] == "proofs/update_000001.parquet"


def test_a_port_that_is_taken_or_wrong(server, logged):
    for port in (server.server_port, 70000):
        with pytest.raises(ValueError, match=f"--port={port} cannot be used"):
            open_server(logged[0], port)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workdir=/no/such/folder"], "--workdir=/no/such/folder is not a directory"),
        ([], "--workdir"),
        (["--workdir=.", "--update=3"], "--update has no effect without --export"),
        (["--workdir=.", "--export=a.html", "--port=80"], "--port has no effect with --export"),
    ],
)
def test_wrong_commands(arguments, message, capsys):
    with pytest.raises((ValueError, SystemExit)) as error:
        command.main(arguments)
    assert message in str(error.value) + capsys.readouterr().err


def test_opening_needs_no_jax():
    """A page opens fast because the heavy imports wait for a question that needs them."""
    code = (
        "import sys, launch.viewer, vict_jax.viewer.server;"
        "sys.exit(str([m for m in ('jax', 'torch', 'transformers', 'tensorboardX') if m in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stderr.strip() == "[]"
