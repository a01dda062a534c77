"""The building blocks of the model families. Each runs flat batches: `[tokens, width]`, no batch axis.

Blocks are plain objects that hold tensors, not `torch.nn.Module`: a worker never trains, and on a small model on a CPU
the module machinery costs as much as a kernel.
"""
