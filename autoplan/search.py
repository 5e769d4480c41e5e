"""Which configuration to measure next: the only file that imports Optuna.

A study lies in a database and can be resumed. Constraints are soft in Optuna, so what it suggests is only a wish: what
is run is always a shortlisted configuration that nobody has measured yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import optuna
import sqlalchemy.exc
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from autoplan.errors import StudyError
from autoplan.known_issues import knob_values
from autoplan.plan import Failure, Measurement, Outcome, TrialRecord
from cost_models.config import TrainConfig

PREDICTED_FIRST = 5
"""So many of the best predictions are measured before the sampler is asked."""

_SEARCHED = ("backend", "precision", "global", "accumulation", "data", "remat", "steps_per_execution", "jit_compile")


@dataclass(frozen=True)
class StudyPlace:
    """Where a study lives: its database, and the folder of its trials' logs."""

    url: str
    folder: Path
    name: str

    @classmethod
    def choose(cls, study: str | None, name: str) -> StudyPlace:
        """`--study PATH|URL`; by default `.autoplan/<name>/study.db` under the working directory.

        A path that ends in .db, .sqlite or .sqlite3 is the database, with logs in the folder of that name without the
        ending; any other path is a folder. A path holds one study, a URL one for each name. StudyError when the folder
        cannot be made.
        """
        folder = Path(".autoplan") / name
        if study is not None and "://" in study:
            return cls(study, _made(folder), name)
        if study is None:
            return cls(f"sqlite:///{(_made(folder) / 'study.db').absolute()}", folder, name)
        path = Path(study)
        is_file = path.suffix in (".db", ".sqlite", ".sqlite3")
        folder, database = (path.with_suffix(""), path) if is_file else (path, path / "study.db")
        return cls(f"sqlite:///{database.absolute()}", _made(folder), "autoplan")

    def __str__(self) -> str:
        return self.url.removeprefix("sqlite:///")


def study_name(stem: str, identity: Mapping[str, Any]) -> str:
    """A name that belongs to this source, hardware and space alone, so that a second run finds its own study."""
    text = json.dumps(identity, sort_keys=True)
    return f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def knob_choices(configs: Sequence[TrainConfig]) -> dict[str, list[Any]]:
    """The searched knobs with the values that occur, in a fixed order."""
    table = [knob_values(config) for config in configs]
    return {name: sorted({row[name] for row in table}) for name in _SEARCHED}


class Study:
    """Trials of one source on one hardware. A context manager; one process at a time.

    `shortlist` is in the order in which to try, and its `first` come before the sampler is asked. `choices` is
    `knob_choices` of the whole space, which a study keeps for life. `identity` says what the figures are of: a study
    with another one is refused.
    """

    def __init__(
        self,
        place: StudyPlace,
        shortlist: Sequence[TrainConfig],
        choices: Mapping[str, Sequence[Any]],
        identity: Mapping[str, Any],
        *,
        first: int = PREDICTED_FIRST,
        seed: int = 0,
    ) -> None:
        self._place = place
        self._first = first
        self._shortlist = list(shortlist)
        self._distributions = {name: CategoricalDistribution(list(values)) for name, values in choices.items()}
        self._open: dict[TrainConfig, Trial] = {}
        self._records: dict[int, TrialRecord] = {}
        self._lock = _locked(place)
        try:
            with _storage_errors(place), _unusable(place):
                self._study = _opened(place, seed)
                _check_identity(self._study, identity, place)
                self._end_stale()
                self._records = {r.number: r for r in map(_record, self._study.get_trials()) if r is not None}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the study."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def records(self) -> list[TrialRecord]:
        """What was tried, in order; kept in memory too, so that a full disk loses nothing."""
        return [self._records[number] for number in sorted(self._records)]

    def outcome(self, config: TrainConfig) -> TrialRecord | None:
        """What became of a configuration, if it was tried."""
        wanted = config.to_dict()
        return next((record for record in self.records if record.config == wanted), None)

    def ask(self) -> TrainConfig | None:
        """The next configuration: the best predictions first, then what the sampler wishes. None after the last."""
        left = [config for config in self._shortlist if self.outcome(config) is None and config not in self._open]
        if not left:
            return None
        with _storage_errors(self._place):
            if self._predicted_measured() < self._first:
                return self._begin(left[0])
            trial = self._study.ask(dict(self._distributions))
            wish = min(left, key=lambda config: (_mismatches(config, trial.params), left.index(config)))
            if _mismatches(wish, trial.params) == 0:
                self._open[wish] = trial
                return wish
            self._study.tell(trial, state=TrialState.FAIL)
            return self._begin(wish)

    @property
    def shortlist(self) -> list[TrainConfig]:
        """What may be tried, in the order in which to try it."""
        return list(self._shortlist)

    def reorder(self, shortlist: Sequence[TrainConfig]) -> None:
        """Another order, learnt from the trials."""
        self._shortlist = list(shortlist)

    def leave_out(self, hopeless: Callable[[TrainConfig], bool]) -> list[TrainConfig]:
        """Take what cannot work off the shortlist; returns what was taken that had not been tried."""
        gone = [config for config in self._shortlist if hopeless(config)]
        self._shortlist = [config for config in self._shortlist if config not in gone]
        return [config for config in gone if self.outcome(config) is None]

    def begin(self, config: TrainConfig) -> None:
        """Announce a configuration that the caller chose, such as the baseline."""
        with _storage_errors(self._place):
            self._begin(config)

    def tell(
        self,
        config: TrainConfig,
        outcome: Outcome,
        objective: float | None,
        predicted_update_seconds: float | None = None,
    ) -> TrialRecord:
        """Store what became of a configuration. StudyError when the storage fails; the record is kept in memory first.

        A failure is told as a pruned trial: the sampler learns to avoid its like without an invented figure.
        """
        measured = isinstance(outcome, Measurement)
        record = TrialRecord(
            number=len(self._records),
            config=config.to_dict(),
            predicted_update_seconds=predicted_update_seconds,
            outcome="measured" if measured else "failed",
            measurement=outcome if isinstance(outcome, Measurement) else None,
            failure=outcome if isinstance(outcome, Failure) else None,
        )
        self._records[record.number] = record
        with _storage_errors(self._place):
            trial = self._open.pop(config)
            trial.set_user_attr("record", record.model_dump(mode="json"))
            if measured:
                self._study.tell(trial, objective)
            else:
                self._study.tell(trial, state=TrialState.PRUNED)
        return record

    def abandon(self, config: TrainConfig) -> None:
        """A trial that was interrupted: it may be asked for again."""
        with _storage_errors(self._place):
            self._study.tell(self._open.pop(config), state=TrialState.FAIL)

    def _begin(self, config: TrainConfig) -> TrainConfig:
        values = knob_values(config)
        self._study.enqueue_trial({name: values[name] for name in self._distributions})
        self._open[config] = self._study.ask(dict(self._distributions))
        return config

    def _predicted_measured(self) -> int:
        """How many trials besides the baseline there were."""
        return max(0, len(self._records) + len(self._open) - 1)

    def _end_stale(self) -> None:
        """Trials that a killed process left running are over: the lock says that nobody runs them."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)):
            self._study.tell(trial.number, state=TrialState.FAIL)


def _opened(place: StudyPlace, seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=PREDICTED_FIRST)
    return optuna.create_study(
        storage=place.url, study_name=place.name, sampler=sampler, direction="minimize", load_if_exists=True
    )


def _check_identity(study: optuna.Study, identity: Mapping[str, Any], place: StudyPlace) -> None:
    plain = json.loads(json.dumps(identity))
    known = study.user_attrs.get("identity")
    if known is None:
        study.set_user_attr("identity", plain)
        return
    differing = [key for key in sorted({*known, *plain}) if known.get(key) != plain.get(key)]
    if differing:
        told = "; ".join(f"{key} was {_brief(known.get(key))}, now {_brief(plain.get(key))}" for key in differing)
        raise StudyError(
            f"the study at {place} is of something else: {told}. Give --study another place, or remove this one"
        )


def _record(trial: FrozenTrial) -> TrialRecord | None:
    stored = trial.user_attrs.get("record")
    return None if stored is None else TrialRecord.model_validate(stored)


def _mismatches(config: TrainConfig, wished: Mapping[str, Any]) -> int:
    values = knob_values(config)
    return sum(values[name] != value for name, value in wished.items())


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(
            f"the folder {folder} for the study cannot be made: {error.strerror}; use --study PATH"
        ) from None
    return folder


def _locked(place: StudyPlace) -> IO[bytes] | None:
    """Hold the study for this process. StudyError when another one has it."""
    if not place.url.startswith("sqlite:///"):
        return None
    try:
        lock = (place.folder / "lock").open("wb")
    except OSError as error:
        raise StudyError(f"the folder {place.folder} of the study cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StudyError(
            f"the study at {place} is in use by another process; wait for it, or use --study PATH"
        ) from None
    return lock


@contextlib.contextmanager
def _storage_errors(place: StudyPlace) -> Iterator[None]:
    """What a database can do wrong, as StudyErrors."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, sqlite3.Error) as error:
        raise StudyError(f"the study at {place} {_why(error)}") from None


@contextlib.contextmanager
def _unusable(place: StudyPlace) -> Iterator[None]:
    """A database of another Optuna, a URL without a driver, records of another version: StudyErrors too."""
    try:
        yield
    except (ModuleNotFoundError, RuntimeError, ValueError, KeyError) as error:
        raise StudyError(
            f"the study at {place} cannot be used ({_first_line(error)}); remove it, or give --study another place"
        ) from None


def _why(error: BaseException) -> str:
    text = str(error.__cause__ or error).lower()
    if "full" in text:
        return "cannot be written: the disk is full; make room, then run again: what is stored is resumed"
    if "locked" in text:
        return "is locked by another process; wait for it, or use --study PATH"
    if "readonly" in text or "read-only" in text:
        return "is read-only; make it writable, or use --study PATH"
    if "unable to open" in text:
        return "cannot be opened; is its folder there and writable?"
    return f"is damaged ({_first_line(error)}); remove it to start afresh, or use --study PATH"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
