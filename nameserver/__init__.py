"""The nameserver: which replicas are there, which of them leads, and which topics they hold.

`routes.py` keeps the tables (pure: no clock, no I/O), `query_route.py` turns them into what official
clients read, `server.py` is the process around them, `known_groups.py` remembers names of groups.

Routes are derived state: nameservers know nothing of each other's, every broker registers with all of them, and one
that starts empty is whole again after one beat of every broker.

With `controller=true` it also decides who leads (`controller_host.py`): `controller.py` and `controller_session.py` run
the pure cores of `ha/core/controller/group_controller.py`, `controller_service.py` serves them; the states are truth and lie in
`groups_file.py` (one nameserver decides) or `register_store.py` over `acceptor_store.py` (three decide together; `active.py`
says which of them does at present).
"""
