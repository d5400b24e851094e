"""Who is connected: registrations, telemetry streams, heartbeats, and what followers pass on."""
