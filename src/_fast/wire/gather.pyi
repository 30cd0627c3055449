from collections.abc import Iterable

from typing_extensions import Buffer

def gather(target: Buffer, buffers: Iterable[Buffer]) -> int:
    """Copy ``buffers`` one after the other into ``target`` until it is full.

    Returns the number of copied bytes.
    """
