"""The original's names for settings as defaults of the verbs that start servers.

Owns: the switch ``SEGSTORE_ORIGINAL_NAMES``, and the class of those verbs.

Invariants:
1. Without the switch, no name of the original is read, because ``CLUSTER_NAME`` and others may mean
   anything in an environment that was not made for the original's images. Held by
   ``test_without_the_switch_nothing_is_looked_at``.
2. When an option and a name of the original have different values, ``UsageError`` is raised. Held
   by ``test_an_option_may_say_the_same_and_nothing_else``.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any, Final, cast

import typer

from pravega_admin.output.help_pages import Verb
from pravega_admin.serving.quick_options import ORIGINAL_NAMES
from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
from segstore_client.errors import UsageError

if TYPE_CHECKING:
    from pravega_admin.serving.original_names import Translation

SERVERS: Final = {"server": SEGMENT_STORE, "controller": CONTROLLER, "standalone": "standalone"}
"""The kinds of servers by their verbs."""
_KEY: Final = "segstore.translation"


class ServerCommand(Verb):
    """A verb that starts a server."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, with the original's names for options that are not given."""
        if os.environ.get(ORIGINAL_NAMES, "") in ("", "0"):
            return super().parse_args(ctx, args)
        from pravega_admin.serving.original_names import translate

        assert self.name is not None
        translation = translate(SERVERS[self.name], os.environ, find_own_address())
        ctx.meta[_KEY] = translation
        ctx.default_map = translation.options
        rest = super().parse_args(ctx, args)
        for name, source in translation.sources.items():
            if name not in translation.options or is_default(ctx, name):
                continue
            given, value = ctx.params[name], translation.options[name]
            if str(given) != str(value):
                option = name.replace("_", "-")
                raise UsageError(f"{source} says {value!r}, and --{option} {str(given)!r}")
        for name, sentence in translation.needed.items():
            if "." not in name and not ctx.params[name]:
                raise UsageError(sentence)
        for variable, value in translation.environment.items():
            if os.environ.setdefault(variable, value) != value:
                raise UsageError(f"{variable} differs from what the original's names say")
        return rest


def is_default(ctx: typer.Context, name: str) -> bool:
    """Return whether the value of an option was given neither as an argument nor as a variable."""
    source = ctx.get_parameter_source(name)
    return source is None or source.name in ("DEFAULT", "DEFAULT_MAP")


def translation_of(ctx: typer.Context) -> Translation | None:
    """Return the settings of the original's names; None if these are not read."""
    return cast("Translation | None", ctx.meta.get(_KEY))


def find_own_address() -> str | None:
    """Return the address of this machine's name; None if only this machine can use it."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if ipaddress.ip_address(address).is_loopback else address
