"""What tests, drills, benchmarks and the quickstart share: a real cluster, a raw wire, checkers."""
