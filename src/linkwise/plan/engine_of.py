"""The engine a plan was made for, with the constants of its step that the plan embeds."""

from linkwise.engine import registry
from linkwise.engine.base import Engine
from linkwise.plan.types import Plan


def engine_of(plan: Plan) -> Engine:
    """As it planned: a file without a calibration is timed by the cluster's roofline."""
    return registry.get(plan.engine, plan.engine_version).calibrated(plan.step_calibration)
