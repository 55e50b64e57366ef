# SPDX-License-Identifier: Apache-2.0
"""Test-only stand-in for sglang-kernel: SGLang's CPU engine imports these names and, without AMX, never calls them."""
__version__ = "0.4.10"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError("sgl_kernel stand-in: " + name)

    missing.__name__ = name
    return missing
