"""Files of the fast lane (`scripts/test --fast`): prints their paths for pytest.

The lane holds `FILES` and every test file of `FOLDERS` that is not in `LEFT_OUT`. A file belongs
in it if it needs no cluster, container or Spark, and uses less than 2 s of CPU time.
"""

from pathlib import Path

TESTS = Path(__file__).parent

FILES = ("test_tidy.py", "features/test_table.py")

FOLDERS = (
    *("broker", "cli", "client", "docs", "front", "ha", "ha/core"),
    *("nameserver", "nameserver/core", "proto", "sim", "store"),
)

LEFT_OUT = {
    "broker": """
        ack admin_forwarded admin_groups admin_offsets admin_topics apache_directory broadcast
        cold_records dedup delay_levels extreme_values full_disk_broker lite lite_core lite_ends
        lite_subscribe message_queries meta_log observed offset_recent order_info pop_restart
        pull recall redelivery registration replicas retention_broker revive_codec reviver role
        role_state
        send server telemetry_forward timer_core timer_failover timer_kill timer_service
        timer_stamp timer_trouble transaction_bounds transaction_checks transaction_core
        transaction_records transaction_restart transactions trouble_that_passes
    """,
    "cli": "commands ha proxy store_commands store_retention up up_controller",
    "client": """
        clients examples soak strange_broker_receives strange_broker_sends sync testing
    """,
    "docs": "skips",
    "front": "abuse access_point forward_hold life native_soak native_tls raw streams unary",
    "ha": """
        control controller_link cut disk_full_handover kill log_contract refusals replication
        role_driver scrub scrub_late upkeep
    """,
    "nameserver": "controller controller_routes deaf_connections server three_controllers",
    "nameserver/core": "group_controller_machine",
    "proto": "generated messages",
    "sim": "determinism planted_bugs seeds",
    "store": """
        any_directory cold_reads config_file dispatch doctor doctor_fuzz doctor_matrix doctor_store
        doctor_repair index_file kill large layout lmq_queues lost_pages model queue_building
        queue_ext recovery scan scan_properties small_disk
    """,
}


def missing() -> list[str]:
    """Return entries of `LEFT_OUT` without a file."""
    named = (TESTS / folder / f"test_{name}.py" for folder, name in _left_out())
    return [str(path.relative_to(TESTS)) for path in named if not path.exists()]


def paths() -> list[str]:
    """Return the files of the lane, relative to the repository root."""
    left_out = {TESTS / folder / f"test_{name}.py" for folder, name in _left_out()}
    found = [TESTS / name for name in FILES]
    for folder in FOLDERS:
        found += sorted(path for path in (TESTS / folder).glob("test_*.py") if path not in left_out)
    return [str(path.relative_to(TESTS.parent)) for path in found]


def _left_out() -> list[tuple[str, str]]:
    return [(folder, name) for folder, names in LEFT_OUT.items() for name in names.split()]


if __name__ == "__main__":
    print("\n".join(paths()))
