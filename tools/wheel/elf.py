"""The oldest Linux that shared libraries run on, as a platform tag of PEP 600."""

import pathlib
import platform
import re
from collections.abc import Iterable

# The glibc beside which distributions ship the libstdc++ that first had each GLIBCXX_3.4.N.
_GLIBC_OF_GLIBCXX = {24: 27, 25: 28, 28: 31, 29: 34, 30: 35, 31: 37, 32: 38, 33: 39}
# TensorFlow's own wheels need this much.
_OLDEST_GLIBC = 27


def _newest(data: bytes, name: bytes) -> int:
    """Returns the largest N of the symbol versions <name>N that an ELF file mentions."""
    return max((int(n) for n in re.findall(rb"\0" + name + rb"(\d+)(?=[.\0])", data)), default=0)


def platform_tag(libraries: Iterable[pathlib.Path]) -> str:
    """Returns manylinux_2_N_<machine> for the newest glibc and libstdc++ that `libraries` need."""
    glibc = _OLDEST_GLIBC
    for library in libraries:
        data = library.read_bytes()
        glibc = max(glibc, _newest(data, rb"GLIBC_2\."))
        glibcxx = _newest(data, rb"GLIBCXX_3\.4\.")
        known = [g for x, g in _GLIBC_OF_GLIBCXX.items() if x >= glibcxx]
        if not known:
            # Newer than the table: the machine that built it is the only one known to run it.
            return f"linux_{platform.machine()}"
        glibc = max(glibc, min(known))
    return f"manylinux_2_{glibc}_{platform.machine()}"
