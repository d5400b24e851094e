"""What the tests of the simulation share: seeds that must show nothing, and bugs that must be found."""

from .bugs import BUGS, SEEDS, Bug
from .faults import BIASES
from .world import run_seed

#: 300 seeds of CI are spread over so many files, which pytest-xdist runs side by side.
FILES = 6
UNBIASED_EACH = 20
BIASED_EACH = 5  #: of every bias


def assert_no_violation(seed: int, bias: str = "") -> None:
    verdict = run_seed(seed, bias=bias)
    replay = f"scripts/sim --seed {seed}" + (f" --bias {bias}" if bias else "")
    assert not verdict.violation, f"{verdict.violation}\nreplay: {replay}"


def unbiased(file: int) -> range:
    return range(file * UNBIASED_EACH, (file + 1) * UNBIASED_EACH)


def biased(file: int) -> list[tuple[int, str]]:
    seeds = range(file * BIASED_EACH, (file + 1) * BIASED_EACH)
    return [(seed, bias) for bias in sorted(BIASES) for seed in seeds]


def bugs(share: int, shares: int) -> list[Bug]:
    return list(BUGS[share::shares])


def assert_found(bug: Bug) -> None:
    for seed in range(SEEDS):
        if run_seed(seed, bug.parts, bug.bias, **bug.fixed).violation:
            return
    raise AssertionError(f"{SEEDS} seeds did not find the bug: without {bug.name}")
