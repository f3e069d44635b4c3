"""Why visual tokens turn at another rate: the shares of norms and of updates."""
