"""``segstore user``: the users in an accounts file, their passwords and their rights.

Owns: the arguments and the output of these verbs. They change the file; servers notice it.

A password comes from a prompt, a file or stdin. It is never an argument, which other users of the
machine could see.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from pravega_admin.commands.servers import DataDirOption
from pravega_admin.errors import AdminError
from pravega_admin.options import OutputOption
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import (
    OutputFormat,
    print_document,
    print_message,
    print_rows,
    report,
)
from pravega_admin.serving.store_settings import DATA_DIR
from segstore_client.errors import AlreadyExistsError, NotFoundError, UsageError

if TYPE_CHECKING:
    from pravega_security.access_rules import AccessRule, AccessRules
    from pravega_security.accounts_file import Account, AccountsFile

ACCOUNTS_FILE = Path("security") / "passwd"
"""The accounts file below a data directory."""

app = Verbs(help="Add, list and remove users, and change their passwords and rights.")


class LevelName(enum.StrEnum):
    """The levels of rights, by the names in an accounts file."""

    NONE = "NONE"
    READ = "READ"
    READ_UPDATE = "READ_UPDATE"


FileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--file",
        envvar="SEGSTORE_ACCOUNTS",
        help="The accounts file; by default security/passwd below the data directory.",
    ),
]
UserArgument: TypeAlias = Annotated[str, typer.Argument(metavar="USER", help="A user's name.")]
ResourceArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help='SCOPE/STREAM, or a resource such as "prn::/scope:S/*", in which * stands for any'
        " characters.",
    ),
]
PasswordFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--password-file", help="File whose first line is the password."),
]
PasswordStdinOption: TypeAlias = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from stdin.")
]


@app.command()
def add(
    context: typer.Context,
    user: UserArgument,
    read: Annotated[
        list[str] | None,
        typer.Option(
            "--read", metavar="SCOPE[/STREAM]", help="What the user may read; may be repeated."
        ),
    ] = None,
    write: Annotated[
        list[str] | None,
        typer.Option(
            "--write",
            metavar="SCOPE[/STREAM]",
            help="What the user may read, write and change; may be repeated.",
        ),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="The user may do everything.")] = False,
    acl: Annotated[
        str, typer.Option("--acl", metavar="RULES", help="Rights as the file has them.")
    ] = "",
    password_file: PasswordFileOption = None,
    password_stdin: PasswordStdinOption = False,
    file: FileOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Add a user. The file is made if there is none."""
    from pravega_security.access_rules import merge_access_rules, parse_access_rules
    from pravega_security.accounts_file import USER_RULE, Account, is_user_name
    from pravega_security.passwords import hash_password

    if not is_user_name(user):
        raise UsageError(f"{user!r} cannot be a user: {USER_RULE}")
    written = parse_access_rules(acl)
    if written.problems:
        raise UsageError(f"--acl: {written.problems[0]}")
    rules = merge_access_rules([written, _make_rules(read or [], write or [], admin=admin)])
    path = _path_of(context, file, data_dir)
    if path.exists():
        _refuse_existing(_read(path), user, path)
    password = _read_password(password_file, from_stdin=password_stdin)
    account = Account(user, hash_password(password), rules)

    def put(content: AccountsFile) -> None:
        _refuse_existing(content, user, path)
        content.put(account)

    _change(path, put)
    if not rules.rules:
        print_message(f"user {user} has no rights yet: segstore user grant gives some")
    _report_account(f"user {user} added to {path}", account, output)


@app.command("list")
def list_(
    context: typer.Context,
    file: FileOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the users and their rights."""
    content = _read(_path_of(context, file, data_dir))
    if output is not OutputFormat.TABLE:
        print_document([_fields(account) for account in content.accounts.values()], output)
    else:
        rows = [
            {"user": account.user, "rules": str(account.rules)}
            for account in content.accounts.values()
        ]
        print_rows(rows, ["user", "rules"], output)
    for warning in content.warnings:
        print_message(f"warning: {warning}")


@app.command()
def remove(
    context: typer.Context,
    user: UserArgument,
    file: FileOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove a user."""
    path = _path_of(context, file, data_dir)

    def take(content: AccountsFile) -> None:
        _find(content, user, path)
        content.remove(user)

    _change_existing(path, take)
    report(f"user {user} removed from {path}", {"user": user, "removed": True}, output)


@app.command()
def passwd(
    context: typer.Context,
    user: UserArgument,
    password_file: PasswordFileOption = None,
    password_stdin: PasswordStdinOption = False,
    file: FileOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change the password of a user."""
    from pravega_security.accounts_file import Account
    from pravega_security.passwords import hash_password

    path = _path_of(context, file, data_dir)
    _find(_read(path), user, path)
    password = hash_password(_read_password(password_file, from_stdin=password_stdin))

    def put(content: AccountsFile) -> None:
        content.put(Account(user, password, _find(content, user, path).rules))

    _change_existing(path, put)
    report(f"user {user} has a new password", {"user": user, "changed": True}, output)


@app.command()
def grant(
    context: typer.Context,
    user: UserArgument,
    resource: ResourceArgument,
    level: Annotated[LevelName, typer.Argument(metavar="LEVEL", help="NONE, READ or READ_UPDATE.")],
    first: Annotated[
        bool, typer.Option("--first", help="Put the rule before the others; the first decides.")
    ] = False,
    file: FileOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Give a user rights for a resource, or take them away with NONE.

    A rule for the same resource is replaced.
    """
    from pravega_security.accounts_file import Account
    from pravega_security.resources import Level

    rule = _make_rule(resource, Level[level.value])
    path = _path_of(context, file, data_dir)

    def put(content: AccountsFile) -> None:
        former = _find(content, user, path)
        content.put(Account(user, former.password, former.rules.with_rule(rule, first=first)))

    account = _change_existing(path, put).accounts[user]
    before = account.rules.rule_before(rule)
    if before is not None:
        print_message(f"this has no effect: {before} decides before it; see --first")
    _report_account(f"user {user}: {rule}", account, output)


@app.command()
def revoke(
    context: typer.Context,
    user: UserArgument,
    resource: ResourceArgument,
    file: FileOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove a user's rule for a resource, written as the rule is."""
    from pravega_security.accounts_file import Account
    from pravega_security.resources import Level

    pattern = _make_rule(resource, Level.NONE).pattern
    path = _path_of(context, file, data_dir)

    def take(content: AccountsFile) -> None:
        former = _find(content, user, path)
        rules = former.rules.without(pattern)
        if rules == former.rules:
            raise NotFoundError(f"user {user} has no rule for {pattern}")
        content.put(Account(user, former.password, rules))

    account = _change_existing(path, take).accounts[user]
    left = account.rules.level_for(pattern)
    if left is not Level.NONE:
        print_message(f"another rule still gives {left.name} for {pattern}")
    _report_account(f"user {user}: no rule for {pattern} any more", account, output)


def _path_of(context: typer.Context, file: Path | None, data_dir: Path) -> Path:
    """Return the accounts file; an option counts more than a variable."""
    file_from, directory_from = map(context.get_parameter_source, ("file", "data_dir"))
    is_variable = file_from is not None and file_from.name == "ENVIRONMENT"
    is_option = directory_from is not None and directory_from.name == "COMMANDLINE"
    return data_dir / ACCOUNTS_FILE if file is None or (is_variable and is_option) else file


def _read(path: Path) -> AccountsFile:
    from pravega_security.accounts_file import AccountsFileError, read_accounts_file

    if not path.exists():
        raise NotFoundError(f"there is no accounts file {path}: segstore user add makes one")
    try:
        return read_accounts_file(path)[0]
    except AccountsFileError as error:
        raise AdminError(str(error)) from error


def _change(path: Path, change: Callable[[AccountsFile], None]) -> AccountsFile:
    """Change the file, and print warnings about its content."""
    from pravega_security.accounts_file import AccountsFileError, change_accounts_file

    try:
        content = change_accounts_file(path, change)
    except AccountsFileError as error:
        raise AdminError(str(error)) from error
    for warning in content.warnings:
        print_message(f"warning: {warning}")
    return content


def _change_existing(path: Path, change: Callable[[AccountsFile], None]) -> AccountsFile:
    _read(path)
    return _change(path, change)


def _find(content: AccountsFile, user: str, path: Path) -> Account:
    account = content.accounts.get(user)
    if account is None:
        raise NotFoundError(f"there is no user {user} in {path}")
    return account


def _refuse_existing(content: AccountsFile, user: str, path: Path) -> None:
    if user in content.accounts:
        raise AlreadyExistsError(f"user {user} is in {path} already")


def _make_rule(resource: str, level: int) -> AccessRule:
    """Return the rule for a resource as users write it: in full, or as ``scope/stream``."""
    from pravega_admin.options import parse_stream_name
    from pravega_security.access_rules import RESOURCE_START, AccessRuleError, make_access_rule
    from pravega_security.resources import Level, stream_resource

    if not resource.startswith(f"{RESOURCE_START}:"):
        name = parse_stream_name(resource)
        resource = stream_resource(name.scope, name.stream)
    try:
        return make_access_rule(resource, Level(level))
    except AccessRuleError as error:
        raise UsageError(f"{resource!r} cannot be the resource of a rule: {error}") from error


def _make_rules(read: Sequence[str], write: Sequence[str], *, admin: bool) -> AccessRules:
    """Return the rules that the options of ``add`` stand for, the most rights first.

    A user who reads also makes reader groups, which are objects in the scope and need rights of
    their own.
    """
    from pravega_security.access_rules import AccessRules, make_access_rule
    from pravega_security.resources import Level, reader_group_resource, scope_resource

    patterns: dict[str, Level] = {}
    if admin:
        patterns["prn::*"] = Level.READ_UPDATE
    for names, level in ((write, Level.READ_UPDATE), (read, Level.READ)):
        for name in names:
            scope, slash, _ = name.partition("/")
            _make_rule(name if slash else f"{name}/*", level)
            if slash:
                patterns.setdefault(_make_rule(name, level).pattern, level)
            else:
                patterns.setdefault(scope_resource(scope), level)
                patterns.setdefault(f"{scope_resource(scope)}/*", level)
    for name in (*write, *read):
        scope = name.partition("/")[0]
        patterns.setdefault(scope_resource(scope), Level.READ)
        patterns.setdefault(reader_group_resource(scope, "*"), Level.READ)
    rules = AccessRules()
    for pattern, level in patterns.items():
        rule = make_access_rule(pattern, level)
        if rules.rule_before(rule) is None:
            rules = rules.with_rule(rule, first=False)
    return rules


def _read_password(path: Path | None, *, from_stdin: bool) -> str:
    """Return the password from where the options say, else from a prompt, which asks twice."""
    if path is not None and from_stdin:
        raise UsageError("--password-file and --password-stdin exclude each other")
    if path is not None:
        try:
            password = path.read_text("utf-8").partition("\n")[0]
        except OSError as error:
            raise AdminError(f"{path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise AdminError(f"{path} is not UTF-8") from None
    elif from_stdin:
        try:
            password = sys.stdin.readline().removesuffix("\n")
        except UnicodeDecodeError:
            raise AdminError("the password on stdin is not UTF-8") from None
    else:
        password = _ask_password()
    return _checked_password(password.removesuffix("\r"))


def _ask_password() -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to ask for the password: use --password-file or --password-stdin"
        )
    import getpass

    try:
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise UsageError("the two passwords are different")
    except EOFError:
        raise UsageError("there is no password") from None
    return password


def _checked_password(password: str) -> str:
    from pravega_security.passwords import PASSWORD_BYTES_MAX

    if not password:
        raise UsageError("the password is empty")
    if len(password.encode("utf-8", "surrogateescape")) > PASSWORD_BYTES_MAX:
        raise UsageError(f"the password has more than {PASSWORD_BYTES_MAX:,} bytes")
    try:
        password.encode()
    except UnicodeEncodeError:
        raise UsageError("the password is not UTF-8") from None
    return password


def _fields(account: Account) -> dict[str, object]:
    rules = [{"resource": rule.pattern, "level": rule.level.name} for rule in account.rules.rules]
    return {"user": account.user, "rules": rules}


def _report_account(sentence: str, account: Account, output: OutputFormat) -> None:
    report(sentence, _fields(account), output)
