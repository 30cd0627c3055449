"""Finds out who calls, and whom to trust, for the commands that talk to servers.

Owns: the options ``--user``, ``--password-file``, ``--token-file``, ``--ca`` and ``--profile`` of
these commands, and the file of profiles. Commands that need no caller have the last two alone.

An option counts more than a variable of the environment, that more than a profile, and that more
than the variables of official clients. No password is ever an argument: other users of a machine
can see arguments.

    [profiles.default]
    controller = "tls://store.example:9090"
    user = "alice"
    password_file = "~/.config/segstore/alice.password"
    ca = "~/.config/segstore/ca.pem"

Invariants:
1. When the options of a caller are not used, a command does not import what they need. Held by
   ``test_help_imports_neither_grpc_nor_trio_nor_servers``.
2. When others can read a file with a secret, the user is warned. Held by
   ``test_a_file_with_a_secret_that_others_can_read_is_told``.
3. When a profile is asked for and does not exist, the command ends with a sentence. Held by
   ``test_a_profile_that_does_not_exist_is_told``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pravega_admin.errors import COMMAND_LINE
from segstore_client.errors import UsageError

if TYPE_CHECKING:
    from segstore_client.access.settings import AccessSettings, ClientAccess
    from segstore_client.access.tls import ClientTls
    from zookeeper_client.tls_settings import ZooKeeperTlsSettings

CONTROLLER_VARIABLE = "SEGSTORE_CONTROLLER"
ZOOKEEPER_VARIABLE = "SEGSTORE_ZOOKEEPER"
SERVER_METAVAR = "[tls://]HOST:PORT"
"""The words for an argument that is a server to which the caller need not log in."""
DEFAULT_PROFILE = "default"
STANDARD_INPUT = "-"
PROFILE_KEYS = frozenset(
    {"controller", "user", "password_file", "token_file", "ca", "client_certificate", "client_key"}
)
_META = "pravega_admin.logins"


@dataclass(frozen=True, slots=True)
class Profile:
    """The texts of a profile, by key. Paths that begin with ~ are expanded."""

    values: Mapping[str, str]

    @property
    def controller(self) -> str:
        """Return the address of the controllers; "" if the profile names none."""
        return self.values.get("controller", "")

    def access(self) -> AccessSettings:
        """Return who calls, and whom to trust."""
        from segstore_client.access.settings import AccessSettings

        paths = {
            name: str(Path(self.values[key]).expanduser())
            for key, name in _PATH_KEYS.items()
            if key in self.values
        }
        return AccessSettings(user=self.values.get("user", ""), **paths)


_PATH_KEYS = {
    "password_file": "password_file",
    "token_file": "token_file",
    "ca": "ca",
    "client_certificate": "certificate",
    "client_key": "key",
}


def profiles_path(environment: Mapping[str, str]) -> Path:
    """Return where the file of profiles is."""
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")) / ".config"
    return Path(base).expanduser() / "segstore" / "profiles.toml"


def read_profile(path: Path, name: str) -> Profile:
    """Return a profile of a file; without a name, the default one, or an empty one.

    Raises ``UsageError`` when the file or the profile is missing or invalid.
    """
    if not path.exists():
        if name:
            raise UsageError(f"there is no profile {name}: {path} does not exist")
        return Profile({})
    profiles = read_profiles(path)
    if name and name not in profiles:
        raise UsageError(f"there is no profile {name or DEFAULT_PROFILE} in {path}")
    values = profiles.get(name or DEFAULT_PROFILE, {})
    check_profile(path, name or DEFAULT_PROFILE, values)
    return Profile(values)


def read_profiles(path: Path) -> dict[str, dict[str, Any]]:
    """Return the profiles of a file, unchecked; none if it does not exist.

    Raises ``UsageError`` when the file cannot be read, or is no file of profiles.
    """
    import tomllib

    from segstore_client.access.credentials import warn_if_open

    if not path.exists():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        warn_if_open(path, "file of profiles", _warn)
    except OSError as error:
        raise UsageError(f"the profiles {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the profiles {path} are not TOML: {error}") from error
    profiles = found.get("profiles", {})
    if not isinstance(profiles, dict) or not all(
        isinstance(one, dict) for one in profiles.values()
    ):
        raise UsageError(f"there is no profile in {path}: each is a table [profiles.NAME]")
    return profiles


def check_profile(path: Path, name: str, values: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` if a profile has an unknown key, or a value that is no text."""
    for key, value in values.items():
        if key not in PROFILE_KEYS:
            # A password in the file of profiles would be shown by whoever shows that file.
            raise UsageError(
                f"profile {name} in {path} has the key {key}; there are"
                f" {', '.join(sorted(PROFILE_KEYS))}"
            )
        if not isinstance(value, str):
            raise UsageError(f"{key} of a profile in {path} is not a text")


def choose_controller(context: typer.Context, address: str) -> str:
    """Return the address of the option or variable if given, else that of the profile."""
    source = context.get_parameter_source("controller")
    if source is None or source.name not in ("DEFAULT", "DEFAULT_MAP"):
        return address
    return _profile_of(context.meta.get(_META, {})).controller or address


def find_access() -> ClientAccess:
    """Return who calls in the command that runs, and whom it trusts. Raises ``UsageError``."""
    from segstore_client.access.settings import build_access

    given = _given()
    if "access" not in given:
        ask_password = _ask_password if sys.stdin.isatty() else None
        given["access"] = build_access(
            _find_places(), words=COMMAND_LINE, warn=_warn, ask_password=ask_password
        )
    access: ClientAccess = given["access"]
    return access


def find_tls(wanted: bool | None) -> ClientTls | None:
    """Return whom to trust; None to speak no TLS.

    ``wanted`` is what the address says. If it says nothing, there is TLS if the options, the
    environment or the profile name authorities, or a certificate. Raises ``UsageError``.
    """
    from segstore_client.access.settings import build_tls
    from segstore_client.access.tls import ClientTls

    if wanted is False:
        return None
    return build_tls(_find_places()) or (ClientTls() if wanted else None)


def find_zookeeper_tls() -> ZooKeeperTlsSettings:
    """Return the files for connections to ZooKeeper by TLS. Raises ``UsageError``."""
    from segstore_client.access.settings import find_tls_files
    from zookeeper_client.tls_settings import ZooKeeperTlsSettings

    ca, certificate, key = find_tls_files(_find_places())
    # The key may be in the file of the certificate.
    return ZooKeeperTlsSettings(ca=ca, certificate=certificate, key=key or certificate)


def find_variables() -> dict[str, str]:
    """Return variables of the environment that name the caller of this command to Spark's jobs.

    Variables with an empty text take effect, too: they hide others.
    """
    places = _find_places()
    credentials = find_access().credentials
    found = {"SEGSTORE_CA": next((each.ca for each in places if each.ca), "")}
    if credentials is None:
        return found
    names = ("SEGSTORE_USER", "SEGSTORE_PASSWORD", "SEGSTORE_PASSWORD_FILE", "SEGSTORE_TOKEN_FILE")
    found |= dict.fromkeys(names, "")
    if credentials.token_file is not None:
        return found | {"SEGSTORE_TOKEN_FILE": str(credentials.token_file)}
    token = credentials.token
    return found | {
        "pravega_client_auth_method": credentials.method,
        "pravega_client_auth_token": token,
        "pravega_client_auth_username": "",
    }


def _find_places() -> list[AccessSettings]:
    """Return what options, environment and profile name; the input is read once."""
    from segstore_client.access.settings import (
        AccessSettings,
        read_environment,
        read_official_environment,
    )

    given = _given()
    if "places" in given:
        found: list[AccessSettings] = given["places"]
        return found
    password, password_file = "", given.get("password_file", "")
    if password_file == STANDARD_INPUT:
        password, password_file = _read_password(given.get("user", "")), ""
    options = AccessSettings(
        user=given.get("user", ""),
        password=password,
        password_file=password_file,
        token_file=given.get("token_file", ""),
        ca=given.get("ca", ""),
    )
    environment = read_environment(os.environ)
    profile = _profile_of(given).access()
    official = read_official_environment(os.environ)
    given["places"] = places = [options, environment, profile, official]
    return places


def _given() -> dict[str, Any]:
    """Return the options that this command was given, and the objects that were made of them."""
    from typer._click.globals import get_current_context

    context = get_current_context(silent=True)
    return {} if context is None else context.meta.setdefault(_META, {})


def _profile_of(given: Mapping[str, str]) -> Profile:
    name = given.get("profile") or os.environ.get("SEGSTORE_PROFILE", "")
    return read_profile(profiles_path(os.environ), name)


def _read_password(user: str) -> str:
    if sys.stdin.isatty():
        return _ask_password(user)
    return sys.stdin.readline().rstrip("\r\n")


def _ask_password(user: str) -> str:
    from getpass import getpass

    return getpass(f"Password of {user}: " if user else "Password: ")


def _warn(sentence: str) -> None:
    print(f"segstore: {sentence}", file=sys.stderr, flush=True)


def _keep(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    if value:
        context.meta.setdefault(_META, {})[parameter.name] = value
    return value


def _declare(
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="NAME", help="Who calls (or SEGSTORE_USER).", callback=_keep
        ),
    ] = None,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="The user's password; - is the input (or SEGSTORE_PASSWORD_FILE).",
            callback=_keep,
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="A token in place of a user and a password (or SEGSTORE_TOKEN_FILE).",
            callback=_keep,
        ),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="Whom to trust at tls:// addresses, in PEM form (or SEGSTORE_CA).",
            callback=_keep,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="A profile of the user (or SEGSTORE_PROFILE).",
            callback=_keep,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Declare the options of a caller."""


def add_login_options(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command, with the options of a caller if it talks to servers."""
    for number, each in enumerate(parameters):
        added: list[Any] = []
        if each.envvar in (CONTROLLER_VARIABLE, ZOOKEEPER_VARIABLE):
            added = list(_login_options())
        elif each.metavar == SERVER_METAVAR:
            added = [one for one in _login_options() if one.name in ("ca", "profile")]
        if added:
            return [*parameters[: number + 1], *added, *parameters[number + 1 :]]
    return parameters


@cache
def _login_options() -> tuple[Any, ...]:
    app = typer.Typer(add_completion=False)
    app.command()(_declare)
    options = tuple(each for each in typer.main.get_command(app).params if each.name != "help")
    for each in options:
        each.expose_value = False
    return options
