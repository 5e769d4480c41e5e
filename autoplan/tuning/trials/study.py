"""Chooses the configuration to measure next with Optuna, and stores every trial in a database.

A study lies in a database and can be resumed. Constraints are soft in Optuna, so what it suggests is only a wish: what
is run is always a shortlisted configuration that nobody has measured yet.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import optuna
import sqlalchemy.exc
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from autoplan.errors import StudyError
from autoplan.formatting import first_line
from autoplan.plan import knobs
from autoplan.plan.records import CompilerEvidence, Failure, Measurement, TrialRecord
from autoplan.tuning.trials.storage import StudyIdentity, StudyPlace, differences
from cost_models.config import TrainConfig

PREDICTED_FIRST = 5
"""So many of the best predictions are measured before the sampler is asked."""

_OPTUNAS_FIRST = {"studies", "version_info"}
"""Tables of a study that hang on no others: whatever was being made when a process was killed, one of them is there."""


def knob_choices(configs: Sequence[TrainConfig]) -> dict[str, list[Any]]:
    """Return the searched knobs with the values that occur, in a fixed order."""
    table = [knobs.searched_values(config) for config in configs]
    return {name: sorted({row[name] for row in table}) for name in (table[0] if table else ())}


class Study:
    """Trials of one source on one hardware. A context manager; one process at a time.

    `shortlist` is in the order in which to try, and its `first` come before the sampler is asked. `choices` is
    `knob_choices` of the whole space, which a study keeps for life. `identity` says what the figures are of: a study
    with another one is refused.

    The next configuration depends only on `seed` and on the outcomes so far: a study that was killed and resumed
    continues as if it had not been interrupted.
    """

    def __init__(
        self,
        place: StudyPlace,
        shortlist: Sequence[TrainConfig],
        choices: Mapping[str, Sequence[Any]],
        identity: StudyIdentity,
        *,
        first: int = PREDICTED_FIRST,
        seed: int = 0,
    ) -> None:
        self._place = place
        self._first, self._seed = first, seed
        self._shortlist = list(shortlist)
        self._distributions = {name: CategoricalDistribution(list(values)) for name, values in choices.items()}
        self._open: dict[TrainConfig, Trial] = {}
        self._records: dict[int, TrialRecord] = {}
        self._lock = place.lock()
        try:
            with _storage_errors(place), _unusable(place):
                self._study = _opened(place)
                _check_identity(self._study, identity, place)
                self._end_stale()
                self._records = _kept(filter(None, map(_record, self._study.get_trials())))
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
        """The records in order. They are in memory too, so that a full disk loses nothing."""
        return [self._records[number] for number in sorted(self._records)]

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        return max(self._records, default=-1) + 1

    def outcome(self, config: TrainConfig) -> TrialRecord | None:
        """Return the record of a configuration; None where it was not tried."""
        return next((record for record in self.records if record.config == config), None)

    def ask(self, among: Callable[[Sequence[TrainConfig]], Sequence[TrainConfig]] = list) -> TrainConfig | None:
        """Return the next configuration: first the best estimates, then the sampler's choice. None after the last.

        among   of those that are left, what may have its turn now
        """
        left = [config for config in self._shortlist if self.outcome(config) is None and config not in self._open]
        if not left:
            return None
        with _storage_errors(self._place):
            if self._predicted_measured() < self._first:
                return self._begin(left[0])
            left = list(among(left)) or left
            self._study.sampler = _sampler(self._seed + len(self._records))
            trial = self._study.ask(dict(self._distributions))
            wish = min(left, key=lambda config: (_mismatches(config, trial.params), left.index(config)))
            if _mismatches(wish, trial.params) == 0:
                self._open[wish] = trial
                return wish
            self._study.tell(trial, state=TrialState.FAIL)
            return self._begin(wish)

    @property
    def shortlist(self) -> list[TrainConfig]:
        """The configurations that may be tried, in order."""
        return list(self._shortlist)

    def reorder(self, shortlist: Sequence[TrainConfig]) -> None:
        """Set another order of the shortlist, as the trials suggest."""
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
        outcome: Measurement | CompilerEvidence | Failure,
        objective: float | None,
        predicted_update_seconds: float | None = None,
    ) -> TrialRecord:
        """Store the outcome of a configuration. StudyError when the storage fails; the record is kept in memory first.

        A failure is stored as a pruned trial: the sampler learns to avoid similar configurations without an invented
        figure. A second outcome of a configuration replaces the first.
        """
        record = TrialRecord(
            number=self.next_number,
            config=config,
            predicted_update_seconds=predicted_update_seconds,
            outcome=_outcome_name(outcome),
            measurement=outcome if isinstance(outcome, Measurement) else None,
            compiled=outcome if isinstance(outcome, CompilerEvidence) else None,
            failure=outcome if isinstance(outcome, Failure) else None,
        )
        self._records = _latest([*self.records, record])
        with _storage_errors(self._place):
            trial = self._open.pop(config)
            trial.set_user_attr("objective", objective)
            trial.set_user_attr("record", record.model_dump(mode="json"))
            self._settle(trial.number, objective)
        return record

    def _settle(self, number: int, objective: float | None) -> None:
        """Report a trial that has its record to the sampler."""
        if objective is None:
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, objective)

    def abandon(self, config: TrainConfig) -> None:
        """Give up an interrupted trial; its configuration may be asked for again."""
        with _storage_errors(self._place):
            self._study.tell(self._open.pop(config), state=TrialState.FAIL)

    def _begin(self, config: TrainConfig) -> TrainConfig:
        values = knobs.values(config)
        self._study.enqueue_trial({name: values[name] for name in self._distributions})
        self._open[config] = self._study.ask(dict(self._distributions))
        return config

    def _predicted_measured(self) -> int:
        """Return the number of trials besides the baseline."""
        return max(0, len(self._records) + len(self._open) - 1)

    def _end_stale(self) -> None:
        """End the trials that a killed process left: the lock shows that no process runs them.

        A trial with a record had ended, and only its state was not stored. A waiting trial was never begun: Optuna
        ends only trials that were asked for.
        """
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if _record(trial) is not None:
                self._settle(trial.number, trial.user_attrs.get("objective"))
            else:
                self._study.tell(trial.number, state=TrialState.FAIL)
        while self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self._study.tell(self._study.ask(), state=TrialState.FAIL)


def refuse_unusable(place: StudyPlace, identity: StudyIdentity) -> None:
    """Raise StudyError before the source is run, for a study that is in use, damaged or of something else.

    `identity` holds the values that are known so early. A missing value is no error.
    """
    if place.file is None or not place.file.exists():
        return
    with place.held(), _storage_errors(place), _unusable(place):
        _refuse_foreign(place)
        names = optuna.get_all_study_names(place.url)
        if place.name in names:
            known = optuna.load_study(study_name=place.name, storage=place.url).user_attrs.get("identity", {})
            _refuse_differing({key: known.get(key) for key in identity} if known else identity, identity, place)


def _opened(place: StudyPlace) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    _refuse_foreign(place)
    return optuna.create_study(
        storage=place.url, study_name=place.name, sampler=_sampler(0), direction="minimize", load_if_exists=True
    )


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=PREDICTED_FIRST)


def _refuse_foreign(place: StudyPlace) -> None:
    """Raise StudyError for a database of something else: Optuna would add its tables to it."""
    if place.file is None or not place.file.exists():
        return
    with contextlib.closing(sqlite3.connect(place.file)) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
    if tables and not tables & _OPTUNAS_FIRST:
        found = ", ".join(sorted(tables)[:3])
        raise StudyError(f"the database at {place} holds something else ({found}); give --study another place")


def _check_identity(study: optuna.Study, identity: StudyIdentity, place: StudyPlace) -> None:
    plain = json.loads(json.dumps(identity))
    known = study.user_attrs.get("identity")
    if known is None:
        study.set_user_attr("identity", plain)
        return
    _refuse_differing(known, plain, place)


def _refuse_differing(known: StudyIdentity, wanted: StudyIdentity, place: StudyPlace) -> None:
    found = differences(known, wanted)
    if found:
        raise StudyError(
            f"the study at {place} was made under other conditions: {'; '.join(found)}. "
            "Give another --study, or remove this study"
        )


def _outcome_name(outcome: Measurement | CompilerEvidence | Failure) -> Literal["measured", "compiled", "failed"]:
    if isinstance(outcome, Failure):
        return "failed"
    return "measured" if isinstance(outcome, Measurement) else "compiled"


def _kept(records: Iterable[TrialRecord]) -> dict[int, TrialRecord]:
    """Return the records that count after a resumption: all but those of trials that were ended from outside."""
    kept = _latest(records)
    return {number: one for number, one in kept.items() if one.failure is None or not one.failure.outside}


def _latest(records: Iterable[TrialRecord]) -> dict[int, TrialRecord]:
    """Return records by number, the last record of each configuration."""
    by_config = {record.config: record for record in records}
    return {record.number: record for record in by_config.values()}


def _record(trial: FrozenTrial) -> TrialRecord | None:
    stored = trial.user_attrs.get("record")
    return None if stored is None else TrialRecord.model_validate(stored)


def _mismatches(config: TrainConfig, wished: Mapping[str, Any]) -> int:
    values = knobs.values(config)
    return sum(values[name] != value for name, value in wished.items())


@contextlib.contextmanager
def _storage_errors(place: StudyPlace) -> Iterator[None]:
    """Raise errors of the database as StudyErrors."""
    try:
        yield
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise StudyError(f"no database is known for {place} ({first_line(error)}); use --study PATH") from None
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, sqlite3.Error) as error:
        raise StudyError(f"the study at {place} {_why(error)}") from None


@contextlib.contextmanager
def _unusable(place: StudyPlace) -> Iterator[None]:
    """Raise StudyError for a database of another Optuna, a URL without a driver, or records that cannot be read."""
    try:
        yield
    except (ImportError, RuntimeError, ValueError, KeyError) as error:
        raise StudyError(
            f"the study at {place} cannot be used ({first_line(error)}); remove it, or give --study another place"
        ) from None


def _why(error: BaseException) -> str:
    text = _cause(error).lower()
    if "full" in text:
        return "cannot be written: the disk is full; make room, then run again: what is stored is resumed"
    if "locked" in text:
        return "is locked by another process; wait for it, or use --study PATH"
    if "readonly" in text or "read-only" in text:
        return "is read-only; make it writable, or use --study PATH"
    if "unable to open" in text:
        return "cannot be opened; is its folder there and writable?"
    if "disk i/o" in text:
        return "cannot be read or written (disk I/O error): is the disk full, over a quota, or failing?"
    return f"is damaged ({_cause(error)}); remove it to start afresh, or use --study PATH"


def _cause(error: BaseException) -> str:
    """Return the database's own message. Outer errors quote the statement with its values, which may hold any word."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
