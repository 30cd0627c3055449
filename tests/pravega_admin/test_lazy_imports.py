"""Imports that are put off, in processes of their own."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.processes


def output_of(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True
    )
    return done.stdout


BEGIN = """
        import sys
        from pravega_admin.lazy_imports import import_lazily
        import_lazily(["asyncio", "hmac", "xml.dom", "no_such_module"])
"""


@pytest.mark.parametrize(
    "use",
    [
        "import asyncio; asyncio.run(asyncio.sleep(0))",
        "from asyncio import run, sleep; run(sleep(0))",
        "import asyncio.tasks; asyncio.run(asyncio.tasks.sleep(0))",
        "import asyncio; assert asyncio.__path__ and asyncio.__file__.endswith('__init__.py')",
        "import xml.dom; import asyncio; assert xml.dom.Node.ELEMENT_NODE == 1; asyncio.run",
    ],
)
def test_a_module_is_there_when_it_is_used(use: str) -> None:
    source = f"{BEGIN}        import asyncio, asyncio, hmac\n"
    source += "        assert 'asyncio.events' not in sys.modules\n"
    source += f"        {use}\n        print('asyncio.events' in sys.modules)\n"
    assert output_of(source) == "True\n"


def test_a_module_that_is_missing_is_missed() -> None:
    source = f"""{BEGIN}
        try:
            import no_such_module
        except ModuleNotFoundError as error:
            print(error.name)
    """
    assert output_of(source) == "no_such_module\n"


@pytest.mark.parametrize("kind", ["segment-store", "controller"])
def test_server_processes_do_not_import_what_they_never_use(kind: str) -> None:
    source = f"""
        import sys
        from pravega_admin.serving.child import NEVER_USED
        from pravega_admin.lazy_imports import import_lazily
        sys.modules["rich"] = None
        import_lazily(NEVER_USED)
        from pravega_admin.output.logs import configure_logs
        from pravega_admin.serving.serve import SERVERS
        SERVERS[{kind!r}].load()
        print(*sys.modules)
    """
    loaded = set(output_of(source).split())
    for name in ("_ssl", "asyncio.events", "boto3", "botocore", "click", "rich.text", "typer"):
        assert name not in loaded, name
