#!/usr/bin/env python3
"""A game with a memory of each player, whom another server can go on with.

    game.py ADDRESS PORT

The server thinks of a number from 1 to 1000 and answers guesses; it greets players
by name and counts what they have won. All of that is the state of a connection, and
is exported after each line. Another game server goes on in the middle of a guess.
"""

import json
import socket
import sys
import threading

import godwit


class Game:
    """One player's game, as it is exported."""

    def __init__(self, state=None):
        start = {"name": None, "seed": 1, "guesses": 0, "won": 0, "unread": ""}
        self.state = state or start

    @property
    def secret(self):
        """Follows from the state, so that every server thinks of the same one."""
        return self.state["seed"] * 48271 % 2147483647 % 1000 + 1

    def answer(self, line):
        """What the server says to a line, and the state after it."""
        state = self.state
        if state["name"] is None:
            state["name"] = line.strip()[:40] or "nobody"
            state["seed"] = sum(line.encode()) + 1
            return f"Hello {state['name']}, guess my number (1 to 1000).\n"
        try:
            guess = int(line)
        except ValueError:
            return "A number, please.\n"
        state["guesses"] += 1
        if guess < self.secret:
            return "More.\n"
        if guess > self.secret:
            return "Less.\n"
        guesses = state["guesses"]
        state.update(seed=state["seed"] + 1, guesses=0, won=state["won"] + 1)
        return f"Yes, {guesses} guesses. You have won {state['won']}. Again!\n"

    def snapshot(self):
        """The state as bytes."""
        return json.dumps(self.state).encode()


def play(connection, snapshot):
    """Serves one player until the player leaves, or another server takes over."""
    game = Game(json.loads(snapshot) if snapshot else None)
    state = game.state
    try:
        while True:
            while "\n" in state["unread"]:
                line, state["unread"] = state["unread"].split("\n", 1)
                line = line.encode("latin-1").decode(errors="replace")
                connection.sendall(game.answer(line).encode())
                godwit.export_state(connection, game.snapshot())
            heard = connection.recv(4096)
            if not heard:
                break
            # What is not a line yet has been read: it is state as well, byte for
            # byte, for it may end within a letter.
            state["unread"] += heard.decode("latin-1")
            godwit.export_state(connection, game.snapshot())
    except OSError:
        # The player has gone, or plays on elsewhere (godwit.Emigrated).
        pass
    finally:
        godwit.close(connection)


def main():
    """Serves players, each in a thread."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    listener = socket.create_server(
        (sys.argv[1], int(sys.argv[2])),
        family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET,
        backlog=1024,
    )
    doors = godwit.Listener(listener)
    while True:
        arguments = doors.accept()
        threading.Thread(target=play, args=arguments, daemon=True).start()


if __name__ == "__main__":
    main()
