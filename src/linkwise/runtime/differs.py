"""What of a plan is not run as it stands, in words: nothing of it is dropped without a word."""

from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.step import kv_dtype_of
from linkwise.plan.types import Plan


def kept(plan: Plan | None) -> Options:
    """The plan's options that what runs is checked against; the others change nothing here, or are refused by name."""
    return Options(kv_dtype=plan.options.kv_dtype) if plan is not None else Options()


def words(plan: Plan, model: Model, engine: Engine) -> list[str]:
    """A line for each difference between the plan and its run. model: as it runs. engine: ours."""
    said = []
    if plan.convention != engine.name:
        said.append(f"the plan is for {plan.engine}: its layout is run, as this runtime runs it")
    if plan.model.dtype != model.dtype:
        said.append(f"the plan's weights and activations are {plan.model.dtype}, run in {model.dtype}")
    planned, here = kv_dtype_of(model, kept(plan)), model.dtype
    if planned != here:
        said.append(f"the plan keeps KV in {planned}, this runtime in {here}: its KV takes other bytes than planned")
    options = plan.options
    if options.mtp_tokens:
        said.append(f"the plan drafts {options.mtp_tokens} tokens a step, this runtime none")
    if options.lora_count:
        said.append(f"the plan has {options.lora_count} adapters, this runtime runs none")
    exchange = engine.convention.moe_exchange
    if options.moe_exchange not in {None, exchange} and model.moe is not None:
        said.append(f"the plan exchanges experts' rows by {options.moe_exchange}, this runtime by {exchange}")
    return said
