"""The answers of a filter of system calls in place of the kernel: a container's seccomp profile, a unit, a sandbox."""

from __future__ import annotations

import errno

# Of families of sockets the last one; all other errors speak of the arguments.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT)
REMEDY = "Allow it in the container's seccomp profile or in the unit (SystemCallFilter=), or leave that filter out"
