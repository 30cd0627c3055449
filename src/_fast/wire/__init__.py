"""Codecs of the wire protocol: append blocks, events, frames, and the memory that replies lend."""
