"""The same methods between machines: Flower carries the messages, the one round loop plays the rounds."""
