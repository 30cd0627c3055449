"""The modified UTF-8 of texts, against the format's definition unit by unit."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pravega_wire.errors import LocalProtocolError, RemoteProtocolError
from pravega_wire.fields import TEXT_BYTES_MAX, decode_text, encode_text

TEXTS = st.text(st.characters(codec="utf-8"))


def modified_utf8(text: str) -> bytes:
    """Encode one UTF-16 unit after the other, as the format is defined."""
    units = text.encode("utf-16-be")
    encoded = bytearray()
    for index in range(0, len(units), 2):
        unit = units[index] << 8 | units[index + 1]
        if 1 <= unit <= 0x7F:
            encoded.append(unit)
        elif unit <= 0x7FF:
            encoded += bytes([0xC0 | unit >> 6, 0x80 | unit & 0x3F])
        else:
            encoded += bytes([0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F])
    return bytes(encoded)


@given(TEXTS)
@example("\0")
@example("a\0b\U0001f600c\uffff\u07ff\u0800\x7f\x80")
@example("\U00010000\U0010ffff")
def test_texts_encode_by_utf16_units_and_read_back(text: str) -> None:
    encoded = encode_text(text)
    assert encoded == modified_utf8(text)
    assert decode_text(encoded) == text
    assert decode_text(memoryview(encoded)) == text


@given(TEXTS)
def test_plain_utf8_is_read_too(text: str) -> None:
    assert decode_text(text.encode()) == text


@given(st.binary())
@example(b"\xed\xa0\x80")  # a high surrogate alone
@example(b"\xed\xb0\x80\xed\xa0\x80")  # a pair the wrong way round
@example(b"\xc0\x81")  # an overlong form other than that of NUL
@example(b"\xf8\x88\x80\x80\x80")
@example(b"\xc0")
def test_any_bytes_are_a_text_or_a_remote_protocol_error(encoded: bytes) -> None:
    try:
        text = decode_text(encoded)
    except RemoteProtocolError:
        return
    assert decode_text(encode_text(text)) == text


@pytest.mark.parametrize("encoded", [b"\xed\xa0\x80", b"\xed\xb0\x80\xed\xa0\x80", b"\xc0\x81"])
def test_unpaired_surrogates_and_overlong_forms_are_refused(encoded: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_text(encoded)


def test_an_unpaired_surrogate_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError):
        encode_text("a\ud800b")


@pytest.mark.parametrize(("character", "bytes_each"), [("x", 1), ("\0", 2), ("\U0001f600", 6)])
def test_a_text_holds_65535_encoded_bytes_and_no_more(character: str, bytes_each: int) -> None:
    longest = character * (TEXT_BYTES_MAX // bytes_each)
    longest += "y" * (TEXT_BYTES_MAX - len(encode_text(longest)))
    assert len(encode_text(longest)) == TEXT_BYTES_MAX
    with pytest.raises(LocalProtocolError):
        encode_text(longest + "y")
