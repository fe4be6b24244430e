"""A limit on the time that one item may take."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """Raises TimeoutError in the block after so many seconds of wall time; None never does.

    The alarm interrupts waiting (a network file system, a pipe) and runs in the main thread of a process only, which
    is where pictures are read, also in worker processes; in another thread, or without alarms (Windows), there is no
    limit.
    """
    if seconds is None or not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
