"""The hub of ``loopback_hub`` as a program that runs beside a test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("loopback_hub.py")

#: The environment of a command that asks it, beside its address.
ONLINE = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}


class Hub:
    """A running hub, and what was asked of it.

    Args:
        log: a new file.
        *arguments: ``ORG/NAME=FOLDER`` for each repository, and options of the program.
    """

    def __init__(self, log: Path, *arguments: str) -> None:
        log.touch()
        self.log = log
        command = [sys.executable, str(PROGRAM), str(log), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def weights_sent(self) -> dict[str, int]:
        """Bytes of each weight file that went out."""
        sent: dict[str, int] = {}
        for request in self.requests():
            if request["method"] == "GET" and request["path"].endswith(".safetensors"):
                sent[request["path"]] = sent.get(request["path"], 0) + request["sent"]
        return sent

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()
