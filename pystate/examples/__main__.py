"""``python -m pystate.examples``: lists the examples."""

from __future__ import annotations

import ast
import pkgutil
from importlib.util import find_spec
from typing import Any

from pystate import examples


def summaries() -> dict[str, str]:
    """Each example and the first line of its docstring; none is imported, nor what it needs."""
    lines = {}
    for module in pkgutil.iter_modules(examples.__path__):
        if not module.name.startswith("_"):
            spec = find_spec(f"{examples.__name__}.{module.name}")
            loader: Any = spec and spec.loader
            text = ast.get_docstring(ast.parse(loader.get_source(spec and spec.name))) or ""
            lines[module.name] = text.partition("\n")[0]
    return lines


def main() -> None:
    """Print the list."""
    examples = summaries()
    width = max(map(len, examples))
    print("python -m pystate.examples.NAME runs one of these; --help says what it takes.\n")
    for name, line in examples.items():
        print(f"  {name:{width}}  {line}")


if __name__ == "__main__":
    main()
