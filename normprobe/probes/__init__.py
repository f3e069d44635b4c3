"""What is measured: tensor arithmetic per token, and statistics that merge exactly."""
