"""The paper's theory beside the measurement: what it predicts, and whether its assumptions hold."""
