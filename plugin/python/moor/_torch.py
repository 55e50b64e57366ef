# SPDX-License-Identifier: Apache-2.0
"""The capture as a torch operator.

torch.compile cannot trace a C callable, and drops a call without a visible effect; an operator that says it mutates a
tensor survives both.  The sink is that tensor: one element that nobody reads.  Imported only when a compiled model is bound.
"""
import torch

from . import _moor

_library = torch.library.Library("moor", "DEF")
_library.define("capture(Tensor(a!) sink, Tensor topk_ids, int column) -> ()")
_library.impl("capture", lambda sink, topk_ids, column: _moor.capture(column, topk_ids), "CPU")
_library.impl("capture", lambda sink, topk_ids, column: None, "Meta")


def capture_fn(column):
    """A traceable capture(topk_ids) for one column."""
    sink = torch.zeros(1, dtype=torch.int32)

    def capture(topk_ids):
        torch.ops.moor.capture(sink, topk_ids, column)

    return capture


def bypass_fn(column, method):
    """A traceable stand-in for a kernel's forward_method(layer, x, topk_weights, topk_ids, ...): captures, and goes on."""
    capture = capture_fn(column)

    def forward_method(layer, x, topk_weights, topk_ids, *args, **kwargs):
        capture(topk_ids)
        return method(layer, x, topk_weights, topk_ids, *args, **kwargs)

    forward_method.moor_column = column
    return forward_method
