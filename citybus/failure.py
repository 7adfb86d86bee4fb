"""The one way a command ends early."""

from __future__ import annotations

import errno
import os

FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
"""How the system words a full disk, in the errors of this and of other processes."""


class Failure(Exception):
    """Ends the command with exit code 1; the message is a line for each thing that is wrong, with what to do."""
