"""Files of the fast lane (`scripts/test --fast`): prints their paths for pytest.

The lane holds `FILES` and every test file of `FOLDERS` that is not in `LEFT_OUT`. A file belongs
in it if it needs no cluster, container or Spark, and uses less than 2 s of CPU time on a quiet
machine (`scripts/test --costs` prints it). The broker's core is in it at a higher price: sends,
pops, acknowledgements, redelivery, transactions and FIFO.
"""

import re
from pathlib import Path

TESTS = Path(__file__).parent

FILES = ("test_tidy.py", "features/test_table.py")

FOLDERS = (
    *("auth", "broker", "cli", "client", "console", "docs", "front", "ha", "nameserver", "nodes"),
    *("operations", "proto", "remoting", "sim", "store"),
)
#: Files without `test_` and `.py`, in the folder or any below it.

LEFT_OUT = {
    "auth": """
        bearer certificates comparison decision every_path forwarded_credentials own_clients owners
        signature through_nodes tls users
    """,
    "broker": """
        absent_things ack admin_forwarded admin_groups admin_offsets admin_topics
        apache_directory both_protocols bounded_admin bounded_requests broadcast classic
        classic_access classic_admin classic_calls classic_hostile classic_native classic_pop
        classic_replicas classic_replies classic_transactions cold_records dedup delay_levels
        delayed descriptors differential durability extreme_values filters flow full_disk_broker
        gaps incarnations lite lite_core lite_ends lite_random lite_replicas lite_subscribe
        message_queries meta_log meta_machine metrics_token observed offset_recent
        pop_attempts pop_handover pop_model pop_restart proxy proxy_classic proxy_upstreams
        pull quotas quotas_of_storage read_log recall receive registration request_costs replicas
        retention_broker
        revive_codec reviver role role_state send_native send_typed server spans sql
        stand_in telemetry_forward timer_core timer_failover timer_kill timer_list
        timer_service timer_stamp timer_trouble trace transaction_bounds transaction_checks
        transaction_records transaction_restart trouble_that_passes wire_messages
        clock_model clock_steps leaks recalled_numbers incarnation_model after_failover
        altered_settings classic_after_failover traffic
    """,
    "cli": """
        acts_over_many admin_commands auth_commands backup backup_users bench broker_groups commands
        connect consume contexts definitions fork_server ha installation local_cluster mistakes
        narrow_terminal proxy
        redrive refused_start released_store store_commands store_retention top up up_controller
        up_groups up_remoting
    """,
    "client": """
        clients examples mistakes native_messages soak strange_broker_receives
        strange_broker_sends sync testing
    """,
    "console": """
        access_pages acts beside_a_server browser contexts figures flows lag language login
        many_objects node_death operating_pages pages protobuf protocol replication_page uploads
    """,
    "docs": "blocks documented_commands first_hour help install production_guide site skips",
    "front": """
        abuse access_point client_hello faults forward_hold life native_soak native_tls raw
        slow_clients streams suspend unary
    """,
    "ha": """
        control controller_link cut disk_full_handover kill log_contract refusals
        replication role_driver scrub scrub_late static_promotions upkeep
    """,
    "nameserver": """
        controller controller_routes deaf_connections groups_file metrics server
        three_controllers cas_register garbage group_controller_machine
    """,
    "proto": "generated messages",
    "remoting": "bare_json codec shared_port",
    "sim": "determinism planted_bugs seeds",
    "store": """
        any_directory cold_reads config_file dispatch doctor doctor_fuzz doctor_matrix
        doctor_repair doctor_store holdings index index_file index_keys kill large layout
        lmq_queues lost_pages model native_index native_reads native_units no_descriptors
        other_engines power_loss queue_building queue_ends queue_ext queue_recovery recovery
        scan scan_properties small_disk stateful timer_model timer_store unit_repair
    """,
}

_CLUSTER = re.compile(r"^from \S*harness\.cluster import .*\bCluster\b", re.MULTILINE)


def missing() -> list[str]:
    """Return entries of `LEFT_OUT` without a file."""
    return [
        f"{folder}/**/test_{name}.py"
        for folder, names in LEFT_OUT.items()
        for name in names.split()
        if not any((TESTS / folder).rglob(f"test_{name}.py"))
    ]


def with_cluster() -> list[str]:
    """Return files of the lane that start a cluster."""
    return [name for name in paths() if _CLUSTER.search((TESTS.parent / name).read_text())]


def paths() -> list[str]:
    """Return the files of the lane, relative to the repository root."""
    found = [TESTS / name for name in FILES]
    for folder in FOLDERS:
        left_out = LEFT_OUT.get(folder, "").split()
        found += [
            path
            for path in sorted((TESTS / folder).rglob("test_*.py"))
            if path.stem.removeprefix("test_") not in left_out
        ]
    return [str(path.relative_to(TESTS.parent)) for path in found]


if __name__ == "__main__":
    print("\n".join(paths()))
