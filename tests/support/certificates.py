"""Certificates and keys for tests, made by openssl."""

import subprocess


def make(folder, name, issuer=None):
    """Writes <name>.pem and <name>.key of a host "localhost" to a folder.

    They are signed by the certificate called `issuer`, or by themselves.
    """
    signer = []
    if issuer:
        signer = ["-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *(
                "-subj",
                f"/CN={name}",
                "-addext",
                "subjectAltName=DNS:localhost",
            ),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem", *signer),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
