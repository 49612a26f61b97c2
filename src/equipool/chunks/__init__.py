"""Sets larger than memory."""

from equipool.chunks.files import ArrayChunks, ParquetChunks, SafetensorsChunks
from equipool.chunks.solve import solve_chunks

__all__ = ["ArrayChunks", "ParquetChunks", "SafetensorsChunks", "solve_chunks"]
