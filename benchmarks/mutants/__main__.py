"""Mutants of ordinary training scripts: `./dev bench detect --mutants COMMAND`.

    list                        lists operators, and counts programs and mutants
    show PROGRAM OPERATOR       prints the diff of a mutant
    train DIR                   trains each under a plain `luff run`, keeps the runs and scores in DIR
    judge DIR                   judges kept runs with today's rules: each of those to develop on
    judge DIR --apart           all of them, as sums only, by half and by rule, and whether the goals are met
    keep [DIR]                  trains a few small ones and packs their runs into DIR (testdata/mutants)

`--program`, `--operator`, `--develop`, `--generation N` (operators of that generation, and originals) and `--share N`
(one of N, by a hash; `N:K` is the K-th such choice, K below N) select some of them; `-j` sets how many train at once.
An interrupted `train` goes on where it stopped.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _gates import luff_command

from mutants.halves import ORIGINAL, all_mutants, half, kept_apart, mutate, programs
from mutants.judge import judge
from mutants.kept import keep
from mutants.operators import NEWEST, OPERATORS
from mutants.tables import each, halves, sums
from mutants.training import ROOT, SEEDS, interpreter, needed, train


def place(program: str, operator: str) -> int:
    """Returns the place of a mutant in an order that is always the same and follows nothing; originals come first."""
    return int.from_bytes(hashlib.sha256(f"{program}-{operator}".encode()).digest()[:4], "big")


def share_of(text: str) -> tuple[int, int]:
    """Reads `N` or `N:K`: one of N mutants, the K-th choice of them."""
    number, _, choice = text.partition(":")
    share = int(number), int(choice or 0)
    if not 0 <= share[1] < share[0]:
        raise argparse.ArgumentTypeError(f"{text!r}: N of at least 1, and K from 0 to N - 1")
    return share


def chosen_share(program: str, operator: str, share: tuple[int, int]) -> bool:
    """Returns whether a mutant is one of the share; all original programs are."""
    return operator == ORIGINAL or place(program, operator) % share[0] == share[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list", "show", "train", "judge", "keep"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--operator", action="append", default=[])
    parser.add_argument("--share", type=share_of, default=(1, 0), metavar="N[:K]", help="one of N mutants")
    parser.add_argument("--develop", action="store_true", help="only what is in sight")
    parser.add_argument(
        "--generation",
        type=int,
        choices=range(1, NEWEST + 1),
        help=f"only edits of this generation, and originals; {NEWEST} is kept apart",
    )
    parser.add_argument("--apart", action="store_true", help="reads what is kept apart")
    parser.add_argument("--luff", default=luff_command())
    parser.add_argument("-j", type=int, default=2)
    options = parser.parse_intermixed_args()
    if options.command == "show":
        program, operator = options.rest
        pair = mutate(program, ORIGINAL), mutate(program, operator)
        if pair[1] is None:
            sys.exit(f"{operator} does not apply to {program}")
        sys.stdout.writelines(
            difflib.unified_diff(*[(t or "").splitlines(True) for t in pair], program, operator)
        )
        return
    if options.command == "judge":
        rows = judge(options.luff, Path(options.rest[0]), apart=options.apart)
        halves(rows)
        sys.exit(sums(rows) if options.apart else each(rows))
    if options.command == "keep":
        keep(options.luff, Path(options.rest[0]) if options.rest else ROOT / "testdata" / "mutants")
        return

    def wanted(program: str, operator: str) -> bool:
        return (
            chosen_share(program, operator, options.share)
            and (not options.develop or half(program, operator) == "develop")
            and (
                options.generation is None
                or operator == ORIGINAL
                or OPERATORS[operator].generation == options.generation
            )
        )

    made = all_mutants(options.program or programs(), options.operator or [ORIGINAL, *OPERATORS], wanted)
    chosen = [(program, operator) for program, operator, _ in made]
    if options.command == "list":
        for name, operator in OPERATORS.items():
            own = [m[0] for m in chosen if m[1] == name]
            if operator.generation == (options.generation or operator.generation) and (
                options.generation == NEWEST or not kept_apart(name)
            ):
                print(f"{name:38} {len(own):3}  {'/'.join(operator.rules) or 'healthy'}")
        apart = [m for m in chosen if kept_apart(m[1])]
        told = f"{len({o for _, o in apart})} operators, {len(apart)} scripts"
        print(f"kept apart, named with --generation {NEWEST}: {told}")
        print(f"{len(programs())} programs, {len(OPERATORS)} operators, {len(chosen)} scripts")
        return
    root = Path(options.rest[0])
    lacking = {p for p, _ in chosen if interpreter(p) is None}
    for name in sorted({needed(p) for p in lacking}):
        print(f"skipped {sum(needed(p) == name for p, _ in chosen)} scripts: ./dev setup --with {name}")
    chosen = [one for one in chosen if one[0] not in lacking]
    # An interrupted training leaves a sample of all programs.
    chosen.sort(key=lambda one: (one[1] != ORIGINAL, place(*one)))
    wanted = [(p, o, seed) for p, o in chosen for seed in (SEEDS if o == ORIGINAL else SEEDS[:1])]
    with ThreadPoolExecutor(options.j) as pool:
        done = [pool.submit(train, options.luff, root, *one) for one in wanted]
        for one, result in zip(wanted, done, strict=True):
            score = result.result()
            # No name of what is kept apart: nobody should learn there how a program does.
            name = " ".join(map(str, one)) if half(*one[:2]) == "develop" else "(kept apart)"
            print(f"{name:60} {'' if half(*one[:2]) != 'develop' else score}", flush=True)


main()
