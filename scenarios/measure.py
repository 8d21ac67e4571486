"""What the scenarios that compare processor time have in common: a server on its own processor, its time, the turns.

Counted is the processor time of the server's process and of its children (clock_getcpuclockid(3), in nanoseconds), user
and kernel. Threads that have ended are included: workers of io_uring come and go.
"""

import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time

SERVER_CPU, LOAD_CPU = "0", "1"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def need_two_processors():
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("server and load need a processor each")


def spent(processes):
    """Nanoseconds of processor time of these processes, by number. One that has gone is an OSError."""
    return sum(time.clock_gettime_ns((~process << 3) | 2) for process in processes)


class Server:
    """A process that listens on `port` of 127.0.0.1; COMMAND may name the port and other places as {port}."""

    def __init__(self, command, cpu=SERVER_CPU, port=None, log=subprocess.DEVNULL, **places):
        self.port = port or free_port()
        words = [word.format(port=self.port, **places) for word in shlex.split(command)]
        self.command = shlex.join(words)
        self.process = subprocess.Popen(["taskset", "-c", cpu, *words], stdout=log, stderr=log)
        self.measured = {self.process.pid}
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                ended = self.process.poll() is not None
                if ended or time.monotonic() > deadline:
                    self.stop()
                    sys.exit(f"{self.command} does not listen on port {self.port}")
                time.sleep(0.05)

    def processes(self):
        """The process and its children."""
        processes = [self.process.pid]
        for process in processes:
            for task in os.listdir(f"/proc/{process}/task"):
                try:
                    with open(f"/proc/{process}/task/{task}/children") as children:
                        processes += [int(child) for child in children.read().split()]
                except (FileNotFoundError, ProcessLookupError):  # of /proc: when opened, and when read
                    pass  # a thread that has ended; its time is that of its process
        return processes

    def nanoseconds(self):
        try:
            processes = self.processes()
            total = spent(processes)
        except OSError:
            processes, total = [], 0
        self.check_alive()  # what a dead one spent can be read until somebody waits for it
        if not self.measured <= set(processes):
            sys.exit(f"a child of {self.command} ended while it was measured, and its time with it")
        self.measured = set(processes)
        return total

    def check_alive(self):
        status = self.process.poll()
        if status is not None:
            how = f"exit code {status}" if status >= 0 else signal.strsignal(-status)
            sys.exit(f"{self.command} ended while it was measured: {how}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class LoadFailed(SystemExit):
    """A load failed, or did not keep its schedule; ends the program with what it said, unless it is caught."""


def run_load(words, timeout=120):
    """Runs a load on its processor to its end; what it printed."""
    done = subprocess.run(["taskset", "-c", LOAD_CPU, *words], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise LoadFailed(f"{shlex.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def in_turns(names, rounds, measure):
    """What `measure` returns for each name in each round; the order turns with each round."""
    names, taken = list(names), {name: [] for name in names}
    for turn in range(rounds):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            taken[name].append(measure(name))
            print(f"{name}: {taken[name][-1]}", file=sys.stderr, flush=True)
    return taken


def shown(values, digits):
    """Median (least-most)."""
    values = list(values)
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
