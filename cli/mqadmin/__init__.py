"""RocketMQ's names of administrative commands, as hidden aliases."""
