"""Strict JSON for values that come from NumPy, pandas and the command line."""

import json
import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def jsonable(value: Any) -> Any:
    """The same value made of dict, list, str, int, float, bool and None.

    NaN and infinities become None because JSON has no word for them. NumPy scalars and arrays
    become Python numbers and lists, a table a list of one object a row; anything unknown (a path,
    a dtype, a time) becomes its text.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((jsonable(item) for item in value), key=str)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [jsonable(item) for item in value]
    if hasattr(value, "to_dict"):
        return jsonable(value.to_dict("records"))
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return jsonable(value.tolist())
    return str(value)


def json_text(value: Any) -> str:
    """``value`` as indented, strict JSON text that ends with a newline."""
    return json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def json_bytes(value: Any) -> bytes:
    """``json_text`` in UTF-8.

    An argument that was no valid UTF-8 reaches Python as lone surrogates. Their backslash form
    is exactly how JSON spells them.
    """
    return json_text(value).encode("utf-8", errors="backslashreplace")


def table_json(table: "pd.DataFrame") -> str:
    """A table as a JSON array of one object a row, NaN as null, floats in full precision."""
    return json_text(table)
