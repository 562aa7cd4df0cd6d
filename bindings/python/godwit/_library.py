"""Finds libgodwit.so: named by GODWIT_LIBRARY, in this package, or installed."""

import ctypes
import os
from pathlib import Path

NAME = "libgodwit.so.0"


def load():
    """The library, with errno kept for the caller."""
    named = os.environ.get("GODWIT_LIBRARY")
    own = Path(__file__).with_name(NAME)
    path = named or (str(own) if own.exists() else NAME)
    return ctypes.CDLL(path, use_errno=True)
