"""Attention over a paged KV cache: the interface, the backends, and the contract that each declares.

`contracts` imports no torch. `reference` is the oracle: it runs on any CPU and can stand in for another backend by
declaring that one's contract, so a shape that would crash a GPU kernel fails on a laptop.
"""
