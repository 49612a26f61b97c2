"""Graph networks for molecules."""
