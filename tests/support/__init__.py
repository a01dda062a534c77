"""What tests share: processes with a limit, and the daemon as a fixture."""
