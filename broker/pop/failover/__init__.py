"""Pop state across a change of leader: what a follower hands over and what the next leader takes over."""
