"""Names and tokens that contain others: handles, retry topics, lite topics; pop deliveries."""
