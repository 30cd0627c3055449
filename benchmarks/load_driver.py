"""Builds the load driver, a Java program that uses the official clients.

Pulsar's client is fetched only for who asks for it: it is larger than the rest of the driver.
"""

from pathlib import Path

from foreign_servers.maven import compiled_class_path, locked, run_maven

DRIVER = Path(__file__).parent / "driver"
PULSAR = DRIVER / "pulsar"
PULSAR_CLASS = "segstore.load.PulsarTarget"


def driver_class_path(*, with_pulsar: bool = False) -> str:
    """Return the class path of the load driver, built when its sources are newer than it."""
    jar = DRIVER / "target" / "load-driver.jar"
    sources = [DRIVER / "pom.xml", *(p for p in DRIVER.glob("src/**/*") if p.is_file())]
    with locked(DRIVER / "target"):
        newest = max(source.stat().st_mtime for source in sources)
        if not jar.exists() or jar.stat().st_mtime < newest:
            run_maven("-f", str(DRIVER / "pom.xml"), "package")
            jar.touch()
    class_path = f"{jar}:{DRIVER / 'target' / 'lib'}/*"
    if with_pulsar:
        class_path += f":{compiled_class_path(PULSAR, PULSAR_CLASS, beside=jar)}"
    return class_path
