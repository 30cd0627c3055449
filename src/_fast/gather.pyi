from collections.abc import Iterable

from typing_extensions import Buffer

def gather(target: Buffer, buffers: Iterable[Buffer]) -> int:
    """Copy ``buffers`` one after the other to the beginning of ``target``, until it is full.

    Returns how many bytes were copied.
    """
