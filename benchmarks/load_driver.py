"""Builds the load driver, a Java program that uses the official client."""

from pathlib import Path

from foreign_servers.maven import locked, run_maven

DRIVER = Path(__file__).parent / "driver"


def driver_class_path() -> str:
    """Return the class path of the load driver, built when its sources are newer than it."""
    jar = DRIVER / "target" / "load-driver.jar"
    sources = [DRIVER / "pom.xml", *(p for p in DRIVER.glob("src/**/*") if p.is_file())]
    with locked(DRIVER / "target"):
        newest = max(source.stat().st_mtime for source in sources)
        if not jar.exists() or jar.stat().st_mtime < newest:
            run_maven("-f", str(DRIVER / "pom.xml"), "package")
            jar.touch()
    return f"{jar}:{DRIVER / 'target' / 'lib'}/*"
