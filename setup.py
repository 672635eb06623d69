"""Builds the compiled record codec; everything else about the package stands in pyproject.toml.

`kdist/records/_compiled*.py` are Cython's pure-Python mode. Where no compiler is found the build
goes on without them (`optional`), and who imports them takes the plain reference instead.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

CODEC = [
    Extension(
        f"kdist.records.{name}",
        [f"kdist/records/{name}.py"],
        extra_compile_args=["-O3"],
        optional=True,
    )
    for name in (
        "_compiled",
        "_compiled_cleaning",
        "_compiled_decoding",
        "_compiled_key_map",
        "_compiled_keys",
        "_compiled_spans",
        "_compiled_produced",
    )
]

setup(ext_modules=cythonize(CODEC, language_level=3))
