"""A client port that gRPC shares with another protocol, told apart by the first bytes."""
