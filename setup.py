"""Builds the compiled record codec; everything else about the package stands in pyproject.toml.

`kdist/records/_compiled.py` is Cython's pure-Python mode. Where no compiler is found the build goes
on without it (`optional`), and `kdist.records.codec` takes the plain reference instead.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

CODEC = Extension(
    "kdist.records._compiled",
    ["kdist/records/_compiled.py"],
    extra_compile_args=["-O3"],
    optional=True,
)

setup(ext_modules=cythonize([CODEC], language_level=3))
