# SPDX-License-Identifier: Apache-2.0
"""Import hooks of others beside ours: loaders of every shape that an engine's module may come with, and finders in front and behind."""
import contextlib
import copy
import importlib
import importlib.machinery
import importlib.util
import os
import pickle
import sys
import tempfile
import types
import warnings

from joinpoint_case import Case, info  # first: it installs

import _jphost
import mockeng

NAME = "mockeng.perf"


class Chained:
    """newrelic's: it has the loader's three methods, and nothing else."""

    def __init__(self, loader):
        self.loader = loader

    def load_module(self, fullname):
        return self.loader.load_module(fullname)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)


class Restoring(Chained):
    """wrapt's: it puts what it wraps into the module and its spec."""

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)


class Slots:
    """Takes no attributes."""
    __slots__ = ("source",)

    def __init__(self, loader):
        self.source = loader.get_code(NAME)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(self.source, vars(module))


class Old:
    """From before exec_module."""

    def __init__(self, loader):
        self.code = loader.get_code(NAME)

    def load_module(self, fullname):
        module = sys.modules.setdefault(fullname, types.ModuleType(fullname))
        module.__package__ = fullname.rpartition(".")[0]
        exec(self.code, vars(module))
        return module


def class_loader(loader):
    """A class that is a loader, as those of builtin and frozen modules."""
    class Loader:
        exec_module = staticmethod(lambda module: exec(loader.get_code(NAME), vars(module)))
        create_module = staticmethod(lambda spec: None)
    return Loader


@contextlib.contextmanager
def said():
    """The lines that the library writes to stderr meanwhile."""
    lines, before = [], os.dup(2)
    with tempfile.TemporaryFile("w+") as f:
        os.dup2(f.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
            f.seek(0)
            lines.extend(f.read().splitlines())


class Hooks(Case):
    def setUp(self):
        super().setUp()
        self.before = sys.modules.pop(NAME, None)

    def tearDown(self):
        super().tearDown()
        sys.modules[NAME] = mockeng.perf = self.before or importlib.import_module(NAME)

    @contextlib.contextmanager
    def hook(self, find, place):
        """A finder of this module, find(spec), behind ours (1) or before it (0); the module is as never imported."""
        class Finder:
            def find_spec(self, fullname, path=None, target=None):
                if fullname != NAME or self in asked:
                    return None
                asked.append(self)
                try:
                    return find(importlib.util.find_spec(fullname))
                finally:
                    asked.remove(self)
        asked, finder = [], Finder()
        sys.modules.pop(NAME, None)
        sys.meta_path.insert(place, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)

    def sees(self, module):
        self.assertEqual(self.fires("perf.method", 1, lambda: module.Perf().method(1)), 1)

    def wrapped(self, wrap):
        def find(spec):
            spec.loader = wrap(spec.loader)
            return spec
        return find

    def test_loaders_of_others(self):
        for wrap, places in (Chained, (1, 0)), (Restoring, (1, 0)), (Slots, (1,)), (Old, (1,)), (class_loader, (1,)):
            for place in places:
                with (self.subTest(wrap=wrap, place=place), self.hook(self.wrapped(wrap), place),
                      warnings.catch_warnings()):
                    warnings.simplefilter("ignore")  # Old is deprecated
                    module = importlib.import_module(NAME)
                    self.sees(module)
                    for loader in module.__loader__, module.__spec__.loader:
                        self.assertNotIn("moor", repr(type(loader)))

    def test_a_loader_of_several_modules(self):
        """The other one is not ours, and is executed first."""
        class Shared:
            def create_module(self, spec):
                return None

            def exec_module(self, module):
                if module.__spec__.name == NAME:
                    other = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("unwatched", self))
                    self.exec_module(other)
                    assert other.found
                    exec(code, vars(module))
                else:
                    module.found = True
        code = importlib.machinery.PathFinder.find_spec(NAME, mockeng.__path__).loader.get_code(NAME)
        with self.hook(self.wrapped(lambda _: Shared()), 1):
            self.sees(importlib.import_module(NAME))

    def test_lazy(self):
        """It stays lazy until it is used, and is seen then."""
        for place, rescan in (1, True), (0, True), (1, False), (0, False):
            with (self.subTest(place=place, rescan=rescan),
                  self.hook(self.wrapped(importlib.util.LazyLoader), place)):
                module = importlib.import_module(NAME)
                self.lazy(module)
                if rescan:  # looks at every module, and leaves it lazy
                    _jphost.rescan()
                self.lazy(module)
                self.sees(module)

    def test_lazy_as_the_manual_has_it(self):
        spec = importlib.util.find_spec(NAME)
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.lazy(module)
        self.sees(module)

    def test_lazy_before_we_came(self):
        """Made past our finder: watched when a rescan finds it."""
        spec = importlib.machinery.PathFinder.find_spec(NAME, mockeng.__path__)
        loader = importlib.util.LazyLoader(spec.loader)
        module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        _jphost.rescan()
        self.lazy(module)
        self.sees(module)

    def lazy(self, module):
        self.assertEqual(object.__getattribute__(module, "__class__").__name__, "_LazyModule")
        self.assertNotIn("Perf", object.__getattribute__(module, "__dict__"))

    def test_a_spec_of_their_own(self):
        with self.hook(lambda s: importlib.util.spec_from_file_location(NAME, s.origin, loader=s.loader), 0):
            self.sees(importlib.import_module(NAME))

    def test_a_spec_that_is_replaced_later(self):
        class Replacing(Chained):
            def exec_module(self, module):
                module.__spec__ = importlib.machinery.ModuleSpec(NAME, self.loader)
                self.loader.exec_module(module)
        with self.hook(self.wrapped(Replacing), 1):
            self.sees(importlib.import_module(NAME))

    def test_a_method_that_they_replace(self):
        ran = []

        def find(spec):
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), ran.append(module.__name__))
            return spec
        with self.hook(find, 0):
            self.sees(importlib.import_module(NAME))
        self.assertEqual(ran, [NAME])

    def test_one_that_hides_the_module(self):
        """It asks nobody: ours sees the module at the next import of anything."""
        class Hiding:
            def find_spec(self, fullname, path=None, target=None):
                return importlib.util.spec_from_loader(fullname, self) if fullname == "mockeng.never" else None

            def create_module(self, spec):
                return None

            def exec_module(self, module):
                exec("class Nothing:\n    def run(self):\n        return 3\n", vars(module))
        hiding = Hiding()
        sys.meta_path.insert(0, hiding)
        try:
            module = importlib.import_module("mockeng.never")
            self.assertEqual(info("not_imported")["state"], "waiting")
            engine = module.Nothing()
            with self.assertRaises(ImportError):
                importlib.import_module("no_such_module_of_anybody")
        finally:
            sys.meta_path.remove(hiding)
        with said() as lines:
            for _ in range(2):
                self.assertEqual(self.fires("not_imported", 1, engine.run), 3)
        self.assertEqual([line[:75] for line in lines],
                         ["moor: mockeng: not_imported runs, but never.init was not seen: it ran before"[:75]])
        self.assertEqual(info("never.init")["state"], "never fired")

    def test_what_others_ask_of_a_spec(self):
        loader = importlib.util.find_spec(NAME).loader
        plain = importlib.machinery.PathFinder.find_spec(NAME, mockeng.__path__).loader
        self.assertIsInstance(loader, importlib.machinery.SourceFileLoader)
        self.assertEqual((loader.name, loader.path, loader.get_filename(NAME)), (NAME, plain.path, plain.path))
        self.assertTrue(loader == plain and plain == loader and hash(loader) == hash(plain))
        for again in copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader)):
            self.assertIs(type(again), importlib.machinery.SourceFileLoader)
            self.assertEqual(again.path, plain.path)
        with self.assertRaises(TypeError):
            type(loader)()
        with self.assertRaises(AttributeError):
            loader.no_such_thing
        loader.note = 1
        self.assertEqual(vars(loader)["note"], 1)

    def test_a_module_that_fails(self):
        """Its error is the importer's, and it can be imported again."""
        class Failing(Chained):
            def exec_module(self, module):
                raise RuntimeError("not today")
        with self.hook(self.wrapped(Failing), 1), self.assertRaisesRegex(RuntimeError, "not today"):
            importlib.import_module(NAME)
        self.assertNotIn(NAME, sys.modules)
        self.sees(importlib.import_module(NAME))
