"""The broker for classic clients (4.x, mqadmin): remoting requests to the services of the broker.

What only the remoting protocol has is in pure cores: `base/members.py` (groups with client ids and
subscriptions) and `locks.py` (locks of queues). The rest converts requests and answers.
"""
