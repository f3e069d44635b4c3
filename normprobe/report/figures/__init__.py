"""What every figure shares: style, title, and drawing them all."""
