"""`citybus policy`: the scheduling policies of a scheduler that runs."""

from __future__ import annotations

import argparse

from citybus.admin.v1 import admin_pb2 as pb
from citybus.cli.admin import TIMEOUT_S, add_admin_options, operating
from citybus.failure import Failure


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the commands and their options."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    show = commands.add_parser("list", help="list the policies, their parameters, and which one decides")
    show.set_defaults(run=_list)
    choose = commands.add_parser("set", help="let a policy decide from the next step on")
    _add_policy(choose)
    choose.set_defaults(run=_set)
    reload = commands.add_parser("reload", help="read the policy folder anew")
    reload.set_defaults(run=_reload)
    trial = commands.add_parser("dry-run", help="ask a policy beside the one that decides, and say how they differ")
    _add_policy(trial)
    trial.add_argument(
        "--seconds", type=float, default=10.0, metavar="N", help="how long, 0.001 to 600 seconds (default: 10)"
    )
    trial.set_defaults(run=_dry_run)
    for command in (show, choose, reload, trial):
        add_admin_options(command)


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the policy")
    parser.add_argument(
        "parameters", nargs="*", metavar="PARAMETER=VALUE", help="its parameters (default: as 'list' shows them)"
    )


def _parameters(args: argparse.Namespace) -> dict[str, str]:
    pairs = [text.partition("=") for text in args.parameters]
    if wrong := [key for key, sign, _ in pairs if not sign]:
        raise Failure(f"{wrong[0]!r}: expected PARAMETER=VALUE")
    return {key: value for key, _, value in pairs}


def _list(args: argparse.Namespace) -> int:
    with operating(args) as (admin, metadata):
        policies = admin.ListPolicies(pb.ListPoliciesRequest(), timeout=TIMEOUT_S, metadata=metadata).policies
        live = admin.GetPolicy(pb.GetPolicyRequest(), timeout=TIMEOUT_S, metadata=metadata)
    width = max(len(policy.name) for policy in policies)
    for policy in policies:
        decides = policy.name == live.name
        parameters = live.parameters if decides else policy.parameters
        print(f"{'*' if decides else ' '} {policy.name:{width}}  {policy.summary} ({policy.source})")
        for key, value in sorted(parameters.items()):
            print(f"  {'':{width}}    {key}={value}")
    return 0


def _set(args: argparse.Namespace) -> int:
    request = pb.SetPolicyRequest(name=args.name, parameters=_parameters(args))
    with operating(args) as (admin, metadata):
        response = admin.SetPolicy(request, timeout=TIMEOUT_S, metadata=metadata)
    print(f"{args.name} decides now; before: {response.before}")
    return 0


def _reload(args: argparse.Namespace) -> int:
    with operating(args) as (admin, metadata):
        response = admin.ReloadPolicies(pb.ReloadPoliciesRequest(), timeout=TIMEOUT_S * 4, metadata=metadata)
    for fault in response.faults:
        print(f"refused {fault.file}: {fault.reason}")
    if response.loaded or not response.faults:
        print(f"new code: {', '.join(response.loaded) or 'none'}")
    return 1 if response.faults else 0


def _dry_run(args: argparse.Namespace) -> int:
    request = pb.DryRunPolicyRequest(
        name=args.name, parameters=_parameters(args), duration_ms=max(0, round(1000 * args.seconds))
    )
    with operating(args) as (admin, metadata):
        found = admin.DryRunPolicy(request, timeout=args.seconds + TIMEOUT_S, metadata=metadata)
    print(f"another first: {found.other_first} of {found.boarding_steps} steps in which somebody could board")
    print(f"another victim: {found.other_victims} of {found.victims} times")
    for tenant, places in sorted(found.place_change.items()):
        print(f"tenant {tenant!r}: {places:+.2f} places, {found.wait_change_ms[tenant]:+.1f} ms of waiting (predicted)")
    if found.fault:
        print(f"at fault: {found.fault}")
    return 1 if found.fault else 0
