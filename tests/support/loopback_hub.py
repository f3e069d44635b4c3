"""A hub on this machine that the real ``huggingface_hub`` talks to, and a log of what it asks.

Run as a program it serves folders until its standard input closes, and prints its port first:
``python loopback_hub.py LOG ORG/NAME=FOLDER ... [--break-after BYTES]``. The log has a JSON line a
request: method, path, status, range, bytes sent. No repository of ``gated`` lets
anybody in.
"""

import argparse
import functools
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

COMMIT = "5f0c1e2d3a4b59687786a5b4c3d2e1f009182736"


@functools.cache
def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class Hub(ThreadingHTTPServer):
    """Serves ``repositories``: hub ids and the folders that hold their files."""

    daemon_threads = True

    def __init__(self, log: Path, repositories: dict[str, Path], break_after: int | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.log, self.repositories = log, repositories
        self.break_after = break_after  # the first answer longer than this is cut, once
        self.lock = threading.Lock()

    def note(self, **request: Any) -> None:
        with self.lock, self.log.open("a") as log:
            log.write(json.dumps(request) + "\n")


class Handler(BaseHTTPRequestHandler):
    """What of the hub's protocol downloading needs."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments: Any) -> None:
        """Say nothing: the log is a file."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/paths-info/[^/]+", self.path)
        if match is None or match[1] not in self.server.repositories:
            return self.send_json({"error": "not found"}, 404)
        try:
            paths = json.loads(body)["paths"]
        except ValueError:
            paths = parse_qs(body)["paths"]
        self.send_json(self.entries(match[1], paths if isinstance(paths, list) else [paths]))

    def answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        repositories = self.server.repositories
        if re.match(r"(?:/api/models)?/gated/", path):
            return self.refuse("GatedRepo", 403)
        revision = re.search(r"/(?:resolve|revision|tree)/([^/]+)", path)
        if revision is not None and revision[1] not in ("main", COMMIT):
            return self.refuse("RevisionNotFound")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            if match[1] not in repositories:
                return self.refuse("RepoNotFound")
            files = [{"rfilename": file.name} for file in repositories[match[1]].iterdir()]
            return self.send_json({"_id": "1", "id": match[1], "sha": COMMIT, "siblings": files})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+(/.+)?", path):
            if match[1] not in repositories:
                return self.refuse("RepoNotFound")
            if match[2]:  # no repository here has folders
                return self.refuse("EntryNotFound")
            return self.send_json(self.entries(match[1], None))
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            if match[1] not in repositories:
                return self.refuse("RepoNotFound")
            file = repositories[match[1]] / match[2]
            return self.send_file(file) if file.is_file() else self.refuse("EntryNotFound")
        self.send_json({"error": "not found"}, 404)

    def entries(self, repository: str, names: list[str] | None) -> list[dict[str, Any]]:
        folder = self.server.repositories[repository]
        found = sorted(folder.iterdir()) if names is None else [folder / name for name in names]
        return [
            {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0" * 40}
            for file in found
            if file.is_file()
        ]

    def send_file(self, file: Path) -> None:
        size = file.stat().st_size
        asked = self.headers.get("Range")
        first, last = 0, size - 1
        if asked and (match := re.fullmatch(r"bytes=(\d*)-(\d*)", asked)):
            first = int(match[1]) if match[1] else size - int(match[2])
            last = min(int(match[2]), size - 1) if match[1] and match[2] else size - 1
        if first > last:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if asked else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{_digest(file)}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last - first + 1))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        wanted = b""
        if self.command == "GET":
            with file.open("rb") as content:
                content.seek(first)
                wanted = content.read(last - first + 1)
        with self.server.lock:
            cut = self.server.break_after
            broken = cut is not None and len(wanted) > cut
            if broken:
                self.server.break_after = None
        sent = wanted[:cut] if broken else wanted
        self.note(file.name, 206 if asked else 200, len(sent), asked)
        self.wfile.write(sent)
        if broken:
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()

    def refuse(self, code: str, status: int = 404) -> None:
        self.send_json({"error": code}, status, {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

    def send_json(
        self, value: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.note(urlparse(self.path).path, status, len(body), None)

    def note(self, path: str, status: int, sent: int, asked: str | None) -> None:
        self.server.note(method=self.command, path=path, status=status, sent=sent, range=asked)


def main() -> None:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("repositories", nargs="+")
    parser.add_argument("--break-after", type=int)
    arguments = parser.parse_args()
    pairs = (repository.split("=", 1) for repository in arguments.repositories)
    folders = {name: Path(folder) for name, folder in pairs}
    hub = Hub(arguments.log, folders, arguments.break_after)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    sys.stdout.write(f"{hub.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
