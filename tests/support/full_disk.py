"""Mounts a small file system that a test can fill."""

import contextlib
import subprocess


@contextlib.contextmanager
def mount(test, megabytes):
    """Yields the path of an empty file system of a given size.

    Skips the test where the process may not mount one.
    """
    folder = test.create_tempdir().full_path
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m"]
    try:
        subprocess.run(
            [*command, "tmpfs", folder], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        test.skipTest(f"No file system can be mounted here: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
