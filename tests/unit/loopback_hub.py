"""A Hub on this machine: the few endpoints that pushing and pulling an agent use."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "loopback" * 4


class LoopbackHub:
    """Repositories as {name: bytes}; large kinds of files travel by LFS, as on the real Hub."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.large: dict[str, bytes] = {}
        self.seen: list[str] = []
        self.made: dict[str, dict[str, Any]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Answers,), {"hub": self}))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def revision(self, repo: str) -> str:
        listing = json.dumps({n: hashlib.sha256(b).hexdigest() for n, b in sorted(self.repos[repo].items())})
        return hashlib.sha1(listing.encode()).hexdigest()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Answers(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self._read()
        self.hub.seen.append(f"POST {self.path.partition('?')[0]}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            repo = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            if repo in self.hub.repos:
                return self._answer(409, {"error": "exists", "url": f"{self.hub.address}/{repo}"})
            self.hub.repos[repo] = {".gitattributes": b"*.safetensors filter=lfs\n"}
            self.hub.made[repo] = wanted
            return self._answer(200, {"url": f"{self.hub.address}/{repo}", "name": repo})
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", self.path):
            files = [
                {"path": f["path"], "uploadMode": mode_of(f["path"]), "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": files})
        if match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self.path):
            objects = [
                {
                    **entry,
                    "actions": {"upload": {"href": f"{self.hub.address}/lfs/{entry['oid']}", "header": {}}},
                }
                for entry in json.loads(body)["objects"]
            ]
            return self._answer(200, {"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", self.path):
            return self._commit(match[1], body)
        return self._answer(404, {"error": f"no {self.path}"})

    def do_PUT(self) -> None:
        body, oid = self._read(), self.path.removeprefix("/lfs/")
        self.hub.seen.append("PUT /lfs")
        if hashlib.sha256(body).hexdigest() != oid:
            return self._answer(400, {"error": "wrong object"})
        self.hub.large[oid] = body
        return self._answer(200, {})

    def do_HEAD(self) -> None:
        self._file(with_body=False)

    def do_GET(self) -> None:
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/main)?", self.path.partition("?")[0]):
            repo = match[1]
            if repo not in self.hub.repos:
                return self._answer(404, {"error": "missing"}, {"X-Error-Code": "RepoNotFound"})
            siblings = [{"rfilename": n, "size": len(b)} for n, b in self.hub.repos[repo].items()]
            made = {"id": repo, "sha": self.hub.revision(repo), "siblings": siblings, "private": False}
            return self._answer(200, {**made, "tags": [], "downloads": 0})
        return self._file(with_body=True)

    def _commit(self, repo: str, body: bytes) -> None:
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                self.hub.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.hub.repos[repo][value["path"]] = self.hub.large[value["oid"]]
        oid = self.hub.revision(repo)
        self._answer(
            200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.address}/{repo}/commit/{oid}"}
        )

    def _file(self, with_body: bool) -> None:
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path.partition("?")[0])
        repo = match[1] if match else ""
        body = self.hub.repos.get(repo, {}).get(match[3]) if match else None
        if body is None:
            return self._answer(404, {"error": "missing"}, {"X-Error-Code": "EntryNotFound"})
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.hub.revision(repo))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
        return None

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, code: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def mode_of(path: str) -> str:
    return "lfs" if path.endswith((".safetensors", ".mp4")) else "regular"
