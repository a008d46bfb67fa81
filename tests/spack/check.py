# SPDX-License-Identifier: Apache-2.0
"""Checks spack/ without Spack: the recipe and the environments are read, and every name, version and variant that they
use is looked up in the public package repository where a checkout of it is at hand (--packages, or P3D_SPACK_PACKAGES).

With the checkout it also looks for a version of Kokkos that serves each configuration: all wanted variants exist under
their conditions, and no conflict of the recipes of Kokkos and Kokkos-Kernels that can be judged without a solver is
met.
"""
import argparse
import os
import pathlib
import re
import sys

import recipes

CONFIGURATIONS = ["+openmp", "~openmp", "+openmp+tests", "~shared", "+cuda cuda_arch=80", "+cuda cuda_arch=90",
                  "+rocm amdgpu_target=gfx90a", "+rocm amdgpu_target=gfx942", "+sycl intel_gpu_arch=intel_pvc"]


class Check:
    def __init__(self, root, packages):
        self.root, self.packages, self.faults, self.cache, self.looked_up = root, packages, [], {}, 0

    def fault(self, text):
        self.faults.append(text)

    def recipe(self, name):
        """The public recipe of a package, None when there is none."""
        if name not in self.cache:
            path = self.packages / "packages" / name.replace("-", "_") / "package.py"
            self.cache[name] = (recipes.load(path, name) if name in ("kokkos", "kokkos-kernels") else
                                path.read_text() if path.exists() else None)
        return self.cache[name]

    def is_virtual(self, name):
        return name in ("mpi", "blas", "cxx", "c", "fortran", "lapack", "zlib-api", "oneapi")

    def variant_exists(self, name, variant):
        recipe = self.recipe(name)
        if isinstance(recipe, recipes.Recipe):
            return variant in recipe.variant_names()
        mixins = {"cuda": ("cuda", "cuda_arch"), "rocm": ("rocm", "amdgpu_target")}
        if re.search(r'variant\(\s*"' + re.escape(variant) + '"', recipe):
            return True
        return any(variant in names and f"build_systems.{mixin}" in recipe for mixin, names in mixins.items())

    def look_up(self, spec, where):
        """One package's part of a spec: name, variants, at least one version in the range."""
        name = spec.name
        if name is None or name == "p3d" or self.is_virtual(name):
            return
        self.looked_up += 1
        recipe = self.recipe(name)
        if recipe is None:
            return self.fault(f"{where}: no package '{name}'")
        for variant in spec.variants:
            self.looked_up += 1
            if not self.variant_exists(name, variant):
                self.fault(f"{where}: package {name} has no variant '{variant}'")
        if spec.versions:
            self.looked_up += 1
            known = recipe.versions if isinstance(recipe, recipes.Recipe) else re.findall(
                r'version\(\s*"([^"]+)"|^\s+"(\d[\w.]*)": \{', recipe, re.M)
            known = [v if isinstance(v, str) else v[0] or v[1] for v in known]
            if not any(recipes.in_range(v, spec.versions) for v in known):
                self.fault(f"{where}: package {name} has no version in {spec.versions}")

    def texts(self, mine):
        """(spec text, where) of the recipe and the environments."""
        for spec, when in mine.depends:
            yield spec, f"depends_on({spec!r})"
            yield when, f"depends_on({spec!r}, when={when!r})"
        for specs, when in mine.requires:
            for spec in specs:
                yield spec, f"requires({spec!r})"
            yield when, f"requires(when={when!r})"
        for spec, when in mine.conflicts:
            yield spec, "conflicts"
            yield when, "conflicts"
        for path in sorted((self.root / "spack/environments").glob("*/spack.yaml")):
            for line in path.read_text().splitlines():
                match = re.match(r"\s+- (p3d.*)", line) or re.match(r"\s+spec: (p3d.*)", line)
                if match:
                    yield match[1], str(path.relative_to(self.root))

    def own_variants(self, mine, text, where):
        root = recipes.parse(text)[0]
        if root.name in (None, "p3d"):
            for variant in root.variants:
                if variant not in mine.variant_names():
                    self.fault(f"{where}: p3d has no variant '{variant}'")

    def wanted(self, mine, configuration):
        """{package: Spec} of what a configuration asks of Kokkos and Kokkos-Kernels; ranges as a list."""
        chosen = {v["name"]: v["default"] for v in mine.variants if v["when"] in ("", "~cuda~rocm~sycl")}
        chosen.update(recipes.parse(configuration)[0].variants)
        if chosen.get("cuda") or chosen.get("rocm") or chosen.get("sycl"):
            chosen.pop("openmp", None)
        result = {"kokkos": ({}, []), "kokkos-kernels": ({}, [])}
        conditional = []
        for spec_text, when in mine.depends:
            conditions = recipes.parse(when)
            spec = recipes.parse(spec_text)[0]
            if spec.name not in result or any(chosen.get(k) != v for k, v in conditions[0].variants.items()):
                continue
            if len(conditions) > 1:
                conditional.append((conditions[1:], spec))
                continue
            result[spec.name][0].update(spec.variants)
            result[spec.name][1].extend([spec.versions] if spec.versions else [])
        return result, conditional

    def holds(self, condition, version, variants):
        """Is a condition of a Kokkos recipe surely met? Parts about compilers, dependencies, targets: not judged, so
        no."""
        specs = recipes.parse(condition)
        if len(specs) > 1:
            return False
        only = specs[0]
        return (not only.versions or recipes.in_range(version, only.versions)) and all(
            str(variants.get(k)) == str(v) for k, v in only.variants.items())

    def serves(self, mine, configuration, version):
        """Why this version of Kokkos does not serve the configuration; '' when it does."""
        wanted, conditional = self.wanted(mine, configuration)
        for conditions, spec in conditional:
            if conditions[0].name == "kokkos" and recipes.in_range(version, conditions[0].versions):
                wanted[spec.name][0].update(spec.variants)
        for name, (variants, ranges) in wanted.items():
            recipe = self.recipe(name)
            if version not in recipe.versions:
                return f"{name} has no version {version}"
            for r in ranges:
                if not recipes.in_range(version, r):
                    return f"{name}@{version} is not in {r}"
            everything = {}
            for v in recipe.variants:
                everything.setdefault(v["name"], v["default"])
            everything.update(variants)
            for variant, value in variants.items():
                forms = [v for v in recipe.variants
                         if v["name"] == variant and self.holds(v["when"], version, everything)]
                if not forms:
                    return f"{name}@{version} has no variant {variant} with {variants}"
                known = [x for v in forms for x in (v["values"] or ()) if isinstance(v["values"], (tuple, list))]
                if known and str(value) not in map(str, known):
                    return f"{name}@{version}: {variant}={value} is not one of {known}"
            for spec, when in recipe.conflicts:
                # Only what we ask for counts: a variant left at its default is the solver's to change.
                named = {**recipes.parse(spec)[0].variants, **recipes.parse(when)[0].variants}
                if (named and set(named) <= set(variants) and self.holds(spec, version, variants)
                        and self.holds(when, version, variants)):
                    return f"{name}@{version}: conflict {spec} when {when}"
        return ""

    def run(self):
        recipes.install_stubs(self.packages)
        mine = recipes.load(self.root / "spack/spack_repo/p3d/packages/p3d/package.py", "p3d")
        texts = list(self.texts(mine))
        for text, where in texts:
            self.own_variants(mine, text, where)
        print(f"recipe: {len(mine.variant_names())} variants, {len(mine.depends)} dependencies, "
              f"{len(mine.conflicts)} conflicts")
        if self.packages is None:
            print("no checkout of the public package repository (P3D_SPACK_PACKAGES): "
                  "names and variants were not looked up")
            return
        self.recipe("kokkos"), self.recipe("kokkos-kernels")
        for text, where in texts:
            for spec in recipes.parse(text):
                self.look_up(spec, where)
        print(f"looked up {self.looked_up} names, variants and version ranges")
        for configuration in CONFIGURATIONS:
            good, reasons = [], []
            for version in self.recipe("kokkos").versions:
                reason = self.serves(mine, configuration, version)
                (reasons if reason else good).append(reason or version)
            print(f"p3d{'' if configuration[0] in '+~' else ' '}{configuration}: kokkos {good[-1]} .. {good[0]}, "
                  f"{len(good)} versions" if good else f"p3d{configuration}: none")
            if not good:
                self.fault(f"no Kokkos serves p3d{configuration}: {reasons[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--packages", type=pathlib.Path, default=os.environ.get("P3D_SPACK_PACKAGES"),
                        help="folder spack_repo/builtin of a checkout of the public package repository")
    args = parser.parse_args()
    check = Check(args.root, pathlib.Path(args.packages) if args.packages else None)
    check.run()
    print("\n".join(check.faults))
    sys.exit(1 if check.faults else 0)


if __name__ == "__main__":
    main()
