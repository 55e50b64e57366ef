# SPDX-License-Identifier: Apache-2.0
"""moor_* metrics in an engine's own /metrics: a custom collector for prometheus_client.

register() puts it into a registry; each scrape reads the instance's shared state, which costs microseconds and no
message to any process. What is exported, its names and its help are libmoor's: `moor status --prometheus` is the same.
"""
import logging
import threading

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from moor import _moor

_log = logging.getLogger("moor")
_lock = threading.Lock()


class Collector:
    """instance, dir: as moor.attach; None: this process' own."""

    def __init__(self, instance=None, dir=None):
        self.instance = instance
        self.dir = dir
        self._said = None

    def describe(self):
        return []  # asked at registration, perhaps before the instance exists

    def collect(self):
        try:
            text = _moor.status_text(self.instance, self.dir, "prometheus")
        except _moor.Error as error:  # the engine's own metrics must go out without ours
            if self._said != str(error):
                self._said = str(error)
                _log.warning("moor: no moor_* metrics in this scrape: %s", error)
            return []
        self._said = None
        return list(text_string_to_metric_families(text))


def register(registry=None, instance=None, dir=None):
    """Adds the collector to registry (None: prometheus_client's own), once. Returns it."""
    registry = REGISTRY if registry is None else registry
    with _lock:
        found = getattr(registry, "_moor_collector", None)
        if found is None:
            found = Collector(instance, dir)
            registry.register(found)
            registry._moor_collector = found
    return found
