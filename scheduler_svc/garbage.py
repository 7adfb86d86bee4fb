"""How often Python looks for objects that only hold each other."""

from __future__ import annotations

import gc

NEW_OBJECTS = 50_000
"""So many objects more than before make it worth the time."""


def collect_seldom() -> None:
    """What is loaded by now stays, and is not looked at again.

    A step of 1,000 tokens makes and frees some 10,000 objects: looking each time whether they hold each other finds
    nothing, and holds every stream up.
    """
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
