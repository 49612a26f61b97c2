"""The experiment on molecules: data, networks and task.

Imports nothing, because the processes that featurise import it.
"""
