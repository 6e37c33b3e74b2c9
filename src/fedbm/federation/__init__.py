"""Run the same methods and the same round loop between machines, with Flower as transport."""
