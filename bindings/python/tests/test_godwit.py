"""Without an agent everything is as on plain sockets, and errors have names."""

import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

import godwit

GAME = Path(__file__).parents[3] / "apps" / "game.py"


class Plain(unittest.TestCase):
    """No agent is there."""

    def setUp(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        self.client = socket.create_connection(listener.getsockname(), timeout=20)
        self.addCleanup(self.client.close)
        self.listener = godwit.Listener(listener)
        self.server, self.snapshot = self.listener.accept()
        self.addCleanup(self.server.close)

    def test_a_client_is_served(self):
        self.assertIsNone(self.snapshot)
        godwit.export_state(self.server, b"state")
        godwit.join_session(self.server, b"session")
        self.server.sendall(b"hello")
        self.assertEqual(self.client.recv(5), b"hello")
        godwit.close(self.server)
        self.assertEqual(self.client.recv(1), b"")

    def test_nothing_is_safe(self):
        with self.assertRaisesRegex(godwit.Unprotected, "no standby"):
            godwit.export_state(self.server, b"state", commit=True)
        self.server.sendall(b"goes on")
        self.assertEqual(self.client.recv(7), b"goes on")

    def test_nobody_waits(self):
        self.listener.socket.setblocking(False)
        with self.assertRaises(BlockingIOError):
            self.listener.accept()

    def test_errors_have_names(self):
        with self.assertRaisesRegex(godwit.Error, "more than fits"):
            godwit.export_state(self.server, bytes((16 << 20) + 1))
        with self.assertRaisesRegex(godwit.Error, "more than fits"):
            godwit.join_session(self.server, bytes(33))
        with self.assertRaisesRegex(godwit.Error, "not what it has to be"):
            godwit.join_session(self.client, b"session")
        with self.assertRaises(OSError):
            godwit.Listener(self.server)
        with self.assertRaisesRegex(godwit.Error, "not what it has to be"):
            godwit.export_state(self.listener.socket, b"state")
        self.server.close()
        with self.assertRaisesRegex(godwit.Error, "not open"):
            godwit.export_state(self.server, b"state")


class Game(unittest.TestCase):
    """apps/game.py, without an agent."""

    def setUp(self):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        game = subprocess.Popen([sys.executable, str(GAME), "127.0.0.1", str(port)])
        self.addCleanup(game.wait)
        self.addCleanup(game.kill)
        end = time.monotonic() + 20
        while True:
            try:
                client = socket.create_connection(("127.0.0.1", port), timeout=20)
                break
            except ConnectionRefusedError:
                self.assertLess(time.monotonic(), end, "the game does not start")
                time.sleep(0.02)
        self.addCleanup(client.close)
        self.lines = client.makefile("rw", newline="\n")
        self.addCleanup(self.lines.close)

    def say(self, line):
        """What the server says to it."""
        self.lines.write(f"{line}\n")
        self.lines.flush()
        return self.lines.readline()

    def test_halving_wins(self):
        self.assertIn("Hello Ada", self.say("Ada"))
        self.assertEqual(self.say("a thousand"), "A number, please.\n")
        low, high = 1, 1000
        while low < high:
            middle = (low + high) // 2
            answer = self.say(middle)
            if answer.startswith("Yes"):
                break
            low, high = (middle + 1, high) if answer == "More.\n" else (low, middle - 1)
        else:
            answer = self.say(low)
        self.assertIn("won 1", answer)


if __name__ == "__main__":
    unittest.main()
