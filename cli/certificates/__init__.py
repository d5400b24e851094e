"""`cometmq auth dev-ca`: a certificate authority for development."""
