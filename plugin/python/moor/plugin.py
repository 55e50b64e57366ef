# SPDX-License-Identifier: Apache-2.0
"""Entry points by which the engines call Moor after `pip install`: groups vllm.general_plugins, sglang.srt.plugins."""
from moor._moor import bootstrap


def vllm():
    bootstrap()


def sglang():
    bootstrap()
