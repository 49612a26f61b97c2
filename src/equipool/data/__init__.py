"""Data of the experiments: where it lies, how it is fetched, how its files are read."""

from equipool.data.folder import data_folder, using_data_folder

__all__ = ["data_folder", "using_data_folder"]
