# SPDX-License-Identifier: Apache-2.0
"""Test-only stand-in for sglang-kernel: SGLang's CPU engine imports these names and, without AMX, never calls them."""
import importlib.machinery
import sys

__version__ = "0.4.10"


class _Missing:
    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError("sgl_kernel stand-in: " + self.__name__)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)


class _Submodules:
    """Older releases import submodules of it."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = __getattr__


sys.meta_path.append(_Submodules())
