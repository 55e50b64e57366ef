# SPDX-License-Identifier: Apache-2.0
"""Moor: routed-expert records, the request gate and the KV-resume barrier of MoE rollout servers."""
