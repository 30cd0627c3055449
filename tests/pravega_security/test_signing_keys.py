"""Files with signing keys: what is read, refused, watched, made and rotated."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pravega_security.signing_keys import (
    FILE_BYTES_MAX,
    KEY_BYTES_MIN,
    LOOK_SECONDS,
    ROTATION_SECONDS_MIN,
    KeyFile,
    SigningKey,
    SigningKeys,
    SigningKeysError,
    create_key_file,
    decode_key_file,
    encode_key_file,
    prepare_rotation,
    read_key_file,
    rotate_keys,
)

NOW = 1_764_266_400
SECRET = "k" * KEY_BYTES_MIN


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def write(path: Path, text: str | bytes, mode: int = 0o600) -> None:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "token-keys"


# ---- The text ------------------------------------------------------------------------------------

keys = st.builds(
    SigningKey,
    st.integers(0, 2**32 - 1).map(lambda number: f"{number:08x}"),
    st.integers(0, 10**12 - 1),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=64, max_size=200).map(
        str.encode
    ),
)


@given(st.builds(KeyFile, keys, st.none() | keys, st.none() | keys))
def test_what_is_written_is_read(file: KeyFile) -> None:
    assert decode_key_file(encode_key_file(file), Path("file")) == file


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(SigningKeysError):
        decode_key_file(text, Path("file"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no current key"),
        ("# nothing\n", "has no current key"),
        (f"previous 00000000 1 {SECRET}\n", "has no current key"),
        (f"current 00000000 1 {SECRET[1:]}\n", "line 1 has 63 characters"),
        (f"current 00000000 1 {'k' * 1025}\n", "line 1 has 1025 characters"),
        (f"current 00000000 1 {SECRET}\ncurrent 00000001 1 {SECRET}\n", "second current key"),
        (f"current 0 1 {SECRET}\n", "line 1 is not of the form"),
        (f"current 00000000 {SECRET}\n", "line 1 is not of the form"),
        (f"former 00000000 1 {SECRET}\n", "line 1 is not of the form"),
        (f"current 00000000 1 {SECRET} {SECRET}\n", "line 1 is not of the form"),
        (f"current 00000000 1 {SECRET}\xff\n", "other characters than ASCII"),
        ("#" * (FILE_BYTES_MAX + 1), f"longer than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_a_broken_file_is_refused_in_a_sentence(path: Path, text: str, sentence: str) -> None:
    write(path, text)
    with pytest.raises(SigningKeysError, match=sentence) as refused:
        SigningKeys(path)
    assert SECRET[1:] not in str(refused.value)


def test_a_file_of_the_maximum_length_is_read(path: Path) -> None:
    file = create_key_file(path, now=NOW)
    write(path, encode_key_file(file).ljust(FILE_BYTES_MAX, "\n"))
    assert SigningKeys(path).current == file.current.secret


def test_a_missing_file_and_a_folder_are_refused_in_a_sentence(path: Path) -> None:
    with pytest.raises(SigningKeysError, match="token-keys cannot be read: No such file"):
        SigningKeys(path)
    path.mkdir()
    with pytest.raises(SigningKeysError, match="token-keys cannot be read: Is a directory"):
        SigningKeys(path)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o606, 0o601, 0o620, 0o666])
def test_a_file_that_others_can_read_is_refused(path: Path, mode: int) -> None:
    create_key_file(path, now=NOW)
    path.chmod(mode)
    with pytest.raises(SigningKeysError, match=f"mode {mode:03o}"):
        SigningKeys(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_file_that_its_group_can_read_is_accepted(path: Path, mode: int) -> None:
    file = create_key_file(path, now=NOW)
    path.chmod(mode)
    assert SigningKeys(path).current == file.current.secret


# ---- Making and rotating -------------------------------------------------------------------------


def test_a_file_is_made_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_mode)
        assert not path.exists() or not stat.S_ISREG(synced[-1])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    previous = os.umask(0)
    try:
        file = create_key_file(path, now=NOW)
    finally:
        os.umask(previous)
    assert [stat.S_ISREG(mode) for mode in synced] == [True, False]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key_file(path) == file
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_there_is_not_replaced_by_a_new_one(path: Path) -> None:
    file = create_key_file(path, now=NOW)
    with pytest.raises(SigningKeysError, match="exists: segstore token rotate"):
        create_key_file(path, now=NOW)
    assert read_key_file(path) == file
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SigningKeysError, match="cannot be written: No such file"):
        create_key_file(tmp_path / "nowhere" / "keys", now=NOW)


def test_a_failed_write_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = create_key_file(path, now=NOW)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, fail)
            with pytest.raises(SigningKeysError, match="cannot be written: No space left"):
                rotate_keys(path, now=NOW)
    assert read_key_file(path) == file
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_rotation_keeps_the_former_key_as_valid(path: Path) -> None:
    first = create_key_file(path, now=NOW).current
    path.chmod(0o640)
    second = rotate_keys(path, now=NOW + 5)
    assert second.previous == SigningKey(first.id, NOW + 5, first.secret)
    assert second.current.secret != first.secret
    assert len(second.current.secret) >= KEY_BYTES_MIN
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert SigningKeys(path).all_valid == (second.current.secret, first.secret)


def test_a_next_key_is_valid_before_it_signs(path: Path) -> None:
    first = create_key_file(path, now=NOW).current
    prepared = prepare_rotation(path, now=NOW + 1)
    assert prepared.current == first
    assert prepared.next is not None
    found = SigningKeys(path)
    assert found.current == first.secret
    assert found.all_valid == (first.secret, prepared.next.secret)
    with pytest.raises(SigningKeysError, match="has a next key already"):
        prepare_rotation(path, now=NOW + 2)
    rotated = rotate_keys(path, now=NOW + 3)
    assert rotated.current == SigningKey(prepared.next.id, NOW + 3, prepared.next.secret)
    assert rotated.next is None


def test_a_second_rotation_waits_for_tokens_of_the_first(path: Path) -> None:
    create_key_file(path, now=NOW)
    rotate_keys(path, now=NOW)
    with pytest.raises(SigningKeysError, match="wait until it is 3600 s, or use --force"):
        rotate_keys(path, now=NOW + ROTATION_SECONDS_MIN - 1)
    rotate_keys(path, now=NOW + ROTATION_SECONDS_MIN)
    rotate_keys(path, now=NOW + ROTATION_SECONDS_MIN, force=True)
    assert rotate_keys(path, now=NOW + ROTATION_SECONDS_MIN, keep_former=False).previous is None


def test_rotations_at_the_same_time_take_turns(path: Path) -> None:
    create_key_file(path, now=NOW)
    made: list[KeyFile] = []

    def rotate() -> None:
        made.append(rotate_keys(path, now=NOW, force=True))

    threads = [threading.Thread(target=rotate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    currents = {file.current.id for file in made}
    assert len(currents) == 8
    last = read_key_file(path)
    assert last in made
    assert last.previous is not None
    assert last.previous.id in currents


# ---- Watching ------------------------------------------------------------------------------------


def test_a_changed_file_is_read_at_the_next_look(path: Path) -> None:
    clock = Clock()
    create_key_file(path, now=NOW)
    found = SigningKeys(path, monotonic=clock)
    first = found.all_valid
    rotated = rotate_keys(path, now=NOW)
    assert found.all_valid is first
    assert found.current == first[0]
    clock.seconds += LOOK_SECONDS
    assert found.current == rotated.current.secret
    assert found.all_valid == (rotated.current.secret, first[0])
    assert found.all_valid is found.all_valid


def test_a_look_need_not_wait(path: Path) -> None:
    create_key_file(path, now=NOW)
    found = SigningKeys(path, monotonic=Clock())
    rotated = rotate_keys(path, now=NOW)
    found.look()
    assert found.current == rotated.current.secret


def test_a_broken_new_file_leaves_the_old_keys_and_is_logged_once(path: Path) -> None:
    clock = Clock()
    file = create_key_file(path, now=NOW)
    found = SigningKeys(path, monotonic=clock)
    with capture_logs() as logs:
        for text in ("current nonsense\n", None, ""):
            if text is None:
                path.unlink()
            else:
                write(path, text)
            for _ in range(3):
                clock.seconds += LOOK_SECONDS
                assert found.current == file.current.secret
    assert [log["log_level"] for log in logs] == ["error"] * 3
    assert [log["reason"].partition("token-keys")[2] for log in logs] == [
        ": line 1 is not of the form ROLE ID SECONDS KEY",
        " cannot be read: No such file or directory",
        " has no current key: segstore token create makes a file",
    ]
    write(path, encode_key_file(file))
    clock.seconds += LOOK_SECONDS
    with capture_logs() as logs:
        assert found.current == file.current.secret
        path.chmod(0o644)
        clock.seconds += LOOK_SECONDS
        assert found.current == file.current.secret
    assert [log["event"] for log in logs] == ["token keys changed", "token keys did not change"]


def test_nothing_tells_a_key(path: Path) -> None:
    clock = Clock()
    file = create_key_file(path, now=NOW)
    found = SigningKeys(path, monotonic=clock)
    rotated = rotate_keys(path, now=NOW)
    told = [repr(file), repr(file.current), repr(rotated), repr(found)]
    clock.seconds += LOOK_SECONDS
    with capture_logs() as logs:
        found.look()
        write(path, path.read_text().replace(" ", "  "))
        found.look()
        told.append(str(logs))
    with pytest.raises(SigningKeysError) as refused:
        read_key_file(path)
    told.append(repr(refused.value))
    for key in (file.current, rotated.current):
        for part in (key.secret.decode(), key.secret.decode()[:16]):
            assert not any(part in text for text in told)
