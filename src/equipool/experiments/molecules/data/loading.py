"""Molecules, prepared where that has not been done."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from equipool.experiments.data_folder import data_folder
from equipool.experiments.download import MissingDataError
from equipool.experiments.molecules.data.cache import MoleculeCache
from equipool.experiments.molecules.data.checked_file import UnusableFileError
from equipool.experiments.molecules.data.graphs import MoleculeSet
from equipool.experiments.molecules.data.known import known_set
from equipool.experiments.molecules.data.locking import alone
from equipool.experiments.molecules.data.places import cache_places, writable
from equipool.experiments.molecules.data.preparing import prepare
from equipool.experiments.molecules.data.progress import say
from equipool.experiments.molecules.data.smiles import Problem
from equipool.experiments.molecules.data.sources import MoleculeSource


def load_molecules(which: str | MoleculeSource, data_dir: str | Path | None = None) -> MoleculeSet:
    """The molecules of a data set.

    The first time, they are prepared from their source, with all cores, into one file: the folder
    `molecules` of the data folder, or of the user's cache folder where that cannot be written to.
    Later, and where the file is there without its source, it is read. It is made again when the
    source has changed or the file is damaged.

    Args:
        which: `"molhiv"`, `"molpcba"`, `"toxcast"`, `"tox21"`, `"qm9"`, or a source such as
            `CsvSource(path)`.
        data_dir: the data folder; None for the one that `data_folder()` says.
    """
    return molecule_cache(which, data_dir).molecules()


def load_problems(
    which: str | MoleculeSource, data_dir: str | Path | None = None
) -> tuple[Problem, ...]:
    """The molecules of a data set that RDKit does not read as they stand, with their rows and
    reasons, and whether they are in the set all the same. Where they were found by other versions
    of RDKit and ogb than those that are installed, that is said."""
    cache = molecule_cache(which, data_dir)
    problems, elsewhere = cache.problems(), cache.made_elsewhere()
    if problems and elsewhere:
        say(f"{cache.path} was made with {elsewhere}: the problems are those of then")
    return problems


def molecule_cache(
    which: str | MoleculeSource, data_dir: str | Path | None = None
) -> MoleculeCache:
    """The file of a data set, made where it is not there."""
    folder = data_folder(data_dir)
    wanted = _Wanted(which, folder)
    places = cache_places(folder)
    found = wanted.look(places)
    if found is not None:
        return found
    source = wanted.source()
    place = writable(places)
    with alone(place / f"{wanted.name}.lock"):
        found = wanted.look([place])  # another process may have made it meanwhile
        if found is not None:
            return found
        for reason in wanted.reasons:
            say(f"{reason}: it is made again")
        path = wanted.path(place)
        prepare(source, path)
        return MoleculeCache(path)


class _Wanted:
    """The data set that is asked for: its source, where there is one, and its name."""

    def __init__(self, which: str | MoleculeSource, folder: Path) -> None:
        self._source: MoleculeSource | None
        if isinstance(which, str):
            known = known_set(which)
            self.name = known.name
            self._source = known.find(folder)
            self._missing = known.what_is_missing(folder)
        else:
            self.name = _name_of(which)
            missing = which.missing()
            self._source = None if missing else which
            self._missing = _what_is_missing(missing) if missing else ""
        self._fingerprint: dict[str, Any] | None = None
        if self._source is not None:
            self._fingerprint = self._source.fingerprint()
        self.reasons: list[str] = []  # against the files that were found last

    def path(self, place: Path) -> Path:
        """The file in a place."""
        return place / f"{self.name}.safetensors"

    def look(self, places: list[Path]) -> MoleculeCache | None:
        """The first file in the places that is whole, and of the source where that is there."""
        self.reasons = []
        for place in places:
            cache = MoleculeCache(self.path(place))
            if cache.path.is_file():
                try:
                    self._check(cache)
                except UnusableFileError as error:
                    self.reasons.append(str(error))
                else:
                    return cache
        return None

    def source(self) -> MoleculeSource:
        """The source; `MissingDataError` says how to get it where it is not there."""
        if self._source is None:
            reasons = [f"{reason}." for reason in self.reasons]
            raise MissingDataError(" ".join([*reasons, self._missing]))
        return self._source

    def _check(self, cache: MoleculeCache) -> None:
        if self._fingerprint is not None and not cache.is_of(self._fingerprint):
            raise UnusableFileError(f"{cache.path} is of another source or recipe")
        cache.check()


def _name_of(source: MoleculeSource) -> str:
    """A name for the cache of a user's source: that of the file, and what tells it from others."""
    identity = json.dumps([str(source.location.resolve()), source.recipe()], sort_keys=True)
    stem = source.location.name.split(".")[0]
    return f"{stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _what_is_missing(files: list[Path]) -> str:
    found = [f"{file} is {'no file' if file.exists() else 'not there'}" for file in files]
    beginning = "" if files[0].is_absolute() else f", which counts from {Path.cwd()}"
    return f"{', '.join(found)}. Check the path (--csv){beginning}"
