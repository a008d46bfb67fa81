# SPDX-License-Identifier: Apache-2.0
"""Reads Spack recipes without Spack: runs package.py with directives that only take notes.

What a recipe says is the list of its versions, variants, dependencies and conflicts, each with its conditions. That is
enough to look up every name and variant, and to ask whether a spec meets a conflict; it is no solver.
"""
import contextlib
import importlib.util
import re
import sys
import types

TOKEN = re.compile(r"""\s*(?:(?P<deps>\^|%)(?:\[[^\]]*\]\s*)?|@(?P<versions>=?[\w.:,=-]+)
    |(?P<flag>\+\+?|~~?|(?<=\s)-)(?P<flagged>[\w-]+)|(?P<key>[\w-]+)==?(?P<value>[\w.,:+*-]+)
    |(?P<name>[\w.-]+))""", re.X)


class Spec:
    """One package's part of a spec."""
    def __init__(self):
        self.name, self.versions, self.variants = None, None, {}

    def __repr__(self):
        return f"{self.name or ''}{'@' + self.versions if self.versions else ''} {self.variants}"


def parse(text):
    """[Spec, ...]: the root first (nameless in conditions), then what follows each ^ and %."""
    specs, at = [Spec()], 0
    text = (text or "").strip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise ValueError(f"cannot read '{text[at:]}' in spec '{text}'")
        at = match.end()
        if match["deps"]:
            specs.append(Spec())
            specs[-1].compiler = match["deps"] == "%"
        elif match["versions"]:
            specs[-1].versions = match["versions"]
        elif match["flag"]:
            specs[-1].variants[match["flagged"]] = match["flag"].startswith("+")
        elif match["key"]:
            specs[-1].variants[match["key"]] = match["value"]
        elif specs[-1].name is None and not specs[-1].versions and not specs[-1].variants:
            specs[-1].name = match["name"]
        else:
            specs.append(Spec())
            specs[-1].name = match["name"]
    return specs


def key(version):
    return [(1, int(p), "") if p.isdigit() else (0, 0, p) for p in re.findall(r"\d+|[a-z]+", version)]


def in_range(version, ranges):
    """Is version "4.6.01" in "4.3:5,3.7"? An end counts with all that starts with it, as in Spack."""
    def starts(v, prefix):
        return key(v)[: len(key(prefix))] == key(prefix)
    for part in ranges.lstrip("=").split(","):
        low, colon, high = part.partition(":")
        if not colon:
            if starts(version, low):
                return True
        elif (not low or key(version) >= key(low)) and (not high or key(version) <= key(high) or starts(version, high)):
            return True
    return False


class Recipe:
    """What one package.py declares. `when` conditions are kept as text, joined with those of `with when(...)`."""
    def __init__(self, name):
        self.name = name
        self.versions, self.variants, self.depends, self.conflicts, self.requires = [], [], [], [], []

    def variant_names(self):
        return {v["name"] for v in self.variants}


class _Notes:
    """The recipe that is being read now, and the conditions around."""
    recipe, around = None, []


def _when(when):
    return " ".join([*_Notes.around, when or ""]).strip()


def _directives():
    def version(text, **options):
        _Notes.recipe.versions.append(str(text))

    def variant(name, default=None, description="", values=None, multi=None, when=None, sticky=False, validator=None):
        if values is None:
            values = (True, False) if default in (None, True, False) else None
        _Notes.recipe.variants.append({"name": name, "default": default, "values": values, "when": _when(when)})

    def depends_on(spec, when=None, type=None, patches=None):
        _Notes.recipe.depends.append((spec, _when(when)))

    def conflicts(spec, when=None, msg=None):
        _Notes.recipe.conflicts.append((spec, _when(when)))

    def requires(*specs, policy="one_of", when=None, msg=None):
        _Notes.recipe.requires.append((specs, _when(when)))

    @contextlib.contextmanager
    def when(condition):
        _Notes.around.append(condition)
        yield
        _Notes.around.pop()

    @contextlib.contextmanager
    def default_args(**options):
        yield

    class Quiet:
        """Stands for everything else: may be called, subscripted, subclassed, iterated."""
        def __init__(self, *a, **k): pass
        def __call__(self, *a, **k): return a[0] if len(a) == 1 and callable(a[0]) else self
        def __getattr__(self, name): return Quiet()
        def __getitem__(self, item): return Quiet()
        def __iter__(self): return iter(())
        def __str__(self): return ""

    return Quiet, {"version": version, "variant": variant, "depends_on": depends_on, "conflicts": conflicts,
                   "requires": requires, "when": when, "default_args": default_args}


def install_stubs(builtin=None):
    """Makes `from spack.package import *` and `spack_repo.builtin...` importable. `builtin`: a checkout of the public
    package repository; without it CudaPackage and ROCmPackage have short lists of architectures."""
    Quiet, names = _directives()
    package = types.ModuleType("spack.package")
    package.__dict__.update(names)
    package.__all__ = [*names]
    for other in ("license", "maintainers", "patch", "provides", "extends", "sanity_check_is_file",
                  "filter_compiler_wrappers", "build_system", "resource", "run_after", "run_before",
                  "on_package_attributes", "join_path", "which", "env", "any_combination_of", "disjoint_sets",
                  "auto_or_any_combination_of", "conditional", "classproperty", "test_part", "register_builder",
                  "BuilderWithDefaults", "EnvironmentModifications", "Spec", "Prefix", "is_system_path",
                  "working_dir", "mkdirp", "find_libraries", "find_headers", "Executable", "ProcessError",
                  "InstallError", "execute_install_time_tests", "execute_build_time_tests", "import_module", "List",
                  "Optional", "Tuple", "run_tests", "dso_suffix", "static_to_shared_library", "tty",
                  "cache_extra_test_sources", "filter_file", "inject_flags"):
        setattr(package, other, Quiet())
        package.__all__.append(other)
    package.conditional = lambda *values, when=None: values
    package.any_combination_of = lambda *values: ("none",) + values
    package.run_after = package.run_before = lambda *a, **k: (lambda f: f)
    package.PackageBase = type("PackageBase", (), {})
    sys.modules["spack"] = types.ModuleType("spack")
    sys.modules["spack"].package = package
    sys.modules["spack.package"] = package
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems", "spack_repo.builtin.packages"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    values = {"cuda": ("cuda_arch_values", ("70", "80", "90")), "rocm": ("amdgpu_targets", ("gfx90a", "gfx942"))}
    arch = {"cuda": "cuda_arch", "rocm": "amdgpu_target"}
    for system in ("cmake", "cuda", "rocm", "autotools", "generic", "makefile", "python"):
        module = types.ModuleType(f"spack_repo.builtin.build_systems.{system}")
        sys.modules[module.__name__] = module
        module.generator = lambda *a, **k: None
        base = type(system, (package.PackageBase,), {})
        if system in values:
            attribute, known = values[system]
            if builtin:
                text = (builtin / f"build_systems/{system}.py").read_text()
                known = tuple(re.findall(r'"([^"]+)"', re.search(attribute + r" = \((.*?)\n    \)", text, re.S)[1]))
            setattr(base, attribute, known)
            base.adds = [{"name": system, "default": False, "values": (True, False), "when": ""},
                         {"name": arch[system], "default": "none", "values": ("none",) + known, "when": "+" + system}]
        for class_name in ("CMakePackage", "CMakeBuilder", "CudaPackage", "ROCmPackage", "AutotoolsPackage", "Package",
                           "MakefilePackage", "PythonPackage"):
            if class_name.lower().startswith(system):
                setattr(module, class_name, base)
        sys.modules["spack_repo.builtin.build_systems"].__dict__[system] = module


def load(path, name):
    """Runs a package.py and returns its Recipe."""
    _Notes.recipe, _Notes.around = Recipe(name), []
    module_name = "recipe_" + name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recipe = _Notes.recipe
    class_name = "".join(part.capitalize() for part in name.split("-"))
    recipe.package = getattr(module, class_name)
    for base in recipe.package.__mro__:
        recipe.variants += getattr(base, "adds", []) if "adds" in base.__dict__ else []
    recipe.package.versions = {v: {} for v in recipe.versions}
    sys.modules[f"spack_repo.builtin.packages.{name.replace('-', '_')}"] = types.ModuleType("recipe")
    sys.modules[f"spack_repo.builtin.packages.{name.replace('-', '_')}.package"] = module
    return recipe
