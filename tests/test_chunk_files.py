"""Chunks of arrays and of files."""

import sys

import numpy
import pytest
import torch

from cases import assert_near, make_layer
from equipool import ArrayChunks, ParquetChunks, SafetensorsChunks, solve_chunks


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(40, 3, dtype=torch.float64), torch.randint(3, (40,))


def assert_read(chunks, x, index=None):
    """Twice, as chunks are read again and again, with the right result."""
    for _ in range(2):
        pairs = [chunk if index is not None else (chunk, None) for chunk in chunks]
        parts, indices = zip(*pairs, strict=True)
        assert torch.equal(torch.cat([torch.tensor(numpy.asarray(part)) for part in parts]), x)
        if index is not None:
            read = torch.cat([torch.tensor(numpy.asarray(part)) for part in indices])
            assert torch.equal(read, index)
    layer, num_sets = make_layer().to(x.dtype), 1 if index is None else 3
    found = solve_chunks(layer, chunks, num_sets=num_sets).y
    assert_near(
        found, layer(x, index, dim_size=num_sets), 1e-10 if x.dtype == torch.double else 1e-4
    )


def test_arrays_in_memory(batch):
    x, index = batch
    assert_read(ArrayChunks(x, index, 7), x, index)
    assert_read(ArrayChunks(x.numpy(), chunk_size=13), x)
    assert [len(part) for part in ArrayChunks(x, chunk_size=13)] == [13, 13, 13, 1]
    assert len(ArrayChunks(x, chunk_size=13)) == 4
    assert list(ArrayChunks(x[:0])) == []


def test_arrays_are_converted(batch):
    x, index = batch
    assert_read(ArrayChunks(x, index, 7, dtype="float32"), x.float(), index)
    assert_read(ArrayChunks(x.numpy(), chunk_size=13, dtype="float32"), x.float())


def test_npy_files(batch, tmp_path):
    x, index = batch
    numpy.save(tmp_path / "x.npy", x.numpy())
    numpy.save(tmp_path / "index.npy", index.numpy())
    chunks = ArrayChunks(tmp_path / "x.npy", str(tmp_path / "index.npy"), chunk_size=9)
    assert not any(isinstance(part, numpy.memmap) for part, _ in chunks)  # nothing stays mapped
    assert_read(chunks, x, index)


def test_safetensors(batch, tmp_path):
    from safetensors.torch import save_file

    x, index = batch
    save_file({"x": x, "index": index, "features": x + 1}, tmp_path / "bag.safetensors")
    chunks = SafetensorsChunks(tmp_path / "bag.safetensors", index="index", chunk_size=11)
    assert len(chunks) == 4
    assert_read(chunks, x, index)
    assert_read(SafetensorsChunks(tmp_path / "bag.safetensors", "features", chunk_size=40), x + 1)
    with pytest.raises(ValueError, match=r"bag.safetensors has no tensor 'y', expected one of"):
        SafetensorsChunks(tmp_path / "bag.safetensors", "y")


class TestParquet:
    @pytest.fixture
    def tables(self, batch, tmp_path):
        """A file with a column for each channel, in row groups of 15, and one with lists."""
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        x, index = batch
        columns = {"patient": index.numpy(), **{f"x{i}": x[:, i].numpy() for i in range(3)}}
        parquet.write_table(pyarrow.table(columns), tmp_path / "cells.parquet", row_group_size=15)
        lists = pyarrow.table({"embedding": x.tolist(), "patient": index.numpy()})
        parquet.write_table(lists, tmp_path / "lists.parquet")
        return tmp_path

    def test_columns(self, batch, tables):
        x, index = batch
        path = tables / "cells.parquet"
        assert_read(ParquetChunks(path, index="patient", dtype="float64"), x, index)
        swapped = ParquetChunks(path, ["x2", "x0", "x1"], chunk_size=8, dtype="float64")
        assert_read(swapped, x[:, [2, 0, 1]])
        assert max(len(part) for part in swapped) <= 8

    def test_lists(self, batch, tables):
        x, index = batch
        chunks = ParquetChunks(tables / "lists.parquet", "embedding", "patient", dtype="float64")
        assert_read(chunks, x, index)
        assert_read(ParquetChunks(tables / "lists.parquet", ["embedding"]), x.float())

    def test_lists_of_other_lengths_are_named(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = pyarrow.table({"x": [[1.0, 2.0], [3.0]]})
        parquet.write_table(table, tmp_path / "x.parquet")
        with pytest.raises(ValueError, match=r"lists of lengths .*expected one length"):
            list(ParquetChunks(tmp_path / "x.parquet"))

    def test_a_null_makes_its_set_nan(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = {name: [1.0, None if name == "b" else 2.0, 3.0] for name in "abc"}
        table = pyarrow.table({**columns, "set": [0, 0, 1]})
        parquet.write_table(table, tmp_path / "x.parquet")
        chunks = ParquetChunks(tmp_path / "x.parquet", index="set", dtype="float64")
        y = solve_chunks(make_layer(), chunks, num_sets=2).y
        assert y[0].isnan().all()
        assert y[1].isfinite().all()

    def test_an_unknown_column_is_named(self, tables):
        with pytest.raises(ValueError, match=r"cells.parquet has no column 'sample', expected one"):
            ParquetChunks(tables / "cells.parquet", index="sample")

    def test_what_to_install_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ModuleNotFoundError, match=r'needs pyarrow.*"equipool\[chunks\]"'):
            ParquetChunks("cells.parquet")


def test_bad_arguments_are_named(batch, tmp_path):
    x, index = batch
    with pytest.raises(ValueError, match="index has 39 elements, expected 40"):
        ArrayChunks(x, index[1:])
    with pytest.raises(ValueError, match="chunk_size is 0"):
        ArrayChunks(x, chunk_size=0)
    with pytest.raises(ValueError, match=r"x.csv is not a .npy file"):
        ArrayChunks(tmp_path / "x.csv")
