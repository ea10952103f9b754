# SPDX-License-Identifier: MIT
# The shared library inside the Python package (python/pyproject.toml): one file beside its modules, for a wheel keeps no links.
set_property(TARGET deeppcr PROPERTY VERSION)
set_property(TARGET deeppcr PROPERTY SOVERSION)
install(TARGETS deeppcr LIBRARY DESTINATION deeppcr COMPONENT python)
