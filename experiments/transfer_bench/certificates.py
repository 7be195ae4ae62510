"""A throw-away authority and one certificate, for the rows with TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

COMMAND_S = 30.0


def certificates(folder: Path) -> list[str] | None:
    """Paths of certificate, key and authority in `folder`; None where the openssl program is missing."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    new = [openssl, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    for argv in (
        [*new, "-x509", "-subj", "/CN=bench", "-keyout", "ca.key", "-out", "ca.pem"],
        [*new, "-subj", "/CN=member", "-keyout", "key.pem", "-out", "request.pem"],
        [openssl, "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
         "-days", "2", "-out", "cert.pem"],
    ):  # fmt: skip
        subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=COMMAND_S)
    return [str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")]
