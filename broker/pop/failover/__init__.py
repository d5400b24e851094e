"""Pop state and changes of leader: role switch, handover file and takeover."""
