"""Connections that outlive their server: the Python interface of libgodwit.

A server registers its listening socket, accepts from it, and exports a snapshot of
its state of a connection whenever that is worth keeping. Between these calls it uses
its sockets as always. Without an agent on the machine everything is as on plain
sockets. The contract is docs/libgodwit.md.
"""

import ctypes
import errno
import os
import socket

from ._library import load

__all__ = [
    "Emigrated",
    "Error",
    "Listener",
    "Unprotected",
    "close",
    "export_state",
    "join_session",
]

_OK, _EMIGRATED, _WOULD_BLOCK, _INTERRUPTED, _SYSTEM = 0, -6, -8, -9, -11
_UNPROTECTED = -12
_STATELESS, _CLOEXEC = 1, 2
_COMMIT = 1


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("flags", ctypes.c_uint)]


class _Accepted(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("flags", ctypes.c_uint),
        ("fd", ctypes.c_int),
        ("migrated", ctypes.c_int),
        ("snapshot_size", ctypes.c_size_t),
    ]


class Error(OSError):
    """What libgodwit refused, with its number in `result`."""

    def __init__(self, result, text):
        super().__init__(text)
        self.result = result


class Emigrated(Error):
    """Another server has the connection now: close it."""


class Unprotected(Error):
    """No standby has the snapshot that was to be safe."""


_ERRORS = {_EMIGRATED: Emigrated, _UNPROTECTED: Unprotected}


def _declared(library):
    """The functions with the types of their arguments."""
    number, size, data = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    signatures = {
        "gw_listen": (number, [number, ctypes.POINTER(_Options)]),
        "gw_accept": (number, [number, ctypes.POINTER(_Accepted)]),
        "gw_export_state": (number, [number, ctypes.c_char_p, size, ctypes.c_uint]),
        "gw_import_state": (ctypes.c_ssize_t, [number, data, size]),
        "gw_session_join": (number, [number, ctypes.c_char_p, size]),
        "gw_close": (number, [number]),
        "gw_result_str": (ctypes.c_char_p, [number]),
    }
    for name, (returned, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = returned, arguments
    return library


_library = _declared(load())


def _checked(result):
    if result >= _OK:
        return result
    if result == _WOULD_BLOCK:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    if result == _SYSTEM:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    text = _library.gw_result_str(result).decode()
    raise _ERRORS.get(result, Error)(result, text)


class Listener:
    """A listening socket to which connections may come from other servers."""

    def __init__(self, listener, stateless=False):
        """Registers `listener`, which stays the caller's.

        A server that keeps nothing about its connections says so with `stateless`:
        they may be moved as they stand.
        """
        self.socket = listener
        flags = _STATELESS if stateless else 0
        options = _Options(ctypes.sizeof(_Options), flags)
        _checked(_library.gw_listen(listener.fileno(), ctypes.byref(options)))

    def accept(self):
        """The next connection, and the snapshot that it came with.

        The snapshot is None for a client that has just connected.
        """
        accepted = _Accepted(ctypes.sizeof(_Accepted), _CLOEXEC, -1, 0, 0)
        while True:
            arguments = self.socket.fileno(), ctypes.byref(accepted)
            result = _library.gw_accept(*arguments)
            # Python has run its signal handlers: as accept() of a socket.
            if result != _INTERRUPTED:
                break
        _checked(result)
        connection = socket.socket(fileno=accepted.fd)
        if not accepted.migrated:
            return connection, None
        snapshot = ctypes.create_string_buffer(accepted.snapshot_size)
        size = accepted.snapshot_size
        _checked(_library.gw_import_state(accepted.fd, snapshot, size))
        return connection, snapshot.raw


def export_state(connection, snapshot, commit=False):
    """Keeps a snapshot (bytes) of the server's state of a connection.

    It belongs to where the server stands in both streams now. Raises Emigrated if
    another server has the connection.

    With `commit` nobody must ever go back from it: waits until the standby has it
    and all output that the client has not acknowledged. Raises Unprotected if none
    has.
    """
    number, flags = connection.fileno(), _COMMIT if commit else 0
    _checked(_library.gw_export_state(number, snapshot, len(snapshot), flags))


def join_session(connection, session):
    """Has a connection stay together with all others of the session (bytes)."""
    _checked(_library.gw_session_join(connection.fileno(), session, len(session)))


def close(connection):
    """Closes a connection and has the library know it at once."""
    _checked(_library.gw_close(connection.detach()))
