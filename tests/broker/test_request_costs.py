"""No request costs more than a bound, and so much for each of its bytes: every code and RPC, with
numbers, texts, lists and bodies made large (`tests/fuzz/costly.py`).

The suite counts calls, which repeat; `scripts/fuzz costs` measures the processor time and the
memory of more of them, and combines them.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.classic.rights import BY_FIELDS
from cometmq.remoting.admin_codes import Admin
from cometmq.tests.auth.comparison import world
from cometmq.tests.fuzz.costly import GRPC_SIZES, Costs

#: Of the codes for users of type Super those with lists in their bodies.
_OF_TOOLS = (
    Admin.UPDATE_BROKER_CONFIG,
    Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Admin.AUTH_CREATE_ACL,
)


async def test_no_request_of_a_classic_client_costs_more_than_its_bytes_allow(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as made:
        costs = Costs(made, thorough=False)
        for code in (*sorted(BY_FIELDS), *_OF_TOOLS):
            await costs.learn(code)
            for what, change in costs.changes(code):
                request = costs.frame(code, "admin", change)
                cost = await costs.measured(f"request {code}, {what}", request)
                assert not cost.excess(), cost.excess()


async def test_no_call_costs_more_than_its_bytes_allow(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        costs = Costs(made, thorough=False)
        for path in costs.paths:
            for what, raw in costs.requests(path, GRPC_SIZES[0]):
                cost = await costs.measured(f"{path} {what}", costs.call(path, raw, "admin"))
                assert not cost.excess(), cost.excess()
