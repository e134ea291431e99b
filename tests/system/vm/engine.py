"""Stand-in for the engine of a test VM: answers chats, so that a boot can be proven."""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

# The name that the kernel has of vLLM's process, and memory that it holds.
Path("/proc/self/comm").write_text("VLLM::EngineCor")
BALLAST = bytearray(b"x") * (int(os.environ.get("BALLAST_MIB", "0")) << 20)


class Handler(BaseHTTPRequestHandler):
    """Every POST is a chat, every GET the list of models."""

    def _say(self, document: object) -> None:
        raw = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        """The list of models."""
        self._say({"object": "list", "data": [{"id": "solo", "object": "model"}]})

    def do_POST(self) -> None:
        """A completion with content."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        message = {"role": "assistant", "content": "stand-in"}
        self._say(
            {
                "id": "x",
                "object": "chat.completion",
                "model": "solo",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }
        )


HTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
