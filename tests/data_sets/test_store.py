"""Getting a data set: from the cache folder if it is there and right, from its server otherwise."""

import gzip
import hashlib
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from assay import datasets
from assay._core.errors import InputError
from assay.datasets import registry, store
from assay.datasets.registry import Entry

CONTENT = b"m,n\na,1\n"


@pytest.fixture(scope="module")
def server():
    """A server on this machine: `server.serves` maps a path to what it answers; anything else is a 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            httpd.requests += 1
            answer = httpd.serves.get(self.path)
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, *arguments):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.url = f"http://127.0.0.1:{httpd.server_port}"
    httpd.serves, httpd.requests = {}, 0
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()


@pytest.fixture
def register(monkeypatch, tmp_path, server):
    """Put one entry of our own into the registry, with an empty cache folder."""
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server.requests = 0

    def make(**changes) -> Entry:
        values = {
            "name": "toy",
            "title": "A toy",
            "kind": "file",
            "file": "toy/votes.csv",
            "sha256": hashlib.sha256(CONTENT).hexdigest(),
            "size": len(CONTENT),
            "source": "https://example.org/toy",
            "licence": "CC0",
            "citation": "Nobody",
            "description": "One vote.",
            "columns": {"m": "model", "n": "count"},
            "url": f"{server.url}/votes.csv",
        }
        entry = Entry(**{**values, **changes})
        monkeypatch.setattr(registry, "ENTRIES", (entry,))
        return entry

    server.serves = {"/votes.csv": CONTENT}
    return make


def message(call, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


def by_hand(entry: Entry) -> str:
    return (
        f"put the file at {entry.path} (columns m, n; source https://example.org/toy; licence: CC0; "
        f"SHA-256 of its content: {entry.sha256})"
    )


# ----------------------------------------------------------------------------------------------------------- download


def test_a_file_that_is_not_here_is_downloaded(register):
    entry = register()
    assert not entry.cached
    assert datasets.fetch("toy", progress=False) == entry.path
    assert entry.path.read_bytes() == CONTENT
    assert entry.cached


def test_a_file_that_is_here_is_not_downloaded_again(register, server):
    register()
    datasets.fetch("toy", progress=False)
    datasets.fetch("toy", progress=False)
    datasets.get("toy", progress=False)
    datasets.path("toy")
    assert server.requests == 1


def test_the_content_is_converted_before_it_is_checked(register, server):
    server.serves = {"/votes.csv": CONTENT.upper()}
    entry = register(convert=bytes.lower)
    assert datasets.fetch("toy", progress=False).read_bytes() == CONTENT
    assert entry.path.read_bytes() == CONTENT


def test_a_file_for_gz_is_stored_compressed(register):
    entry = register(file="toy/votes.csv.gz")
    assert gzip.decompress(datasets.fetch("toy", progress=False).read_bytes()) == CONTENT
    datasets.path("toy")
    assert entry.cached


def test_progress_is_drawn_for_a_terminal(register, monkeypatch):
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    register()
    datasets.get("toy")
    assert "toy" in sys.stderr.getvalue()


def test_another_content_is_refused_and_not_kept(register, server):
    server.serves = {"/votes.csv": b"m,n\na,2\n"}
    entry = register()
    found = hashlib.sha256(b"m,n\na,2\n").hexdigest()
    assert message(datasets.fetch, "toy", False) == (
        f"what {entry.url} serves is not the data set toy: its content has the SHA-256 {found}; nothing was kept: "
        f"{by_hand(entry)}"
    )
    assert not entry.path.parent.exists()


def test_a_404_says_what_to_put_where(register, server):
    entry = register(url=f"{server.url}/gone.csv")
    assert message(datasets.fetch, "toy", False) == (
        f"toy cannot be downloaded from {server.url}/gone.csv (404 Not Found): {by_hand(entry)}"
    )


def test_no_connection_says_what_to_put_where(register):
    with socket.socket() as unused:  # a port on which nobody listens
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/votes.csv"
        entry = register(url=url)
        assert message(datasets.fetch, "toy", False) == (
            f"toy cannot be downloaded from {url} (no connection): {by_hand(entry)}"
        )


def test_a_server_that_does_not_answer_is_given_up(register, monkeypatch):
    monkeypatch.setattr(store, "TIMEOUT", (0.3, 0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        register(url=f"http://127.0.0.1:{silent.getsockname()[1]}/votes.csv")
        assert "(no answer in time): put the file at" in message(datasets.fetch, "toy", False)


def test_a_server_that_sends_without_end_is_stopped(register, server, monkeypatch):
    monkeypatch.setattr(store, "MAX_DOWNLOAD", 2**20)
    server.serves = {"/votes.csv": bytes(2**21)}
    register()
    assert message(datasets.fetch, "toy", False) == "the server sends more than 1 MiB, which is not the data set"


@pytest.mark.parametrize("served", [b"{", b'[{"model_a": 1}]', b"[1]", b"\xff"])
def test_a_layout_that_has_changed_says_what_to_put_where(register, server, served):
    server.serves = {"/votes.csv": served}
    entry = register(convert=registry.votes_from_json)
    text = message(datasets.fetch, "toy", False)
    assert text == f"{entry.url} no longer serves what toy is made from: {by_hand(entry)}"


def test_a_cache_folder_that_cannot_be_made_is_named(register, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    register()
    text = message(datasets.fetch, "toy", False)
    assert text.startswith(f"the folder {tmp_path / 'cache' / 'toy'} cannot be made (")
    assert text.endswith("set ASSAY_DATA to a folder that can be written to")


# -------------------------------------------------------------------------------------------------------- what is here


def test_without_a_url_the_error_says_what_to_put_where(register):
    entry = register(url=None)
    expected = f"toy cannot be downloaded in one piece: {by_hand(entry)}"
    assert message(datasets.fetch, "toy", False) == expected
    assert message(datasets.get, "toy", False) == expected


def test_a_file_put_there_by_hand_is_used(register):
    entry = register(url=None)
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(CONTENT)
    assert datasets.fetch("toy") == datasets.get("toy") == datasets.path("toy") == entry.path


@pytest.mark.parametrize("level", [1, 9])
def test_how_a_file_is_compressed_does_not_matter(register, level):
    entry = register(file="toy/votes.csv.gz", url=None)
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(gzip.compress(CONTENT, level))
    assert datasets.path("toy") == entry.path


def test_the_path_of_what_is_not_here_says_how_to_get_it_and_uses_no_network(register, server):
    entry = register()
    assert message(datasets.path, "toy") == f"toy is not here: run assay data get toy, or {by_hand(entry)}"
    assert server.requests == 0


def test_the_path_of_what_nobody_serves_does_not_send_to_a_download(register):
    entry = register(url=None)
    assert message(datasets.path, "toy") == f"toy is not here: {by_hand(entry)}"


@pytest.mark.parametrize("call", [datasets.fetch, datasets.get, datasets.path])
def test_a_file_in_the_cache_that_differs_is_refused_and_left_alone(register, server, call):
    entry = register()
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(b"m,n\nb,1\n")
    found = hashlib.sha256(b"m,n\nb,1\n").hexdigest()
    assert message(call, "toy") == (
        f"{entry.path} is not the data set toy: its content has the SHA-256 {found}, expected {entry.sha256}; "
        "move it away and run assay data get toy"
    )
    assert entry.path.read_bytes() == b"m,n\nb,1\n"
    assert server.requests == 0


def test_a_file_that_changes_is_checked_again(register):
    entry = register()
    datasets.fetch("toy", progress=False)
    entry.path.write_bytes(b"m,n\nb,1\n")
    os.utime(entry.path, ns=(1, 1))
    assert "is not the data set toy" in message(datasets.path, "toy")


def test_a_file_that_does_not_change_is_read_once(register, monkeypatch):
    register()
    path = datasets.fetch("toy", progress=False)
    datasets.path("toy")
    monkeypatch.setattr(type(path), "open", None)
    assert datasets.path("toy") == path


def test_a_small_gzip_file_that_unpacks_to_much_is_not_unpacked_whole(register):
    entry = register(file="toy/votes.csv.gz")
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(gzip.compress(bytes(2**28), 1))
    assert "has the SHA-256 of something longer than 8 bytes" in message(datasets.path, "toy")


def test_a_gzip_file_that_was_cut_off_is_refused(register):
    entry = register(file="toy/votes.csv.gz")
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(gzip.compress(CONTENT)[:-9])
    assert message(datasets.path, "toy") == f"{entry.path} is not a whole gzip file; move it away and get it again"


def test_a_package_is_no_file_to_fetch(register):
    register(kind="package", file="no_such_package", requirement="no-such-package==1.0.0")
    assert message(datasets.fetch, "toy") == "toy is a package, not a file: run assay data get toy"


def test_the_path_of_a_package_that_is_not_here_says_how_to_get_it(register):
    register(kind="package", file="no_such_package", requirement="no-such-package==1.0.0")
    assert message(datasets.path, "toy") == "toy is not here: run assay data get toy"


@pytest.mark.parametrize("call", [datasets.fetch, datasets.get, datasets.path])
def test_an_unknown_name_lists_the_known_ones(register, call):
    register()
    assert message(call, "mmlu") == "no data set is named 'mmlu'; there are toy"
