"""Nameserver: routes of topics to broker groups, and optionally the group controller.

`routes.py` keeps the tables (pure: no clock, no I/O), `query_route.py` turns them into answers for
official clients, `server.py` is the process, `known_groups.py` stores the names of groups
and the in-sync sets of static ones.

Routes are derived state: nameservers do not share them, every broker registers with all
nameservers, and an empty table is complete after one heartbeat of every broker.

With `controller=true` the nameserver also elects leaders (`controller_host.py`): `controller.py`
and `controller_session.py` run the pure state machines of `ha/core/controller/group_controller.py`,
`controller_service.py` serves them. The groups' states are the source of truth. A single nameserver
keeps them in `groups_file.py`, three together in `register_store.py` over `acceptor_store.py`;
`active.py` selects the active one.
"""
