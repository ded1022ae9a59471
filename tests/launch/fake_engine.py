"""A server that behaves as engines do: /health is 200 whatever its worker does; tokens need the worker.

python fake_engine.py --host H --port P NAME: its worker is a process of its own, which answers each line on its input.
With a key in VLLM_API_KEY it asks for that below /v1 alone, as vLLM does.
"""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_WORKER = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"


def main(host: str, port: int, name: str) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, "fake-worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    lock = threading.Lock()

    def token() -> str:
        assert worker.stdin is not None and worker.stdout is not None
        with lock:
            worker.stdin.write("t\n")
            worker.stdin.flush()
            return worker.stdout.readline().strip()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self._opened():
                return
            self._say({"data": [{"id": name}]} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self._opened():
                return
            params = asked.get("kv_transfer_params") or {}
            text = "".join(token() for _ in range(asked.get("max_tokens", 1)))
            found = {"choices": [{"text": text}], "served_by": name, "got": params}
            if params.get("do_remote_decode"):
                found["kv_transfer_params"] = {"do_remote_prefill": True, "remote_port": port}
            if not asked.get("stream"):
                self._say(found)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for _ in range(asked["max_tokens"]):
                self.wfile.write(b"data: " + json.dumps({"choices": [{"text": token()}]}).encode() + b"\n\n")
                self.wfile.flush()
            self.close_connection = True

        def _opened(self) -> bool:
            key = os.environ.get("VLLM_API_KEY", "")
            if not key or not self.path.startswith("/v1/") or self.headers["Authorization"] == f"Bearer {key}":
                return True
            self._say({"error": "Unauthorized"}, 401)
            return False

        def _say(self, value: object, status: int = 200) -> None:
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer((host, port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[2], int(sys.argv[4]), sys.argv[5])
