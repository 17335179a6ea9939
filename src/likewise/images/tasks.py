"""The names of the tasks that a head can have."""

RANKED = ("disc", "shared", "intra")
"""Triplets of one class and another, of three classes, and of one class."""
SAMPLE = ("dance", "moco", "instance")
"""Two views of a picture against others: the paper's DaNCE, the same with even weights, and with all other pictures."""
PRETEXT = ("rotation", "cluster")
"""DaNCE's rivals: RotNet and DeepCluster."""

TASKS = (*RANKED, *SAMPLE, *PRETEXT, "none")
"""All of them; "none" is a head without a loss."""
