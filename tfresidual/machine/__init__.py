"""What the package asks of the machine: files and locks, memory, the terminal, Keras' backend.

Imports nothing of these itself: `quiet` must be loaded before TensorFlow.
"""
