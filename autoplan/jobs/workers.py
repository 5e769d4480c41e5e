"""`Workers`: starts one worker client per Keras backend on first use, and measures this machine's rates with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from autoplan.errors import ConfigError, WorkerError
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind
from autoplan.jobs.runner import TRACED_ON, replaced_once
from autoplan.machine import hardware_profile, local_hardware
from autoplan.sources import keras_backend
from cost_models.config import BACKENDS_WITH_DISTRIBUTION
from cost_models.hardware.cluster import Cluster

PROBE_SECONDS = 600.0


class Workers(dict[str, Client]):
    """Clients by backend. The server of a backend starts when the backend is first used."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, backend: str) -> Client:
        self[backend] = self._stack.enter_context(Client(backend))
        return self[backend]

    def tracer(self) -> Client | None:
        """Return the workers that trace training steps, whatever they train on; None where JAX is not installed."""
        return self[TRACED_ON] if keras_backend.installed(TRACED_ON) else None

    def cluster(self, name: str, backend: str, devices: int | None, show_stage: Callable[[str], None]) -> Cluster:
        """Return the hardware of a name. `local` is measured once for each backend, and its profile is stored.

        ConfigError for simulated devices on a backend that has none.
        """
        if devices is not None and devices > 1 and backend not in BACKENDS_WITH_DISTRIBUTION:
            raise ConfigError(
                f"--devices {devices}: keras.distribution splits a batch over devices on JAX only, and this training "
                f"is on {backend}; leave --devices out, or give --backend jax"
            )
        if not local_hardware.is_local(name):
            return local_hardware.resolve(name, devices=devices)
        profile = hardware_profile.load(backend, devices)
        if profile is None or hardware_profile.measured_under_load(profile):
            show_stage(f"measuring this machine's rates on {backend}{', again' if profile else ', once'}")
            return local_hardware.resolve(name, devices=devices, profile=probe(self[backend], backend, devices))
        return local_hardware.resolve(name, devices=devices, profile=profile)


def probe(client: Client, backend: str, devices: int | None) -> dict[str, Any]:
    """Measure this machine's rates and store them for `local`. WorkerError where they cannot be measured."""
    job = Job(kind=JobKind.PROBE, backend=backend, devices=devices)
    result = replaced_once(lambda: client.run(job, time_limit_seconds=PROBE_SECONDS))
    if result.value is None:
        reason = result.failure.message if result.failure else "no answer"
        raise WorkerError(f"this machine could not be measured: {reason}")
    hardware_profile.save(result.value, backend, devices)
    return result.value
