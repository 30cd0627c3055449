"""``segstore certificate``: create, show.

Owns: the arguments and the output of these verbs.

Invariants:
1. When a certificate that is shown has ended, or is not of the CA, the exit code is not 0. Held by
   ``test_what_is_wrong_has_an_exit_code``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pravega_admin.errors import AdminError, ConfigurationError
from pravega_admin.options import OutputOption
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_document, print_fields, report
from segstore_client.addresses import parse_host_port
from segstore_client.errors import AlreadyExistsError, NotFoundError, UsageError

if TYPE_CHECKING:
    from pravega_security.certificates import CertificateFacts

app = Verbs(help="Make certificates for TLS, and see what they say.")

DAYS = 825
ANSWER_SECONDS = 5.0


@app.command()
def create(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are made.")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="HOST|IP",
            help="A name or address by which clients reach the server; may be repeated. By default"
            " localhost, and the names and addresses of this machine.",
        ),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=DAYS, help="Days it is valid.")] = DAYS,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="Make one for a client, which proves NAME."),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the one that is there; CA and key stay.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a server's certificate, and a CA that signs it if there is none.

    The files are ca.pem, which clients trust, and server.pem and server.key for the server.
    """
    from pravega_security.certificates import make_client, make_server

    with _explaining_errors():
        if user is None:
            made = make_server(directory, now=time.time(), names=name or (), days=days, renew=renew)
        elif name:
            raise UsageError("a client's certificate has no --name: --user names the client")
        else:
            made = make_client(directory, user, now=time.time(), days=days, renew=renew)
    fields = {"directory": str(directory), "made": made}
    report(f"made {', '.join(made)} in {directory}", fields, output)


@app.command()
def show(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="FILE|HOST:PORT...", help="Files in PEM, or servers to ask."),
    ],
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Check that it is of this CA."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long a server may take.")
    ] = ANSWER_SECONDS,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what certificates say; exit code 1 if one has ended or is not of the CA."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for source in sources:
        with _explaining_errors():
            found, problem = _look(source, ca, timeout)
        rows += found
        problems += [problem] if problem else []
    if output is not OutputFormat.TABLE:
        print_document(rows, output)
    else:
        for number, row in enumerate(rows):
            if number:
                print()
            print_fields(row, output)
    if problems:
        raise AdminError("; ".join(problems))


def _look(source: str, ca: Path | None, seconds_max: float) -> tuple[list[dict[str, Any]], str]:
    """Return the rows to show, and a sentence if something is wrong."""
    from pravega_security.certificates import describe_chain, is_chain_of

    path = Path(source)
    if not path.exists() and ":" in source and "/" not in source:
        return _ask(source, ca, seconds_max)
    pem = _read(path)
    facts = describe_chain(pem, source)
    now = time.time()
    rows = [_row(source, each, now) for each in facts]
    problem = _check_time(source, facts[0], now)
    if ca is not None:
        is_of_ca = is_chain_of(pem, _read(ca))
        rows[0]["of_the_ca"] = is_of_ca
        if not problem and not is_of_ca:
            problem = f"{source} was not issued by the CA in {ca}"
    return rows, problem


def _ask(address: str, ca: Path | None, seconds_max: float) -> tuple[list[dict[str, Any]], str]:
    """Return rows of a server's certificates, and a sentence if something is wrong."""
    from pravega_admin.inspection.served_certificates import check_certificate, fetch_certificate
    from pravega_security.certificates import describe_der

    host, port = parse_host_port(address)
    facts = describe_der(fetch_certificate(host, port, seconds_max=seconds_max))
    now = time.time()
    row = _row(address, facts, now)
    problem = _check_time(address, facts, now)
    if ca is not None:
        refusal = check_certificate(host, port, ca, seconds_max=seconds_max)
        row["accepted"] = not refusal
        if not problem and refusal:
            problem = f"clients that trust {ca} refuse {address}: {refusal}"
    return [row], problem


def _row(source: str, facts: CertificateFacts, now: float) -> dict[str, Any]:
    return {
        "source": source,
        "subject": facts.subject,
        "names": facts.names,
        "issuer": facts.issuer,
        "valid_until": time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(facts.not_after)),
        "days_left": round((facts.not_after - now) / 86_400, 1),
        "key": facts.key,
        "sha256": facts.fingerprint,
        "ca": facts.is_ca,
    }


def _check_time(source: str, facts: CertificateFacts, now: float) -> str:
    if now > facts.not_after:
        return f"the certificate of {source} has ended"
    return f"the certificate of {source} is not valid yet" if now < facts.not_before else ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


@contextmanager
def _explaining_errors() -> Iterator[None]:
    """Convert errors of certificates into those of the command."""
    from pravega_security.certificates import CertificateExistsError
    from pravega_security.tls import CertificateError

    try:
        yield
    except CertificateExistsError as error:
        raise AlreadyExistsError(str(error)) from error
    except CertificateError as error:
        raise ConfigurationError(str(error)) from error
