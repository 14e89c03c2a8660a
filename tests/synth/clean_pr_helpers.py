"""Small Git repositories for the tests of clean-pr."""

import os
import subprocess
from pathlib import Path

WHO = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Repo:
    """A repository whose commits are made from dictionaries of path to content (None: removed)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, 1_700_000_000
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")
        self.git("config", "core.autocrlf", "false")

    def git(self, *arguments: str, author: str | None = None) -> str:
        self.clock += 60
        dates = {"GIT_AUTHOR_DATE": f"{self.clock} +0000", "GIT_COMMITTER_DATE": f"{self.clock} +0000"}
        who = WHO if author is None else {**WHO, "GIT_AUTHOR_NAME": author}
        command = ["git", "-C", str(self.folder), *arguments]
        done = subprocess.run(command, env={**os.environ, **who, **dates}, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, files, message="Change", author=None) -> str:
        for path, content in files.items():
            place = self.folder / path
            if content is None:
                place.unlink()
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "-A", "-f")
        self.git("commit", "-q", "--allow-empty", "-m", message, author=author)
        return self.git("rev-parse", "HEAD")
