"""The parts of a Transformer. They take numbers and other parts, and never see the settings."""
