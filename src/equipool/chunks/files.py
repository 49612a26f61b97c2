"""Chunks of arrays and of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipool.checks import as_count

CHUNK_SIZE = 65536  # elements

Pair = tuple[Any, Any]


class ArrayChunks:
    """Chunks of an array `[N, C]`, in memory or on disk.

    Of a `.npy` file, no more than a chunk is in memory.

    Args:
        x: the elements: a tensor, a NumPy array or memory map, or the path of a `.npy` file.
        index: the set of each element, `[N]`, likewise; None if there is one set.
        chunk_size: elements per chunk.
        dtype: NumPy's name of the type that elements are converted to, such as `"float32"` for a
            layer of that type; None to leave them as they are.

    Example:
        >>> chunks = ArrayChunks(torch.randn(10, 3), chunk_size=4)
        >>> [len(chunk) for chunk in chunks]
        [4, 4, 2]
    """

    def __init__(
        self, x: Any, index: Any = None, chunk_size: int = CHUNK_SIZE, dtype: str | None = None
    ) -> None:
        self.x = _opened(x)
        self.dtype = dtype
        self.index = None if index is None else _opened(index)
        self.chunk_size = as_count("chunk_size", chunk_size, least=1)
        _check_lengths(len(self.x), *([] if self.index is None else [len(self.index)]))

    def __len__(self) -> int:
        return -(-len(self.x) // self.chunk_size)

    def __iter__(self) -> Iterator[Any | Pair]:
        for chunk in _slices(self.x, self.index, len(self.x), self.chunk_size):
            if self.index is None:
                yield self._converted(chunk)
            else:
                yield self._converted(chunk[0]), chunk[1]

    def _converted(self, x: Any) -> Any:
        if self.dtype is None:
            return x
        return x.to(getattr(torch, self.dtype)) if isinstance(x, Tensor) else x.astype(self.dtype)


class _NpyFile:
    """A `.npy` file that is mapped to memory while rows of it are copied, and no longer: pages of a
    map that stays count as memory of the process, up to the whole file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_rows = len(self._map())

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, rows: slice) -> Any:
        import numpy

        return numpy.array(self._map()[rows])

    def _map(self) -> Any:
        with _extra():
            import numpy
        return numpy.load(self.path, mmap_mode="r")


class SafetensorsChunks:
    """Chunks of a tensor in a `.safetensors` file. Needs safetensors.

    Args:
        path: the file.
        x: name of the elements' tensor, `[N, C]`.
        index: name of the tensor with the set of each element, `[N]`; None if there is one set.
        chunk_size: elements per chunk.
    """

    def __init__(
        self, path: str | Path, x: str = "x", index: str | None = None, chunk_size: int = CHUNK_SIZE
    ) -> None:
        self.path = Path(path)
        self.x = x
        self.index = index
        self.chunk_size = as_count("chunk_size", chunk_size, least=1)
        with _open_safetensors(self.path) as file:
            names = set(file.keys())
            for name in (x, index):
                if name is not None and name not in names:
                    raise ValueError(
                        f"{self.path.name} has no tensor {name!r}, expected one of {sorted(names)}"
                    )
            lengths = [file.get_slice(n).get_shape()[0] for n in (x, index) if n is not None]
        _check_lengths(*lengths)
        self.num_elements = lengths[0]

    def __len__(self) -> int:
        return -(-self.num_elements // self.chunk_size)

    def __iter__(self) -> Iterator[Any | Pair]:
        with _open_safetensors(self.path) as file:
            x = file.get_slice(self.x)
            index = None if self.index is None else file.get_slice(self.index)
            yield from _slices(x, index, self.num_elements, self.chunk_size)


class ParquetChunks:
    """Chunks of a Parquet file, a row per element, read row group by row group. Needs pyarrow.

    A null is NaN, so that its set has no output.

    Args:
        path: the file.
        columns: the columns with the elements' channels, in this order; or one column of lists of
            one length. Default: all but `index`.
        index: the column with the set of each element, integers from 0; None if there is one set.
        chunk_size: largest number of elements per chunk.
        dtype: NumPy's name of the elements' type, that of the layer's parameters.
    """

    def __init__(
        self, path: str | Path, columns: Sequence[str] | None = None, index: str | None = None,
        chunk_size: int = CHUNK_SIZE, dtype: str = "float32",
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self.index = index
        self.chunk_size = as_count("chunk_size", chunk_size, least=1)
        self.dtype = dtype
        with _open_parquet(self.path) as file:
            names = file.schema_arrow.names
        if columns is None:
            columns = [name for name in names if name != index]
        self.columns = [columns] if isinstance(columns, str) else list(columns)
        wanted = [*self.columns, *([] if index is None else [index])]
        absent = [name for name in wanted if name not in names]
        if absent:
            raise ValueError(
                f"{self.path.name} has no column {absent[0]!r}, expected one of {names}"
            )

    def __iter__(self) -> Iterator[Any | Pair]:
        wanted = [*self.columns, *([] if self.index is None else [self.index])]
        with _open_parquet(self.path) as file:
            for batch in file.iter_batches(self.chunk_size, columns=wanted):
                x = self._elements(batch)
                yield x if self.index is None else (x, _values(batch.column(self.index)))

    def _elements(self, batch: Any) -> Any:
        columns = [batch.column(name) for name in self.columns]
        if len(columns) == 1 and hasattr(columns[0].type, "value_type"):
            return self._lists(columns[0])
        import numpy

        out = numpy.empty((len(batch), len(columns)), self.dtype)
        for position, column in enumerate(columns):
            out[:, position] = _values(column)
        return out

    def _lists(self, column: Any) -> Any:
        from pyarrow import compute

        lengths = set(compute.list_value_length(column).to_pylist())
        if len(lengths) != 1 or None in lengths:
            raise ValueError(
                f"column {self.columns[0]!r} has lists of lengths {sorted(map(str, lengths))}, "
                "expected one length"
            )
        return _values(column.flatten()).reshape(len(column), -1).astype(self.dtype)


def _slices(x: Any, index: Any, num_elements: int, size: int) -> Iterator[Any | Pair]:
    for start in range(0, num_elements, size):
        rows = slice(start, min(start + size, num_elements))
        yield x[rows] if index is None else (x[rows], index[rows])


def _opened(array: Any) -> Any:
    if not isinstance(array, (str, Path)):
        return array
    if Path(array).suffix != ".npy":
        raise ValueError(
            f"{Path(array).name} is not a .npy file: use SafetensorsChunks or ParquetChunks for "
            "those, or open it and pass the array"
        )
    return _NpyFile(Path(array))


def _check_lengths(num_elements: int, num_indices: int | None = None) -> None:
    if num_indices is not None and num_indices != num_elements:
        raise ValueError(f"index has {num_indices} elements, expected {num_elements}, as x has")


def _values(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _open_safetensors(path: Path) -> Any:
    with _extra():
        from safetensors import safe_open
    return safe_open(path, framework="pt")


def _open_parquet(path: Path) -> Any:
    with _extra():
        from pyarrow import parquet
    return parquet.ParquetFile(path)


@contextmanager
def _extra() -> Iterator[None]:
    """Imports of packages that the core does not need, or what to install for them."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'reading this file needs {error.name}: pip install "equipool[chunks]"', name=error.name
        ) from error
