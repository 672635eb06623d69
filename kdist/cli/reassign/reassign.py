"""`kdist reassign`: plans moves of partitions, carries them out, and takes them back."""

from __future__ import annotations

import click

from kdist.cli.reassign.execute import cancel, execute, refill, verify
from kdist.cli.reassign.plan import plan
from kdist.cli.shared.click_groups import CommandGroup


@click.group(cls=CommandGroup)
def reassign() -> None:
    """Move partitions to other brokers: plan first, then execute, then verify.

    \b
    Examples:
      kdist reassign plan --output plan.json               level the disks
      kdist reassign plan --drain 103 --output plan.json   empty a broker
      kdist reassign execute plan.json                     again to go on after Ctrl-C
      kdist reassign execute plan.json --reverse           put all back
    """


reassign.add_command(plan)
reassign.add_command(execute)
reassign.add_command(verify)
reassign.add_command(cancel)
reassign.add_command(refill)
